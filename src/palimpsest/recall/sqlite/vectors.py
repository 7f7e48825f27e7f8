"""Vectors in tables of an SQLite database: in the index file beside a store, or in this process's memory."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Protocol, TypeVar

import numpy as np

from palimpsest.recall.generations import first_generation
from palimpsest.recall.sqlite.layout import TenantTables
from palimpsest.recall.vectors import Changes, Row, State
from palimpsest.stores.sqlite.connections import Damaged

T = TypeVar("T")

TABLES = (
    """CREATE TABLE IF NOT EXISTS vectors(number INTEGER PRIMARY KEY, model TEXT NOT NULL DEFAULT '',
        dimension INTEGER NOT NULL DEFAULT 0, generation INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE IF NOT EXISTS vector_N(position INTEGER PRIMARY KEY AUTOINCREMENT, key INTEGER NOT NULL UNIQUE,
        digest BLOB NOT NULL, value BLOB NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS vector_digest_N ON vector_N(digest)",
)
"""A `position` is never used twice: a reader who has all vectors up to one position can ask for what came after it."""


class SqliteVectors(TenantTables):
    """The vectors of one tenant. Each method is called in a transaction of the connection; the first call makes the
    tables.

    Removed vectors are overwritten in the file (`secure_delete`), and in its write-ahead log by the next checkpoint.
    """

    def __init__(self, db: sqlite3.Connection, number: int = 0) -> None:
        """Take a connection, and make the tables if there are none.

        Args:
            db: a connection whose transactions the caller begins and ends.
            number: which tenant of the database.
        """
        super().__init__(db, int(number))
        db.execute("PRAGMA secure_delete=ON")
        for statement in TABLES:
            self._run(statement)
        first = self._number, first_generation()
        self._run("INSERT OR IGNORE INTO vectors(number, generation) VALUES(?, ?)", first)

    def state(self) -> State:
        """See `VectorRows.state`; the other methods, too, are the verbs of `VectorRows`."""
        sql = "SELECT model, dimension, generation FROM vectors WHERE number = ?"
        return State(*self._run(sql, (self._number,)).fetchone())

    def claim(self, model: str, dimension: int) -> State:
        state = self.state()
        if (state.model, state.dimension) != (model, dimension):
            self._run("DELETE FROM vector_N")
            sql = "UPDATE vectors SET model = ?, dimension = ? WHERE number = ?"
            self._run(sql, (model, dimension, self._number))
        return self.state()

    def changes(self, state: State, last: int, limit: int) -> Changes:
        current = self.state()
        goes_on = current.continues(state)
        keys = None
        if goes_on and current.generation != state.generation:
            keys = np.array([key for (key,) in self._run("SELECT key FROM vector_N")], np.int64)
        sql = "SELECT position, key, value FROM vector_N WHERE position > ? ORDER BY position LIMIT ?"
        found = self._run(sql, (last if goes_on else 0, limit)).fetchall()
        if any(not isinstance(value, bytes) or len(value) != 2 * current.dimension for _, _, value in found):
            raise Damaged("a vector has another length than all have")
        end = found[-1][0] if found else last if goes_on else 0
        return Changes(current, end, keys, [(key, value) for _, key, value in found])

    def known(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        found = {}
        for digest in digests:
            row = self._run("SELECT value FROM vector_N WHERE digest = ? LIMIT 1", (digest,)).fetchone()
            if row is not None:
                found[digest] = row[0]
        return found

    def missing(self, keys: Collection[int]) -> list[int]:
        sql = "SELECT key FROM vector_N WHERE key IN (SELECT value FROM json_each(?))"
        existing = {key for (key,) in self._run(sql, (json.dumps(list(keys)),))}
        return [key for key in keys if key not in existing]

    def put(self, rows: Sequence[Row], expect: State) -> bool:
        if self.state() != expect:
            return False
        sql = "INSERT OR REPLACE INTO vector_N(key, digest, value) VALUES(?, ?, ?)"
        self._run_many(sql, rows)
        return True


class Do(Protocol):
    """Runs a function of the tenant's vectors in one transaction; `writes` says whether it writes."""

    def __call__(self, body: Callable[[SqliteVectors], T], *, writes: bool) -> Awaitable[T]: ...


class FileVectors:
    """The verbs of `VectorRows`, each of which runs the method of `SqliteVectors` in a transaction."""

    def __init__(self, do: Do) -> None:
        """Take what runs a function in a transaction.

        Args:
            do: called with the function, and whether it writes.
        """
        self._do = do

    async def state(self) -> State:
        return await self._do(SqliteVectors.state, writes=False)

    async def claim(self, model: str, dimension: int) -> State:
        return await self._do(lambda rows: rows.claim(model, dimension), writes=True)

    async def changes(self, state: State, last: int, limit: int) -> Changes:
        return await self._do(lambda rows: rows.changes(state, last, limit), writes=False)

    async def known(self, digests: Collection[bytes]) -> dict[bytes, bytes]:
        return await self._do(lambda rows: rows.known(digests), writes=False)

    async def missing(self, keys: Collection[int]) -> list[int]:
        return await self._do(lambda rows: rows.missing(keys), writes=False)

    async def put(self, rows: Sequence[Row], expect: State) -> bool:
        return await self._do(lambda own: own.put(rows, expect), writes=True)
