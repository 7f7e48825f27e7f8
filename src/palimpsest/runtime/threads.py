"""Threads beside the caller's, for functions of somebody else. No store, no session."""

from __future__ import annotations

import sys
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from operator import methodcaller
from typing import TYPE_CHECKING, Any, TypeVar

from palimpsest.errors import PalimpsestError

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
    future, work = promised(function, *arguments)
    start_new_thread(work, ())
    return future


def promised(function: Callable[..., T], *arguments: Any) -> tuple[Future[T], Callable[[], None]]:
    """A future, and what calls a function with the caller's context variables and says there what came of it."""
    from concurrent.futures import Future  # loads logging and threading

    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # nobody can cancel it from here on
    context = copy_context()

    def work() -> None:
        try:
            result = context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it belongs to the one who waits)
            speaks = isinstance(error, StopIteration) or _is_cancellation(error)  # of who waits, and not of what for
            future.set_exception(RuntimeError(f"the function raised {error!r}") if speaks else error)
        else:
            future.set_result(result)

    return future, work


async def awaited(awaitable: Awaitable[T]) -> T:
    """Await something of somebody else. Raises RuntimeError where it was cancelled, and whoever awaits it was not.

    It awaits a task of its own that was cancelled, for instance. Let through, that would end the task of the caller.
    """
    try:
        return await awaitable
    except BaseException as error:
        if not _is_cancellation(error):
            raise
        task = sys.modules["asyncio"].current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError(f"what was awaited raised {error!r}") from error


def _is_cancellation(error: BaseException) -> bool:
    """Whether it is asyncio's: whoever raises that has loaded asyncio, which is not loaded here."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


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


class Suspended(PalimpsestError, RuntimeError):
    """A coroutine of a synchronous memory waited for an event loop that is not there, or is its own."""

    def __init__(self, why: str = "the store suspended inside a synchronous call; use AsyncMemory with this store"):
        super().__init__(why)
