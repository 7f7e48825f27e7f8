"""The format `anthropic`: what blocks become as entries, and laws of its contexts.

`test_formats` has the shared rules.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rules
import rules_anthropic
import strategies
import strategies_anthropic
from blocks_anthropic import (
    CALL,
    PDF,
    PIXEL,
    REDACTED,
    RESULT,
    TEXT,
    THOUGHT,
    assistant,
    user,
)
from laws import examples
from palimpsest import Memory
from palimpsest.context.result import Context
from palimpsest.errors import InvalidEntry
from palimpsest.formats import find_format
from palimpsest.log.entry import File, Image, Opaque, Reasoning, Text
from palimpsest.tokens.counter import encoding
from samples_anthropic import EQUAL
from worlds import attempt

FORMAT = find_format("anthropic")
law = settings(deadline=None, max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])


def test_key_order_of_a_tool_input_is_kept() -> None:
    """The keys of a tool call's input come back in the order in which the model wrote them."""
    again = FORMAT.encode(FORMAT.decode(EQUAL["key order of the input"], "messages"))

    assert list(again[0]["content"][0]["input"]) == ["z", "a", "m"]


def test_content_that_fields_describe_keeps_no_native_item() -> None:
    """Texts, media, calls and results are described by the entries' fields alone, and keep no native item."""
    messages = [
        {"role": "user", "content": "hi"},
        user(TEXT, {"type": "image", "source": PIXEL}, {"type": "document", "source": PDF, "title": "a.pdf"}),
        assistant(TEXT, CALL),
        user({**RESULT, "is_error": True}, TEXT),
    ]

    entries = FORMAT.decode(messages, "messages")

    assert all(entry.native is None for entry in entries)
    assert [entry.kind for entry in entries] == [
        *("message", "message", "message", "tool_call", "tool_result", "message")
    ]
    assert entries[1].content == (
        Text(text="hi"),
        Image(source=f"data:image/png;base64,{PIXEL['data']}"),
        File(data=f"data:application/pdf;base64,{PDF['data']}", filename="a.pdf"),
    )
    assert (entries[3].name, entries[3].call_id, json.loads(entries[3].text)) == ("find", "toolu_1", {"what": "x"})
    assert (entries[4].status, entries[4].role) == ("error", "tool")


def test_thinking_becomes_reasoning_that_keeps_its_signature() -> None:
    """A thinking block becomes a reasoning part with its signature; redacted thinking becomes an opaque part."""
    (entry,) = FORMAT.decode([assistant(THOUGHT, REDACTED, TEXT)], "messages")

    assert entry.content == (
        Reasoning(text="hm", extra={"signature": "c2ln"}),
        Opaque(item=REDACTED),
        Text(text="hi"),
    )


def test_a_tool_role_message_is_refused_with_advice() -> None:
    """A message of role `tool` is refused with the advice to send tool_result blocks of a user message."""
    with pytest.raises(InvalidEntry, match="tool_result blocks of a user message"):
        FORMAT.decode([{"role": "tool", "tool_call_id": "x", "content": "y"}], "messages")


# --- contexts


@law
@given(
    batches=st.lists(strategies_anthropic.batches(), max_size=6),
    budget=st.none() | st.integers(10, 900),
    system=st.sampled_from([None, "be kind", " "]),
)
def test_contexts_are_valid_and_extend_the_last(
    batches: list[list[dict[str, Any]]], budget: int | None, system: str | None
) -> None:
    """After every batch the context is valid, and extends the last context of its epoch block by block.

    It is checked by our rules and by the types of Anthropic's package.
    """
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", max_tokens=budget, counter=strategies.WORDS)
        earlier: Context | None = None
        for batch in batches:
            strategies.taken_in(session, batch)
            ctx = attempt(session, system=system)
            if ctx is None:
                continue
            for request in (ctx.request(), ctx.request(cache_breakpoints=False)):
                assert rules_anthropic.faults(request["messages"]) == []
                assert rules_anthropic.sdk_faults(request) == []
                assert len(list(rules_anthropic.marks(request))) <= rules_anthropic.MARKS
            if earlier is not None and earlier.epoch == ctx.epoch:
                before, after = (rules_anthropic.blocks(one.messages) for one in (earlier, ctx))
                assert rules.is_prefix(before, after)
            earlier = ctx


@law
@given(
    batches=st.lists(strategies_anthropic.batches(), min_size=1, max_size=5),
    budget=st.none() | st.integers(60, 3000),
    system=st.sampled_from([None, "be kind"]),
)
def test_a_request_never_says_more_than_the_context_counts(
    batches: list[list[dict[str, Any]]], budget: int | None, system: str | None
) -> None:
    """The text of a request, fences and wrappers included, costs at most the tokens that the context claims."""
    counter = encoding("o200k_base")
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", max_tokens=budget)
        for batch in batches:
            strategies.taken_in(session, batch)
        ctx = attempt(session, system=system)
        if ctx is None:
            return

        assert sum(map(counter.count, rules_anthropic.texts(ctx.request()))) <= ctx.tokens
        assert budget is None or ctx.tokens <= budget


@law
@given(batches=st.lists(strategies_anthropic.batches(), min_size=1, max_size=5), budget=st.integers(20, 900))
def test_a_plain_counter_sees_every_word_of_the_log(batches: list[list[dict[str, Any]]], budget: int) -> None:
    """A plain function as counter counts every word except Palimpsest's own notes around foreign items."""
    ours = 8  # the longest note that stands for one block
    with Memory.open("memory://") as memory:
        session = memory.session("s", format="anthropic", max_tokens=budget, counter=strategies.WORDS)
        for batch in batches:
            strategies.taken_in(session, batch)
        ctx = attempt(session)
        if ctx is None:
            return

        texts = rules_anthropic.texts(ctx.request())
        assert sum(max(strategies.WORDS.count(text) - ours, 0) for text in texts) <= ctx.tokens <= budget


@law
@given(log=strategies.logs(), budget=st.none() | st.integers(20, 300), request=strategies.requests)
def test_a_log_in_another_format_gives_valid_contexts(
    log: list[Any], budget: int | None, request: dict[str, Any]
) -> None:
    """Entries that came in OpenAI's format or by verbs give valid Anthropic contexts.

    Each context extends the last one of its epoch.
    """
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=budget, counter=strategies.WORDS)
        earlier: Context | None = None
        for operation in log:
            strategies.perform(session, operation)
            ctx = attempt(session, format="anthropic", system=request["system"])
            if ctx is None:
                continue
            assert rules_anthropic.faults(ctx.messages) == []
            assert rules_anthropic.sdk_faults(ctx.request(cache_breakpoints=True)) == []
            if earlier is not None and earlier.epoch == ctx.epoch:
                before, after = (rules_anthropic.blocks(one.messages) for one in (earlier, ctx))
                assert rules.is_prefix(before, after)
            earlier = ctx


@law
@given(log=strategies.logs())
def test_every_human_text_of_another_format_is_sent(log: list[Any]) -> None:
    """Without a budget every text that a human wrote in another format is in the request, unaltered."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", counter=strategies.WORDS)
        for operation in log:
            strategies.perform(session, operation)
        entries = [entry for entry in session.entries() if entry.is_human and entry.expires_at is None]

        request = session.context(format="anthropic").request()
        said = [rules.plain(text) for text in rules_anthropic.texts(request)]

        for entry in entries:
            texts = (
                [entry.content]
                if isinstance(entry.content, str)
                else [part.text for part in entry.content if isinstance(part, Text)]
            )
            assert all(rules.plain(text) in said for text in texts if text.strip())


@law
@given(log=strategies.logs(), budget=st.none() | st.integers(200, 2000))
def test_a_log_in_another_format_costs_at_most_what_is_claimed(log: list[Any], budget: int | None) -> None:
    """The count covers fences, wrapped inputs and new names of items that came in another format."""
    counter = encoding("o200k_base")
    with Memory.open("memory://") as memory:
        session = memory.session("s", max_tokens=budget)
        for operation in log:
            strategies.perform(session, operation)
        ctx = attempt(session, format="anthropic")
        if ctx is not None:
            assert sum(map(counter.count, rules_anthropic.texts(ctx.request()))) <= ctx.tokens
