"""Runners: what they wait for and how long, background work, and what closing leaves behind."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import signal
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from palimpsest.errors import Closed
from palimpsest.runtime.runner import Inline, Runner, drive
from palimpsest.runtime.threads import Suspended
from processes import at_once
from run_coroutines import WORLDS, Complete, inline, threaded

PATIENCE = 300.0
colour: ContextVar[str] = ContextVar("colour", default="none")


@pytest.fixture(params=WORLDS)
def complete(request: pytest.FixtureRequest) -> Complete:
    """Run a coroutine with a synchronous and an asynchronous runner."""
    run: Complete = request.param
    return run


class Endless:
    """A coroutine function that never returns and signals when it begins and is cancelled."""

    def __init__(self, begun: Callable[[], object] = lambda: None) -> None:
        self.begun, self.cancelled = begun, threading.Event()

    async def __call__(self) -> None:
        self.begun()
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def interrupt() -> None:
    """Raise KeyboardInterrupt in the main thread while it waits."""
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()


# --- outside and wait


def test_outside_runs_a_function_in_a_thread_with_its_context(complete: Complete) -> None:
    """`outside` runs a function in another thread with the caller's context variables and returns or raises its
    outcome."""

    async def work(runner: Runner) -> None:
        colour.set("blue")
        assert await runner.outside(lambda: (colour.get(), threading.get_ident() == here)) == ("blue", False)
        with pytest.raises(KeyError, match="lost"):
            await runner.outside({}.__getitem__, "lost", timeout=PATIENCE)

    here = threading.get_ident()
    complete(work)


def test_a_cancellation_inside_a_function_is_a_plain_exception(complete: Complete) -> None:
    """A cancellation inside a function or awaitable is raised as a plain Exception."""

    def raises() -> None:
        raise asyncio.CancelledError("of its own")

    async def awaits() -> None:
        task = asyncio.ensure_future(Endless()())
        task.cancel()
        await task

    async def work(runner: Runner) -> None:
        with pytest.raises(RuntimeError, match="CancelledError"):
            await runner.outside(raises)
        for timeout in (None, PATIENCE):
            with pytest.raises((RuntimeError, concurrent.futures.CancelledError)):
                await runner.wait(awaits(), timeout)

    complete(work)


def test_hanging_functions_and_coroutines_time_out(complete: Complete) -> None:
    """A function that hangs is left to itself, a coroutine that hangs is cancelled; both give TimeoutError."""
    let_go, endless = threading.Event(), Endless()

    async def work(runner: Runner) -> None:
        with pytest.raises(TimeoutError):
            await runner.outside(let_go.wait, PATIENCE, timeout=0.05)
        with pytest.raises(TimeoutError):
            await runner.wait(endless(), 0.05)
        assert await runner.wait(asyncio.sleep(0, "done"), PATIENCE) == "done"

    complete(work)
    assert endless.cancelled.wait(PATIENCE)
    let_go.set()


def test_a_blocked_loop_does_not_block_a_synchronous_caller() -> None:
    """A synchronous caller gives up a coroutine that blocks its thread after the timeout."""
    let_go = threading.Event()

    async def rude() -> None:
        let_go.wait(PATIENCE)

    async def work(runner: Runner) -> None:
        with pytest.raises(TimeoutError):
            await runner.wait(rude(), 0.05)
        let_go.set()

    inline(work)


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_an_interrupt_ends_a_wait_at_once() -> None:
    """Ctrl-C ends the wait of a synchronous caller, for a function or a coroutine, and cancels the latter."""
    let_go, endless = threading.Event(), Endless(interrupt)
    ended: list[str] = []

    def hanging() -> None:
        interrupt()
        let_go.wait(PATIENCE)
        ended.append("hanging")

    async def work(runner: Runner) -> None:
        with pytest.raises(KeyboardInterrupt):
            await runner.wait(endless(), PATIENCE)
        with pytest.raises(KeyboardInterrupt):
            await runner.outside(hanging, timeout=PATIENCE)
        assert ended == []

    inline(work)
    assert endless.cancelled.wait(PATIENCE)
    let_go.set()


def test_cancelling_the_task_cancels_what_it_waits_for() -> None:
    """Cancelling a task cancels the awaited call, and does not wait for a function."""
    let_go, begun = threading.Event(), threading.Semaphore(0)
    endless = Endless(begun.release)

    def hanging() -> None:
        begun.release()
        let_go.wait(PATIENCE)

    async def work(runner: Runner) -> None:
        for waiting in (runner.wait(endless()), runner.outside(hanging)):
            task = asyncio.ensure_future(waiting)
            assert await asyncio.to_thread(begun.acquire, timeout=PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    threaded(work)
    assert endless.cancelled.is_set()
    let_go.set()


def test_a_synchronous_call_from_its_own_loop_is_refused() -> None:
    """A synchronous call on the runner's own loop is refused, since it would wait for itself."""

    async def work(runner: Runner) -> None:
        async def inside() -> None:
            drive(runner.wait(asyncio.sleep(0)))

        with pytest.raises(Suspended, match="use AsyncMemory"):
            await runner.wait(inside(), PATIENCE)

    inline(work)


def test_one_loop_serves_all_threads() -> None:
    """Threads that share a synchronous memory share the loop to which drivers are bound."""
    runner, loops = Inline(), set()

    async def note() -> None:
        loops.add(asyncio.get_running_loop())

    at_once(lambda _: drive(runner.wait(note())), 8)
    drive(runner.close())

    assert len(loops) == 1


# --- the background


def test_background_jobs_begin_in_order_without_being_awaited(complete: Complete) -> None:
    """Jobs begin without being waited for, in their order; settling waits for them and for those that they begin."""
    done: list[str] = []
    go = threading.Event()

    async def work(runner: Runner) -> None:
        async def first() -> None:
            await runner.outside(go.wait, PATIENCE)
            done.append("first")
            runner.background(third)

        async def second() -> None:
            await runner.sleep(0)
            done.append("second")

        async def third() -> None:
            done.append("third")

        runner.background(first)
        assert not await runner.settle(0.05)
        go.set()
        runner.background(second)
        assert await runner.settle(PATIENCE)
        assert sorted(done) == ["first", "second", "third"]
        assert await runner.settle(0)

    complete(work)


def test_background_jobs_of_a_synchronous_memory_run_in_order() -> None:
    """Background jobs of a synchronous memory run in order in one thread."""
    seen: list[tuple[int, int]] = []

    async def work(runner: Runner) -> None:
        for number in range(20):

            async def job(number: int = number) -> None:
                seen.append((number, threading.get_ident()))

            runner.background(job)
        assert await runner.settle(PATIENCE)

    inline(work)
    assert [number for number, _ in seen] == list(range(20))
    assert threading.get_ident() not in {thread for _, thread in seen}


def test_a_job_that_raises_is_logged(complete: Complete, caplog: pytest.LogCaptureFixture) -> None:
    """The error is in the log with its traceback, and the next job runs."""
    done: list[str] = []

    async def broken() -> None:
        raise ValueError("no luck")

    async def well() -> None:
        done.append("well")

    async def work(runner: Runner) -> None:
        runner.background(broken)
        runner.background(well)
        assert await runner.settle(PATIENCE)

    with caplog.at_level(logging.ERROR, "palimpsest"):
        complete(work)

    assert done == ["well"]
    assert "no luck" in caplog.text


def test_closing_waits_for_a_running_job(complete: Complete) -> None:
    """A job that is under way is finished first; afterwards there is no background any more."""
    done: list[str] = []
    go = threading.Event()

    async def job(runner: Runner) -> None:
        await runner.outside(go.wait, PATIENCE)
        done.append("done")

    async def work(runner: Runner) -> None:
        runner.background(lambda: job(runner))
        threading.Timer(0.05, go.set).start()
        await runner.close()
        assert done == ["done"]
        with pytest.raises(Closed):
            runner.background(lambda: job(runner))

    complete(work)


def test_closing_gives_up_a_hanging_job_after_patience_seconds(complete: Complete) -> None:
    """`close` gives up a hanging job after `patience` seconds: it is cancelled, and later ones never begin."""
    endless = Endless()
    never: list[str] = []

    async def hanging(runner: Runner) -> None:
        await runner.wait(endless())
        never.append("went on")

    async def work(runner: Runner) -> None:
        runner.background(lambda: hanging(runner))
        runner.patience = 0.05
        await runner.close()
        assert endless.cancelled.wait(PATIENCE)

    complete(work)
    assert never == []


def test_closing_ends_a_wait_in_another_thread() -> None:
    """`close` ends a wait in another thread with Closed."""
    runner, begun = Inline(), threading.Event()
    told: list[Any] = []

    def wait() -> None:
        with pytest.raises(Closed) as raised:
            drive(runner.wait(Endless(begun.set)()))
        told.append(raised.value)

    thread = threading.Thread(target=wait)
    thread.start()
    assert begun.wait(PATIENCE)
    drive(runner.close())
    thread.join(PATIENCE)

    assert len(told) == 1
    with pytest.raises(Closed):
        drive(runner.wait(asyncio.sleep(0)))


def test_closing_twice_does_nothing(complete: Complete) -> None:
    """The second time there is nothing left to do."""

    async def work(runner: Runner) -> None:
        await runner.wait(asyncio.sleep(0))
        await runner.close()
        await runner.close()

    complete(work)


def test_a_job_may_wait_for_the_other_jobs(complete: Complete) -> None:
    """A job that waits for the others does not wait for itself."""
    settled: list[bool] = []

    async def work(runner: Runner) -> None:
        async def job() -> None:
            settled.append(await runner.settle(PATIENCE))

        runner.background(job)
        assert await runner.settle(PATIENCE)

    complete(work)
    assert settled == [True]


def test_a_thread_with_a_reused_id_is_not_taken_for_a_job() -> None:
    """A thread is not taken for a job's thread because it has the id of an ended one."""
    runner, numbers = Inline(), set[int]()
    waited: list[tuple[bool, bool]] = []

    async def job() -> None:
        numbers.add(threading.get_ident())

    def asks(_: int) -> None:
        again = threading.get_ident() in numbers
        runner.background(job)
        waited.append((again, drive(runner.settle(PATIENCE))))

    for _ in range(500):  # the system gives the number out again, as a rule to the next thread
        at_once(asks, 1)
        if waited[-1] == (True, True):
            break

    assert all(settled for _, settled in waited), waited[-3:]
