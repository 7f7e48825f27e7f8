"""The base of the stores on servers: a thread with an event loop, on which the driver runs for all callers.

A driver belongs to one event loop. A store may be used from any thread, inside and outside of event loops, and from one
loop after another. So the store has a loop of its own that does the work, and the caller waits for it or awaits it.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Self, TypeVar

from palimpsest.compat.firefly.entries import MemoryEntry, Packed
from palimpsest.compat.firefly.store import EntryStore, read
from palimpsest.errors import Closed, ConfigError, ForkedProcess, MissingExtra, PalimpsestError, StoreUnavailable
from palimpsest.log import values
from palimpsest.log.entry import now_us
from palimpsest.runtime.logs import log_failure
from palimpsest.runtime.loop_thread import LoopThread
from palimpsest.runtime.once import new_lock
from palimpsest.runtime.threads import outcome
from palimpsest.stores.options import discreet_address

T = TypeVar("T")

PATIENCE = 5.0
"""How long `close_sync` waits for the loop to end, in seconds."""


class Server(ABC):
    """The operations of a store on one kind of server, done by its driver on the loop of the store."""

    faults: tuple[type[BaseException], ...] = ()
    """The exceptions of the driver."""

    @abstractmethod
    async def connect(self) -> None:
        """Connect, and create what is missing on the server."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections, if there are any."""

    @abstractmethod
    def translated(self, fault: BaseException, writes: bool) -> PalimpsestError:
        """Return our error for one of the driver. `writes` says whether a write had been sent."""

    @abstractmethod
    async def save(self, namespace: str, row: Packed, now: int) -> None:
        """Like `EntryStore.save`. `now` is the time, in microseconds since 1970."""

    @abstractmethod
    async def load(self, namespace: str, now: int) -> list[Packed]:
        """Like `EntryStore.load`."""

    @abstractmethod
    async def load_by_key(self, namespace: str, key: str, now: int) -> Packed | None:
        """Like `EntryStore.load_by_key`."""

    @abstractmethod
    async def delete(self, namespace: str, entry_id: str) -> None:
        """Like `EntryStore.delete`."""

    @abstractmethod
    async def clear(self, namespace: str) -> None:
        """Like `EntryStore.clear`."""

    @abstractmethod
    async def swap(self, namespace: str, key: str, row: Packed | None, was: Packed | None, now: int) -> bool:
        """Like `EntryStore.compare_and_set`."""

    @abstractmethod
    async def cleanup(self, now: int) -> int:
        """Like `EntryStore.cleanup_expired`."""


class ServedStore(EntryStore):
    """A store on a server. Calls from any thread or event loop run on the loop of the store."""

    def __init__(self, url: str, server: Server, *, timeout: float, clock: Callable[[], int] = now_us) -> None:
        super().__init__(clock=clock)
        self.url, self._server, self._seconds = discreet_address(url), server, float(timeout)
        self._connecting: asyncio.Lock | None = None
        self._is_connected = False
        self._thread: LoopThread | None = None
        self._process, self._lock = os.getpid(), new_lock()

    # --- the documented methods

    async def initialize(self) -> None:
        """Connect, and create what is missing on the server.

        Calling it again, or several times at once, does no harm. Every other method calls it if need be. Raises
        StoreUnavailable, StoreCorrupt, Closed.
        """
        await self._await(self._guarded(_nothing))

    def initialize_sync(self) -> None:
        """`initialize` for programs without an event loop."""
        self._wait(self._guarded(_nothing))

    def save(self, namespace: str, entry: MemoryEntry) -> None:
        row = self._row(namespace, entry)
        self._wait(self._guarded(lambda: self._server.save(namespace, row, self.clock()), writes=True))

    async def async_save(self, namespace: str, entry: MemoryEntry) -> None:
        row = self._row(namespace, entry)
        await self._await(self._guarded(lambda: self._server.save(namespace, row, self.clock()), writes=True))

    def load(self, namespace: str) -> list[MemoryEntry]:
        self._check(namespace)
        return self._read(namespace, self._wait(self._guarded(lambda: self._server.load(namespace, self.clock()))))

    async def async_load(self, namespace: str) -> list[MemoryEntry]:
        self._check(namespace)
        return self._read(
            namespace, await self._await(self._guarded(lambda: self._server.load(namespace, self.clock())))
        )

    def load_by_key(self, namespace: str, key: str) -> MemoryEntry | None:
        self._check(namespace, key=key)
        row = self._wait(self._guarded(lambda: self._server.load_by_key(namespace, key, self.clock())))
        return None if row is None else read(self.url, namespace, row)

    async def async_load_by_key(self, namespace: str, key: str) -> MemoryEntry | None:
        self._check(namespace, key=key)
        row = await self._await(self._guarded(lambda: self._server.load_by_key(namespace, key, self.clock())))
        return None if row is None else read(self.url, namespace, row)

    def delete(self, namespace: str, entry_id: str) -> None:
        self._check(namespace, entry_id=entry_id)
        self._wait(self._guarded(lambda: self._server.delete(namespace, entry_id), writes=True))

    async def async_delete(self, namespace: str, entry_id: str) -> None:
        self._check(namespace, entry_id=entry_id)
        await self._await(self._guarded(lambda: self._server.delete(namespace, entry_id), writes=True))

    def clear(self, namespace: str) -> None:
        self._check(namespace)
        self._wait(self._guarded(lambda: self._server.clear(namespace), writes=True))

    async def async_clear(self, namespace: str) -> None:
        self._check(namespace)
        await self._await(self._guarded(lambda: self._server.clear(namespace), writes=True))

    def compare_and_set(
        self, namespace: str, key: str, entry: MemoryEntry | None, expected: MemoryEntry | None
    ) -> bool:
        return self._wait(self._swap(namespace, key, entry, expected))

    async def async_compare_and_set(
        self, namespace: str, key: str, entry: MemoryEntry | None, expected: MemoryEntry | None
    ) -> bool:
        return await self._await(self._swap(namespace, key, entry, expected))

    def _swap(
        self, namespace: str, key: str, entry: MemoryEntry | None, expected: MemoryEntry | None
    ) -> Coroutine[Any, Any, bool]:
        row, was = self._swapped(namespace, key, entry, expected)
        return self._guarded(lambda: self._server.swap(namespace, key, row, was, self.clock()), writes=True)

    async def cleanup_expired(self) -> int:
        """Remove the expired entries of every namespace, and return how many there were."""
        self._check_open()
        return await self._await(self._guarded(lambda: self._server.cleanup(self.clock()), writes=True))

    async def async_cleanup_expired(self) -> int:
        return await self.cleanup_expired()

    def cleanup_expired_sync(self) -> int:
        """`cleanup_expired` for programs without an event loop."""
        self._check_open()
        return self._wait(self._guarded(lambda: self._server.cleanup(self.clock()), writes=True))

    def _read(self, namespace: str, rows: list[Packed]) -> list[MemoryEntry]:
        return [entry for row in rows if (entry := read(self.url, namespace, row)) is not None]

    # --- the end

    async def close(self) -> None:
        """Close all connections. Use after that raises Closed; closing again does nothing."""
        await asyncio.to_thread(self.close_sync)

    def close_sync(self) -> None:
        if os.getpid() != self._process:  # the thread stayed in the parent of the fork: there is nothing to close here
            self._closed = True
            return
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        try:
            if thread is not None:
                try:
                    outcome(thread.submit(self._server.close()), self._seconds + PATIENCE)
                finally:
                    thread.close(PATIENCE)
        finally:
            self._close_conversations()

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)  # it is missing if the constructor raised
        if thread is not None and os.getpid() == self._process:
            with suppress(PalimpsestError, RuntimeError):  # at the end of the process the loop may be gone
                thread.submit(self._server.close()).add_done_callback(lambda _: thread.end())

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # --- on the loop

    def _loop(self) -> LoopThread:
        """Return the thread with the loop of the driver. It is started on first use."""
        if os.getpid() != self._process:
            raise ForkedProcess(self._process, os.getpid())
        with self._lock:
            self._check_open()
            if self._thread is None:
                self._thread = LoopThread(_stray)
            return self._thread

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop, block until it is done, and return its result. An interrupt cancels it."""
        future = None
        try:
            future = self._loop().submit(work)
            return outcome(future)
        except CancelledError:
            raise Closed(self.url, "make another one") from None
        finally:
            if future is None:
                work.close()
            else:
                future.cancel()  # does nothing to one that is done

    async def _await(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the loop, and await its result on the caller's loop. Cancelling the caller cancels it."""
        try:
            future = self._loop().submit(work)
        except BaseException:
            work.close()
            raise
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and (task is None or not task.cancelling()):
                raise Closed(self.url, "make another one") from None
            raise

    async def _guarded(self, do: Callable[[], Awaitable[T]], *, writes: bool = False) -> T:
        """Connect if need be and return the result of `do`, within the timeout.

        Raises our errors for those of the driver.
        """
        under_way = False
        try:
            async with asyncio.timeout(self._seconds):
                if not self._is_connected:
                    await self._connected()
                under_way = writes
                return await do()
        except PalimpsestError:
            raise  # some are OSErrors, too, and so among the exceptions of the driver
        except TimeoutError as late:
            reason = f"it has not answered within {self._seconds:g} seconds (timeout)"
            raise StoreUnavailable(self.url, reason, written=None if under_way else False, late=True) from late
        except self._server.faults as fault:
            raise self._server.translated(fault, under_way) from fault

    async def _connected(self) -> None:
        self._connecting = self._connecting or asyncio.Lock()
        async with self._connecting:
            if not self._is_connected:
                await self._server.connect()
                self._is_connected = True


async def _nothing() -> None:
    """Do nothing: for callers that only need the connection."""


def _stray(fault: BaseException | None, message: str) -> None:
    log_failure(None, fault, "a store's event loop: %s", message)


def driven(home: str, driver: str, what: str, extra: str, *, timeout: float, pool_size: int) -> Callable[..., Server]:
    """Return the `Server` class that `home`, as "module:class", names in this package. Its module imports the driver.

    Raises ConfigError for a `timeout` or `pool_size` that no store accepts, MissingExtra if the driver is not
    installed.
    """
    if not values.is_number(timeout) or not timeout > 0:
        raise ConfigError("timeout", timeout, "a number of seconds above 0")
    values.whole("pool_size", pool_size, 1)
    if find_spec(driver) is None:
        raise MissingExtra(what, extra)
    module, _, name = home.partition(":")
    kind: Callable[..., Server] = getattr(import_module(f"palimpsest.compat.firefly.{module}"), name)
    return kind
