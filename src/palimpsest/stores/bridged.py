"""A backend with an asynchronous driver under a synchronous memory: its verbs are awaited on the runner's event loop.

A driver belongs to one loop, so the verbs of all threads go to that one. The callers block meanwhile, so nothing over
this backend ever suspends. `drive` can run it, even from within a running loop, which stands still meanwhile.
"""

from __future__ import annotations

import asyncio
from _thread import allocate_lock, get_ident
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from palimpsest.errors import StoreUnavailable
from palimpsest.runtime.runner import Runner
from palimpsest.stores.backend import Backend
from palimpsest.stores.wrappers import PassThrough, passed

T = TypeVar("T")

SETTLE = 1.0
"""Seconds that an interrupted caller waits for the end of the verb that it cancels."""


class BridgedBackend(PassThrough):
    """Another backend, each verb of which is awaited on the event loop of a synchronous memory's runner."""

    def __init__(self, below: Backend, runner: Runner) -> None:
        super().__init__(below)
        self.runner, self.blocking, self.inline = runner, True, True
        self._limits: dict[int, float] = {}

    async def briefly(self, start: Callable[[], Coroutine[Any, Any, T]], seconds: float) -> T:
        thread = get_ident()
        self._limits[thread] = monotonic() + seconds
        try:
            return await start()
        finally:
            del self._limits[thread]

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    async def pass_on(self, start: Callable[[], Coroutine[Any, Any, T]], *, writes: bool) -> T:
        """Wait for a verb below. If the caller is interrupted, the verb is cancelled, and has ended by then."""
        call, until = _Call(start), self._limits.get(get_ident()) if self._limits else None
        try:
            result: T = await self.runner.wait(call.run(), None if until is None else until - monotonic())
        except CancelledError:  # by the driver: a closed runner would raise Closed
            problem, written = "its driver cancelled the request; try again", None if writes else False
            raise StoreUnavailable(self.url, problem, written=written) from None
        except BaseException:
            call.desert()
            raise
        return result

    pause = passed(Backend.pause)
    scrub = passed(Backend.scrub)
    durability = passed(Backend.durability)
    close = passed(Backend.close)


class _Call:
    """A verb on the loop whose caller may leave. If it has not begun by then, it never does."""

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
        """Keep the verb from beginning; if it has begun, cancel it and wait for its end."""
        self._deserted = True
        if self._begun and self._task is not None and not self._task.done():
            with suppress(RuntimeError):  # the loop has ended, and the task with it
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
            self._over.acquire(timeout=SETTLE)
