"""`TaskLock`: a lock for tasks of any event loops. It loads asyncio, so only asynchronous code imports it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from palimpsest.runtime.once import new_lock


class TaskLock:
    """A lock that one task holds at a time, in the order of their requests, also if they belong to several event loops.

    The loops run in different threads. asyncio's own lock is for a single loop: if tasks of two wait for it, one of
    them raises, or is never woken.
    """

    def __init__(self) -> None:
        self._guard, self._held = new_lock(), False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        with self._guard:
            if not self._held:
                self._held = True
                return
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it already had the lock
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        """Hand the lock to the task that has waited longest, or release it."""
        here = asyncio.get_running_loop()
        while True:
            with self._guard:
                if not self._waiting:
                    self._held = False
                    return
                turn = self._waiting.popleft()
            loop = turn.get_loop()
            if loop is here:
                if not turn.done():  # else its task was cancelled
                    turn.set_result(None)
                    return
            elif calls(loop, self._hand, turn):
                return

    def _hand(self, turn: asyncio.Future[None]) -> None:
        """Hand the lock to a task of this loop; to the next if that one was cancelled meanwhile."""
        if turn.done():
            self._pass_on()
        else:
            turn.set_result(None)


def calls(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> bool:
    """Let a loop call a function, from any thread. Return False if the loop is closed, and will not."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return False
    return True
