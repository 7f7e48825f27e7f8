"""A backend with an asynchronous driver under a synchronous memory: its verbs are awaited on the runner's event loop.

A driver belongs to one loop, so all verbs, of whatever thread, go to that one. Their callers wait meanwhile, so that
nothing over this backend ever suspends: `drive` runs it, also from within a running loop, which stands still.
"""

from __future__ import annotations

import asyncio
from _thread import allocate_lock
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

from palimpsest.errors import StoreUnavailable
from palimpsest.runtime.runner import Runner
from palimpsest.stores.around import Around
from palimpsest.stores.backend import Backend
from palimpsest.stores.tables import Tables

T = TypeVar("T")

SETTLE = 1.0
"""Seconds that a caller who was interrupted waits for the end of the verb that this cancels."""


def _waited(verb: Callable[..., Awaitable[Any]]) -> Any:
    """The verb of the backend below, waited for. One whose caller is interrupted is cancelled, and has ended then."""
    name = verb.__name__

    @wraps(verb, updated=())
    async def waited(self: BridgedBackend, *given: Any, **named: Any) -> Any:
        return await _waited_for(self, lambda: getattr(self.below, name)(*given, **named), name == "write")

    return waited


async def _waited_for(self: BridgedBackend | BridgedTables, start: Callable[[], Awaitable[Any]], writes: bool) -> Any:
    call = _Call(start)
    try:
        return await self.runner.wait(call.run())
    except CancelledError:  # a closed runner says Closed
        told, written = "its driver cancelled what was asked of it; try again", None if writes else False
        raise StoreUnavailable(self.url, told, written=written) from None
    except BaseException:
        call.desert()
        raise


class BridgedBackend(Around):
    """Another backend, each verb of which is awaited on the event loop of the runner of a synchronous memory."""

    def __init__(self, below: Backend, runner: Runner) -> None:
        super().__init__(below)
        self.runner, self.blocking, self.inline = runner, True, True
        self.large_bytes, self.companion = below.large_bytes, below.companion
        self.tables = BridgedTables(below.tables, runner, self.url) if below.tables is not None else None

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    pause = _waited(Backend.pause)
    look = _waited(Backend.look)
    write = _waited(Backend.write)
    places = _waited(Backend.places)
    recent = _waited(Backend.recent)
    newest = _waited(Backend.newest)
    expired = _waited(Backend.expired)
    tenants = _waited(Backend.tenants)
    scrub = _waited(Backend.scrub)
    durability = _waited(Backend.durability)
    close = _waited(Backend.close)


class BridgedTables:
    """The same of tables beside a store's."""

    def __init__(self, below: Tables, runner: Runner, url: str) -> None:
        self.below, self.runner, self.url, self.schema = below, runner, url, below.schema

    async def do(self, work: Callable[[Any], Awaitable[T]], *, writes: bool = False) -> T:
        done: T = await _waited_for(self, lambda: self.below.do(work, writes=writes), writes)
        return done


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
