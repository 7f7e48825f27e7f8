"""What is kept of an answer when whoever reads it is cancelled, again at every `await`, as in a scope of anyio."""

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
"""After how many steps of the event loop it is cancelled."""

SAID = [{"role": "user", "content": "Which gate?"}]
PART = [("I look", {"cut_off": True})]


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[AsyncMemory]:
    """An SQLite store under an event loop, where a write that has not begun can be taken back."""
    async with AsyncMemory.open(tmp_path / "log.db") as memory:
        await memory.session("warm").add(SAID)
        yield memory


async def kept(session: AsyncSession) -> list[tuple[str, Any]]:
    """What the model has said, and how it is marked."""
    return [(one.text, one.metadata) for one in await session.entries() if one.role == "assistant"]


def is_open(path: Path) -> bool:
    """Whether somebody has an SQLite store open: the journal goes with the last one."""
    return Path(f"{path}-wal").exists()


def after(steps: int, function: Callable[[], object]) -> None:
    """Call a function when the event loop has made so many steps."""
    if steps:
        asyncio.get_running_loop().call_soon(after, steps - 1, function)
    else:
        function()


async def in_a_scope(work: Callable[[Callable[[], None]], Awaitable[object]]) -> None:
    """Do some work in a scope that it is given the means to cancel."""
    with anyio.CancelScope() as scope:
        await work(scope.cancel)


async def in_a_task(work: Callable[[Callable[[], None]], Awaitable[object]]) -> None:
    """The same in a task, which is cancelled again and again."""

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
async def test_what_came_is_kept_at_whatever_moment_it_is_cancelled(memory: AsyncMemory, how: str) -> None:
    """The text that came before the block was cancelled is in the log, marked, once."""
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
async def test_a_whole_answer_is_kept_though_its_reader_is_cancelled_while_it_is_stored(
    memory: AsyncMemory, how: str
) -> None:
    """An answer that is over is stored once, with what it cost, and `entries` are its entries."""
    for steps in MOMENTS:
        session = memory.session(f"s{steps}")
        answers = []

        async def listen(cancel: Callable[[], None], steps: int = steps, session: AsyncSession = session) -> None:
            async with session.stream() as answer:
                answers.append(answer)  # noqa: B023 (it is over before the next one)
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
    """A loop that ends while an answer is stored cancels what stores it: the answer is there all the same, once, and so
    is what it cost."""

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


async def test_a_turn_that_is_cancelled_keeps_nobody_waiting(memory: AsyncMemory, tmp_path: Path) -> None:
    """At whatever moment: the next one goes at once, here and elsewhere."""
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
async def test_closing_that_is_cancelled_leaves_nothing_open(tmp_path: Path, how: str) -> None:
    """At whatever moment: the store is closed when its task goes on, and closing again is fine."""
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


async def test_background_work_is_given_up_when_closing_is_cancelled(tmp_path: Path) -> None:
    """Whoever cannot wait for it any longer leaves no store open for its sake."""
    path, never = tmp_path / "log.db", asyncio.Event()
    memory = AsyncMemory.open(path)
    await memory.session("s").add(SAID)
    memory.runner.background(never.wait)

    async def close(cancel: Callable[[], None]) -> None:
        after(3, cancel)
        await memory.close()

    await in_a_scope(close)

    assert not is_open(path)


async def test_an_opening_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    """At whatever moment: what was opened by then is closed when its task goes on."""
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


async def test_an_atomic_turn_that_is_cancelled_is_whole_or_not_there(memory: AsyncMemory) -> None:
    """At whatever moment, and it keeps nobody waiting."""
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
    """Stream the beginning of an answer, and no end."""
    exchange.open_stream()
    for event in CHAT.events[:3]:
        exchange.send_event(json.dumps(event))
    exchange.wait_for_hangup()


async def test_a_reader_who_goes_away_leaves_what_came(memory: AsyncMemory) -> None:
    """A server that streams an answer on, and whose framework cancels that when the reader goes: the text is kept."""
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
    """Read what a server sends, and go away when it has sent this word, and the store is busy with something else."""
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


async def test_an_answer_that_came_at_once_is_kept_for_who_is_cancelled(memory: AsyncMemory) -> None:
    """It was paid for: it is in the log, once, though the caller never has it."""
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


async def test_what_fails_for_who_was_cancelled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """He is told of his cancellation, so the error goes to the log, without what is private."""

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
