"""`SQLiteStore`: entries in one SQLite file, shared by threads and processes.

    memory_entries(place, entry_id, namespace, scope, key, content, metadata, created_at, expires_at, importance)

`place` gives the order, `content` and `metadata` are JSON, times are microseconds since 1970. A save is one statement.
There are two connections: reads use their own one while a write is under way, so that none waits for the disk.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from palimpsest.compat.firefly.entries import MemoryEntry, Packed, parsed
from palimpsest.compat.firefly.store import MARK, Conversations, LocalStore, elsewhere, read, spelled, unspelled
from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.log.entry import now_us
from palimpsest.log.values import is_path
from palimpsest.runtime.logs import warn
from palimpsest.stores import forking
from palimpsest.stores.sqlite.connections import FAULTS, PAUSE, Link, Links, SameFile, Translated, connected, is_busy

T = TypeVar("T")

IN_MEMORY = ":memory:"

LAYOUT = (
    """CREATE TABLE IF NOT EXISTS memory_entries (
    place INTEGER PRIMARY KEY,
    entry_id TEXT NOT NULL UNIQUE,
    namespace TEXT NOT NULL,
    scope TEXT NOT NULL,
    key TEXT,
    content TEXT NOT NULL,
    metadata TEXT NOT NULL DEFAULT '{}',
    created_at INTEGER NOT NULL,
    expires_at INTEGER,
    importance REAL NOT NULL DEFAULT 0.5 CHECK (importance >= 0.0 AND importance <= 1.0)
)""",
    "CREATE INDEX IF NOT EXISTS idx_namespace ON memory_entries(namespace)",
    "CREATE UNIQUE INDEX IF NOT EXISTS idx_namespace_key ON memory_entries(namespace, key) WHERE key IS NOT NULL",
    "CREATE INDEX IF NOT EXISTS idx_expires_at ON memory_entries(expires_at) WHERE expires_at IS NOT NULL",
)

COLUMNS = ("entry_id", "scope", "key", "content", "metadata", "created_at", "expires_at", "importance")
_READ = f"SELECT {', '.join(COLUMNS)} FROM memory_entries WHERE namespace = ?"
_ALIVE = "(expires_at IS NULL OR expires_at > ?)"
_ANEW = (
    f"UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in COLUMNS)}, "
    "place = CASE WHEN memory_entries.expires_at <= ? THEN (SELECT max(place) + 1 FROM memory_entries) ELSE place END"
)
SAVE = (
    f"INSERT INTO memory_entries({', '.join(COLUMNS)}, namespace) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?) "
    f"ON CONFLICT(entry_id) DO {_ANEW} WHERE memory_entries.namespace = excluded.namespace "
    f"ON CONFLICT(namespace, key) WHERE key IS NOT NULL DO {_ANEW}"
)
LOAD = f"{_READ} AND {_ALIVE} ORDER BY place"
LOAD_BY_KEY = f"{_READ} AND key = ? AND {_ALIVE}"


class SQLiteStore(LocalStore):
    """Entries in one SQLite file, which threads and processes may share. Every change is atomic and durable.

    Args:
        path: the file, which is created with its parent folders; ":memory:" for one in the memory of this process.
        busy_seconds: how long to wait for other writers.
        clock: a function that returns microseconds since 1970.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, busy_seconds: float = 30.0, clock: Callable[[], int] = now_us
    ) -> None:
        super().__init__(clock=clock)
        given = os.fspath(path) if isinstance(path, str | os.PathLike) else None
        if not isinstance(given, str) or not given or not is_path(given):
            raise ConfigError("path", path, "the path of an SQLite file, or ':memory:'")
        if not values.is_number(busy_seconds) or not busy_seconds >= 0:
            raise ConfigError("busy_seconds", busy_seconds, "a number of seconds, 0 or more")
        self._on_disk = given != IN_MEMORY
        self.path = os.path.abspath(os.path.expanduser(given)) if self._on_disk else given
        self.url, self._busy_seconds = f"sqlite:///{self.path}", busy_seconds
        self._translated = Translated(self.url)
        self._same = SameFile(self.url, self.path)
        self._links = Links(self.path, self._opened, sqlite3.Connection.close)
        if not self._on_disk:
            self._links.reader = self._links.writer
        self._tried(self._links.writer, _prepare)
        if self._on_disk:
            forking.watch(self._links)

    # --- the documented methods

    def save(self, namespace: str, entry: MemoryEntry) -> None:
        values = _values(namespace, self._row(namespace, entry))
        try:
            self._write(lambda db: _save(db, values, self.clock()))
        except _TwoEntries:
            self._write(lambda db: _transaction(db, lambda: _save_over(db, values, self.clock())))

    def load(self, namespace: str) -> list[MemoryEntry]:
        self._check(namespace)
        rows = self._read(lambda db: db.execute(LOAD, (spelled(namespace), self.clock())).fetchall())
        return [entry for row in rows if (entry := read(self.url, namespace, _row_of(row))) is not None]

    def load_by_key(self, namespace: str, key: str) -> MemoryEntry | None:
        self._check(namespace, key=key)
        row = self._read(lambda db: _of_key(db, namespace, key, self.clock()))
        return None if row is None else read(self.url, namespace, row)

    def delete(self, namespace: str, entry_id: str) -> None:
        self._check(namespace, entry_id=entry_id)
        names = spelled(namespace), spelled(entry_id)
        self._write(lambda db: db.execute("DELETE FROM memory_entries WHERE namespace = ? AND entry_id = ?", names))

    def clear(self, namespace: str) -> None:
        self._check(namespace)
        self._write(lambda db: db.execute("DELETE FROM memory_entries WHERE namespace = ?", (spelled(namespace),)))

    def compare_and_set(
        self, namespace: str, key: str, entry: MemoryEntry | None, expected: MemoryEntry | None
    ) -> bool:
        row, was = self._swapped(namespace, key, entry, expected)
        values = None if row is None else _values(namespace, row)

        def compared(db: sqlite3.Connection) -> bool:
            now = self.clock()
            if _of_key(db, namespace, key, now) != was:
                return False
            if values is not None:
                _save_over(db, values, now)
            elif was is not None:
                db.execute("DELETE FROM memory_entries WHERE entry_id = ?", (spelled(was.entry_id),))
            return True

        return self._write(lambda db: _transaction(db, lambda: compared(db)))

    def cleanup_expired(self) -> int:
        self._check_open()
        sql = "DELETE FROM memory_entries WHERE expires_at <= ?"
        return self._write(lambda db: db.execute(sql, (self.clock(),)).rowcount)

    def close(self) -> None:
        super().close()
        with self._translated:
            for link in (self._links.reader, self._links.writer):
                with link.lock:
                    link.close()

    def conversations_at(self) -> Conversations:
        if not self._on_disk:
            return Conversations("memory://", {})
        return Conversations(Path(f"{self.path}.conversations.db"), {"busy_seconds": self._busy_seconds})

    # --- connections

    def _opened(self) -> sqlite3.Connection:
        if not self._on_disk:
            return sqlite3.connect(IN_MEMORY, isolation_level=None, check_same_thread=False)
        forking.refuse(self.path)
        db = connected(self.url, self.path, writable=True)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA secure_delete=ON")  # overwrite what is deleted, however SQLite was built
        except BaseException:
            db.close()
            raise
        return db

    def _read(self, body: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `body`, which reads with one statement."""
        return self._tried(self._links.to_read(), body)

    def _write(self, body: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `body`, which writes with one statement or in a transaction."""

        def written(db: sqlite3.Connection) -> T:
            if self._on_disk:
                self._same.check(self._links.writer)
            return body(db)

        return self._tried(self._links.writer, written)

    def _tried(self, link: Link[sqlite3.Connection], body: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `body` with a connection.

        It is tried again while the file is busy, for `busy_seconds`; no lock is held in between.
        """
        deadline = None
        while True:
            try:
                with link.lock:
                    self._check_open()  # another thread may have closed it
                    result = body(link.use())
                return result
            except FAULTS as fault:
                now = time.monotonic()
                deadline = now + self._busy_seconds if deadline is None else deadline
                if not is_busy(fault) or now >= deadline:
                    with self._translated:
                        raise
            time.sleep(PAUSE)


class _TwoEntries(Exception):
    """The saved entry has the id of one stored entry and the key of another: one statement cannot replace both."""


def _prepare(db: sqlite3.Connection) -> None:
    """Create what is missing in the file. Of several processes that do so at once, one does it."""
    existing = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE tbl_name = 'memory_entries'")}
    if len(existing) < len(LAYOUT):
        _transaction(db, lambda: _create(db))


def _create(db: sqlite3.Connection) -> None:
    """Create the table, and copy the entries of the original program into it if the file has its table.

    The original program's table stays as it is.
    """
    tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('memory_entries', 'firefly_memory')"
    existing = {name for (name,) in db.execute(tables)}
    for statement in LAYOUT:
        db.execute(statement)
    if existing == {"firefly_memory"}:
        for namespace, text in db.execute("SELECT namespace, content FROM firefly_memory ORDER BY created_at, rowid"):
            try:
                _save_over(db, _values(namespace, parsed(json.loads(text))), 0)
            except (ValueError, RecursionError) as fault:
                warn("an entry of %r in the table firefly_memory cannot be read, and stays there: %s", namespace, fault)


def _transaction(db: sqlite3.Connection, body: Callable[[], T]) -> T:
    with db:  # rolls back after an exception
        db.execute("BEGIN IMMEDIATE")
        result = body()
        db.execute("COMMIT")
    return result


def _save(db: sqlite3.Connection, values: tuple[Any, ...], now: int) -> None:
    """Save with one statement.

    Raises Conflict for an id of another namespace, _TwoEntries if a transaction is needed.
    """
    try:
        written = db.execute(SAVE, (*values, now, now)).rowcount
    except sqlite3.IntegrityError as fault:
        raise _TwoEntries from fault
    if not written:
        raise elsewhere(unspelled(values[0]))


def _save_over(db: sqlite3.Connection, values: tuple[Any, ...], now: int) -> None:
    """Save within a transaction. If the id is stored already, another entry of the same key is deleted first."""
    entry_id, key, namespace = values[0], values[2], values[8]
    stored = db.execute("SELECT namespace FROM memory_entries WHERE entry_id = ?", (entry_id,)).fetchone()
    if stored is not None:
        if stored[0] != namespace:
            raise elsewhere(unspelled(entry_id))
        names = namespace, key, entry_id
        db.execute("DELETE FROM memory_entries WHERE namespace = ? AND key = ? AND entry_id <> ?", names)
    _save(db, values, now)


def _of_key(db: sqlite3.Connection, namespace: str, key: str, now: int) -> Packed | None:
    rows = db.execute(LOAD_BY_KEY, (spelled(namespace), spelled(key), now)).fetchall()
    return _row_of(rows[0]) if rows else None


def _values(namespace: str, row: Packed) -> tuple[Any, ...]:
    key = None if row.key is None else spelled(row.key)
    return (spelled(row.entry_id), row.scope, key, *row[3:], spelled(namespace))


def _row_of(row: Iterable[Any]) -> Packed:
    kept = Packed._make(row)
    if MARK in kept.entry_id or MARK in (kept.key or ""):
        key = None if kept.key is None else unspelled(kept.key)
        return kept._replace(entry_id=unspelled(kept.entry_id), key=key)
    return kept
