"""Blocking functions where no signal handler runs.

CPython runs signal handlers in the main thread, between any two steps of it, and one that raises (Ctrl-C, a time limit)
ends whatever stands there. What takes locks and opens files in several steps therefore runs beside the main thread,
which only waits: an exception ends the wait, and what was begun ends by itself. Each call has a thread of its own: none
outlives its work, and a fork loses none.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")

SETTLE = 1.0
"""Seconds that a caller who was interrupted waits for what it began."""

_here = threading.local()


class _Call:
    """A function that runs beside its caller, and what came of it."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments, self._context = function, arguments, copy_context()
        self.over, self.begun, self.deserted = allocate_lock(), False, False
        self.over.acquire()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Run it, unless its caller has left by now, and say that it is over."""
        _here.call, self.begun = self, True
        try:
            if not self.deserted:
                self.result = self._context.run(self._function, *self._arguments)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it belongs to the one who waits)
            self.error = error
        finally:
            self.over.release()


def shielded(function: Callable[..., T], *arguments: Any) -> T:
    """Return what the function returns, which runs beside the main thread where that one calls.

    An exception out of a signal handler is raised once the function is over, or after `SETTLE` seconds: it ends no
    function that has begun. One that waits for others asks `deserted`.
    """
    if get_ident() != threading.main_thread().ident:
        return function(*arguments)
    call = _Call(function, arguments)
    try:
        if not _started(call):
            return function(*arguments)
        call.over.acquire()
    except BaseException:
        call.deserted = True
        if call.begun:
            call.over.acquire(timeout=SETTLE)
        raise
    error, call.error = call.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error  # else the error and this frame hold each other
    result: T = call.result
    return result


def _started(call: _Call) -> bool:
    """Start the call in a thread; return whether the system had one to give and the interpreter is not ending."""
    try:
        start_new_thread(call.run, ())
    except RuntimeError as fault:
        if "new thread" in str(fault):
            return False
        raise  # out of a signal handler: the call may have begun
    return True


def deserted() -> bool:
    """Whether the caller of the function that runs in this thread was interrupted, and waits no longer."""
    call: _Call | None = getattr(_here, "call", None)
    return call is not None and call.deserted
