"""Entries in the documented table of a PostgreSQL server. A save is one statement.

The order of the entries is kept as `$place` in their `metadata`, since no documented column has it. Places come from a
sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import asyncpg

from palimpsest.compat.firefly import jsonb
from palimpsest.compat.firefly.entries import Packed
from palimpsest.compat.firefly.served import Server
from palimpsest.compat.firefly.store import elsewhere, spelled, unspelled
from palimpsest.errors import PalimpsestError, StoreCorrupt
from palimpsest.log.entry import microseconds_of, moment
from palimpsest.runtime.logs import warn
from palimpsest.stores.options import discreet_address
from palimpsest.stores.postgres.address import driver_options
from palimpsest.stores.postgres.faults import CROSSED, FAULTS, translate
from palimpsest.stores.postgres.pool import Connection, Do, Pool, open_connection

T = TypeVar("T")

TRIES = 10
"""How often a write that conflicts with other writers is tried before it is an error."""

LAYOUT = (
    """CREATE TABLE IF NOT EXISTS {t} (
    entry_id TEXT PRIMARY KEY,
    namespace TEXT NOT NULL,
    scope TEXT NOT NULL,
    key TEXT,
    content JSONB NOT NULL,
    metadata JSONB NOT NULL DEFAULT '{}',
    created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(),
    expires_at TIMESTAMPTZ,
    importance FLOAT NOT NULL DEFAULT 0.5
        CHECK (importance >= 0.0 AND importance <= 1.0)
)""",
    "CREATE INDEX IF NOT EXISTS idx_namespace ON {t}(namespace)",
    "CREATE INDEX IF NOT EXISTS idx_namespace_key ON {t}(namespace, key) WHERE key IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_expires_at ON {t}(expires_at) WHERE expires_at IS NOT NULL",
    "CREATE SEQUENCE IF NOT EXISTS {places}",
)
"""The documented table and indexes, and the sequence of places."""

ADOPTED = (
    # Of several entries with one key, from other programs, the newest keeps it. The others note it in their metadata.
    """UPDATE {t} SET key = NULL, metadata = metadata || jsonb_build_object('superseded_key', key)
WHERE entry_id IN (SELECT entry_id FROM (
    SELECT entry_id, row_number() OVER (PARTITION BY namespace, key ORDER BY created_at DESC, entry_id DESC) AS n
    FROM {t} WHERE key IS NOT NULL) AS each WHERE n > 1)""",
    """UPDATE {t} AS e SET metadata = e.metadata || jsonb_build_object('$place', placed.place)
FROM (SELECT entry_id, nextval('{places}') AS place FROM (
    SELECT entry_id FROM {t} WHERE NOT metadata ? '$place' ORDER BY created_at, entry_id) AS each) AS placed
WHERE e.entry_id = placed.entry_id""",
    "CREATE UNIQUE INDEX IF NOT EXISTS idx_one_of_each_key ON {t}(namespace, key) WHERE key IS NOT NULL",
)
"""Gives each entry a place, and each key one row, also in a table that another program filled."""

INDEXES = ("idx_namespace", "idx_namespace_key", "idx_expires_at", "idx_one_of_each_key")

COLUMNS = ("entry_id", "scope", "key", "content", "metadata", "created_at", "expires_at", "importance")


class Table(Server):
    """The table of the entries, and the connections to the server."""

    faults = FAULTS

    def __init__(self, address: str, schema: str, *, size: int, least: int, seconds: float) -> None:
        self._url, self._schema, self._size, self._least, self._seconds = (
            discreet_address(address),
            schema,
            size,
            least,
            seconds,
        )
        self._dsn, self._driver = driver_options(address)
        self._names = {"t": f'"{schema}".memory_entries', "places": f'"{schema}".memory_entries_place'}
        self._pool: Pool | None = None
        assignments = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name != "metadata")
        update = (
            f"DO UPDATE SET {assignments}, metadata = excluded.metadata || CASE "
            "WHEN e.expires_at <= $10 OR NOT e.metadata ? '$place' THEN '{}'::jsonb "
            "ELSE jsonb_build_object('$place', e.metadata -> '$place') END"
        )
        insert = self._sql(
            f"INSERT INTO {{t}} AS e({', '.join(COLUMNS)}, namespace) VALUES($1, $2, $3, $4, "
            "$5::jsonb || jsonb_build_object('$place', nextval('{places}')), $6, $7, $8, $9) ON CONFLICT "
        )
        self._by_id = f"{insert}(entry_id) {update} WHERE e.namespace = excluded.namespace"
        self._by_key = f"{insert}(namespace, key) WHERE key IS NOT NULL {update}"
        read = self._sql(f"SELECT {', '.join(COLUMNS)} FROM {{t}} WHERE namespace = $1")
        place = "CASE jsonb_typeof(metadata -> '$place') WHEN 'number' THEN (metadata ->> '$place')::numeric END"
        alive = "AND (expires_at IS NULL OR expires_at > $2)"
        self._load = f"{read} {alive} ORDER BY {place} NULLS LAST, created_at, entry_id"
        self._load_by_key = f"{read} AND key = $3 {alive}"
        self._look = f"{read} AND key = $2 FOR UPDATE"

    def _sql(self, text: str) -> str:
        for name, value in self._names.items():
            text = text.replace(f"{{{name}}}", value)
        return text

    # --- connections

    async def connect(self) -> None:
        pool = Pool(self._connection, self._size)
        try:
            await pool.once(self._prepare)
            opened = await asyncio.gather(*(pool.take() for _ in range(self._least)), return_exceptions=True)
        except BaseException:
            await pool.close(0)
            raise
        for db in opened:
            if not isinstance(db, BaseException):
                pool.give(db)
        self._pool = pool

    async def _connection(self) -> Connection:
        return await open_connection(self._dsn, self._seconds, self._driver)

    async def _prepare(self, db: Connection) -> None:
        """Create what is missing. Of several processes that do so at once, one does it."""
        if await self._is_prepared(db):
            return
        if await db.fetchval("SELECT getdatabaseencoding()") != "UTF8":
            raise StoreCorrupt(self._url, "the database is not encoded in UTF-8; make one that is")
        async with db.transaction():
            await db.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 1178946153))", self._schema)
            if await self._is_prepared(db):  # another process was first
                return
            if not await db.fetchval("SELECT to_regnamespace($1)::oid", f'"{self._schema}"'):
                await db.execute(f'CREATE SCHEMA "{self._schema}"')
            for statement in (*LAYOUT, *ADOPTED):
                await db.execute(self._sql(statement))

    async def _is_prepared(self, db: Connection) -> bool:
        existing = await db.fetch(
            "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = $1 AND c.relname = ANY($2::text[])",
            self._schema,
            ["memory_entries", "memory_entries_place", *INDEXES],
        )
        return len(existing) == 2 + len(INDEXES)

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close(min(self._seconds, 5))

    def translated(self, fault: BaseException, writes: bool) -> PalimpsestError:
        return translate(self._url, fault, writes)

    async def _with(self, do: Do[T], *, writes: bool = False) -> T:
        assert self._pool is not None, "it is connected"
        return await self._pool.using(do, writes=writes)

    # --- operations of a store

    async def save(self, namespace: str, row: Packed, now: int) -> None:
        values = _values(namespace, row, now)
        await self._with(lambda db: self._retried(lambda: self._put(db, values)), writes=True)

    async def load(self, namespace: str, now: int) -> list[Packed]:
        rows = await self._with(lambda db: db.fetch(self._load, spelled(namespace), moment(now)))
        return [entry for row in rows if (entry := self._row_of(row)) is not None]

    async def load_by_key(self, namespace: str, key: str, now: int) -> Packed | None:
        arguments = spelled(namespace), moment(now), spelled(key)
        row = await self._with(lambda db: db.fetchrow(self._load_by_key, *arguments))
        return None if row is None else self._row_of(row)

    async def delete(self, namespace: str, entry_id: str) -> None:
        sql = self._sql("DELETE FROM {t} WHERE namespace = $1 AND entry_id = $2")
        await self._with(lambda db: db.execute(sql, spelled(namespace), spelled(entry_id)), writes=True)

    async def clear(self, namespace: str) -> None:
        sql = self._sql("DELETE FROM {t} WHERE namespace = $1")
        await self._with(lambda db: db.execute(sql, spelled(namespace)), writes=True)

    async def cleanup(self, now: int) -> int:
        sql = self._sql("DELETE FROM {t} WHERE expires_at <= $1")
        return _count(await self._with(lambda db: db.execute(sql, moment(now)), writes=True))

    async def swap(self, namespace: str, key: str, row: Packed | None, was: Packed | None, now: int) -> bool:
        values = None if row is None else _values(namespace, row, now)

        async def compared(db: Connection) -> bool:
            async with db.transaction():
                stored = await db.fetchrow(self._look, spelled(namespace), spelled(key))
                current = None if stored is None else self._row_of(stored)
                if (None if current is None or current.is_over(now) else current) != was:
                    return False
                if values is not None:
                    return await self._first(db, values) if stored is None else await self._put(db, values)
                if was is not None:
                    await db.execute(self._sql("DELETE FROM {t} WHERE entry_id = $1"), spelled(was.entry_id))
                return True

        return await self._with(lambda db: self._retried(lambda: compared(db)), writes=True)

    # --- with a connection

    async def _retried(self, do: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `do`, which is tried again if it conflicts with other writers."""
        for _ in range(TRIES - 1):
            try:
                return await do()
            except CROSSED:
                continue
        return await do()

    async def _put(self, db: Connection, values: tuple[Any, ...]) -> bool:
        """Save with one statement, or in a transaction if one stored entry has the id and another one the key."""
        if values[2] is None:
            return await self._put_by_id(db, values)
        try:
            async with _savepoint(db):
                await db.execute(self._by_key, *values)
        except asyncpg.UniqueViolationError:
            return await self._put_over(db, values)
        return True

    async def _put_by_id(self, db: Connection, values: tuple[Any, ...]) -> bool:
        if not _count(await db.execute(self._by_id, *values)):
            raise elsewhere(unspelled(values[0]))
        return True

    async def _put_over(self, db: Connection, values: tuple[Any, ...]) -> bool:
        """Save an entry whose key another id has: that entry is deleted."""
        entry_id, key, namespace = values[0], values[2], values[8]
        async with db.transaction():
            namespace_sql = self._sql("SELECT namespace FROM {t} WHERE entry_id = $1 FOR UPDATE")
            if await db.fetchval(namespace_sql, entry_id) not in {None, namespace}:
                raise elsewhere(unspelled(entry_id))
            delete_sql = self._sql("DELETE FROM {t} WHERE namespace = $1 AND key = $2 AND entry_id <> $3")
            await db.execute(delete_sql, namespace, key, entry_id)
            return await self._put_by_id(db, values)

    async def _first(self, db: Connection, values: tuple[Any, ...]) -> bool:
        """Save an entry if its key has none. Return False if another writer saved one meanwhile."""
        try:
            async with db.transaction():
                return await self._put_by_id(db, values)
        except asyncpg.UniqueViolationError:
            return False

    def _row_of(self, row: Any) -> Packed | None:
        """Return the entry of a row; None, and a line in the log, if it cannot be read."""
        entry_id, scope, key, content, metadata, created, expires, importance = row
        try:
            return Packed(
                unspelled(entry_id),
                scope,
                None if key is None else unspelled(key),
                *jsonb.values(content, metadata),
                microseconds_of(created),
                None if expires is None else microseconds_of(expires),
                importance,
            )
        except (ValueError, TypeError, OverflowError) as fault:
            warn("%s: the entry %r cannot be read, and is left out: %s", self._url, entry_id, fault)
            return None


def _savepoint(db: Connection) -> Any:
    """Return a savepoint in the current transaction.

    Outside of one, where a statement is atomic itself, it does nothing.
    """
    return db.transaction() if db.is_in_transaction() else nullcontext()


def _values(namespace: str, row: Packed, now: int) -> tuple[Any, ...]:
    """Return the values of the columns, and the time."""
    return (
        spelled(row.entry_id),
        row.scope,
        None if row.key is None else spelled(row.key),
        *jsonb.columns(row.content, row.metadata),
        moment(row.created),
        None if row.expires is None else moment(row.expires),
        row.importance,
        spelled(namespace),
        moment(now),
    )


def _count(status: str) -> int:
    """Return how many rows a statement has written, from the status that the server returned."""
    return int(status.rpartition(" ")[2])
