"""Other entrances to a memory, such as declared memories and compatibility modules, quote nothing private in errors."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from openai import OpenAI

from palimpsest import AsyncMemory, Memory, Session
from palimpsest.compat.agterm import AsyncMemoryManager, MemoryManager
from palimpsest.compat.firefly import ConversationMemory
from palimpsest.integrations.openai import remember
from palimpsest.integrations.tools import MemoryTools
from palimpsest.resources import AsyncResources, Resources

SECRET = "walrus@example.org"
PRIVATE: tuple[Any, ...] = (
    SECRET,
    {SECRET: SECRET},
    [SECRET],
    [{"role": SECRET, "content": SECRET}],
    [{"role": "user", "content": {SECRET: SECRET}}],
    {"sessionId": "a", "entries": [{"id": "1", "type": "message", "role": SECRET, "content": SECRET}]},
    {"sessionId": "b", "entries": [{"id": "1", "type": "message", "content": "x", "timestamp": SECRET}]},
    {"sessionId": "c", "entries": [], "summaries": [{SECRET: 1}]},
    {"messages": [{"role": SECRET}]},
    f"a\0{SECRET}",
    f"\ud800{SECRET}",
    ("x" * 70 + SECRET,),
    -1,
)
"""Values with something private in them, most of which are nowhere accepted."""

DECLARED = {
    "resource": "memory",
    "id": "m",
    "type": "token_based",
    "max_tokens": 1000,
    "persistence": {"type": "in_memory", "ttl": "1d"},
    "privacy": "default",
}


def of_error(error: BaseException | None) -> Iterator[str]:
    """Return everything that an error and its causes could show."""
    while error is not None:
        yield from (str(error), repr(error), repr(error.args), repr(vars(error)))
        error = error.__cause__ or error.__context__


@contextmanager
def agterm() -> Iterator[object]:
    with Memory.open("memory://", privacy="default") as memory:
        yield MemoryManager(store=memory)


@contextmanager
def firefly() -> Iterator[object]:
    with Memory.open("memory://", privacy="default") as memory:
        yield ConversationMemory(store=memory)


@contextmanager
def keyed() -> Iterator[object]:
    with Resources.load(DECLARED) as resources:
        yield resources.keyed("m")


@contextmanager
def agent() -> Iterator[object]:
    with Resources.load(DECLARED) as resources:
        yield resources.agent([{"id": "m", "key": "k"}])


DOORS = {"AGTerm": agterm, "Firefly": firefly, "a declared memory": keyed, "an agent": agent}


def calls(door: object) -> Iterator[tuple[str, Callable[[], object]]]:
    """Return each public method with each private value in each of its arguments."""
    for name, verb in inspect.getmembers(door, callable):
        if name.startswith("_") or name in ("close", "redact"):
            continue
        taken = [one for one in inspect.signature(verb).parameters.values() if one.kind is not one.VAR_KEYWORD]
        for odd in taken:
            for value in PRIVATE:
                given = {
                    one.name: value if one is odd else "text" for one in taken if one is odd or not has_default(one)
                }
                yield f"{name}({odd.name}={value!r})", lambda verb=verb, given=given: verb(**given)


def has_default(parameter: inspect.Parameter) -> bool:
    """Whether the argument may be left out."""
    return parameter.default is not parameter.empty


def fault_of(call: Callable[[], object]) -> Exception | None:
    """Return what a call, or its coroutine, raises."""
    try:
        given = call()
        if inspect.iscoroutine(given):
            asyncio.run(given)
    except Exception as fault:  # noqa: BLE001 (whichever it is)
        return fault
    return None


@pytest.mark.parametrize("door", DOORS)
def test_no_error_of_an_entrance_quotes_private_text(door: str) -> None:
    """Whichever argument is private, neither the error, its attributes nor its causes quote it."""
    with DOORS[door]() as opened:
        faults = [(said, fault) for said, call in calls(opened) if (fault := fault_of(call)) is not None]

    assert len(faults) > 10
    assert [said for said, fault in faults if any("walrus" in text for text in of_error(fault))] == []


async def refused(verb: Callable[..., Any], *args: object) -> BaseException:
    """Return the error of a coroutine."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (all of ours that refuse are)
        await verb(*args)
    return caught.value


@pytest.mark.anyio
async def test_no_error_of_an_asynchronous_entrance_quotes_private_text() -> None:
    """Errors raised by coroutines do not quote private text either."""
    async with AsyncMemory.open("memory://", privacy="default") as memory, AsyncResources.load(DECLARED) as resources:
        faults = [
            await refused(AsyncMemoryManager(store=memory).import_session, PRIVATE[5]),
            await refused(resources.keyed("m").append, "k", PRIVATE[3]),
            await refused(resources.agent([{"id": "m", "key": "k"}]).add, PRIVATE[1], "x"),
        ]

    assert [text for fault in faults for text in of_error(fault) if "walrus" in text] == []


def test_no_error_of_a_session_key_quotes_private_values() -> None:
    """An error about a session's key quotes the values of its template redacted."""
    with Resources.load(DECLARED) as resources:
        for value in ({SECRET: 1}, f"a\0{SECRET}", f"{'x' * 70}{SECRET}\0"):
            with pytest.raises(ValueError) as caught:  # noqa: PT011 (of a key)
                resources.session({"id": "m", "key": "user:{{.user}}"}, {"user": value})

            assert [text for text in of_error(caught.value) if "walrus" in text] == []


ASKED: tuple[dict[str, Any], ...] = (
    {"messages": SECRET},
    {"messages": [{"role": SECRET, "content": SECRET}]},
    {"messages": [{"role": "system", "content": {SECRET: SECRET}}, {"role": "user", "content": "x"}]},
    {"messages": [{"role": "user", "content": {SECRET: SECRET}}]},
    {"messages": [{"role": "user", "content": "x"}], "tools": [SECRET]},
    {"messages": [{"role": "user", "content": "x"}], "n": SECRET},
)


@pytest.mark.parametrize("asked", ASKED, ids=range(len(ASKED)))
def test_no_error_of_a_remembering_client_quotes_private_values(asked: dict[str, Any]) -> None:
    """A request that a remembering client refuses is refused before it is sent, without private text in the error."""
    client = OpenAI(api_key="none", base_url="http://127.0.0.1:1")
    with client, Memory.open("memory://", privacy="default") as memory:
        asking: Any = remember(client, memory.session("s"))
        with pytest.raises(ValueError) as caught:  # noqa: PT011 (all of ours that refuse are)
            asking.chat.completions.create(model="gpt-4o", **asked)

    assert [text for text in of_error(caught.value) if "walrus" in text] == []


def test_a_tool_quotes_faulty_arguments_redacted() -> None:
    """A tool quotes the faulty arguments of a call redacted."""
    with Memory.open("memory://", privacy="default") as memory:
        memory.session("s").add_user_message("hello")
        tools = MemoryTools(memory, session="s", facts="user/ann")
        told = [
            tools.call(name, arguments).text
            for name, arguments in (
                (SECRET, {}),
                ("search_memory", {SECRET: 1}),
                ("search_memory", {"query": "hello", "limit": SECRET}),
                ("search_memory", {"query": "hello", "since": SECRET}),
                ("read_entries", {"entries": [[SECRET]]}),
                ("remember_fact", {"key": "a", "value": "b", "importance": SECRET}),
                ("forget_fact", {"key": SECRET}),
            )
        ]

    assert [text for text in told if "[REDACTED]" not in text or "walrus" in text] == []


STREAMS: dict[str, list[Any]] = {
    "chat": [
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "hi"}}]},
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
    ],
    "messages": [
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "usage": {"input_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hi"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ],
    "contents": [
        {
            "candidates": [{"content": {"role": "model", "parts": [{"text": "hi"}]}, "index": 0}],
            "usageMetadata": {"promptTokenCount": 1},
        },
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "!"}]}, "finishReason": "STOP"}]},
    ],
}


def changed(value: Any, chance: random.Random) -> Any:
    """Return the value with one leaf replaced by a private text."""
    if isinstance(value, dict) and value:
        key = chance.choice(list(value))
        return {**value, key: changed(value[key], chance)}
    if isinstance(value, list) and value:
        at = chance.randrange(len(value))
        return [*value[:at], changed(value[at], chance), *value[at + 1 :]]
    return chance.choice((SECRET, {SECRET: SECRET}, [SECRET], [[SECRET]], {"text": SECRET}))


def answered(session: Session, events: list[Any]) -> None:
    """Store an answer from these events of a stream."""
    with session.stream() as answer:
        for event in events:
            answer.feed(event)


@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut off"])
@pytest.mark.parametrize("kind", STREAMS)
def test_no_error_of_a_streamed_answer_quotes_private_text(kind: str, cut: bool) -> None:
    """Neither an event of a stream nor the end of the block quotes a private leaf."""
    faults = list[tuple[int, Exception]]()
    with Memory.open("memory://", privacy="default") as memory:
        for seed in range(300):
            chance = random.Random(seed)
            events = list(STREAMS[kind])
            at = chance.randrange(len(events))
            events[at] = changed(events[at], chance)

            fed = partial(answered, memory.session(f"s{seed}"), events[: -1 if cut else None])
            if (fault := fault_of(fed)) is not None:
                faults.append((seed, fault))

    assert len(faults) > 20
    assert [seed for seed, fault in faults if any("walrus" in text for text in of_error(fault))] == []
