"""`remember(client, session)`: a vendor's client whose requests are made from a session's log."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
import threading
import weakref
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pytest

import rules_anthropic
from openai_server import fails
from palimpsest import AsyncMemory, ConfigError, InvalidEntry, Memory, PalimpsestError
from palimpsest.errors import PalimpsestWarning
from palimpsest.integrations import anthropic, google, openai
from palimpsest.sessions.sync import Session
from processes import at_once
from sdks import load
from streams import STREAMED, Streamed, StreamServer, answers, plays
from vendors import VENDORS

CHAT_TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}
TOOL = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}, "strict": None}


class Way(NamedTuple):
    """One way to ask a model through a client.

    `opened` makes the client, `remember` wraps it, `ask` and `stream` call it. `says` makes a new question and `result`
    is a tool result, both in the vendor's shape; `sent` is the key of the request's messages.
    """

    format: str
    opened: Callable[[StreamServer, bool], Any]
    remember: Callable[..., Any]
    ask: Callable[..., Any]
    stream: Callable[..., Any]
    says: Callable[[str], Any]
    result: Any
    sent: str


def _openai(server: StreamServer, asynchronous: bool = False) -> Any:
    return _client(load("openai"), "OpenAI", server.url, asynchronous)


def _anthropic(server: StreamServer, asynchronous: bool = False) -> Any:
    return _client(load("anthropic"), "Anthropic", server.root, asynchronous)


def _client(vendor: Any, name: str, url: str, asynchronous: bool) -> Any:
    face = "Async" if asynchronous else ""
    http = getattr(vendor, f"Default{face}HttpxClient")(verify=False)  # certificates take longer than all the rest
    return getattr(vendor, f"{face}{name}")(base_url=url, api_key="none", max_retries=0, http_client=http)


def _google(server: StreamServer, asynchronous: bool = False) -> Any:
    client = load("google.genai").Client(api_key="none", http_options={"base_url": server.root})
    return client.aio if asynchronous else client


def _said(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _asks(path: str, **options: Any) -> Callable[..., Any]:
    def ask(client: Any, new: Any, **more: Any) -> Any:
        given = {("input" if "responses" in path else "contents" if "models" in path else "messages"): new}
        return attrgetter(path)(client)(**{**options, **given, **more})

    return ask


WAYS = {
    "chat": Way(
        "openai",
        _openai,
        openai.remember,
        _asks("chat.completions.create", model="gpt-4o", tools=[CHAT_TOOL]),
        _asks("chat.completions.create", model="gpt-4o", tools=[CHAT_TOOL], stream=True),
        _said,
        [{"role": "tool", "tool_call_id": "call_1", "content": "B 12"}],
        "messages",
    ),
    "responses": Way(
        "openai-responses",
        _openai,
        openai.remember,
        _asks("responses.create", model="gpt-5", tools=[TOOL]),
        _asks("responses.create", model="gpt-5", tools=[TOOL], stream=True),
        lambda text: text,
        [{"type": "function_call_output", "call_id": "call_1", "output": "B 12"}],
        "input",
    ),
    "anthropic": Way(
        "anthropic",
        _anthropic,
        anthropic.remember,
        _asks("messages.create", model="claude-sonnet-4-6", max_tokens=900),
        _asks("messages.create", model="claude-sonnet-4-6", max_tokens=900, stream=True),
        _said,
        [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "B 12"}],
        "messages",
    ),
    "gemini": Way(
        "gemini",
        _google,
        google.remember,
        _asks("models.generate_content", model="gemini-2.5-flash"),
        _asks("models.generate_content_stream", model="gemini-2.5-flash"),
        lambda text: text,
        [{"function_response": {"name": "find", "response": {"gate": "B 12"}}}],
        "contents",
    ),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    """Yield each way to ask: OpenAI's chat and responses, Anthropic, Gemini."""
    return WAYS[request.param]


@pytest.fixture
def streamed(way: Way) -> Streamed:
    """Return the answers that the vendor of `way` gives, whole and streamed."""
    return STREAMED[way.format]


@pytest.fixture
def session() -> Iterator[Session]:
    """Yield a session without a model or budget."""
    with Memory.open("memory://") as memory:
        yield memory.session("s")


def log(session: Session) -> list[tuple[str, str]]:
    """Return kind and role of each entry of the log."""
    return [(one.kind, one.role) for one in session.entries()]


ONCE = [("message", "user"), ("message", "assistant"), ("tool_call", "assistant")]


def spoken(session: Session) -> list[tuple[str, str]]:
    """Return kind and role of each entry, without the assistant's messages that have no text (reasoning alone)."""
    return [
        (one.kind, one.role) for one in session.entries() if one.text or one.kind != "message" or one.role == "user"
    ]


def read(stream: Any) -> list[Any]:
    """Return all events of a stream."""
    return list(stream)


# --- one call after the other


def test_the_second_request_holds_the_first(way: Way, streamed: Streamed, session: Session) -> None:
    """A call is given only what is new, sends the whole conversation, and returns the vendor's own response.

    A response with the same id counts once in the usage.
    """
    with StreamServer(answers(streamed.whole), answers(streamed.whole)) as server, way.opened(server, False) as client:
        remembering = way.remember(client, session)

        first = way.ask(remembering, way.says("Which gate?"))
        way.ask(remembering, way.result)

        assert type(first).__module__.partition(".")[0] in ("openai", "anthropic", "google")
        first_sent, second_sent = (asked.body[way.sent] for asked in server.asked)
        assert "Which gate?" in json.dumps(first_sent)
        assert "B 12" in json.dumps(second_sent)
        assert len(second_sent) > len(first_sent)
        assert json.dumps(second_sent[:1]).replace(" ", "")[:30] == json.dumps(first_sent[:1]).replace(" ", "")[:30]
        assert VENDORS[way.format]().faults(session.context(format=way.format).messages) == []
    assert spoken(session) == [*ONCE, ("tool_result", "tool"), *ONCE[1:]]
    usage = session.stats().usage
    assert (usage.input_tokens, usage.output_tokens, usage.calls) == (40, 9, 1)  # the usage of one response counts once


def test_a_stream_passes_its_events_on_and_is_stored(way: Way, streamed: Streamed, session: Session) -> None:
    """A stream passes on exactly the client's events, and its answer is stored at the end."""
    with StreamServer(plays(streamed.events), plays(streamed.events)) as server, way.opened(server, False) as client:
        plain = read(way.stream(client, way.says("Which gate?")))

        remembered = read(way.stream(way.remember(client, session), way.says("Which gate?")))

        assert [repr(one) for one in remembered] == [
            repr(one) for one in plain if getattr(one, "choices", None) != [] or way.format != "openai"
        ]
    assert spoken(session) == ONCE
    assert not session.in_turn


def test_an_unfinished_stream_keeps_its_text_marked(way: Way, streamed: Streamed, session: Session) -> None:
    """A stream that is abandoned, closed or overtaken by the next call stores the text so far, marked `cut_off`.

    The turn ends.
    """
    whole = [plays(streamed.events)] * 4
    with StreamServer(*whole) as server, way.opened(server, False) as client:
        remembering = way.remember(client, session)
        for event in way.stream(remembering, way.says("one")):
            if " look" in repr(event):
                break
        abandoned = way.stream(remembering, way.says("two"))
        for event in abandoned:
            if " look" in repr(event):
                break
        closed = way.stream(remembering, way.says("three"))
        for event in closed:
            if " look" in repr(event):
                break
        closed.close()

        assert not session.in_turn

    texts = [(one.text, (one.metadata or {}).get("cut_off")) for one in session.entries()]
    part = ("I look", True)
    assert texts == [("one", None), part, ("two", None), part, ("three", None), part]


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "chat": ({"odd": 1}, "is not an event that is known"),
    "responses": ({"odd": 1}, "is not an event that is known"),
    "anthropic": (
        {"type": "content_block_delta", "index": 77, "delta": {"type": "text_delta", "text": "z"}},
        "is not a block that has begun",
    ),
    "gemini": (
        {"candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "willContinue": True}}]}}]},
        "arguments in pieces",
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_an_unknown_event_reaches_the_caller_with_one_warning(name: str, session: Session) -> None:
    """An event that cannot be stored still reaches the caller; the rest is stored, and one warning is issued."""
    way, (odd, told) = WAYS[name], ODD[name]
    streamed = STREAMED[way.format]
    events = [*streamed.events[:2], odd, odd, *streamed.events[2:]]
    with StreamServer(plays(events), plays(streamed.events)) as server, way.opened(server, False) as client:
        asks = way.remember(client, session)
        with pytest.warns(PalimpsestWarning, match=told) as warned:
            received = read(way.stream(asks, way.says("Which gate?")))
        entries = spoken(session)
        expected = read(way.stream(asks, way.says("Which gate?")))

    assert len(received) == len(expected) + 2
    assert entries == ONCE
    assert len(warned) == 1


def test_events_read_after_the_next_call_are_not_stored(way: Way, streamed: Streamed, session: Session) -> None:
    """A call ends an answer that is still being streamed: what came before is stored, the rest only reaches the caller.

    One warning says so.
    """
    played = plays(streamed.events), answers(streamed.whole), plays(streamed.events)
    with StreamServer(*played) as server, way.opened(server, False) as client:
        asks = way.remember(client, session)
        stream = iter(way.stream(asks, way.says("Which gate?")))
        begun = [next(stream) for _ in range(2)]
        way.ask(asks, way.says("And when?"))
        with pytest.warns(PalimpsestWarning, match="the next call has ended it") as warned:
            rest = read(stream)
        expected = read(way.stream(asks, way.says("Which gate?")))

    assert len([*begun, *rest]) == len(expected)
    assert len(warned) == 1
    assert [entry.text for entry in session.entries() if entry.role == "user"] == [
        "Which gate?",
        "And when?",
        "Which gate?",
    ]


def test_a_warning_about_an_event_is_redacted() -> None:
    """A warning about an event that cannot be stored holds nothing that the privacy policy finds."""
    events = STREAMED["anthropic"].events
    odd = {**ODD["anthropic"][0], "index": 4111111111111111}
    with Memory.open("memory://", privacy="default") as memory, StreamServer(plays([*events[:2], odd])) as server:
        chat = memory.session("s")
        with (
            _anthropic(server) as client,
            pytest.warns(PalimpsestWarning, match="is not a block that has begun") as warned,
        ):
            read(WAYS["anthropic"].stream(anthropic.remember(client, chat), _said("Hi")))

    assert "11111111" not in str([str(one.message) for one in warned])


def test_a_chunk_without_choices_still_gives_its_usage(session: Session) -> None:
    """Usage in a chunk without `choices`, as some services send it, is recorded."""
    streamed = STREAMED["openai"]
    *chunks, last = streamed.events
    usage_only = {key: value for key, value in last.items() if key != "choices"}
    with StreamServer(plays([*chunks, usage_only])) as server, _openai(server) as client:
        read(WAYS["chat"].stream(openai.remember(client, session), _said("Which gate?")))

    assert spoken(session) == ONCE
    assert session.stats().usage.output_tokens == 9


def test_an_interrupted_stream_can_be_dropped(way: Way, streamed: Streamed, session: Session) -> None:
    """With `cut_off="drop"` nothing of an interrupted answer is stored.

    The same question can be asked again and is stored once.
    """
    server = StreamServer(plays(streamed.events[:-4], cut=True), answers(streamed.whole))
    with server, way.opened(server, False) as client:
        remembering = way.remember(client, session, cut_off="drop")
        with pytest.raises(Exception, match=r"(?i)incomplete|closed|peer|connection|payload"):
            read(way.stream(remembering, way.says("Which gate?")))
        assert log(session) == [("message", "user")]

        way.ask(remembering, way.says("Which gate?"))

    assert spoken(session) == ONCE


LIMITS: dict[str, Callable[[object], dict[str, Any]]] = {
    "openai": lambda value: {"max_completion_tokens": value},
    "openai-responses": lambda value: {"max_output_tokens": value},
    "anthropic": lambda value: {"max_tokens": value},
    "gemini": lambda value: {"config": {"max_output_tokens": value}},
}
"""The option that limits the tokens of an answer, in each format."""


def test_a_call_with_nonsense_arguments_is_refused(way: Way, session: Session) -> None:
    """Messages, tools or limits of a wrong type are refused by name; nothing is sent and nothing stored."""
    many = range(10**9)
    odd_calls = [LIMITS[way.format](value) for value in ("900", many, 1.5, True)]
    odd_calls.append({"config": {"tools": many}} if way.format == "gemini" else {"tools": many})
    odd_calls += [{"stream": value} for value in (np.array([1, 2]), "yes") if way.format != "gemini"]
    with StreamServer() as server, way.opened(server, False) as client:
        remembering = way.remember(client, session)

        for odd in (many, bytearray(b"hello"), memoryview(b"hello")):
            with pytest.raises(PalimpsestError, match=way.sent):
                way.ask(remembering, odd)
        for more in odd_calls:
            with pytest.raises(ConfigError, match=r"max_\w*tokens|tools|stream"):
                way.ask(remembering, way.says("Which gate?"), **more)

        assert not server.asked
    assert session.entries() == []
    assert not session.in_turn


HELPERS = {
    "chat": ("chat.completions.stream", {"model": "gpt-4o"}, "get_final_completion"),
    "responses": ("responses.stream", {"model": "gpt-5"}, "get_final_response"),
    "anthropic": ("messages.stream", {"model": "claude-sonnet-4-6", "max_tokens": 900}, "get_final_message"),
}


@pytest.mark.parametrize("name", HELPERS)
@pytest.mark.parametrize("reads", ["events", "final", "nothing"])
def test_stream_helpers_remember(name: str, reads: str, session: Session) -> None:
    """A client's `.stream()` helper gives its events or final answer, and what has been read is stored."""
    way, (path, options, final) = WAYS[name], HELPERS[name]
    streamed = STREAMED[way.format]
    with StreamServer(plays(streamed.events)) as server, way.opened(server, False) as client:
        remembering = way.remember(client, session)

        with _asks(path, **options)(remembering, way.says("Which gate?")) as stream:
            if reads == "events":
                assert len(read(stream)) >= len(streamed.events) - 1
            if reads == "final":
                assert "I look it up." in repr(getattr(stream, final)())

    assert spoken(session) == (ONCE[:1] if reads == "nothing" else ONCE)
    assert not session.in_turn


def test_anthropics_text_stream_is_stored(session: Session) -> None:
    """Reading only `text_stream` of Anthropic's helper stores the whole answer."""
    streamed = STREAMED["anthropic"]
    with StreamServer(plays(streamed.events)) as server, _anthropic(server) as client:
        messages = anthropic.remember(client, session).messages

        with messages.stream(model="claude-sonnet-4-6", max_tokens=900, messages=_said("Which gate?")) as stream:
            assert "".join(stream.text_stream) == streamed.text
            assert stream.get_final_message().stop_reason == "tool_use"

    assert spoken(session) == ONCE


JSON_ANSWER = '{"gate": "B 12"}'
PARSED: dict[str, tuple[dict[str, Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "chat": (
        {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": JSON_ANSWER}}]},
        lambda client: client.chat.completions.parse(
            model="gpt-4o", messages=_said("Which gate?"), response_format=_gate()
        ),
        lambda response: response.choices[0].message.parsed,
    ),
    "responses": (
        {
            "output": [
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": JSON_ANSWER, "annotations": []}],
                }
            ]
        },
        lambda client: client.responses.parse(model="gpt-5", input="Which gate?", text_format=_gate()),
        lambda response: response.output_parsed,
    ),
    "anthropic": (
        {"content": [{"type": "text", "text": JSON_ANSWER}], "stop_reason": "end_turn"},
        lambda client: client.messages.parse(
            model="claude-sonnet-4-6", max_tokens=900, messages=_said("Which gate?"), output_format=_gate()
        ),
        lambda response: response.parsed_output,
    ),
}


def _gate() -> Any:
    return load("pydantic").create_model("Gate", gate=str)


@pytest.mark.parametrize("name", PARSED)
def test_parsed_answers_are_remembered(name: str, session: Session) -> None:
    """`.parse()` returns its object, and the answer is stored as text."""
    way, (said, parse, parsed) = WAYS[name], PARSED[name]
    with StreamServer(answers(STREAMED[way.format].whole | said)) as server, way.opened(server, False) as client:
        response = parse(way.remember(client, session))

        assert parsed(response).gate == "B 12"
    assert [(one.role, one.text) for one in session.entries()] == [("user", "Which gate?"), ("assistant", JSON_ANSWER)]
    assert "B 12" in json.dumps(session.context(format=way.format).messages)


def test_an_answer_that_fails_to_parse_still_counts_its_usage(session: Session) -> None:
    """An answer that OpenAI's client refuses to parse raises its error and is not stored, but its usage is recorded."""
    whole = STREAMED["openai"].whole | PARSED["chat"][0]
    whole["choices"] = [{**whole["choices"][0], "finish_reason": "length"}]
    too_long = pytest.raises(load("openai").LengthFinishReasonError)
    with StreamServer(answers(whole)) as server, _openai(server) as client, too_long:
        PARSED["chat"][1](openai.remember(client, session))

    assert [(one.role, one.text) for one in session.entries()] == [("user", "Which gate?")]
    assert session.stats().usage.total_output == 9


@pytest.mark.slow
def test_anthropics_beta_messages_remember(session: Session) -> None:
    """`beta.messages` of Anthropic's client remembers as `messages` does."""
    streamed = STREAMED["anthropic"]
    options: dict[str, Any] = {"model": "claude-sonnet-4-6", "max_tokens": 900}
    with StreamServer(answers(streamed.whole), plays(streamed.events)) as server, _anthropic(server) as client:
        messages = anthropic.remember(client, session).beta.messages

        messages.create(**options, messages=_said("Which gate?"))
        with messages.stream(**options, messages=WAYS["anthropic"].result) as stream:
            assert "".join(stream.text_stream) == streamed.text

    assert spoken(session) == [*ONCE, ("tool_result", "tool"), *ONCE[1:]]


@pytest.mark.sampled
def test_asynchronous_clients_remember(way: Way, streamed: Streamed) -> None:
    """An asynchronous client remembers whole answers, streamed ones and abandoned ones."""

    async def run(server: StreamServer) -> list[tuple[str, str, Any]]:
        async with AsyncMemory.open("memory://") as memory, way.opened(server, True) as client:
            session = memory.session("s")
            remembering = way.remember(client, session)
            await way.ask(remembering, way.says("Which gate?"))
            async for _ in await way.stream(remembering, way.result):
                pass
            stream = await way.stream(remembering, way.says("And then?"))
            async for _ in stream:
                break
            del stream
            gc.collect()
            stream = await way.stream(remembering, way.says("And then?"))
            await stream.close()
            assert not session.in_turn
            return [(one.kind, one.role, one.text) for one in await session.entries() if one.text]

    plays_all = [answers(streamed.whole), *[plays(streamed.events)] * 3]
    with StreamServer(*plays_all) as server:
        entries = asyncio.run(run(server))

    assert [entry[:2] for entry in entries] == [*ONCE, ("tool_result", "tool"), *ONCE[1:], ("message", "user")]


@pytest.mark.parametrize("name", HELPERS)
def test_asynchronous_helpers_remember(name: str) -> None:
    """The `.stream()` helpers of asynchronous clients remember."""
    way, (path, options, final) = WAYS[name], HELPERS[name]
    streamed = STREAMED[way.format]

    async def run(server: StreamServer) -> list[tuple[str, str]]:
        async with AsyncMemory.open("memory://") as memory, way.opened(server, True) as client:
            session = memory.session("s")
            async with _asks(path, **options)(way.remember(client, session), way.says("Which gate?")) as stream:
                assert "I look it up." in repr(await getattr(stream, final)())
            return [(one.kind, one.role) for one in await session.entries() if one.text]

    with StreamServer(plays(streamed.events)) as server:
        assert asyncio.run(run(server)) == ONCE


# --- errors


@pytest.mark.parametrize("name", HELPERS)
def test_a_failed_helper_request_ends_the_turn(name: str, session: Session) -> None:
    """If a helper's request fails, only the question is stored and the turn ends, so that the next call works."""
    way, (path, options, final) = WAYS[name], HELPERS[name]
    streamed = STREAMED[way.format]
    ask = _asks(path, **options)
    with StreamServer(fails(400), plays(streamed.events)) as server, way.opened(server, False) as client:
        remembering = way.remember(client, session)
        with pytest.raises(Exception, match=r"400|not today"):
            ask(remembering, way.says("Which gate?")).__enter__()
        assert not session.in_turn

        with ask(remembering, way.says("Which gate?")) as stream:
            getattr(stream, final)()

    assert spoken(session) == ONCE


def test_results_given_again_are_stored_once(way: Way, streamed: Streamed, session: Session) -> None:
    """Tool results of a request that failed are stored once when the call is repeated."""
    with StreamServer(answers(streamed.whole), fails(400), answers(streamed.whole)) as server:
        client = way.remember(way.opened(server, False), session)
        way.ask(client, way.says("Which gate?"))
        with pytest.raises(Exception, match=r"400|not today"):
            way.ask(client, way.result)

        way.ask(client, way.result)
        client.close()

    assert spoken(session) == [*ONCE, ("tool_result", "tool"), *ONCE[1:]]


def twice_called(name: str) -> tuple[dict[str, Any], Any]:
    """Return an answer that makes two calls in parallel, and the result of the second call."""
    whole, (result,) = copy.deepcopy(STREAMED[WAYS[name].format].whole), copy.deepcopy(WAYS[name].result)
    if name == "gemini":  # Gemini's calls need no ids: their names say whose result it is
        parts = whole["candidates"][0]["content"]["parts"]
        parts.append({"functionCall": {"name": "second", "args": {}}})
        return whole, {"function_response": {**result["function_response"], "name": "second"}}
    calls: list[Any] = {
        "chat": lambda: whole["choices"][0]["message"]["tool_calls"],
        "responses": lambda: whole["output"],
        "anthropic": lambda: whole["content"],
    }[name]()
    key = {"chat": "id", "responses": "call_id", "anthropic": "id"}[name]
    calls.append({**calls[-1], "id": "fc_2", key: "second"})
    return whole, {**result, next(one for one in result if one.endswith("_id")): "second"}


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", WAYS)
def test_all_results_of_parallel_calls_are_needed_before_asking(name: str, again: bool, session: Session) -> None:
    """A call with only some results of parallel calls is refused, naming the missing ones, and sends nothing.

    Otherwise a model would be asked without a result that the caller has given. Results given again are stored once.
    """
    way = WAYS[name]
    whole, second = twice_called(name)
    with StreamServer(answers(whole), answers(STREAMED[way.format].whole)) as server, way.opened(server, False) as one:
        client = way.remember(one, session)
        way.ask(client, way.says("Which gate?"))

        with pytest.raises(ConfigError, match=r"the results of only some calls.*'second'"):
            way.ask(client, way.result)
        assert len(server.asked) == 1
        assert not session.in_turn
        way.ask(client, [*way.result, second] if again else [second])

        assert json.dumps(server.asked[1].body[way.sent]).count("B 12") == 2
    assert [entry.kind for entry in session.entries()].count("tool_result") == 2


def test_a_failed_request_keeps_the_question_once(way: Way, streamed: Streamed, session: Session) -> None:
    """A provider's error reaches the caller, and the question is stored once however often it is repeated."""
    with StreamServer(fails(400), fails(400), answers(streamed.whole)) as server, way.opened(server, False) as client:
        for ask in (way.ask, way.ask):
            with pytest.raises(Exception, match=r"400|not today"):
                ask(way.remember(client, session), way.says("Which gate?"))
            assert log(session) == [("message", "user")]
            assert not session.in_turn

        way.ask(way.remember(client, session), way.says("Which gate?"))

    assert spoken(session) == ONCE


def test_a_question_repeated_after_its_answer_is_stored_again(way: Way, streamed: Streamed, session: Session) -> None:
    """The same question after an answer is a new question."""
    with StreamServer(answers(streamed.whole), answers(streamed.whole)) as server, way.opened(server, False) as client:
        remembering = way.remember(client, session)

        way.ask(remembering, way.says("Which gate?"))
        way.ask(remembering, way.says("Which gate?"))

    assert [one.role for one in session.entries() if one.text == "Which gate?"] == ["user", "user"]


HISTORY = {
    "chat": [*_said("Hi"), {"role": "assistant", "content": "Hello"}, *_said("Which gate?")],
    "responses": [*_said("Hi"), {"type": "function_call", "call_id": "c", "name": "find", "arguments": "{}"}],
    "anthropic": [*_said("Hi"), {"role": "assistant", "content": "Hello"}, *_said("Which gate?")],
    "gemini": [
        {"role": "user", "parts": [{"text": "Hi"}]},
        {"role": "model", "parts": [{"text": "Hello"}]},
        {"role": "user", "parts": [{"text": "Which gate?"}]},
    ],
}


@pytest.mark.parametrize("name", HISTORY)
def test_a_whole_history_is_refused(name: str, session: Session) -> None:
    """New messages that include an answer of the model are refused, naming its place; nothing is sent or stored."""
    way = WAYS[name]
    with StreamServer() as server, way.opened(server, False) as client:
        with pytest.raises(InvalidEntry, match=r"\[1\].*give only new messages"):
            way.ask(way.remember(client, session), HISTORY[name])

        assert server.asked == []
    assert session.entries() == []


SYSTEM = {"role": "system", "content": "Be kind."}
EMPTY: dict[str, tuple[Any, str]] = {
    "chat": ([SYSTEM, {"role": "user", "content": ""}], "messages[1].content"),
    "responses": (
        [SYSTEM, {"role": "user", "content": "Hi"}, {"role": "developer", "content": []}],
        "input[2].content",
    ),
    "anthropic": ([{"role": "user", "content": [{"type": "text", "text": " "}]}], "messages[0].content"),
    "gemini": ("", "contents[0].parts"),
}
"""New messages of which one has no content, and the place that the error names."""


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_message_is_refused_before_anything_is_sent(name: str, session: Session) -> None:
    """A message without content is refused, naming its place in the arguments; nothing is sent or stored."""
    way = WAYS[name]
    new, place = EMPTY[name]
    with StreamServer() as server, way.opened(server, False) as client:
        with pytest.raises(InvalidEntry, match="says nothing: give text") as caught:
            way.ask(way.remember(client, session), new)

        assert server.asked == []
    assert caught.value.where == place
    assert (session.entries(), session.in_turn) == ([], False)


def test_a_call_without_new_messages_asks_about_the_log(session: Session) -> None:
    """A call with an empty list asks about what was added to the session by hand."""
    with StreamServer(answers(STREAMED["openai"].whole)) as server, _openai(server) as client:
        session.add_user_message("Which gate?")

        openai.remember(client, session).chat.completions.create(model="gpt-4o", messages=[])

        assert server.asked[0].body["messages"] == _said("Which gate?")


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "several answers": ("chat", {"n": 2}, "n: 2"),
    "the provider's memory": ("responses", {"previous_response_id": "resp_1"}, "previous_response_id.*leave it out"),
    "a conversation there": ("responses", {"conversation": "conv_1"}, "conversation"),
    "an answer elsewhere": ("responses", {"background": True}, "background.*the answer is added"),
    "a function as a tool": (
        "gemini",
        {"config": {"tools": [print]}},
        r"config.tools\[0\].*run yours when the model calls it",
    ),
    "no tools": ("chat", {"tools": "find"}, r"tools: .*allowed: a list of declarations of tools"),
    "one tool": ("anthropic", {"tools": {"name": "find"}}, r"tools: .*allowed: a list of declarations of tools"),
    "a number of tools": (
        "gemini",
        {"config": {"tools": 3}},
        r"config.tools: .*allowed: a list of declarations of tools",
    ),
    "a summary there": ("anthropic", {"compaction": {"type": "summarize"}}, "compaction.*session.compact"),
    "several candidates": ("gemini", {"config": {"candidate_count": 2}}, "config.candidate_count"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_bypass_the_log_are_refused(case: str, session: Session) -> None:
    """An option that makes the provider keep or run the conversation is refused by name; nothing is sent or stored."""
    name, options, told = REFUSED[case]
    with StreamServer() as server, WAYS[name].opened(server, False) as client:
        with pytest.raises(ConfigError, match=told):
            WAYS[name].ask(WAYS[name].remember(client, session), WAYS[name].says("Hi"), **options)

        assert server.asked == []
    assert session.entries() == []


AROUND = {
    "chat": [
        *("completions", "realtime", "with_raw_response", "chat.with_raw_response", "responses.connect", "post"),
        *("beta.agents", "beta.threads"),
    ],
    "anthropic": [
        *("beta.messages.tool_runner", "messages.with_raw_response", "with_streaming_response"),
        *("beta.agents", "beta.deployments", "beta.sessions"),
    ],
    "gemini": ["chats", "live", "aio.chats", "aio.models.generate_content"],
}


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in AROUND.items() for path in paths])
def test_methods_that_bypass_the_log_are_refused(name: str, path: str, session: Session) -> None:
    """A client's method that would ask a model without the log raises ConfigError when it is used."""
    with StreamServer() as server, WAYS[name].opened(server, False) as client:
        remembering = WAYS[name].remember(client, session)

        with pytest.raises(ConfigError, match=r"allowed: client.* without the log|AsyncSession"):
            attrgetter(path)(remembering)


def test_the_rest_of_a_client_works_as_before(session: Session) -> None:
    """Files, settings, context managers and copies work as on the bare client; a copy remembers too."""
    kind = load("openai").OpenAI
    with StreamServer(answers(STREAMED["openai"].whole)) as server, openai.remember(_openai(server), session) as client:
        assert isinstance(client, kind)
        assert isinstance(client.files, type(_openai(server).files))
        assert client.base_url == _openai(server).base_url
        client.timeout = 7
        assert client.with_options(timeout=3).timeout == 3
        assert client.timeout == 7

        client.with_options(timeout=3).chat.completions.create(model="gpt-4o", messages=_said("Hi"))

    assert spoken(session) == ONCE


def test_a_remembering_client_can_be_copied_and_weakly_referenced(
    way: Way, streamed: Streamed, session: Session
) -> None:
    """A remembering client can be weakly referenced and copied; its copy remembers in the same session."""
    with StreamServer(answers(streamed.whole)) as server, way.opened(server, False) as client:
        remembering = way.remember(client, session)

        again = copy.copy(remembering)
        way.ask(again, way.says("Which gate?"))

        assert weakref.ref(remembering)() is remembering
        assert isinstance(again, type(client))
    assert spoken(session) == ONCE


def test_client_and_session_must_fit(session: Session) -> None:
    """`remember` refuses a wrong client, no session, and an asynchronous client beside a synchronous session."""
    with StreamServer() as server:
        for client in (object(), _anthropic(server)):
            with pytest.raises(ConfigError, match="a client of the package openai"):
                openai.remember(client, session)
        with pytest.raises(ConfigError, match=r"memory\.session"):
            openai.remember(_openai(server), "s")  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="an AsyncSession, of an AsyncMemory, beside this client"):
            openai.remember(_openai(server, True), session)
        with pytest.raises(ConfigError, match="keep or drop"):
            openai.remember(_openai(server), session, cut_off="mark")  # type: ignore[arg-type]


# --- what is sent


def test_system_messages_of_a_call_are_sent_and_not_stored(session: Session) -> None:
    """System messages at the beginning of a call are sent first each time and never stored."""
    given = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": [{"text": "Be kind."}]}]
    with StreamServer(*[answers(STREAMED["openai"].whole)] * 2) as server, _openai(server) as client:
        chat = openai.remember(client, session).chat.completions

        for question in ("Hi", "And now?"):
            chat.create(model="gpt-4o", messages=[*given, *_said(question)])

        for asked in server.asked:
            assert asked.body["messages"][0] == {"role": "system", "content": "Be brief.\n\nBe kind."}
    assert all(one.role != "system" for one in session.entries())


def test_marked_system_blocks_are_sent_as_given(session: Session) -> None:
    """System blocks with cache marks are sent as given, and Palimpsest adds no mark beside them.

    With too many marks, or a system message in the log, they become one text.
    """
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [{"type": "text", "text": "Be brief.", **mark}, {"type": "text", "text": "It is noon."}]
    tools = [{"name": f"t{i}", "input_schema": {"type": "object"}, **mark} for i in range(4)]
    scripted = [answers(STREAMED["anthropic"].whole)] * 3
    with StreamServer(*scripted) as server, _anthropic(server) as client:
        messages = anthropic.remember(client, session).messages

        messages.create(model="claude-sonnet-4-6", max_tokens=9, system=system, messages=_said("Hi"))
        messages.create(model="claude-sonnet-4-6", max_tokens=9, system=system, tools=tools, messages=_said("And now?"))
        session.clear()
        session.add({"role": "system", "content": "Be kind."})
        messages.create(model="claude-sonnet-4-6", max_tokens=9, system=system, messages=_said("And then?"))

        first, second, third = [asked.body for asked in server.asked]
    assert first["system"] == system
    assert json.dumps(first).count("cache_control") == 1
    assert "It is noon." in json.dumps(second["system"])
    assert json.dumps(second).count("cache_control") == 4
    assert "Be kind." in json.dumps(third["system"])


@pytest.mark.parametrize("parts", [False, True], ids=["a text", "parts"])
def test_a_list_in_googles_contents_is_one_content(parts: bool, session: Session) -> None:
    """A list among Google's `contents` is one content of the user, as Google's client takes it."""
    types = load("google.genai.types")
    inner = [types.Part.from_text(text="b"), types.File(uri="https://a/c.png", mime_type="image/png")] if parts else "b"
    with StreamServer(*[answers(STREAMED["gemini"].whole)] * 2) as server:
        with load("google.genai").Client(api_key="none", http_options={"base_url": server.root}) as client:
            contents = ["a", [*inner], "d"]
            client.models.generate_content(model="gemini-2.5-flash", contents=contents)
            google.remember(client, session).models.generate_content(model="gemini-2.5-flash", contents=contents)

        bare, remembered = [
            [sorted(part) for one in asked.body["contents"] for part in one["parts"]] for asked in server.asked
        ]
    assert remembered == bare
    assert [entry.text for entry in session.entries()][:3] == ["a", "b", "d"]


MARK: dict[str, Any] = {"type": "ephemeral"}
HOUR: dict[str, Any] = {"type": "ephemeral", "ttl": "1h"}
MARKING: dict[str, dict[str, Any]] = {
    "messages": {},
    "system": {"system": [{"type": "text", "text": "Be brief.", "cache_control": MARK}]},
    "system, for an hour": {"system": [{"type": "text", "text": "Be brief.", "cache_control": HOUR}]},
    "tools": {"tools": [{"name": "t", "input_schema": {"type": "object"}, "cache_control": MARK}]},
    "the API": {"cache_control": MARK},
    "the API, for an hour": {"cache_control": HOUR},
    "the API and system": {
        "cache_control": MARK,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": HOUR}],
    },
}
"""Cache marks that a program sets in each of its calls, beside the one on its newest message."""


@pytest.mark.parametrize("newest", [MARK, HOUR, None], ids=["marked", "for an hour", "unmarked"])
@pytest.mark.parametrize("marking", MARKING)
def test_a_program_that_sets_cache_marks_is_never_refused(
    marking: str, newest: dict[str, Any] | None, session: Session
) -> None:
    """Older marks make room for those that a call sets itself, so that the API never refuses the request.

    System and tools stay as given, the newest message keeps its mark, and no one-hour mark follows a shorter one.
    """
    given, turns = MARKING[marking], 7
    session.add({"role": "user", "content": [{"type": "text", "text": "Read this.", "cache_control": MARK}]})
    with StreamServer(*[answers(STREAMED["anthropic"].whole)] * turns) as server, _anthropic(server) as client:
        messages = anthropic.remember(client, session).messages
        for number in range(turns):
            block = {"type": "text", "text": f"{number}?", **({"cache_control": newest} if newest else {})}
            asked: Any = [{"role": "user", "content": [block]}]
            messages.create(model="claude-sonnet-4-6", max_tokens=9, messages=asked, **given)

    for one in server.asked:
        marked_parts = [one.body.get(name, []) for name in ("tools", "system", "messages")]
        request_mark = [{"cache_control": given["cache_control"]}] if "cache_control" in given else []
        assert len(list(rules_anthropic.marks([marked_parts, request_mark]))) <= rules_anthropic.MARKS
        assert rules_anthropic.in_order([marked_parts, request_mark])
        assert given.get("system") in (None, one.body.get("system"))
        assert given.get("tools") in (None, one.body.get("tools"))
        if newest and not request_mark:
            assert "cache_control" in one.body["messages"][-1]["content"][-1]


DECLARED: dict[str, Any] = {
    "openai": lambda name: {"type": "function", "function": {"name": name, "description": "long " * 300}},
    "openai-responses": lambda name: {"type": "function", "name": name, "description": "long " * 300},
    "anthropic": lambda name: {"name": name, "description": "long " * 300, "input_schema": {"type": "object"}},
    "gemini": lambda name: {"function_declarations": [{"name": name, "description": "long " * 300}]},
}
"""A large tool in each vendor's shape."""


@pytest.mark.parametrize(
    "holds", [list, lambda tools: dict(enumerate(tools)).values(), iter], ids=["list", "values", "iterator"]
)
def test_tools_in_any_iterable_are_counted_and_sent(way: Way, streamed: Streamed, session: Session, holds: Any) -> None:
    """Tools may come in a list, a view or an iterator: they are sent, and counted in the budget."""
    tools = [DECLARED[way.format](name) for name in ("find", "look")]

    def given() -> dict[str, Any]:
        held = holds([*tools])
        return {"config": {"tools": held}} if way.format == "gemini" else {"tools": held}

    with StreamServer(answers(streamed.whole)) as server, way.opened(server, False) as client:
        way.ask(way.remember(client, session), way.says("Hi"), **given())

        sent = json.dumps(server.asked[0].body)
    assert all(sent.count(f'"{name}"') == 1 for name in ("find", "look"))
    assert session.stats().usage.counted > 600


LARGE: dict[str, Any] = {"type": "object", "properties": {"gate": {"type": "string", "description": "long " * 600}}}


def _large() -> Any:
    pydantic = load("pydantic")
    return pydantic.create_model("Large", gate=(str, pydantic.Field(description="long " * 600)))


FORMS: dict[str, tuple[str, Callable[[], Any]]] = {
    "chat": (
        "chat.completions.create",
        lambda: {"response_format": {"type": "json_schema", "json_schema": {"name": "l", "schema": LARGE}}},
    ),
    "chat, a type": ("chat.completions.parse", lambda: {"response_format": _large()}),
    "responses": (
        "responses.create",
        lambda: {"text": {"format": {"type": "json_schema", "name": "l", "schema": LARGE}}},
    ),
    "responses, a type": ("responses.parse", lambda: {"text_format": _large()}),
    "anthropic": ("messages.create", lambda: {"output_config": {"format": {"type": "json_schema", "schema": LARGE}}}),
    "anthropic, a type": ("messages.parse", lambda: {"output_format": _large()}),
    "gemini": ("models.generate_content", lambda: {"config": {"response_json_schema": LARGE}}),
    "gemini, a type": ("models.generate_content", lambda: {"config": {"response_schema": list[_large()]}}),  # type: ignore[misc]
    "gemini, an object": (
        "models.generate_content",
        lambda: {"config": load("google.genai.types").GenerateContentConfig(response_schema=LARGE)},
    ),
}
"""A schema of about 600 tokens for the answer, in each way in which a client takes it."""


@pytest.mark.parametrize("case", FORMS)
def test_the_answers_schema_counts_in_the_budget(case: str, session: Session) -> None:
    """The schema of the answer counts in the budget as tools do, and is sent once, where the caller put it."""
    path, options = FORMS[case]
    way = WAYS[case.partition(",")[0]]
    whole = STREAMED[way.format].whole | PARSED.get(case.partition(",")[0], ({},))[0]
    ask = _asks(path, model="gpt-4o", **({"max_tokens": 9} if way.format == "anthropic" else {}))
    with StreamServer(answers(whole)) as server, way.opened(server, False) as client:
        ask(way.remember(client, session), way.says("Which gate?"), **options())

        sent = server.asked[0].body
    assert json.dumps(sent).count("long " * 600) == 1
    assert not sent.get("tools")
    assert 600 < session.stats().usage.counted < 1_600


def test_the_models_window_bounds_the_request(session: Session) -> None:
    """Without a budget, the model's window less the tokens for the answer bounds the request."""
    for number in range(60):
        session.add_user_message(f"{number}: " + "word " * 400)
        session.add_assistant_message("Yes.")
    with StreamServer(*[answers(STREAMED["openai"].whole)] * 2) as server, _openai(server) as client:
        chat = openai.remember(client, session).chat.completions

        chat.create(model="gpt-4o", max_tokens=4000, messages=_said("Hi"))
        chat.create(model="gpt-4", max_tokens=4000, messages=_said("And now?"))

        large, small = (len(json.dumps(asked.body["messages"])) // 5 for asked in server.asked)
    assert small < 8192 - 4000
    assert large > 20_000


def test_the_sessions_budget_bounds_the_request(session: Session) -> None:
    """`max_tokens` of the session bounds the request, whatever the call's own `max_tokens`."""
    with Memory.open("memory://") as memory, StreamServer(answers(STREAMED["anthropic"].whole)) as server:
        chat = memory.session("s", max_tokens=2000)
        for _ in range(60):
            chat.add_user_message("word " * 100)
            chat.add_assistant_message("Yes.")

        with _anthropic(server) as client:
            anthropic.remember(client, chat).messages.create(
                model="claude-sonnet-4-6", max_tokens=8000, messages=_said("Hi")
            )

        assert 100 < len(json.dumps(server.asked[0].body["messages"])) // 5 < 2000


# --- many at once


def test_threads_that_share_a_client_take_turns(way: Way, streamed: Streamed, session: Session) -> None:
    """Each call is a turn: when threads share a client, a question and its answer stay together in the log."""
    with StreamServer(*[answers(streamed.whole)] * 6) as server, way.opened(server, False) as client:
        remembering = way.remember(client, session)

        at_once(lambda number: way.ask(remembering, way.says(f"question {number}")), 6)

    assert spoken(session) == ONCE * 6


def test_a_stream_read_by_another_thread_is_waited_for(session: Session) -> None:
    """A call waits for a stream that another thread is reading, and does not end it."""
    streamed = STREAMED["openai"]
    with StreamServer(plays(streamed.events), answers(streamed.whole)) as server, _openai(server) as client:
        chat = openai.remember(client, session).chat.completions
        stream = chat.create(model="gpt-4o", messages=_said("Which gate?"), stream=True)
        begun = threading.Event()

        def read_on() -> None:
            for _ in stream:
                begun.set()

        reading = threading.Thread(target=read_on)
        reading.start()
        begun.wait()
        chat.create(model="gpt-4o", messages=_said("And the seat?"))
        reading.join()

    assert spoken(session) == ONCE * 2
    assert all(one.metadata is None for one in session.entries())


@pytest.mark.sampled
def test_tasks_that_share_a_client_take_turns(way: Way, streamed: Streamed) -> None:
    """When tasks share a client, a question and its streamed answer stay together in the log."""

    async def run(server: StreamServer) -> list[tuple[str, str]]:
        async with AsyncMemory.open("memory://") as memory, way.opened(server, True) as client:
            session = memory.session("s")
            remembering = way.remember(client, session)

            async def stream(number: int) -> None:
                async for _ in await way.stream(remembering, way.says(f"question {number}")):
                    await asyncio.sleep(0)

            await asyncio.gather(*map(stream, range(6)))
            return [(one.kind, one.role) for one in await session.entries() if one.text]

    with StreamServer(*[plays(streamed.events)] * 6) as server:
        assert asyncio.run(run(server)) == ONCE * 6


def test_calls_inside_a_turn_open_no_other_turn(session: Session) -> None:
    """Calls inside a turn of the caller belong to that turn."""
    with StreamServer(*[answers(STREAMED["openai"].whole)] * 2) as server, _openai(server) as client:
        chat = openai.remember(client, session).chat.completions

        with session.turn():
            chat.create(model="gpt-4o", messages=_said("Hi"))
            assert session.in_turn
            chat.create(model="gpt-4o", messages=[{"role": "tool", "tool_call_id": "call_1", "content": "B"}])

    assert not session.in_turn


def test_asking_inside_an_atomic_turn_is_refused(session: Session) -> None:
    """A call inside an atomic turn is refused, because the request would lack what the turn has gathered."""
    with StreamServer() as server, _openai(server) as client:
        chat = openai.remember(client, session).chat.completions

        with session.turn(atomic=True), pytest.raises(ConfigError, match="atomic"):
            chat.create(model="gpt-4o", messages=_said("Hi"))

        assert server.asked == []
    assert session.entries() == []


def test_a_response_without_an_answer_is_returned_with_a_warning(session: Session) -> None:
    """A response without an answer is returned to the caller, with a warning at the caller's line that says why."""
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}
    with StreamServer(answers(blocked)) as server, _google(server) as client:
        models = google.remember(client, session).models

        with pytest.warns(UserWarning, match=r"not in the log: .*holds no answer \(SAFETY\)") as warned:
            response = models.generate_content(model="gemini-2.5-flash", contents="Hi")

        assert response.prompt_feedback is not None
        assert [one.filename for one in warned] == [__file__]
    assert log(session) == [("message", "user")]
    usage = session.stats().usage
    assert usage.input_tokens == 4


def test_a_stream_without_an_answer_warns_once(session: Session) -> None:
    """A stream without an answer warns once, at its end."""
    blocked = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 4}}
    with StreamServer(plays([blocked])) as server, _google(server) as client:
        stream = google.remember(client, session).models.generate_content_stream(
            model="gemini-2.5-flash", contents="Hi"
        )

        with pytest.warns(UserWarning, match="not in the log") as warned:
            events = [*stream, *stream]

    assert len(warned) == len(events) == 1
    assert log(session) == [("message", "user")]
    assert session.stats().usage.input_tokens == 4


def _broken(status: str, *texts: str) -> dict[str, Any]:
    """Return a response that its provider broke off after these texts."""
    said = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "incomplete", "content": said}
    call = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "find", "arguments": '{"wh'}
    error = {"code": "server_error", "message": "It broke."}
    return {
        **STREAMED["openai-responses"].whole,
        "status": status,
        "error": error,
        "output": [message, call] if texts else [],
    }


@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_response_its_provider_broke_off_is_marked_cut_off(status: str, session: Session) -> None:
    """Of a response that its provider broke off only the text is stored, marked `cut_off`; its usage is recorded."""
    scripted = answers(_broken(status, "I look", " it")), answers(_broken(status))
    with StreamServer(*scripted) as server, _openai(server) as client:
        responses = openai.remember(client, session).responses

        responses.create(model="gpt-5", input="Which gate?")
        with pytest.warns(UserWarning, match=rf"not in the log: .*holds no answer \({status}: server_error\)"):
            responses.create(model="gpt-5", input="Which seat?")

    stored = [(one.text, one.metadata) for one in session.entries()]
    assert stored == [("Which gate?", None), ("I look it", {"cut_off": True}), ("Which seat?", None)]
    assert session.stats().usage.input_tokens == 40


def test_a_response_its_provider_broke_off_can_be_dropped(session: Session) -> None:
    """With `cut_off="drop"` nothing of a broken response is stored, a warning says so, and its usage is recorded."""
    with StreamServer(answers(_broken("failed", "I look"))) as server, _openai(server) as client:
        responses = openai.remember(client, session, cut_off="drop").responses

        with pytest.warns(UserWarning, match="not in the log: .*broke it off"):
            responses.create(model="gpt-5", input="Which gate?")

    assert log(session) == [("message", "user")]
    assert session.stats().usage.input_tokens == 40


def test_only_the_broken_response_of_a_list_is_marked(session: Session) -> None:
    """In a list added with metadata, only the response that was broken off is marked `cut_off`."""
    message = {"type": "message", "role": "user", "content": "And then?"}

    session.add([_broken("failed", "I look"), message], metadata={"run": 7})

    stored = [(one.text, one.metadata) for one in session.entries()]
    assert stored == [("I look", {"run": 7, "cut_off": True}), ("And then?", {"run": 7})]
