"""Worker threads: what they run, who waits, and when they end."""

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
    """Return the threads that have started since."""
    return set(_threads()) - before


def _threads() -> set[int]:
    return set(sys._current_frames())


async def called(workers: Workers, function: Callable[..., object], *arguments: object) -> object:
    call = Call(function, arguments)
    workers.put(call)
    return await call.future


def test_a_function_runs_in_a_thread_with_its_callers_context() -> None:
    """A function runs in a thread with the caller's context variables and returns its result."""

    def function(one: int) -> tuple[int, str, bool]:
        return one, WHO.get(), threading.get_ident() == main

    async def ask(workers: Workers, number: int) -> object:
        WHO.set(str(number))
        return await called(workers, function, number)

    async def asked() -> list[object]:
        workers = Workers(3)
        found = await asyncio.gather(*(ask(workers, number) for number in range(20)))
        workers.close()
        return list(found)

    main = threading.get_ident()

    assert asyncio.run(asked()) == [(number, str(number), False) for number in range(20)]


@pytest.mark.parametrize("fault", [ValueError("no"), KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_a_function_raises_is_raised_where_it_is_waited_for(fault: BaseException) -> None:
    """Any error of a function is raised where it is awaited, and the thread goes on."""

    def function() -> None:
        raise fault

    async def asked() -> tuple[BaseException | None, object]:
        workers, seen = Workers(1), None
        try:
            await called(workers, function)
        except BaseException as error:  # noqa: BLE001 (what comes of the test)
            seen = error
        after = await called(workers, int)
        workers.close()
        return seen, after

    seen, after = asyncio.run(asked())

    assert type(seen) is type(fault)
    assert after == 0


def test_a_stop_iteration_is_an_error_like_others() -> None:
    """A StopIteration comes as RuntimeError, since a future cannot hold it."""

    async def asked() -> None:
        workers = Workers(1)
        try:
            await called(workers, next, iter(()))
        finally:
            workers.close()

    with pytest.raises(RuntimeError, match="StopIteration"):
        asyncio.run(asked())


def test_what_was_withdrawn_before_it_began_never_runs() -> None:
    """Work that is withdrawn before it begins never runs; work that has begun can only be waited for."""
    ran: list[str] = []
    begun, goes_on = threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        goes_on.wait(30)
        ran.append("first")

    async def asked() -> tuple[bool, bool]:
        workers = Workers(1)
        one, other = Call(first, ()), Call(ran.append, ("other",))
        workers.put(one)
        workers.put(other)
        begun.wait(30)
        withdrawn = one.withdraw(), other.withdraw()
        one.future.cancel()
        over = one.over()
        goes_on.set()
        await over
        await called(workers, int)  # behind both
        workers.close()
        return withdrawn

    assert asyncio.run(asked()) == (False, True)
    assert ran == ["first"]


def test_as_many_run_at_once_as_there_may_be() -> None:
    """Work that waits for other work meets it, as far as there are threads, and there are never more."""
    meeting = threading.Barrier(3)

    async def asked() -> int:
        workers, before = Workers(3), _threads()
        await asyncio.gather(*(called(workers, meeting.wait, 30) for _ in range(3)))
        await asyncio.gather(*(called(workers, int) for _ in range(50)))
        there = len(alive(before))
        workers.close()
        return there

    assert asyncio.run(asked()) == 3


def test_nobody_waits_for_the_work_of_a_thread_that_has_just_begun() -> None:
    """Work goes to a free thread, not to one that is just starting."""
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
    """Threads end when their workers are closed or collected, after the work put before."""
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


def test_a_loop_that_is_closed_meanwhile_is_nobodys_fault() -> None:
    """Work whose event loop has closed is finished without an error, and the thread goes on."""
    goes_on, over = threading.Event(), threading.Event()
    workers = Workers(1)

    async def begin() -> None:
        workers.put(Call(goes_on.wait, (30,)))

    asyncio.run(begin())
    goes_on.set()
    workers.put(over.set)

    assert over.wait(30)
    workers.close()
