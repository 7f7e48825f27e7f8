"""Rules of every format: messages come back key for key, and malformed ones are refused with their place."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules_anthropic
import rules_gemini
import rules_openai_responses
import samples_anthropic
import samples_gemini
import samples_openai_chat
import samples_openai_responses
import strategies
import strategies_anthropic
import strategies_gemini
import strategies_openai_responses
from json_places import damaged, places
from laws import examples
from palimpsest import Memory
from palimpsest.context.result import Context
from palimpsest.errors import InvalidEntry
from palimpsest.formats import FormatName, find_format

Messages = list[dict[str, Any]]

law = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Samples(NamedTuple):
    """Samples of one format.

    `equal` come back equal; `malformed` are refused, with the place that the error names; `sound` is one valid message.
    `likely` and `batches` are strategies of JSON that resembles messages, and of valid batches. `faults` returns what
    the API's own rules find wrong with a context. `told` is the format that `add` must be given if the messages alone
    do not identify it.
    """

    equal: Mapping[str, Messages]
    malformed: Mapping[str, tuple[Any, str]]
    sound: dict[str, Any]
    likely: st.SearchStrategy[Any]
    batches: st.SearchStrategy[Messages]
    faults: Callable[[Context], Iterable[str]]
    told: FormatName | None = None


SAID = {"role": "user", "content": "first"}

FORMATS = {
    "openai": Samples(
        samples_openai_chat.EQUAL,
        samples_openai_chat.MALFORMED,
        SAID,
        samples_openai_chat.likely(),
        strategies.provider_batches().map(lambda batch: list(batch.messages)),
        lambda ctx: find_format("openai").validate(ctx.messages),
    ),
    "openai-responses": Samples(
        samples_openai_responses.EQUAL,
        samples_openai_responses.MALFORMED,
        SAID,
        samples_openai_responses.likely(),
        strategies_openai_responses.batches(),
        lambda ctx: rules_openai_responses.faults(ctx.messages),
        "openai-responses",
    ),
    "anthropic": Samples(
        samples_anthropic.EQUAL,
        samples_anthropic.MALFORMED,
        SAID,
        samples_anthropic.likely(),
        strategies_anthropic.batches(),
        lambda ctx: rules_anthropic.faults(ctx.messages),
    ),
    "gemini": Samples(
        samples_gemini.EQUAL,
        samples_gemini.MALFORMED,
        samples_gemini.user("first"),
        samples_gemini.likely(),
        strategies_gemini.batches(),
        lambda ctx: [*rules_gemini.faults(ctx.messages), *rules_gemini.sdk_faults(ctx.request())],
        "gemini",
    ),
}


def each(of: Callable[[Samples], Mapping[str, Any]]) -> list[Any]:
    """Return a pytest parameter for each sample of each format."""
    return [
        pytest.param(format, sample, id=f"{format}: {name}")
        for format, samples in FORMATS.items()
        for name, sample in of(samples).items()
    ]


@pytest.mark.parametrize(("format", "messages"), each(lambda samples: samples.equal))
def test_decoding_and_encoding_gives_the_equal_messages(format: str, messages: Messages) -> None:
    """Decoding and encoding returns the equal messages, with nulls, empty values and unknown keys."""
    adapter, before = find_format(format), copy.deepcopy(messages)

    encoded = adapter.encode(adapter.decode(messages, "messages"))

    assert encoded == messages == before
    assert json.dumps(encoded, sort_keys=True) == json.dumps(before, sort_keys=True)  # 1, 1.0 and True differ here


@pytest.mark.parametrize(("format", "messages"), each(lambda samples: samples.equal))
def test_stored_messages_come_back_equal(format: str, messages: Messages) -> None:
    """Messages that went through a store are encoded equal, and their context breaks no rule."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format, counter=strategies.WORDS)
        strategies.taken_in(session, messages, FORMATS[format].told)

        assert find_format(format).encode(session.entries()) == messages
        assert list(FORMATS[format].faults(session.context())) == []


@pytest.mark.parametrize(("format", "malformed"), each(lambda samples: samples.malformed))
def test_malformed_messages_are_refused_with_their_place(format: str, malformed: tuple[Any, str]) -> None:
    """A malformed message raises InvalidEntry with its place, and nothing of its batch is stored."""
    messages, where = malformed
    with pytest.raises(InvalidEntry) as refusal:
        find_format(format).decode(messages, "messages")
    assert refusal.value.where == where

    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format)
        with pytest.raises(InvalidEntry):
            session.add([FORMATS[format].sound, *(messages if isinstance(messages, list) else [messages])])
        assert session.entries() == []


@pytest.mark.parametrize("format", [*FORMATS, "text"])
def test_half_characters_of_a_call_are_not_sent(format: str) -> None:
    """Half an emoji in the system prompt, tools or tail of a call is replaced: no client could send it."""
    tool = {"name": "look", "description": "a \ud83d", "parameters": {"type": "object", "properties": {"\ude00": {}}}}
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format, counter=strategies.WORDS, max_tokens=4_000, tail_share=0.2)
        session.add_user_message("hi \ud83d")

        context = session.context(system="be \ud83d", tools=[{"type": "function", "function": tool}], tail="now \ude00")

        assert json.dumps(context.request(), ensure_ascii=False).encode()
        assert context.prefix.hash == session.context(system="be \ufffd").prefix.hash


ODD: tuple[Any, ...] = (None, [], {}, 7, True, "", [[]], [{}], [None], "x" * 70, "\ud800")


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:.* is not a valid")  # Google's client of a name that it does not know
@pytest.mark.parametrize("format", FORMATS)
@settings(law, max_examples=examples(600))
@given(data=st.data())
def test_messages_with_an_odd_value_are_refused_or_sent_within_the_rules(format: str, data: st.DataObject) -> None:
    """A message with an odd value anywhere is refused, or gives a context within the API's rules."""
    samples = FORMATS[format]
    messages = data.draw(st.sampled_from([*samples.equal.values()]))
    changed = damaged(messages, data.draw(st.sampled_from([*places(messages)])), data.draw(st.sampled_from(ODD)))
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format, counter=strategies.WORDS)
        try:
            strategies.taken_in(session, changed, samples.told)
        except InvalidEntry:
            return

        assert list(samples.faults(session.context(system="be kind"))) == []


@pytest.mark.sampled
@pytest.mark.parametrize("format", FORMATS)
@settings(law, max_examples=examples(425))
@given(data=st.data())
def test_arbitrary_json_is_refused_or_comes_back_equal(format: str, data: st.DataObject) -> None:
    """Arbitrary JSON raises InvalidEntry or comes back equal and gives valid contexts."""
    messages, adapter = data.draw(FORMATS[format].likely), find_format(format)
    before = copy.deepcopy(messages)
    try:
        entries = adapter.decode(messages, "messages")
    except InvalidEntry:
        return

    encoded = adapter.encode(entries)

    assert encoded == before
    assert json.dumps(encoded, sort_keys=True) == json.dumps(before, sort_keys=True)
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format, counter=strategies.WORDS)
        strategies.taken_in(session, messages, FORMATS[format].told)
        assert adapter.encode(session.entries()) == before
        assert adapter.validate(session.context().messages) == []
        assert list(FORMATS[format].faults(session.context(system="be kind"))) == []
        for other in ("openai", "text"):
            session.context(format=other)


@pytest.mark.sampled
@pytest.mark.parametrize("format", FORMATS)
@settings(law, max_examples=examples(60))
@given(data=st.data())
def test_batches_with_repeated_ids_come_back_equal(format: str, data: st.DataObject) -> None:
    """Batches added one after the other, with ids repeated between them, come back equal."""
    batches = data.draw(st.lists(FORMATS[format].batches, max_size=4))
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format)
        for batch in batches:
            strategies.taken_in(session, batch, FORMATS[format].told)

        assert find_format(format).encode(session.entries()) == [message for batch in batches for message in batch]
