"""Connections of a process to one server, at most so many, of which whoever needs one takes the last given back.

The driver's own pool gives each back by a task of its own, a quarter of an append's cost. Here nothing is done with
a connection whose work has come to its end. One whose work was cut short ends its statement and its transaction first,
while nobody waits for that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

import asyncpg

from palimpsest.errors import PalimpsestError
from palimpsest.stores.postgres.faults import AWAY, FAULTS, is_unsent
from palimpsest.stores.servers import Unsent

T = TypeVar("T")

Connection: TypeAlias = Any
"""A connection of the driver's, which says nothing of its types."""

Do: TypeAlias = Callable[[Connection], Awaitable[T]]
"""Does something with a connection."""

ISOLATION = "SET default_transaction_isolation = 'read committed'"
"""What the statements are written for: under another default of the server they would fail beside each other."""

PLANS = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off"
"""Has a connection plan each statement once, by the indexes, however few rows there are then: a plan for each call
costs more than the call. It is no option of the start, which poolers would refuse."""

STALE = 300.0
"""Seconds after which a connection that nobody has used is closed rather than used: others may have dropped it."""

SETTLE = 5.0
"""Seconds that a statement which was cut short has to end."""


async def connected(dsn: str, seconds: float, driver: Mapping[str, Any], *settings: str) -> Connection:
    """A new connection, with options of the driver's, in which these are set, and how statements are planned."""
    db = await asyncpg.connect(dsn, timeout=seconds, **driver)
    if driver.get("statement_cache_size") != 0:  # else no plan is kept, and a pooler may hand settings on
        settings = (*settings, PLANS, ISOLATION)
    if settings:
        try:
            await db.execute("; ".join(settings))
        except BaseException:
            db.terminate()
            raise
    return db


class Pool:
    """Connections that `connect` makes."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect, self._size = connect, size
        self._loop = asyncio.get_running_loop()
        self._idle: list[tuple[Connection, float]] = []
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._used: set[Connection] = set()
        self._outdated: set[Connection] = set()
        self._open = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed, self._unused = False, asyncio.Event()

    async def using(self, do: Do[T], *, writes: bool = False) -> T:
        """Return what this does with a connection; once more with another, where that was lost and nothing written."""
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
        """Return what this does with a connection. Raises Unsent where there is none to be had."""
        try:
            db = await self.take()
        except FAULTS as fault:
            raise Unsent from fault
        try:
            done = await do(db)
        except asyncpg.ReadOnlySQLTransactionError:
            self._outdated.add(db)
            self.give(db)
            raise
        except BaseException:
            self.give(db, cut_short=True)
            raise
        self.give(db)
        return done

    async def take(self) -> Connection:
        """A connection. Waits while all are used."""
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
                return await self._made()
            turn = self._loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self._wake()  # it was given a turn that it does not take
                elif turn in self._waiting:  # who gave one back at this moment has passed it by
                    self._waiting.remove(turn)
                raise

    async def _made(self) -> Connection:
        self._open += 1
        try:
            db = await self._connect()
        except BaseException:
            self._open -= 1
            self._wake()
            raise
        self._used.add(db)
        return db

    def give(self, db: Connection, *, cut_short: bool = False) -> None:
        """Give a connection back; one whose work was `cut_short` is to be used again when that has ended."""
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
        self._wake()

    async def _settled(self, db: Connection) -> None:
        try:
            async with asyncio.timeout(SETTLE):
                await db.execute("ROLLBACK")  # the driver waits here until the server has ended the statement
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

    def _wake(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def expire(self) -> None:
        """Close the connections there are, one of which was found to be lost: those that are used when they are not."""
        self._outdated |= self._used
        while self._idle:
            self._drop(self._idle.pop()[0])

    async def close(self, seconds: float) -> None:
        """Close all of them, those that are used when their work is over, or this time is."""
        self._closed = True
        while self._waiting:
            self._wake()
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
