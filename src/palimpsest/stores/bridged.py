"""A backend with an asynchronous driver under a synchronous memory: its verbs are awaited on the runner's event loop.

A driver belongs to one loop, so all verbs, of whatever thread, go to that one. Their callers wait meanwhile, so that
nothing over this backend ever suspends: `drive` runs it, also from within a running loop, which stands still.
"""

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from palimpsest.errors import StoreUnavailable
from palimpsest.runtime.runner import Runner
from palimpsest.stores.backend import Backend
from palimpsest.stores.wrappers import PassThrough, passed

T = TypeVar("T")

SETTLE = 1.0
"""Seconds that a caller who was interrupted waits for the end of the verb that this cancels."""


class BridgedBackend(PassThrough):
    """Another backend, each verb of which is awaited on the event loop of the runner of a synchronous memory."""

    def __init__(self, below: Backend, runner: Runner) -> None:
        super().__init__(below)
        self.runner, self.blocking, self.inline = runner, True, True

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    async def pass_on(self, start: Callable[[], Coroutine[Any, Any, T]], *, writes: bool) -> T:
        """Wait for something below. What a caller has begun who is interrupted is cancelled, and has ended then."""
        call = _Call(start)
        try:
            done: T = await self.runner.wait(call.run())
        except CancelledError:  # a closed runner says Closed
            told, written = "its driver cancelled what was asked of it; try again", None if writes else False
            raise StoreUnavailable(self.url, told, written=written) from None
        except BaseException:
            call.desert()
            raise
        return done

    pause = passed(Backend.pause)
    scrub = passed(Backend.scrub)
    durability = passed(Backend.durability)
    close = passed(Backend.close)


class _Call:
    """A verb on the loop, whose caller may leave: one that has not begun by then never does."""

    def __init__(self, start: Callable[[], Awaitable[Any]]) -> None:
        self._start, self._over = start, allocate_lock()
        self._over.acquire()
        self._task: asyncio.Task[Any] | None = None
        self._begun = self._deserted = False

    async def run(self) -> Any:
        self._task = asyncio.current_task()
        self._begun = True
        try:
            if not self._deserted:
                return await self._start()
        finally:
            self._over.release()

    def desert(self) -> None:
        """Let nothing begin any more, cancel what has, and wait for its end."""
        self._deserted = True
        if self._begun and self._task is not None and not self._task.done():
            with suppress(RuntimeError):  # the loop has ended, and this with it
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
            self._over.acquire(timeout=SETTLE)
