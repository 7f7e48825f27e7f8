"""Calls of PyMongo in tasks of their own, each of which is cancelled once at most.

A call that waits for a connection, or for a server, holds a lock of the driver's whenever it wakes up. A cancelled call
takes that lock once more and gives it back. If it is cancelled again meanwhile, as by frameworks that cancel until a
task ends, nobody gives the lock back on Python 3.11, and every later call of the process would wait for it for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

T = TypeVar("T")

SETTLE = 1.0
"""Seconds that a cancelled caller, or one that closes, waits for the driver to end what it does."""


class Alone:
    """Awaits calls of the driver in tasks of their own, and knows those that have not ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()

    async def run(self, call: Awaitable[T]) -> T:
        """Return what a call returns. If the caller is cancelled, so is the call, which has `SETTLE` seconds to end.

        A caller that is cancelled again leaves at once.
        """
        task = asyncio.ensure_future(call)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait((task,), timeout=SETTLE)
            raise
        return task.result()

    def _end(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # else asyncio would log it if the caller has left

    async def ended(self) -> None:
        """Wait for what callers have left, for `SETTLE` seconds at most."""
        if self._tasks:
            await asyncio.wait(tuple(self._tasks), timeout=SETTLE)
