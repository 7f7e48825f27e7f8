"""A lock for tasks of whatever event loop. It loads asyncio, so only what is asynchronous imports it."""

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable


class TaskLock:
    """A lock that one task has at a time, in the order in which they asked, be they of several event loops.

    Loops run in threads of their own. asyncio's lock is for one of them: where tasks of two wait for it, one raises,
    or is never woken.
    """

    def __init__(self) -> None:
        self._guard, self._held = allocate_lock(), False
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
            if turn.done() and not turn.cancelled():  # it had its turn already
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        """Give it to whoever has waited longest, or to nobody."""
        here = asyncio.get_running_loop()
        while True:
            with self._guard:
                if not self._waiting:
                    self._held = False
                    return
                turn = self._waiting.popleft()
            loop = turn.get_loop()
            if loop is here:
                if not turn.done():  # it may have been cancelled
                    turn.set_result(None)
                    return
            elif calls(loop, self._hand, turn):
                return

    def _hand(self, turn: asyncio.Future[None]) -> None:
        """Give it to a task of this loop, unless that was cancelled meanwhile."""
        if turn.done():
            self._pass_on()
        else:
            turn.set_result(None)


def calls(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> bool:
    """Have a loop call something, from whatever thread, and return whether it will: one that was closed does not."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        return False
    return True
