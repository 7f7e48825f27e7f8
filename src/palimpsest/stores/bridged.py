"""A store with an asynchronous driver under a synchronous memory: each verb is awaited on the runner's own event loop.

A driver belongs to one loop, so all verbs, of whatever thread, go to that one. Their callers wait meanwhile, so that
nothing over this store ever suspends: `drive` runs it, also from within a running loop, which stands still.
"""

from __future__ import annotations

import asyncio
import os
from _thread import allocate_lock
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

from palimpsest.errors import Closed, ForkedProcess, StoreUnavailable
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import Runner
from palimpsest.stores import Store
from palimpsest.stores.rewriting import Rewritable
from palimpsest.stores.witness import Witness

T = TypeVar("T")

SETTLE = 1.0
"""Seconds that a caller who was interrupted waits for the end of the verb that this cancels."""


def bridged(store: Store, runner: Runner) -> Store:
    """Return the store as a synchronous memory uses it, which this runner belongs to."""
    return RewritableBridge(store, runner) if isinstance(store, Rewritable) else Bridged(store, runner)


def _waited(verb: Callable[..., Awaitable[Any]]) -> Any:
    """The verb of the store below, waited for."""
    name = verb.__name__

    @wraps(verb, updated=())
    async def waited(self: Bridged, *given: Any, **named: Any) -> Any:
        self.check()
        return await self.waited(lambda: getattr(self.below, name)(*given, **named))

    return waited


class Bridged(Store):
    """Another store, each verb of which is awaited on the event loop of a runner."""

    blocking = True

    def __init__(self, below: Store, runner: Runner) -> None:
        self.below, self.url, self.writable, self.witness = below, below.url, below.writable, below.witness
        self._runner, self._pid, self._closed = runner, os.getpid(), False

    def ask(self, witness: Witness) -> None:
        self.witness = witness
        self.below.ask(witness)

    @property
    def left_open(self) -> bool:
        return not self._closed and os.getpid() == self._pid and self.below.left_open

    def check(self) -> None:
        """Raise Closed after `close`, ForkedProcess in a child process, which has no thread of the parent's."""
        if self._closed:
            raise Closed(self.url)
        if os.getpid() != self._pid:
            raise ForkedProcess(self._pid, os.getpid())

    async def waited(self, start: Callable[[], Awaitable[T]]) -> T:
        """Run a verb on the loop. One whose caller is interrupted is cancelled, and has ended when that goes on."""
        call = _Call(start)
        try:
            return await self._runner.wait(call.run())
        except CancelledError:  # a closed runner says Closed
            raise StoreUnavailable(self.url, "its driver cancelled what was asked of it; try again") from None
        except BaseException:
            call.desert()
            raise

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        return await start()

    async def undisturbed(self, key: SessionKey, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await start()  # it comes back here for each verb: on the loop it would wait for itself

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if os.getpid() == self._pid:
                await self.waited(self.below.close)

    head = _waited(Store.head)
    append = _waited(Store.append)
    read = _waited(Store.read)
    fetch = _waited(Store.fetch)
    commit = _waited(Store.commit)
    fork = _waited(Store.fork)
    branches = _waited(Store.branches)
    records = _waited(Store.records)
    count = _waited(Store.count)
    tally = _waited(Store.tally)
    load = _waited(Store.load)
    delete = _waited(Store.delete)
    sessions = _waited(Store.sessions)
    get_item = _waited(Store.get_item)
    put_item = _waited(Store.put_item)
    delete_item = _waited(Store.delete_item)
    list_items = _waited(Store.list_items)
    clear_items = _waited(Store.clear_items)
    lease = _waited(Store.lease)
    due = _waited(Store.due)
    sweep = _waited(Store.sweep)
    scrub = _waited(Store.scrub)


class RewritableBridge(Bridged, Rewritable):
    """The same of a store that can rewrite what it holds."""

    tenants = _waited(Rewritable.tenants)
    rewrite = _waited(Rewritable.rewrite)
    rewrite_items = _waited(Rewritable.rewrite_items)


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
