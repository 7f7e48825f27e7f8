"""Streamed answers: one is stored whole at its end, or as far as it came, and any provider accepts it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laws import examples
from palimpsest import Answer, AsyncMemory, ConfigError, InvalidEntry, Memory
from palimpsest.errors import Closed
from palimpsest.formats import find_format
from palimpsest.sessions.sync import Session
from sdks import load
from streams import CHAT, STREAMED, Streamed, StreamServer, answers, plays
from vendors import VENDORS

ASKED = [{"role": "user", "content": "Which gate?"}]


@pytest.fixture(params=STREAMED)
def streamed(request: pytest.FixtureRequest) -> Streamed:
    """Return a streamed answer of each vendor."""
    return STREAMED[request.param]


@pytest.fixture
def session(streamed: Streamed) -> Iterator[Session]:
    """Yield a session in which an answer is waited for."""
    with Memory.open("memory://") as memory:
        yield begun(memory, streamed, "s")


def begun(memory: Memory, streamed: Streamed, name: str) -> Session:
    """Return a session of the vendor's format in which the user has spoken."""
    session = memory.session(name, format=streamed.format)
    session.add_user_message("Which gate?")
    session.context()
    return session


def sent_next(session: Session) -> list[dict[str, Any]]:
    """Return what the model is sent once the user has spoken again."""
    session.add_user_message("And then?")
    return session.context().messages


def sent_after(streamed: Streamed) -> list[dict[str, Any]]:
    """Return what the model is sent next if the answer was added whole."""
    with Memory.open("memory://") as memory:
        session = begun(memory, streamed, "s")
        session.add(streamed.whole)
        return sent_next(session)


def spelled(messages: list[dict[str, Any]]) -> str:
    """Return the messages as JSON, with keys as Python's clients spell them."""
    text = json.dumps(messages)
    words = re.sub(r'[A-Z](?=\w*":)', lambda capital: f"_{capital[0].lower()}", text)
    return json.dumps(json.loads(words), sort_keys=True)


# --- without a client


def test_text_is_available_as_it_comes(session: Session, streamed: Streamed) -> None:
    """Each event returns its text, and `text` has all so far; nothing is stored before the block ends."""
    pieces = []
    with session.stream() as answer:
        for event in streamed.events:
            pieces.append(answer.feed(event))
            assert answer.text == "".join(pieces)
            assert session.stats().total_entries == 1

    assert answer.text == streamed.text
    assert answer.is_complete
    assert answer.entries == tuple(session.entries()[1:])


def test_a_streamed_answer_is_stored_like_a_whole_one(session: Session, streamed: Streamed) -> None:
    """The log, the next request and the usage after a stream equal those after adding the whole response."""
    with session.stream(metadata={"run": 7}) as answer:
        for event in streamed.events:
            answer.feed(event)

    usage = session.stats().usage
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.calls) == (40, 32, 9, 1)
    assert {entry.metadata["run"] for entry in answer.entries if entry.metadata} == {7}
    assert spelled(sent_next(session)) == spelled(sent_after(streamed))


def test_a_session_of_plain_text_keeps_streamed_answers(memory: Memory, streamed: Streamed) -> None:
    """A session of the format `text` keeps the text and the usage of a streamed answer of any provider."""
    session = memory.session("of texts", format="text")
    with session.stream() as answer:
        for event in streamed.events:
            answer.feed(event)

    usage = session.stats().usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.calls) == (40, 9, 1)
    assert answer.text in "".join(entry.text for entry in session.entries())
    assert [stored.id for stored in answer.entries] == [stored.id for stored in session.entries()]


@pytest.mark.parametrize("cut_off", ["keep", "drop"])
def test_a_stream_that_ends_anywhere_leaves_a_valid_log(streamed: Streamed, cut_off: Any) -> None:
    """A stream that ends after any event leaves its text, marked, or nothing; the next request is valid."""
    faults = VENDORS[streamed.format]().faults
    with Memory.open("memory://") as memory:
        for length in range(len(streamed.events)):
            session = begun(memory, streamed, str(length))

            with session.stream(cut_off=cut_off) as answer:
                for event in streamed.events[:length]:
                    answer.feed(event)

            cut_texts = [entry.text for entry in answer.entries if entry.metadata == {"cut_off": True}]
            if not answer.is_complete:
                assert cut_texts == ([answer.text] if answer.text and cut_off == "keep" else [])
                assert len(session.entries()) == 1 + len(cut_texts)
            messages = sent_next(session)
            assert faults(messages) == []
            assert not answer.entries or answer.text in json.dumps(messages)


def test_an_error_in_the_block_keeps_what_came(session: Session, streamed: Streamed) -> None:
    """An error inside the block is raised on, and the answer is stored as far as it came."""
    for events, whole in ((streamed.events[:5], False), (streamed.events, True)):
        fed: list[Answer] = []

        with pytest.raises(KeyError):
            feed(session, (*events, KeyError("printing")), fed)

        [answer] = fed
        assert answer.is_complete is whole
        marks = [(entry.metadata or {}).get("cut_off") for entry in answer.entries]
        assert marks == ([None] * len(answer.entries) if whole else [True] * bool(answer.text))


def feed(session: Session, events: Iterable[Any], fed: list[Answer]) -> None:
    """Feed events to a block, and raise those that are errors."""
    with session.stream() as answer:
        fed.append(answer)
        for event in events:
            if isinstance(event, Exception):
                raise event
            answer.feed(event)


def test_a_key_adds_a_streamed_answer_once(session: Session, streamed: Streamed) -> None:
    """The same streamed answer under the same key is added once, and its usage is recorded once."""
    for _ in range(2):
        with session.stream(key="run 1") as answer:
            for event in streamed.events:
                answer.feed(event)

    usage = session.stats().usage
    assert usage.calls == 1
    assert len(session.entries()) == 1 + len(answer.entries)


def test_every_store_keeps_answers_alike(memory: Memory, streamed: Streamed) -> None:
    """Every store returns streamed, cut off and whole answers as they were, with their usage."""
    session = begun(memory, streamed, "s")
    with session.stream() as answer:
        for event in streamed.events:
            answer.feed(event)
    with session.stream() as broken:
        for event in streamed.events[:-3]:
            broken.feed(event)
    added = session.add(streamed.whole)

    reopened = memory.session("s", format=streamed.format)

    contents = [(entry.kind, entry.text, entry.metadata) for entry in reopened.entries()[1:]]
    assert contents == [
        (stored.kind, stored.text, stored.metadata) for stored in (*answer.entries, *broken.entries, *added)
    ]
    usage = reopened.stats().usage
    assert usage.total_input in (40, 80)  # the interrupted answer may have reported its usage; one response counts once


def test_an_object_that_is_no_event_is_refused() -> None:
    """Feeding an object that is no event, or another vendor's event, raises an error that names it."""
    with Memory.open("memory://") as memory:
        session = memory.session("s")
        with session.stream() as answer:
            assert answer.feed({"type": "ping"}) == ""
            for bad in (object(), "text", {"x": 1}, {"role": "user", "content": "Hello"}):
                with pytest.raises(InvalidEntry, match="is not an event that is known here; feed each event"):
                    answer.feed(bad)
            answer.feed(CHAT.events[1])
            assert answer.feed({"type": "newer.than.us", "delta": "x"}) == ""
            with pytest.raises(InvalidEntry, match="of anthropic, but the events before it are of openai"):
                answer.feed(STREAMED["anthropic"].events[0])
            with pytest.raises(InvalidEntry, match="more than one answer"):
                answer.feed({"choices": [{"index": 1, "delta": {"content": "x"}}]})
        with pytest.raises(ConfigError, match="keep or drop"):
            session.stream(cut_off="mark")  # type: ignore[arg-type]

    assert answer.text == "I"


def test_a_whole_response_is_stored_or_refused(streamed: Streamed) -> None:
    """A whole chat completion or content may be fed as one chunk; of other vendors feeding one names `add`."""
    with Memory.open("memory://") as memory:
        session = begun(memory, streamed, "s")
        with session.stream() as answer:
            if streamed.format in ("openai-responses", "anthropic"):
                with pytest.raises(InvalidEntry, match=r"is a whole response; give it to add\(\)"):
                    answer.feed(streamed.whole)
                return
            text = answer.feed(streamed.whole)
        messages = sent_next(session)

    assert text == answer.text != ""
    assert messages == sent_after(streamed)


def test_feeding_after_the_block_raises_closed(streamed: Streamed) -> None:
    """An event fed after its block raises Closed, whether the answer was whole or cut off."""
    with Memory.open("memory://") as memory:
        session = begun(memory, streamed, "s")
        for events in (streamed.events, streamed.events[:1]):
            with session.stream() as answer:
                for event in events:
                    answer.feed(event)

            with pytest.raises(Closed, match="feed it inside the `with` block"):
                answer.feed(streamed.events[-1])


# --- with the clients


Client = Callable[[StreamServer], Any]


def _openai(server: StreamServer, name: str = "OpenAI") -> Any:
    return getattr(load("openai"), name)(base_url=server.url, api_key="none", max_retries=0)


def _anthropic(server: StreamServer, name: str = "Anthropic") -> Any:
    return getattr(load("anthropic"), name)(base_url=server.root, api_key="none", max_retries=0)


def _google(server: StreamServer) -> Any:
    return load("google.genai").Client(api_key="none", http_options={"base_url": server.root})


def chat_events(server: StreamServer) -> Iterator[Any]:
    """Yield a stream of chat completions."""
    with _openai(server) as client:
        yield from client.chat.completions.create(model="m", messages=ASKED, stream=True)


def chat_helper_events(server: StreamServer) -> Iterator[Any]:
    """Yield the events of the client's helper for chat completions."""
    with _openai(server) as client, client.chat.completions.stream(model="m", messages=ASKED) as stream:
        yield from stream


def responses_events(server: StreamServer) -> Iterator[Any]:
    """Yield a stream of responses."""
    with _openai(server) as client:
        yield from client.responses.create(model="m", input=ASKED, stream=True)


def responses_helper_events(server: StreamServer) -> Iterator[Any]:
    """Yield the events of the client's helper for responses."""
    with _openai(server) as client, client.responses.stream(model="m", input=ASKED) as stream:
        yield from stream


def anthropic_events(server: StreamServer) -> Iterator[Any]:
    """Yield a stream of messages."""
    with _anthropic(server) as client:
        yield from client.messages.create(model="m", max_tokens=9, messages=ASKED, stream=True)


def anthropic_helper_events(server: StreamServer) -> Iterator[Any]:
    """Yield the events of the client's helper for messages."""
    with _anthropic(server) as client, client.messages.stream(model="m", max_tokens=9, messages=ASKED) as stream:
        yield from stream


def gemini_events(server: StreamServer) -> Iterator[Any]:
    """Yield a stream of contents."""
    with _google(server) as client:
        yield from client.models.generate_content_stream(model="m", contents="Which gate?")


async def async_chat_events(server: StreamServer) -> AsyncIterator[Any]:
    """Yield a stream of chat completions of the asynchronous client."""
    async with _openai(server, "AsyncOpenAI") as client:
        async for event in await client.chat.completions.create(model="m", messages=ASKED, stream=True):
            yield event


async def async_responses_events(server: StreamServer) -> AsyncIterator[Any]:
    """Yield a stream of responses of the asynchronous client."""
    async with _openai(server, "AsyncOpenAI") as client:
        async for event in await client.responses.create(model="m", input=ASKED, stream=True):
            yield event


async def async_anthropic_events(server: StreamServer) -> AsyncIterator[Any]:
    """Yield a stream of messages of the asynchronous client."""
    async with _anthropic(server, "AsyncAnthropic") as client:
        async for event in await client.messages.create(model="m", max_tokens=9, messages=ASKED, stream=True):
            yield event


async def async_gemini_events(server: StreamServer) -> AsyncIterator[Any]:
    """Yield a stream of contents of the asynchronous client."""
    async with _google(server).aio as client:
        async for event in await client.models.generate_content_stream(model="m", contents="Which gate?"):
            yield event


AT_ONCE: dict[str, tuple[Callable[[StreamServer], Any], Callable[[Any], Any]]] = {
    "openai": (_openai, lambda client: client.chat.completions.create(model="m", messages=ASKED)),
    "openai-responses": (_openai, lambda client: client.responses.create(model="m", input=ASKED)),
    "anthropic": (_anthropic, lambda client: client.messages.create(model="m", max_tokens=9, messages=ASKED)),
    "gemini": (_google, lambda client: client.models.generate_content(model="m", contents="Which gate?")),
}

SYNC = {
    "chat": ("openai", chat_events),
    "chat helper": ("openai", chat_helper_events),
    "responses": ("openai-responses", responses_events),
    "responses helper": ("openai-responses", responses_helper_events),
    "anthropic": ("anthropic", anthropic_events),
    "anthropic helper": ("anthropic", anthropic_helper_events),
    "gemini": ("gemini", gemini_events),
}
ASYNC = {
    "openai": async_chat_events,
    "openai-responses": async_responses_events,
    "anthropic": async_anthropic_events,
    "gemini": async_gemini_events,
}


@pytest.mark.parametrize("format", AT_ONCE)
def test_a_response_of_each_client_is_added(format: str) -> None:
    """A response object that a client got from a server is added with its content and usage."""
    streamed = STREAMED[format]
    with Memory.open("memory://") as memory, StreamServer(answers(streamed.whole)) as server:
        session = begun(memory, streamed, "s")
        opened, ask = AT_ONCE[format]

        with opened(server) as client:
            session.add(ask(client))

        usage = session.stats().usage
        assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens) == (40, 32, 9)
        assert spelled(sent_next(session)) == spelled(sent_after(streamed))


@pytest.mark.parametrize("client", SYNC)
def test_the_events_of_each_client_are_fed_as_they_come(client: str) -> None:
    """A client's streamed answer is stored as the whole response would be."""
    format, events = SYNC[client]
    streamed = STREAMED[format]
    with Memory.open("memory://") as memory, StreamServer(plays(streamed.events)) as server:
        session = begun(memory, streamed, "s")

        with session.stream() as answer:
            pieces = [answer.feed(event) for event in events(server)]

        assert "".join(pieces) == streamed.text
        assert spelled(sent_next(session)) == spelled(sent_after(streamed))


@pytest.mark.parametrize("client", SYNC)
def test_a_broken_connection_leaves_what_came(client: str) -> None:
    """If the connection breaks, the client's error is raised, and the text that came is stored, marked."""
    format, events = SYNC[client]
    streamed = STREAMED[format]
    half = next(i for i in range(len(streamed.events)) if " it" in json.dumps(streamed.events[i])) + 1
    with Memory.open("memory://") as memory, StreamServer(plays(streamed.events[:half], cut=True)) as server:
        session = begun(memory, streamed, "s")

        fed: list[Answer] = []

        with pytest.raises(Exception, match=r"(?i)incomplete|closed|peer|connection"):
            feed(session, events(server), fed)

        [answer] = fed
        assert [(entry.text, entry.metadata) for entry in answer.entries] == [("I look it", {"cut_off": True})]
        assert VENDORS[format]().faults(sent_next(session)) == []


@pytest.mark.parametrize("format", ASYNC)
def test_events_of_asynchronous_clients_are_fed_alike(format: str) -> None:
    """An asynchronous client's streamed answer is stored as the whole response would be."""
    streamed = STREAMED[format]

    async def run(server: StreamServer) -> list[dict[str, Any]]:
        async with AsyncMemory.open("memory://") as memory:
            session = memory.session("s", format=format)
            await session.add_user_message("Which gate?")
            async with session.stream() as answer:
                async for event in ASYNC[format](server):
                    answer.feed(event)
            assert answer.text == streamed.text
            await session.add_user_message("And then?")
            return (await session.context()).messages

    with StreamServer(plays(streamed.events)) as server:
        messages = asyncio.run(run(server))

    assert spelled(messages) == spelled(sent_after(streamed))


def test_a_cancelled_task_leaves_what_came() -> None:
    """A task that is cancelled in the middle of an answer stores what came, and stays cancelled."""

    async def run() -> list[tuple[str, Any]]:
        async with AsyncMemory.open("memory://") as memory:
            session = memory.session("s")
            heard = asyncio.Event()

            async def listen() -> None:
                async with session.stream() as answer:
                    answer.feed(CHAT.events[1])
                    heard.set()
                    await asyncio.Event().wait()

            task: Awaitable[None] = (listening := asyncio.ensure_future(listen()))
            await heard.wait()
            listening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return [(entry.text, entry.metadata) for entry in await session.entries()]

    assert asyncio.run(run()) == [("I", {"cut_off": True})]


# --- laws


@st.composite
def cut_anywhere(draw: st.DrawFn, text: str) -> list[str]:
    """Draw the text in pieces, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[start:end] for start, end in pairwise([0, *places, len(text)])]


WORDS = st.text(max_size=12).filter(lambda text: text == text.strip())
ARGUMENTS = st.dictionaries(st.text(max_size=3), st.integers(-9, 2**53) | WORDS, max_size=3)


def chat_events_of(draw: st.DrawFn, said: str, calls: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Any]]:
    """Draw a completion and its chunks, with the pieces of its calls in any mixture."""
    whole = [{"id": f"c{i}", "type": "function", "function": call} for i, call in enumerate(calls)]
    events = [{"content": piece} for piece in draw(cut_anywhere(said))]
    openings = [{**call, "index": i, "function": {**call["function"], "arguments": ""}} for i, call in enumerate(whole)]
    events += [{"tool_calls": [call]} for call in openings]
    pieces = [
        {"tool_calls": [{"index": i, "function": {"arguments": piece}}]}
        for i, call in enumerate(calls)
        for piece in draw(cut_anywhere(call["arguments"]))
    ]
    ordered = sorted(pieces, key=lambda piece: piece["tool_calls"][0]["index"]) if draw(st.booleans()) else pieces
    chunk = {"object": "chat.completion.chunk", "id": "x"}
    chunks = [{**chunk, "choices": [{"index": 0, "delta": delta}]} for delta in (*events, *ordered)]
    message = {"role": "assistant", "content": said, **({"tool_calls": whole} if whole else {})}
    end = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return {"id": "x", "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}, [*chunks, end]


def anthropic_events_of(draw: st.DrawFn, said: str, calls: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Any]]:
    """Return a message and its events."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": said}]
    events: list[Any] = [{"type": "message_start", "message": {"id": "x", "role": "assistant", "content": []}}]
    events.append({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    deltas = [{"type": "text_delta", "text": piece} for piece in draw(cut_anywhere(said))]
    events += [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas]
    for i, call in enumerate(calls, 1):
        bare = {"type": "tool_use", "id": f"c{i}", "name": call["name"], "input": {}}
        blocks.append({**bare, "input": json.loads(call["arguments"])})
        events.append({"type": "content_block_start", "index": i, "content_block": bare})
        pieces = [
            {"type": "input_json_delta", "partial_json": fragment} for fragment in draw(cut_anywhere(call["arguments"]))
        ]
        events += [{"type": "content_block_delta", "index": i, "delta": delta} for delta in pieces]
    events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, {"type": "message_stop"}]
    return {"id": "x", "type": "message", "role": "assistant", "stop_reason": "end_turn", "content": blocks}, events


def gemini_events_of(draw: st.DrawFn, said: str, calls: list[dict[str, Any]]) -> tuple[dict[str, Any], list[Any]]:
    """Return a response and its chunks."""
    call_parts = [{"function_call": {"name": call["name"], "args": json.loads(call["arguments"])}} for call in calls]
    texts: list[dict[str, Any]] = [{"text": piece} for piece in draw(cut_anywhere(said))]

    def chunk(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **fields}]}

    text_parts = [{"text": said}] if said else []
    whole = chunk(*text_parts, *call_parts, finish_reason="STOP")
    return whole, [*map(chunk, (*texts, *call_parts)), chunk(finish_reason="STOP")]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("format", "events_of"),
    [("openai", chat_events_of), ("anthropic", anthropic_events_of), ("gemini", gemini_events_of)],
)
@settings(max_examples=examples(90), deadline=None)
@given(data=st.data())
def test_a_stream_may_cut_texts_anywhere(format: str, events_of: Any, data: Any) -> None:
    """However texts and arguments are cut into pieces, the log holds what the whole response holds."""
    calls = data.draw(st.lists(st.fixed_dictionaries({"name": st.just("f"), "arguments": ARGUMENTS}), max_size=2))
    calls = [{**call, "arguments": json.dumps(call["arguments"])} for call in calls]
    whole, events = data.draw(st.composite(lambda draw: events_of(draw, data.draw(WORDS), calls))())
    with Memory.open("memory://") as memory:
        at_once, streamed = memory.session("at once", format=format), memory.session("streamed", format=format)
        at_once.add(whole)

        with streamed.stream() as answer:
            for event in events:
                answer.feed(event)

        fmt = find_format(format)
        assert fmt.encode(streamed.entries()) == fmt.encode(at_once.entries())


@pytest.mark.parametrize(
    "event",
    [
        {"object": "chat.completion.chunk", "choices": 3},
        {"candidates": [{"content": "x"}]},
        {"candidates": [{"content": {"parts": 7}}]},
        {"type": "content_block_delta", "index": 0, "delta": {"type": ["x"], "text": "y"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": 5}},
    ],
    ids=["choices", "content", "parts", "type", "text", "arguments"],
)
def test_an_event_with_a_field_of_a_wrong_type_is_refused(event: dict[str, Any]) -> None:
    """An event with a field of a wrong type raises InvalidEntry, and what came before it is kept."""
    first: dict[str, Any] = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "Gate"}}]}
    if "type" in event:
        first = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "Gate"}}
    elif "candidates" in event:
        first = {"candidates": [{"content": {"role": "model", "parts": [{"text": "Gate"}]}}]}
    with Memory.open("memory://") as memory:
        chat = memory.session("s")
        with chat.stream() as answer:
            answer.feed(first)
            with pytest.raises(InvalidEntry, match=r"event: has a field that \S+ does not send in this form"):
                answer.feed(event)
        assert [entry.text for entry in chat.entries()] == ["Gate"]


def test_choices_of_null_are_read_as_an_empty_list() -> None:
    """Choices of null, which some servers send with the usage, are read as an empty list."""
    chunk = {"id": "c", "object": "chat.completion.chunk", "model": "m"}
    with Memory.open("memory://") as memory:
        chat = memory.session("s")
        with chat.stream() as answer:
            answer.feed({**chunk, "choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}]})
            answer.feed({**chunk, "choices": None, "usage": {"prompt_tokens": 3, "completion_tokens": 1}})
        assert chat.entries()[0].text == "Hi"
        assert chat.stats().usage.input_tokens == 3


@pytest.mark.parametrize(
    "pieces",
    [
        [("A", "f", '{"a": 1}'), ("B", "g", '{"b": 2}')],
        [("A", "f", '{"a"'), (None, None, ": 1}"), ("B", "g", ""), ("", None, '{"b"'), (None, None, ": 2}")],
        [("A", "f", ""), ("A", None, '{"a": 1}'), ("B", "g", '{"b"'), ("B", "g", ": 2}")],
        [("A", "f", '{"a"'), ("other", None, ": 1}"), ("B", "g", '{"b"'), ("another", "", ": 2}")],
    ],
    ids=["whole", "in pieces", "with the id in each", "with an id of each"],
)
def test_calls_of_one_index_are_told_apart_by_their_ids(pieces: list[tuple[str | None, str | None, str]]) -> None:
    """If a service numbers all calls 0, a piece with another id and a name begins another call."""
    calls = [
        {"index": 0, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for id, name, arguments in pieces
    ]
    with Memory.open("memory://") as memory:
        chat = memory.session("s")
        with chat.stream() as answer:
            for delta in (*({"tool_calls": [call]} for call in calls), {}):
                choice = {"index": 0, "delta": delta, "finish_reason": None if delta else "tool_calls"}
                answer.feed({"object": "chat.completion.chunk", "choices": [choice]})

        stored_calls = [(entry.call_id, entry.name, entry.text) for entry in chat.entries()]
        assert stored_calls == [("A", "f", '{"a": 1}'), ("B", "g", '{"b": 2}')]
