"""Worker threads: what they run, who waits for it, and when they end."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from unittest.mock import patch

import pytest

from palimpsest.errors import Closed
from palimpsest.runtime import workers as workers_module
from palimpsest.runtime.workers import Call, Workers
from processes import until

WHO: ContextVar[str] = ContextVar("who")


def alive(before: set[int]) -> set[int]:
    """Return the threads that have begun since."""
    return set(_threads()) - before


def _threads() -> set[int]:
    return set(sys._current_frames())


async def called(workers: Workers, function: Callable[..., object], *arguments: object) -> object:
    call = Call(function, arguments)
    workers.put(call)
    return await call.future


def test_a_function_runs_in_a_thread_with_its_callers_context() -> None:
    """A function runs in a thread, sees the context variables of the task that asked, and its result comes back."""

    def function(argument: int) -> tuple[int, str, bool]:
        return argument, WHO.get(), threading.get_ident() == main

    async def ask(workers: Workers, number: int) -> object:
        WHO.set(str(number))
        return await called(workers, function, number)

    async def results_of_all() -> list[object]:
        workers = Workers(3)
        results = await asyncio.gather(*(ask(workers, number) for number in range(20)))
        workers.close()
        return list(results)

    main = threading.get_ident()

    assert asyncio.run(results_of_all()) == [(number, str(number), False) for number in range(20)]


@pytest.mark.parametrize("fault", [ValueError("no"), KeyboardInterrupt(), asyncio.CancelledError()])
def test_an_error_of_a_function_is_raised_where_it_is_awaited(fault: BaseException) -> None:
    """Whatever a function raises is raised where it is awaited, and its thread goes on."""

    def function() -> None:
        raise fault

    async def outcomes() -> tuple[BaseException | None, object]:
        workers, raised = Workers(1), None
        try:
            await called(workers, function)
        except BaseException as error:  # noqa: BLE001 (what comes of the test)
            raised = error
        after = await called(workers, int)
        workers.close()
        return raised, after

    raised, after = asyncio.run(outcomes())

    assert type(raised) is type(fault)
    assert after == 0


def test_stop_iteration_is_raised_as_runtime_error() -> None:
    """A StopIteration, which no future can hold, is raised as a RuntimeError."""

    async def wait() -> None:
        workers = Workers(1)
        try:
            await called(workers, next, iter(()))
        finally:
            workers.close()

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(wait())


def test_a_withdrawn_function_never_runs() -> None:
    """A function withdrawn before it began never runs; one that has begun cannot be withdrawn, and ends."""
    ran: list[str] = []
    begun, goes_on = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        goes_on.wait(30)
        ran.append("first")

    async def withdrawals() -> tuple[bool, bool]:
        workers = Workers(1)
        running, waiting = Call(first, ()), Call(ran.append, ("other",))
        workers.put(running)
        workers.put(waiting)
        begun.wait(30)
        withdrawn = running.withdraw(), waiting.withdraw()
        running.future.cancel()
        over = running.over()
        goes_on.set()
        await over
        await called(workers, int)  # behind both
        workers.close()
        return withdrawn

    assert asyncio.run(withdrawals()) == (False, True)
    assert ran == ["first"]


def test_no_more_functions_run_at_once_than_allowed() -> None:
    """As many functions run at once as there may be threads, and there are never more threads."""
    meeting = threading.Barrier(3)

    async def counted() -> int:
        workers, before = Workers(3), _threads()
        await asyncio.gather(*(called(workers, meeting.wait, 30) for _ in range(3)))
        await asyncio.gather(*(called(workers, int) for _ in range(50)))
        count = len(alive(before))
        workers.close()
        return count

    assert asyncio.run(counted()) == 3


def test_work_goes_to_a_free_thread_while_another_is_starting() -> None:
    """While a thread is beginning, work is given to one that is free, and does not wait."""
    done = threading.Event()
    workers = Workers(2)
    begin = workers_module.start_new_thread

    def slowly(work: Callable[..., object], arguments: tuple[object, ...]) -> int:
        """Begin a thread, which runs until it waits for what it finds in its queue."""
        thread = begin(work, arguments)
        until(lambda: holding or bool(workers._idle))
        return thread

    holding: list[bool] = []
    goes_on = threading.Event()

    def hold() -> None:
        holding.append(True)
        goes_on.wait(30)

    with patch.object(workers_module, "start_new_thread", slowly):
        workers.put(hold)
        until(lambda: bool(holding))
        workers.put(done.set)
        met = done.wait(5)
    goes_on.set()
    workers.close()

    assert met


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["closed", "gone"])
def test_threads_end_with_their_workers(how: str) -> None:
    """Threads end when their workers are closed or dropped, after the work that was put before."""
    ran: list[int] = []
    before = _threads()
    workers = Workers(2)
    for number in range(10):
        workers.put(lambda number=number: ran.append(number))

    if how == "closed":
        workers.close()
        with pytest.raises(Closed):
            workers.put(int)
    del workers
    gc.collect()

    until(lambda: len(ran) == 10)  # a thread that has not begun is not seen among those alive
    until(lambda: not alive(before))
    assert sorted(ran) == list(range(10))


def test_work_of_a_closed_loop_ends_without_error() -> None:
    """Work whose event loop was closed ends without an error, and its thread goes on."""
    goes_on, over = threading.Event(), threading.Event()
    workers = Workers(1)

    async def begin() -> None:
        workers.put(Call(goes_on.wait, (30,)))

    asyncio.run(begin())
    goes_on.set()
    workers.put(over.set)

    assert over.wait(30)
    workers.close()
