"""A pool of connections to one server, of bounded size. The connection that was returned last is used first.

The driver's own pool starts a task for each connection that is returned, a quarter of an append's cost. Here a
connection whose work ended normally is returned as it is. One whose work was cut short first ends its statement and
rolls its transaction back, in a background task that nobody waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import asyncpg

from palimpsest.errors import PalimpsestError
from palimpsest.stores.postgres.faults import AWAY, FAULTS, is_unsent
from palimpsest.stores.rules import UNSENT
from palimpsest.stores.servers import Line, Unsent

T = TypeVar("T")

Connection: TypeAlias = Any
"""A connection of asyncpg, which is not typed."""

Do: TypeAlias = Callable[[Connection], Awaitable[T]]
"""A function that does some work with a connection."""

ISOLATION = "SET default_transaction_isolation = 'read committed'"
"""The isolation that the statements are written for. If the server's default is a stricter one, concurrent statements
would fail with serialization errors."""

PLANS = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off"
"""Plan each statement once per connection, with the indexes, however few rows there are at that time: planning each
call costs more than the call. These are statements and not startup options, because poolers refuse such options."""

STALE = 300.0
"""Seconds after which an idle connection is closed instead of used: a firewall or the server may have dropped it."""

SETTLE = 5.0
"""Seconds that an interrupted statement has to end before its connection is terminated."""


async def open_connection(dsn: str, seconds: float, driver: Mapping[str, Any], *settings: str) -> Connection:
    """Connect with these options of the driver, then execute `settings`, and those for plans and isolation.

    With `statement_cache_size=0` plans and isolation are not set: the driver keeps no plans then, and a pooler, for
    which that option is meant, may hand the connection's settings on to other clients.
    """
    db = await asyncpg.connect(dsn, timeout=seconds, **driver)
    if driver.get("statement_cache_size") != 0:
        settings = (*settings, PLANS, ISOLATION)
    if settings:
        try:
            await db.execute("; ".join(settings))
        except BaseException:
            db.terminate()
            raise
    return db


class Pool:
    """At most `size` connections, which `connect` makes."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect, self._size = connect, size
        self._loop = asyncio.get_running_loop()
        self._idle: list[tuple[Connection, float]] = []
        self._line = Line()
        self._used: set[Connection] = set()
        self._outdated: set[Connection] = set()
        self._open = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed, self._unused = False, asyncio.Event()

    async def using(self, do: Do[T], *, writes: bool = False) -> T:
        """Return what `do` returns for a connection. If that is lost, try once more with another one.

        With `writes`, only if nothing can have been written.
        """
        try:
            return await self.once(do)
        except PalimpsestError:
            raise
        except AWAY as fault:
            if writes and not is_unsent(fault):
                raise
            self.expire()
        return await self.once(do)

    async def once(self, do: Do[T]) -> T:
        """Return what `do` returns for a connection. Raises Unsent if no connection can be made."""
        try:
            db = await self.take()
        except FAULTS as fault:
            raise Unsent from fault
        except asyncio.CancelledError as ended:
            ended.add_note(UNSENT)
            raise
        try:
            result = await do(db)
        except asyncpg.ReadOnlySQLTransactionError:
            self._outdated.add(db)
            self.give(db)
            raise
        except BaseException:
            self.give(db, cut_short=True)
            raise
        self.give(db)
        return result

    async def take(self) -> Connection:
        """Take an idle connection out of the pool, or make one. Waits while all that can be had are in use."""
        while True:
            if self._closed:
                raise asyncpg.InterfaceError("the store is being closed")
            while self._idle:
                db, since = self._idle.pop()
                if db.is_closed() or self._loop.time() - since > STALE:
                    self._drop(db)
                else:
                    self._used.add(db)
                    return db
            if self._open < self._size:
                made = await self._make()
                if made is not None:
                    return made
                if self._idle:
                    continue
            await self._line.wait()

    async def _make(self) -> Connection | None:
        """Make a connection; None if the server accepts no more than those that are in use here."""
        self._open += 1
        try:
            db = await self._connect()
        except BaseException as fault:
            self._open -= 1
            if self._used and isinstance(fault, asyncpg.TooManyConnectionsError):
                return None
            self._line.wake()
            raise
        self._used.add(db)
        return db

    def give(self, db: Connection, *, cut_short: bool = False) -> None:
        """Return a connection to the pool. If its work was `cut_short`, a background task settles it first."""
        if cut_short and not db.is_closed():
            task = self._loop.create_task(self._settled(db))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        self._used.discard(db)
        if self._closed and not self._used:
            self._unused.set()
        if self._closed or db.is_closed() or db in self._outdated:
            self._drop(db)
        else:
            self._idle.append((db, self._loop.time()))
        self._line.wake()

    async def _settled(self, db: Connection) -> None:
        """Roll back what was interrupted, then return the connection; terminate it if that fails."""
        try:
            async with asyncio.timeout(SETTLE):
                await db.execute("ROLLBACK")  # the driver first waits until the server has ended the statement
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
            db.terminate()
        except BaseException:
            db.terminate()
            raise
        finally:
            self.give(db)

    def _drop(self, db: Connection) -> None:
        self._open -= 1
        self._outdated.discard(db)
        db.terminate()

    def expire(self) -> None:
        """Close all present connections, since one of them was found lost: idle ones now, the others when returned."""
        self._outdated |= self._used
        while self._idle:
            self._drop(self._idle.pop()[0])

    async def close(self, seconds: float) -> None:
        """Close all connections. Those in use have `seconds` to end their work; then they are terminated."""
        self._closed = True
        while self._line:
            self._line.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for db, _ in self._idle:
                    await db.close()
                if self._used:
                    await self._unused.wait()
        for db in (*self._used, *(db for db, _ in self._idle)):
            db.terminate()
        self._idle.clear()
        if self._tasks:
            await asyncio.wait(self._tasks)
