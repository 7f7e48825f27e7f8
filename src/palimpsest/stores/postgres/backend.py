"""The PostgreSQL backend: each verb one statement as a rule, over a pool of connections.

It keeps the contract of backends, and the engine over it that of stores.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from palimpsest.errors import PalimpsestError, StoreUnavailable
from palimpsest.stores.backend import Again, Ask, Batch, Refusal, Scrubbed, Seen
from palimpsest.stores.postgres.address import PostgresOptions, driver_options
from palimpsest.stores.postgres.faults import CROSSED, FAULTS, told
from palimpsest.stores.postgres.layout import prepare
from palimpsest.stores.postgres.pool import Connection, Do, Pool, connected
from palimpsest.stores.postgres.reading import Listings, looked
from palimpsest.stores.postgres.statements import FOREIGN, PLANS_APART, Statements
from palimpsest.stores.postgres.writing import Writing
from palimpsest.stores.rules import READ_ONLY
from palimpsest.stores.servers import ServerBackend

T = TypeVar("T")

TRIES, TRIES_APART = 10, 100
"""How often a write is tried that crosses others', before that is an error; and over tables on other servers, where it
fails at once instead of waiting for its turn."""

KEPT = (
    "PostgreSQL keeps what was erased in the files of its tables until VACUUM FULL writes them anew, and in its "
    "write-ahead log, archives and backups until those are overwritten or removed; whoever runs it can see to that"
)
"""What is so after each erasure, whatever is done here."""

KEPT_APART = f"{KEPT}; its tables are on other servers, and VACUUM is to be run on each of these"
"""The same where the tables are foreign ones, which no VACUUM reaches from here."""

SETTINGS = "SELECT current_setting('synchronous_commit'), current_setting('fsync')"
"""What a crash can lose depends on."""


class PostgresBackend(ServerBackend[Pool]):
    """Tables of a schema."""

    faults = FAULTS
    gathers = False

    def __init__(self, address: str, options: PostgresOptions) -> None:
        super().__init__(address, options)
        self.schema, self._size = options.schema_name, options.pool_size
        self._dsn, self._driver = driver_options(address)
        self._sql = Statements(options.schema_name)
        self._writing = Writing(self._sql)
        self.tables = self  # its schema has room for what is made from its text

    async def connect(self) -> Pool:
        pool = Pool(self._connection, self._size)
        db = await pool.take()
        try:
            await prepare(db, self.url, self.schema, self.writable)
            if await db.fetchval(FOREIGN, f"{self.schema}.places", f"{self.schema}.rows"):
                await db.execute(PLANS_APART)
                self._sql = Statements(self.schema, foreign=True)
                self._writing = Writing(self._sql)
        except BaseException:
            db.terminate()
            raise
        pool.give(db)
        return pool

    async def _connection(self) -> Connection:
        return await connected(self._dsn, self.seconds, self._driver, *([PLANS_APART] if self._sql.foreign else ()))

    def told(self, fault: BaseException, writes: bool) -> PalimpsestError:
        return told(self.url, fault, writes)

    async def _with(self, work: Do[T], *, writes: bool = False) -> T:
        """Return what this does with a connection; once more with another where that was lost and nothing written."""
        return await self.asked(lambda pool: pool.using(work, writes=writes), writes=writes)

    async def do(self, work: Do[T], *, writes: bool = False) -> T:
        """As `Tables.do` says."""

        async def tried(db: Connection) -> T:
            for _ in range(TRIES - 1):
                try:
                    return await work(db)
                except CROSSED:
                    if db.is_in_transaction():
                        await db.execute("ROLLBACK")
            return await work(db)

        return await self._with(tried, writes=writes)

    # --- the verbs

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        return await self._with(lambda db: looked(db, self._sql, asks))

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        if not self.writable:
            raise StoreUnavailable(self.url, READ_ONLY)
        done: list[Refusal | None] = []
        for number, batch in enumerate(batches):
            try:
                done.append(await self._written(number, batch, lasting, again) if batch else None)
            except StoreUnavailable as fault:
                if any(one is None for one, before in zip(done, batches, strict=False) if before):
                    fault.written = None  # those before it were
                raise
        return done

    async def _written(self, number: int, batch: Batch, lasting: bool, again: Again | None) -> Refusal | None:
        async def do(db: Connection) -> Refusal | None:
            left, crossed = TRIES_APART if self._sql.foreign else TRIES, False
            while True:
                try:
                    return await self._writing.write(db, number, batch, lasting, again, locked=crossed)
                except asyncpg.LockNotAvailableError:
                    if lasting:
                        raise
                    return None  # it is given up
                except CROSSED:
                    left, crossed = left - 1, self._sql.foreign  # there nobody waits for a row: who is second fails
                    if db.is_in_transaction():
                        await db.execute("ROLLBACK")
                    if not left:
                        raise

        return await self._with(do, writes=True)

    async def listed(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        return await self._with(lambda db: ask(Listings(db, self._sql, self.url)))

    # --- the end

    async def _is_foreign(self, _: Connection) -> bool:
        return self._sql.foreign  # known once there is a connection

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        if not self.writable:
            return Scrubbed()
        foreign = await self._with(self._is_foreign)
        if foreign or not whole:
            return Scrubbed((KEPT_APART if foreign else KEPT,))

        async def vacuum(db: Connection) -> int:
            before: int = await db.fetchval(self._sql.size)
            await db.execute(self._sql.vacuum)
            return before - int(await db.fetchval(self._sql.size))

        try:
            return Scrubbed((KEPT,), 0, await self._with(vacuum))
        except StoreUnavailable as fault:
            return Scrubbed((KEPT, f"VACUUM of its tables was not over ({fault.reason}); the server does it later"))

    async def durability(self) -> str:
        if await self._with(self._is_foreign):
            return "what a crash can lose depends on the servers that the tables are on; ask each of them by itself"
        commit, synced = await self._with(lambda db: db.fetchrow(SETTINGS))
        if synced != "on":
            return f"a crash of the server's machine can damage the whole database (fsync={synced})"
        if commit == "off":
            return "a crash of the server loses the last commits, of less than a second (synchronous_commit=off)"
        return f"a crash of the server loses nothing that was acknowledged (synchronous_commit={commit})"

    async def close(self) -> None:
        pool = self.release()
        if pool is not None:
            await pool.close(min(self.seconds, 5))
