"""Worker threads, and how an event loop waits for what they do.

Less than a pool of the standard library does, at two thirds of its price: a hop to a thread and back is a third of what
an asynchronous append costs, and most of that were the locks of a future that only one loop ever looks at.
"""

from __future__ import annotations

import asyncio
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from palimpsest.errors import Closed

Work = Callable[[], object]


class Workers:
    """At most so many daemon threads, each begun when there is work that no other is free for.

    They end when this is closed, or gone.
    """

    def __init__(self, most: int) -> None:
        self._most, self._threads, self._lock = most, 0, allocate_lock()
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._idle: deque[None] = deque()
        self.closed = False

    def put(self, work: Work) -> None:
        """Have something done, which raises nothing. Raises Closed after `close`, RuntimeError without a thread."""
        if self.closed:
            raise Closed("the memory")
        try:
            self._idle.pop()
        except IndexError:
            if self._one_more(work):
                return
        self._queue.put(work)

    def _one_more(self, work: Work) -> bool:
        """Begin a thread with this, where there may be another; whether there might."""
        with self._lock:
            if self._threads == self._most:
                return False
            start_new_thread(_work, (self._queue, self._idle, [work]))
            self._threads += 1
        return True

    def close(self) -> None:
        """Let the threads end when all that was put is done."""
        self.closed = True
        self._queue.put(None)

    def __del__(self) -> None:
        self._queue.put(None)


def _work(queue: SimpleQueue[Work | None], idle: deque[None], first: list[Work]) -> None:
    """Do what is first, then what is queued. Idle is a thread only from when it has nothing to do, and is about to
    wait: what is queued for it would wait for its work otherwise, while others are free."""
    work: Work | None = first.pop()  # out of what the thread is called with for as long as it lives
    while work is not None:
        work()
        del work  # or what it holds would stay in memory
        if queue.empty():
            idle.append(None)
        work = queue.get()
    queue.put(None)  # for the others


class Call:
    """A function that runs in a thread, for a task that waits for `future`. Made on the task's loop."""

    __slots__ = ("_arguments", "_context", "_function", "_loop", "_over", "_unclaimed", "future")

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments, self._context = function, arguments, copy_context()
        self._loop = loop = asyncio.get_running_loop()
        self._unclaimed = [None]
        self.future: asyncio.Future[Any] = loop.create_future()
        self._over: asyncio.Future[None] | None = None

    def withdraw(self) -> bool:
        """Take it back, if it has not begun; whether it had not. Whoever claims first has it."""
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True

    def __call__(self) -> None:
        """Do it, in a thread, unless it was withdrawn."""
        if not self.withdraw():
            return
        result: Any = None
        error: BaseException | None = None
        try:
            result = self._context.run(self._function, *self._arguments)
        except StopIteration as end:  # no future holds one
            error = RuntimeError(f"the function raised {end!r}")
        except BaseException as fault:  # noqa: BLE001 (whatever it is, it belongs to the one who waits)
            error = fault
        try:
            self._loop.call_soon_threadsafe(self._told, result, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return
        finally:
            del error  # else it and this frame hold each other

    def _told(self, result: Any, error: BaseException | None) -> None:
        """What came of it, on the loop."""
        over, self._over = self._over, self.future
        if not self.future.done():
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)
        if over is not None and not over.done():
            over.set_result(None)

    def over(self) -> asyncio.Future[Any]:
        """A future that is done when the function is, whether or not `future` was cancelled."""
        if self._over is None:
            self._over = self._loop.create_future()
        return self._over
