"""Threads beside the caller's: one for a function of somebody else, one with an event loop. No store, no session."""

from __future__ import annotations

import os
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Coroutine
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from palimpsest.errors import ForkedProcess, PalimpsestError

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

CALL = methodcaller("__call__")
"""Calls what it is given, as a function of C: a signal's handler runs before it or after it, never in between."""

GLANCE = 0.5
"""Seconds after which whoever waits looks whether a signal came right before the wait: C does not see that."""


def unbroken(*steps: Callable[[], object]) -> None:
    """Call functions of C one after the other, with no moment between them at which a signal's handler could run.

    Python runs handlers between the steps of its own code alone, and all this is one call of C.
    """
    deque(map(CALL, steps), 0)


def apart(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Start a function in a daemon thread of its own, with the caller's context variables.

    The thread is begun by one call of C: `Thread.start` waits for it in steps of Python, and where a handler raises
    there, that is lost, and the function may never run.
    """
    from concurrent.futures import Future
    from contextvars import copy_context

    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # nobody can cancel it from here on
    context = copy_context()

    def work() -> None:
        try:
            result = context.run(function, *arguments)
        except StopIteration as end:  # no future holds one
            future.set_exception(RuntimeError(f"the function raised {end!r}"))
        except BaseException as error:  # noqa: BLE001 (whatever it is, it belongs to the one who waits)
            future.set_exception(error)
        else:
            future.set_result(result)

    start_new_thread(work, ())
    return future


def outcome(future: Future[T], timeout: float | None = None) -> T:
    """What comes of a future. Raises TimeoutError where nothing has after so many seconds.

    Its own `result` waits in steps of Python, in which a handler's exception is lost: another, of its
    lock, comes in its stead.
    """
    done = allocate_lock()
    done.acquire()
    future.add_done_callback(lambda _: done.release())
    left = float("inf") if timeout is None else max(timeout, 0)
    while not done.acquire(timeout=min(left, GLANCE)):
        left -= GLANCE
        if left <= 0:
            raise TimeoutError
    return future.result()


class LoopThread:
    """An event loop in a daemon thread of its own. Drivers bind to a loop, so it lives as long as its owner.

    `stray` is told of what went wrong in it for which nobody waits any more: the error (or None), and a message.
    """

    def __init__(self, stray: Callable[[BaseException | None, str], None]) -> None:
        import asyncio

        self._loop, self._end, self._pid = asyncio.new_event_loop(), asyncio.Event(), os.getpid()
        self._loop.set_exception_handler(lambda _, told: stray(told.get("exception"), told["message"]))
        self._gone = apart(self._run)

    def _run(self) -> None:
        import asyncio

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels what is left at the end
            runner.run(self._end.wait())

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run it. To cancel the future cancels the coroutine, and waits for nothing."""
        import asyncio

        if os.getpid() != self._pid:
            raise ForkedProcess(self._pid, os.getpid())
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001 (the public one raises where there is none)
            raise Suspended("a synchronous call came from this memory's own event loop; use AsyncMemory there")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self, timeout: float) -> None:
        """Cancel everything and wait for the end of the thread, at most so many seconds."""
        if os.getpid() != self._pid:  # a fork takes no thread along
            return
        self._loop.call_soon_threadsafe(self._end.set)
        try:
            outcome(self._gone, timeout)
        except TimeoutError:
            warn("an event loop did not end within %g seconds", timeout)


def warn(message: str, *arguments: object) -> None:
    """Log that something was not waited for any longer."""
    import logging

    logging.getLogger("palimpsest").warning(message, *arguments)


class Suspended(PalimpsestError, RuntimeError):
    """A coroutine of a synchronous memory waited for an event loop that is not there, or is its own."""

    def __init__(self, why: str = "the store suspended inside a synchronous call; use AsyncMemory with this store"):
        super().__init__(why)
