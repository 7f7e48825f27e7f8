"""Worker threads, and how an event loop waits for their results.

This does less than a pool of the standard library, at two thirds of the cost. A hop to a thread and back is a third of
an asynchronous append, and most of that would be the locks of a future that only one loop ever looks at.
"""

from __future__ import annotations

import asyncio
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from palimpsest.errors import Closed
from palimpsest.runtime.once import new_lock

Work = Callable[[], object]


class Workers:
    """At most `most` daemon threads. Each is started when there is work and no other thread is idle.

    They end when this is closed or garbage-collected.
    """

    def __init__(self, most: int) -> None:
        self._most, self._threads, self._lock = most, 0, new_lock()
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._idle: deque[None] = deque()
        self.closed = False

    def put(self, work: Work) -> None:
        """Let a thread call `work`, which may not raise. Raises Closed, or RuntimeError if no thread can be started."""
        if self.closed:
            raise Closed("the memory")
        try:
            self._idle.pop()
        except IndexError:
            if self._start_thread(work):
                return
        self._queue.put(work)

    def _start_thread(self, work: Work) -> bool:
        """Start another thread with this work; return False if there are `most` threads already."""
        with self._lock:
            if self._threads == self._most:
                return False
            start_new_thread(_work, (self._queue, self._idle, [work]))
            self._threads += 1
        return True

    def close(self) -> None:
        """Let the threads end once all work that was put is done."""
        self.closed = True
        self._queue.put(None)

    def __del__(self) -> None:
        self._queue.put(None)


def _work(queue: SimpleQueue[Work | None], idle: deque[None], first: list[Work]) -> None:
    """Do the `first` work, then what is queued, until the queue ends.

    A thread counts as idle only once it has nothing to do and is about to wait. Otherwise work could be queued for it
    while it is busy, and wait although other threads are free.
    """
    work: Work | None = first.pop()  # so that the arguments of this thread do not keep it alive
    while work is not None:
        work()
        del work  # else it would stay in memory until the next one
        if queue.empty():
            idle.append(None)
        work = queue.get()
    queue.put(None)  # for the next thread


class Call:
    """A function call for a worker thread, for a task that awaits `future`. Made on the task's loop."""

    __slots__ = ("_arguments", "_context", "_function", "_loop", "_over", "_unclaimed", "future")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments, self._context = function, arguments, copy_context()
        self._loop = loop = asyncio.get_running_loop()
        self._unclaimed = [None]  # popped by the first of `withdraw` and the call
        self.future: asyncio.Future[Any] = loop.create_future()
        self._over: asyncio.Future[None] | None = None

    def withdraw(self) -> bool:
        """Take the call back; return False if it has begun already."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    def __call__(self) -> None:
        """Make the call, in a thread, unless it was withdrawn."""
        if not self.withdraw():
            return
        result: Any = None
        error: BaseException | None = None
        try:
            result = self._context.run(self._function, *self._arguments)
        except StopIteration as end:  # a future cannot hold it
            error = RuntimeError(f"the function raised {end!r}")
        except BaseException as fault:  # noqa: BLE001 (whatever it is, it belongs to whoever waits)
            error = fault
        try:
            self._loop.call_soon_threadsafe(self._set, result, error)
        except RuntimeError:  # the loop is closed: nobody waits
            return
        finally:
            del error  # else it and this frame refer to each other

    def _set(self, result: Any, error: BaseException | None) -> None:
        """Set the futures, on the loop."""
        over, self._over = self._over, self.future
        if not self.future.done():
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)
        if over is not None and not over.done():
            over.set_result(None)

    def over(self) -> asyncio.Future[Any]:
        """Return a future that is done when the function has ended, whether or not `future` was cancelled."""
        if self._over is None:
            self._over = self._loop.create_future()
        return self._over
