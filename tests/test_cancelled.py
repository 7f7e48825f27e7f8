"""What is kept when the reader of an answer is cancelled at every `await`, as a cancel scope of anyio does."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from openai_server import Exchange
from palimpsest import AsyncMemory, AsyncSession, Memory
from palimpsest.integrations import openai
from palimpsest.runtime.lasting import surely
from sdks import load
from streams import CHAT, StreamServer

pytestmark = pytest.mark.anyio

MOMENTS = [*range(8), 10, 13, 17, 23, 31, 50, 100, 300, 1000]
"""The numbers of steps of the event loop after which a test cancels."""

SAID = [{"role": "user", "content": "Which gate?"}]
PART = [("I look", {"cut_off": True})]


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[AsyncMemory]:
    """An SQLite store under an event loop, where a write that has not begun can be taken back."""
    async with AsyncMemory.open(tmp_path / "log.db") as memory:
        await memory.session("warm").add(SAID)
        yield memory


async def kept(session: AsyncSession) -> list[tuple[str, Any]]:
    """Return what the model has said in the log, and how it is marked."""
    return [(one.text, one.metadata) for one in await session.entries() if one.role == "assistant"]


def is_open(path: Path) -> bool:
    """Whether somebody has the SQLite store open: the last one to close removes the journal."""
    return Path(f"{path}-wal").exists()


def after(steps: int, function: Callable[[], object]) -> None:
    """Call a function after so many steps of the event loop."""
    if steps:
        asyncio.get_running_loop().call_soon(after, steps - 1, function)
    else:
        function()


async def in_a_scope(work: Callable[[Callable[[], None]], Awaitable[object]]) -> None:
    """Run some work in a cancel scope, passing it the function that cancels the scope."""
    with anyio.CancelScope() as scope:
        await work(scope.cancel)


async def in_a_task(work: Callable[[Callable[[], None]], Awaitable[object]]) -> None:
    """Run some work in a task that is cancelled again and again."""

    def cancel() -> None:
        if not task.done():
            task.cancel()
            asyncio.get_running_loop().call_soon(cancel)

    async def done() -> None:
        await work(cancel)

    task = asyncio.ensure_future(done())
    await asyncio.gather(task, return_exceptions=True)


ENDS = {"scope": in_a_scope, "task": in_a_task}


@pytest.mark.parametrize("how", ENDS)
async def test_a_cancelled_stream_keeps_the_text_that_came(memory: AsyncMemory, how: str) -> None:
    """A stream that is cancelled at any moment keeps the text that came, marked as incomplete, once."""
    for steps in MOMENTS:
        session = memory.session(f"s{steps}")

        async def listen(cancel: Callable[[], None], steps: int = steps, session: AsyncSession = session) -> None:
            async with session.turn(), session.stream() as answer:
                for event in CHAT.events[:3]:
                    answer.feed(event)
                after(steps, cancel)
                await asyncio.sleep(60)

        await ENDS[how](listen)

        assert await kept(session) == PART
        assert not session.in_turn


@pytest.mark.parametrize("how", ENDS)
async def test_a_complete_answer_is_stored_although_its_reader_is_cancelled(memory: AsyncMemory, how: str) -> None:
    """A complete answer is stored once, with its usage, even if its reader is cancelled meanwhile."""
    for steps in MOMENTS:
        session = memory.session(f"s{steps}")
        answers = []

        async def listen(cancel: Callable[[], None], steps: int = steps, session: AsyncSession = session) -> None:
            async with session.stream() as answer:
                answers.append(answer)  # noqa: B023 (the task ends before the next round)
                for event in CHAT.events:
                    answer.feed(event)
                after(steps, cancel)
            await asyncio.sleep(60)

        await ENDS[how](listen)

        stored = await session.entries()
        assert [(one.kind, one.metadata) for one in stored] == [("message", None), ("tool_call", None)]
        assert answers[0].entries == tuple(stored)
        usage = (await session.stats()).usage
        assert usage is not None
        assert usage.calls == 1


@pytest.mark.parametrize("key", [None, "one"])
def test_a_loop_that_ends_leaves_one_answer(key: str | None, tmp_path: Path) -> None:
    """An event loop that ends while an answer is being stored leaves the answer and its usage in the log, once."""

    async def run(steps: int, name: str) -> None:
        fed = asyncio.Event()

        async def listen() -> None:
            async with AsyncMemory.open(tmp_path / "log.db") as memory, memory.session(name).stream(key=key) as answer:
                for event in CHAT.events:
                    answer.feed(event)
                fed.set()

        listening = asyncio.ensure_future(listen())
        await fed.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        del listening

    for steps in MOMENTS:
        asyncio.run(run(steps, f"s{steps}"))

    with Memory.open(tmp_path / "log.db") as memory:
        for steps in MOMENTS:
            session = memory.session(f"s{steps}")
            assert [one.kind for one in session.entries()] == ["message", "tool_call"]
            assert [(used.calls, used.output_tokens) for used in [session.stats().usage] if used] == [(1, 9)]


async def test_a_cancelled_turn_keeps_nobody_waiting(memory: AsyncMemory, tmp_path: Path) -> None:
    """After a turn is cancelled at any moment, the next turn begins at once, here and in another memory."""
    with Memory.open(tmp_path / "log.db") as other:
        for steps in MOMENTS:
            session = memory.session("s")

            async def hold(cancel: Callable[[], None], steps: int = steps, session: AsyncSession = session) -> None:
                after(steps, cancel)
                async with session.turn():
                    await session.add(SAID)
                await asyncio.sleep(60)

            await in_a_scope(hold)

            async with session.turn(wait=0):
                pass
            with other.session("s").turn(wait=0):
                pass


@pytest.mark.parametrize("how", ENDS)
async def test_a_cancelled_close_leaves_nothing_open(tmp_path: Path, how: str) -> None:
    """A `close` that is cancelled at any moment closes the store; closing again is allowed."""
    path = tmp_path / "log.db"
    for steps in MOMENTS:
        memory = AsyncMemory.open(path)

        async def close(cancel: Callable[[], None], steps: int = steps, memory: AsyncMemory = memory) -> None:
            async with memory.session("s").turn():
                await memory.recall("gate")
            after(steps, cancel)
            await memory.close()

        await ENDS[how](close)

        assert not is_open(path)
        await memory.close()


async def test_a_cancelled_close_gives_up_background_work(tmp_path: Path) -> None:
    """A `close` that is cancelled gives up background work and closes the store."""
    path, never = tmp_path / "log.db", asyncio.Event()
    memory = AsyncMemory.open(path)
    await memory.session("s").add(SAID)
    memory.runner.background(never.wait)

    async def close(cancel: Callable[[], None]) -> None:
        after(3, cancel)
        await memory.close()

    await in_a_scope(close)

    assert not is_open(path)


async def test_a_cancelled_opening_leaves_nothing_open(tmp_path: Path) -> None:
    """A `connect` that is cancelled at any moment closes what it has opened."""
    path = tmp_path / "log.db"
    for steps in MOMENTS:
        memory = AsyncMemory.open(path)

        async def connect(cancel: Callable[[], None], steps: int = steps, memory: AsyncMemory = memory) -> None:
            after(steps, cancel)
            await memory.connect()
            await memory.close()

        await in_a_scope(connect)

        assert not is_open(path)
        await memory.close()


async def test_a_cancelled_atomic_turn_is_stored_whole_or_not_at_all(memory: AsyncMemory) -> None:
    """An atomic turn that is cancelled at any moment is stored whole or not at all, and leaves no lease."""
    for steps in MOMENTS:
        session = memory.session(f"s{steps}")

        async def gather(cancel: Callable[[], None], steps: int = steps, session: AsyncSession = session) -> None:
            async with session.turn(atomic=True):
                for number in range(3):
                    await session.add_user_message(str(number))
                after(steps, cancel)
            await asyncio.sleep(60)

        await in_a_scope(gather)

        assert [one.text for one in await session.entries()] in ([], ["0", "1", "2"])
        async with session.turn(wait=0):
            pass


# --- clients that remember


def hangs(exchange: Exchange) -> None:
    """Stream the beginning of an answer and never end it."""
    exchange.open_stream()
    for event in CHAT.events[:3]:
        exchange.send_event(json.dumps(event))
    exchange.wait_for_hangup()


async def test_a_disconnected_reader_leaves_the_text_that_came(memory: AsyncMemory) -> None:
    """If a web framework cancels a streaming response because its reader disconnects, the text that came is stored."""
    rounds = 3
    responses, vendor = load("starlette.responses"), load("openai")
    http = vendor.DefaultAsyncHttpxClient(verify=False)
    with StreamServer(*[hangs] * rounds) as server:
        async with vendor.AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, http_client=http) as client:
            for number in range(rounds):
                session = memory.session(f"s{number}")
                chunks = await openai.remember(client, session).chat.completions.create(
                    model="gpt-4o", messages=SAID, stream=True
                )

                async def words(chunks: Any = chunks) -> AsyncIterator[str]:
                    async with chunks:
                        async for chunk in chunks:
                            yield chunk.choices[0].delta.content or ""

                busy = await _read_until("look", responses.StreamingResponse(words()), memory)

                assert await kept(session) == PART
                assert not session.in_turn
                await busy


async def _read_until(word: str, response: Any, memory: AsyncMemory) -> asyncio.Task[None]:
    """Read a response until this word, then disconnect while the store is busy."""
    read = asyncio.Event()
    busy = list[asyncio.Task[None]]()

    async def send(message: dict[str, Any]) -> None:
        if word.encode() in message.get("body", b""):
            busy.append(asyncio.create_task(memory.runner.run(time.sleep, 0.1)))
            read.set()

    async def receive() -> dict[str, str]:
        await read.wait()
        return {"type": "http.disconnect"}

    await response({"type": "http", "asgi": {"spec_version": "2.3"}}, receive, send)
    return busy[0]


async def test_a_whole_answer_is_stored_although_its_caller_is_cancelled(memory: AsyncMemory) -> None:
    """An unstreamed answer is stored once although its caller is cancelled: it was paid for."""
    for steps in MOMENTS[:-1]:
        session = memory.session(f"s{steps}")

        async def ask(cancel: Callable[[], None], steps: int = steps, session: AsyncSession = session) -> None:
            async def create(**_: Any) -> Any:
                after(steps, cancel)
                return CHAT.whole

            client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
            await openai.remember(client, session).chat.completions.create(model="gpt-4o", messages=SAID)
            await asyncio.sleep(60)

        await in_a_scope(ask)

        assert [one.kind for one in await session.entries()] == ["message", "message", "tool_call"]
        assert not session.in_turn


# --- what runs to its end


async def test_an_error_behind_a_cancellation_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """If a task is cancelled and its work also fails, the error is logged, redacted, since the task raises
    CancelledError."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("the secret is lost")

    async def work(cancel: Callable[[], None]) -> None:
        cancel()
        await surely(fail, redact=lambda text: text.replace("secret", "[it]"))

    with caplog.at_level(logging.ERROR, "palimpsest"):
        await in_a_scope(work)

    assert "the [it] is lost" in caplog.text
    assert "secret" not in caplog.text
