"""The PostgreSQL backend, over a pool of connections. Most verbs are one statement.

`palimpsest.stores.backend` states the contract. `writing` and `reading` beside this hold what the verbs do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import asyncpg

from palimpsest.errors import PalimpsestError, StoreUnavailable
from palimpsest.stores.backend import Again, Ask, Batch, Refusal, Scrubbed, Seen
from palimpsest.stores.postgres.address import PostgresOptions, driver_options
from palimpsest.stores.postgres.faults import CROSSED, FAULTS, translate
from palimpsest.stores.postgres.layout import prepare
from palimpsest.stores.postgres.pool import Connection, Do, Pool, open_connection
from palimpsest.stores.postgres.reading import Listings, look_up
from palimpsest.stores.postgres.statements import FOREIGN, PLANS_APART, Statements
from palimpsest.stores.postgres.writing import Writing
from palimpsest.stores.rules import READ_ONLY
from palimpsest.stores.servers import ServerBackend

T = TypeVar("T")

TRIES, TRIES_APART = 10, 100
"""How often a write is tried that concurrent writes make fail, before that is an error. Over foreign tables it is tried
more often: there it fails at once where on one server it would wait for a lock."""

KEPT = (
    "PostgreSQL keeps what was erased in the files of its tables until VACUUM FULL writes them anew, and in its "
    "write-ahead log, archives and backups until those are overwritten or removed; whoever runs it can see to that"
)
"""What every scrub reports: no statement of ours removes these bytes."""

KEPT_APART = f"{KEPT}; its tables are on other servers, and VACUUM is to be run on each of these"
"""The same report for foreign tables, which VACUUM does not reach from here."""

SETTINGS = "SELECT current_setting('synchronous_commit'), current_setting('fsync')"
"""Reads the settings that decide what a crash can lose."""


class PostgresBackend(ServerBackend[Pool]):
    """A backend over the tables of one schema."""

    faults = FAULTS
    gathers = False

    def __init__(self, address: str, options: PostgresOptions) -> None:
        super().__init__(address, options)
        self.schema, self._size = options.schema_name, options.pool_size
        self._dsn, self._driver = driver_options(address)
        self._sql = Statements(options.schema_name)
        self._writing = Writing(self._sql)
        self.tables = self  # the search index has its tables in the same schema

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
        return await open_connection(
            self._dsn, self.seconds, self._driver, *([PLANS_APART] if self._sql.foreign else ())
        )

    def translate(self, fault: BaseException, writes: bool) -> PalimpsestError:
        return translate(self.url, fault, writes)

    async def _with(self, work: Do[T], *, writes: bool = False) -> T:
        """Return what `work` returns for a connection, with the deadline, retry and errors that every verb has."""
        return await self.run(lambda pool: pool.using(work, writes=writes), writes=writes)

    async def do(self, work: Do[T], *, writes: bool = False) -> T:
        """Do the work of the search index: see `palimpsest.stores.values.Tables.do`."""

        async def with_retries(db: Connection) -> T:
            for _ in range(TRIES - 1):
                try:
                    return await work(db)
                except CROSSED:
                    if db.is_in_transaction():
                        await db.execute("ROLLBACK")
            return await work(db)

        return await self._with(with_retries, writes=writes)

    # --- the verbs

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        return await self._with(lambda db: look_up(db, self._sql, asks))

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        if not self.writable:
            raise StoreUnavailable(self.url, READ_ONLY)
        refusals: list[Refusal | None] = []
        for number, batch in enumerate(batches):
            try:
                refusals.append(await self._write_batch(number, batch, lasting, again) if batch else None)
            except StoreUnavailable as fault:
                if any(refusal is None for refusal, earlier in zip(refusals, batches, strict=False) if earlier):
                    fault.written = None  # an earlier batch of this call is written
                raise
        return refusals

    async def _write_batch(self, number: int, batch: Batch, lasting: bool, again: Again | None) -> Refusal | None:
        """Write one batch, again where concurrent writes made it fail. Returns its refusal, or None if it is written
        (or, unless `lasting`, given up)."""

        async def do(db: Connection) -> Refusal | None:
            tries, crossed = TRIES_APART if self._sql.foreign else TRIES, False
            while True:
                try:
                    return await self._writing.write(db, number, batch, lasting, again, locked=crossed)
                except asyncpg.LockNotAvailableError:
                    if lasting:
                        raise
                    if db.is_in_transaction():
                        await db.execute("ROLLBACK")
                    return None  # what may be lost is given up rather than waited for
                except CROSSED:
                    # Foreign tables do not make the second writer of a row wait: he fails. So lock from now on.
                    tries, crossed = tries - 1, self._sql.foreign
                    if db.is_in_transaction():
                        await db.execute("ROLLBACK")
                    if not tries:
                        raise

        return await self._with(do, writes=True)

    async def list_with(self, ask: Callable[[Any], Awaitable[T]]) -> T:
        return await self._with(lambda db: ask(Listings(db, self._sql, self.url)))

    # --- the end

    async def _is_foreign(self, _: Connection) -> bool:
        return self._sql.foreign  # only known after `connect`, which is why this takes a connection

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
