"""Running functions in other threads, and waiting for them in a way that a signal's handler may interrupt."""

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
"""Calls its argument. It is a C function: a signal's handler runs before or after it, never in between."""

GLANCE = 0.5
"""Seconds after which a wait is interrupted, to run the handler of a signal that came just before it began."""


def unbroken(*steps: Callable[[], object]) -> None:
    """Call C functions one after the other, so that no signal's handler can run between two of them.

    Python runs handlers only between bytecodes, and this is a single call of C.
    """
    deque(map(CALL, steps), 0)


def apart(function: Callable[..., T], *arguments: Any) -> Future[T]:
    """Start a function in a new daemon thread, with the caller's context variables; return its future.

    The thread is started by one call of C. `Thread.start` waits for the thread in Python code: if a signal's handler
    raises there, the exception is lost, and the function may never run.
    """
    future, work = promised(function, *arguments)
    start_new_thread(work, ())
    return future


def promised(function: Callable[..., T], *arguments: Any) -> tuple[Future[T], Callable[[], None]]:
    """Return a future, and a function that makes the call, with the caller's context variables, and sets the future."""
    from concurrent.futures import Future  # loads logging and threading

    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # nobody can cancel it from here on
    context = copy_context()

    def work() -> None:
        try:
            result = context.run(function, *arguments)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it belongs to whoever waits)
            # Raised from a future, these two would be taken for the end or the cancellation of the task that awaits it.
            misleading = isinstance(error, StopIteration) or _is_cancellation(error)
            future.set_exception(RuntimeError(f"the function raised {error!r}") if misleading else error)
        else:
            future.set_result(result)

    return future, work


async def awaited(awaitable: Awaitable[T]) -> T:
    """Await an awaitable of the user's. Raises RuntimeError if it was cancelled, and the current task was not.

    It may, for instance, await another task that was cancelled. Passed on, that CancelledError would end the caller's
    task.
    """
    try:
        return await awaitable
    except BaseException as error:
        if not _is_cancellation(error):
            raise
        task = sys.modules["asyncio"].current_task()
        if task is None or task.cancelling():
            raise
        raise RuntimeError(f"the awaited call raised {error!r}") from error


def _is_cancellation(error: BaseException) -> bool:
    """Return whether an error is asyncio's CancelledError, without loading asyncio: whoever raised that has."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and isinstance(error, asyncio.CancelledError)


def outcome(future: Future[T], timeout: float | None = None) -> T:
    """Return a future's result, or raise its error. Raises TimeoutError after `timeout` seconds.

    `Future.result` waits in Python code: an exception of a signal's handler is lost there, and another one, from its
    lock, is raised instead.
    """
    done = allocate_lock()
    done.acquire()
    future.add_done_callback(lambda _: done.release())
    remaining = float("inf") if timeout is None else max(timeout, 0)
    while not done.acquire(timeout=min(remaining, GLANCE)):
        remaining -= GLANCE
        if remaining <= 0:
            raise TimeoutError
    return future.result()


class Suspended(PalimpsestError, RuntimeError):
    """A coroutine of a synchronous memory waited for an event loop, without one running, or on its own one."""

    def __init__(self, why: str = "the store suspended inside a synchronous call; use AsyncMemory with this store"):
        super().__init__(why)
