"""The tables of an index in SQLite: those that all tenants of a file share, and those that each has for itself."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.recall.generations import first_generation
from palimpsest.recall.index import FORMAT
from palimpsest.stores.sqlite.connections import read_only

APPLICATION_ID = 0x50616C72
"""SQLite's `application_id` of an index file. A store's file has another one."""

TABLES = """
CREATE TABLE IF NOT EXISTS meta(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tenant(number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE,
  mark INTEGER NOT NULL DEFAULT 0, generation INTEGER NOT NULL DEFAULT 0, entries INTEGER NOT NULL DEFAULT 0,
  parts INTEGER NOT NULL DEFAULT 0, stale INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS met(tenant INTEGER PRIMARY KEY, words TEXT NOT NULL);
"""
"""The tables that all tenants share. The words in `met` tell which stores an index belongs to."""

OF_TENANT = """
CREATE TABLE session_N(number INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, cursor BLOB NOT NULL);
CREATE TABLE entry_N(place INTEGER PRIMARY KEY, at INTEGER NOT NULL, kind INTEGER NOT NULL, role INTEGER NOT NULL,
  chars INTEGER NOT NULL, name TEXT, parts INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE blocked_N(session TEXT NOT NULL, seq INTEGER NOT NULL, since INTEGER NOT NULL,
  PRIMARY KEY(session, seq)) WITHOUT ROWID;
CREATE VIRTUAL TABLE words_N USING fts5(terms, content='', tokenize="ascii tokenchars '_'");
"""
"""The tables of one tenant, `N` being its number. Each tenant has its own so that its terms alone count in its
scores."""


FORGETTING = (3, 42)
"""The first SQLite whose FTS5 can remove deleted terms from its segments at once (`secure-delete`)."""


class TenantTables:
    """The base of what uses tables of the tenant with this number."""

    def __init__(self, db: sqlite3.Connection, number: int) -> None:
        self._db, self._number = db, number

    def _run(self, sql: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement; `_N` in it stands for the number, with which the names of the tenant's own tables end."""
        return self._db.execute(sql.replace("_N", f"_{self._number}"), values)

    def _run_many(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement once for each row of values."""
        self._db.executemany(sql.replace("_N", f"_{self._number}"), rows)


def prepare(db: sqlite3.Connection) -> None:
    """Make the tables that all tenants share. If the file has another format, drop all indexes in it first."""
    for statement in TABLES.split(";\n")[:-1]:
        db.execute(statement)
    stored = db.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
    if stored is not None and stored[0] != FORMAT:
        for (number,) in db.execute("SELECT number FROM tenant").fetchall():
            drop(db, number)
        db.execute("DROP TABLE IF EXISTS vectors")
        db.execute("DELETE FROM tenant")
        db.execute("DELETE FROM met")
    db.execute("INSERT OR REPLACE INTO meta VALUES('format', ?)", (FORMAT,))
    db.execute("INSERT OR IGNORE INTO meta VALUES('id', ?)", (secrets.randbits(62),))
    db.execute(f"PRAGMA application_id={APPLICATION_ID}")


def maker_of(path: str) -> int | None:
    """Return the `application_id` of a database file, or None for a file that is no database.

    The file is opened by SQLite only: closing it in any other way would release the locks that this process has on it
    (POSIX locks belong to the process), if it has it open.
    """
    try:
        with closing(sqlite3.connect(read_only(path, unchanging=True), uri=True)) as db:
            (number,) = db.execute("PRAGMA application_id").fetchone()
    except sqlite3.Error:
        return None
    return int(number)


LACKING = ("no such table", "no such fts5 table", "JSON cannot hold BLOB")
"""Messages of SQLite that look like a wrong statement, but mean a damaged file: a table of a known tenant is missing,
or a number is a BLOB."""


def is_damaged(fault: Exception) -> bool:
    """Return whether an error means that the file is damaged."""
    name = getattr(fault, "sqlite_errorname", "")
    odd = isinstance(fault, (StoreCorrupt, msgspec.DecodeError, UnicodeDecodeError)) or any(
        text in str(fault) for text in LACKING
    )
    return odd or name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


def has_vectors(db: sqlite3.Connection, number: int) -> bool:
    """Return whether a tenant has a table of vectors in this database."""
    rows = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (f"vector_{number}",))
    return rows.fetchone() is not None


def forgets(db: sqlite3.Connection, number: int) -> bool:
    """Return whether FTS5 removes deleted terms from a tenant's segments at once."""
    if sqlite3.sqlite_version_info < FORGETTING:
        return False
    row = db.execute(f"SELECT v FROM words_{int(number)}_config WHERE k = 'secure-delete'").fetchone()  # noqa: S608
    return row is not None and bool(row[0])


def drop(db: sqlite3.Connection, number: int) -> None:
    """Drop the tables of the tenant with this number, as far as they exist."""
    for table in ("session", "entry", "blocked", "words", "vector"):
        db.execute(f"DROP TABLE IF EXISTS {table}_{number}")


def make_tenant(db: sqlite3.Connection, tenant: str, *, secure: bool) -> int:
    """Make the tables of a tenant if it has none; return its number."""
    row = db.execute("SELECT number FROM tenant WHERE name = ?", (tenant,)).fetchone()
    if row is None:
        first = tenant, first_generation()
        number = int(db.execute("INSERT INTO tenant(name, generation) VALUES(?, ?)", first).lastrowid or 0)
        drop(db, number)  # tables left behind under this number belong to no known tenant
        for statement in OF_TENANT.replace("_N", f"_{number}").split(";\n")[:-1]:
            db.execute(statement)
        if secure and sqlite3.sqlite_version_info >= FORGETTING:
            db.execute(f"INSERT INTO words_{number}(words_{number}, rank) VALUES('secure-delete', 1)")
    else:
        number = int(row[0])
    for name, kind in (("count", "row"), ("stand", "instance")):
        table = f"CREATE VIRTUAL TABLE IF NOT EXISTS temp.{name}_{number} USING fts5vocab(main, words_{number}, "
        db.execute(f"{table}{kind})")
    return number


def owners_of(db: sqlite3.Connection, number: int) -> list[str]:
    """Return the words remembered by the stores that a tenant's index belongs to; see `identity`."""
    row = db.execute("SELECT words FROM met WHERE tenant = ?", (number,)).fetchone()
    return row[0].split() if row is not None else []


def set_owners(db: sqlite3.Connection, number: int, words: Sequence[str]) -> None:
    """Remember that a tenant's index belongs to a store that remembers one of these words."""
    db.execute("INSERT OR REPLACE INTO met VALUES(?, ?)", (number, " ".join(words)))
