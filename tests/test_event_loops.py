"""Several event loops at once, each in a thread, as in frameworks that start one for each request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from palimpsest import AsyncMemory
from palimpsest.runtime.task_lock import TaskLock
from palimpsest.strategies import CallableSummarizer, Summarize, Triggers

PATIENCE = 300.0
LOOPS = 4


def in_loops(work: Callable[[int], Coroutine[Any, Any, Any]], count: int = LOOPS) -> list[Any]:
    """Return the results of a coroutine function in several loops that begin at once."""
    start = threading.Barrier(count)

    def run(number: int) -> Any:
        start.wait(PATIENCE)
        return asyncio.run(work(number))

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count), timeout=PATIENCE))


class Loop:
    """An event loop in a thread that begins tasks on request."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return a future of the coroutine's result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """End the loop, whatever waits in it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(PATIENCE)
            self.loop.close()


@pytest.fixture
def loops() -> Any:
    """Two event loops."""
    both = Loop(), Loop()
    yield both
    for one in both:
        one.close()


@pytest.mark.parametrize("where", ["memory://", "sqlite:///{}/a.db", "file://{}/files"])
def test_loops_that_begin_at_once_share_a_memory(tmp_path: Path, where: str) -> None:
    """Several loops can use one memory at once, in their own sessions and in a shared one."""
    memory = AsyncMemory.open(where.format(tmp_path))

    async def work(number: int) -> int:
        own, shared = memory.session(f"s{number}"), memory.session("shared")
        for i in range(5):
            await own.add_user_message(f"{i}")
            await shared.add_user_message(f"{number} {i}")
            await own.context(max_tokens=1000)
        return len(await own.entries())

    assert in_loops(work) == [5] * LOOPS

    async def end() -> None:
        entries = await memory.session("shared").entries()
        assert sorted(entry.text for entry in entries) == sorted(f"{n} {i}" for n in range(LOOPS) for i in range(5))
        await memory.close()

    asyncio.run(end())


def test_closing_waits_for_what_another_loop_does_in_the_background(
    loops: tuple[Loop, Loop], caplog: pytest.LogCaptureFixture
) -> None:
    """A compaction that one loop has begun is done, and not given up, when the memory is closed on another."""
    memory = AsyncMemory.open("memory://")
    memory.runner.patience = 2 * PATIENCE  # a waiter that is not woken makes the test time out
    begun, heard = threading.Event(), list[str]()
    memory.on("compressed", lambda session, facts: heard.append(session))

    async def summary(prompt: str) -> str:
        begun.set()
        await going.wait()
        return "They spoke."

    chat = memory.session(
        "s",
        summarizer=CallableSummarizer(summary, checked=False),
        long_term=Summarize(min_entries=2, recent_entries=2, triggers=Triggers(max_entries=4)),
        auto_compact="background",
    )

    async def talk() -> None:
        for i in range(6):
            await chat.add_user_message(f"{i} " + "hello and good morning " * 20)

    async def close() -> None:
        closing = asyncio.create_task(memory.close())
        await asyncio.sleep(0)
        loops[0].loop.call_soon_threadsafe(going.set)
        await closing

    going = asyncio.Event()
    loops[0].begin(talk()).result(PATIENCE)
    assert begun.wait(PATIENCE)

    loops[1].begin(close()).result(PATIENCE)

    assert heard == ["s"]
    assert caplog.text == ""


class Line:
    """Tasks that wait in order for one lock, which another task of the first loop holds."""

    def __init__(self, first: Loop) -> None:
        self.lock, self.order = TaskLock(), list[str]()
        self._first, self._over = first, asyncio.Event()
        self._has = first.begin(self._held())
        first.begin(asyncio.sleep(0)).result(PATIENCE)  # it has the lock now

    async def _held(self) -> None:
        async with self.lock:
            await self._over.wait()

    async def _taken(self, name: str) -> None:
        async with self.lock:
            self.order.append(name)

    def join(self, loop: Loop, name: str) -> Any:
        """Let a task of a loop wait for the lock."""
        waiting = loop.begin(self._taken(name))
        loop.begin(asyncio.sleep(0)).result(PATIENCE)  # it waits now
        return waiting

    def go_on(self) -> None:
        """Let the first task give the lock back."""
        self._first.loop.call_soon_threadsafe(self._over.set)
        self._has.result(PATIENCE)


def test_a_task_of_another_loop_is_woken(loops: tuple[Loop, Loop]) -> None:
    """A lock passes to waiting tasks in order, whichever loop they are on."""
    line = Line(loops[0])
    waiting = [line.join(loop, name) for loop, name in ((loops[1], "b1"), (loops[0], "a2"), (loops[1], "b2"))]

    line.go_on()
    for one in waiting:
        one.result(PATIENCE)

    assert line.order == ["b1", "a2", "b2"]


def test_a_lock_skips_cancelled_waiters_and_closed_loops(loops: tuple[Loop, Loop]) -> None:
    """A cancelled waiter, or one on a closed loop, is skipped."""
    line, gone = Line(loops[0]), Loop()
    gone.loop.set_exception_handler(lambda *_: None)  # its task is never done
    cancelled = line.join(loops[1], "b1"), line.join(loops[0], "a2")
    line.join(gone, "c1")
    last = line.join(loops[1], "b2")

    gone.close()
    for one in cancelled:
        one.cancel()
    line.go_on()
    last.result(PATIENCE)
    line.join(loops[0], "a3").result(PATIENCE)

    assert line.order == ["b2", "a3"]


def test_a_task_cancelled_as_it_gets_the_lock_releases_it(loops: tuple[Loop, Loop]) -> None:
    """Many tasks that are cancelled at any moment leave a lock that the next has at once."""
    lock = TaskLock()

    async def crowd() -> None:
        async def one() -> None:
            async with lock:
                await asyncio.sleep(0)

        for _ in range(50):
            tasks = [asyncio.create_task(one()) for _ in range(8)]
            for i, task in enumerate(tasks):
                await asyncio.sleep(0)
                if i % 3:
                    task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    for one in [loop.begin(crowd()) for loop in loops]:
        one.result(PATIENCE)

    async def again() -> bool:
        async with lock:
            return True

    assert loops[0].begin(again()).result(PATIENCE)
