"""How the SQLite store sees that no byte of what was destroyed is left in its file or its write-ahead log.

`secure_delete` overwrites what is deleted where it lies. Older copies may lie elsewhere: in the write-ahead log, until
that is written back and cut off, and in the unused part of pages between which rows were moved, which only writing the
database anew clears: at once where it is small, by pieces where it is not. That this is due stands in the file itself:
after a kill the next to open it does it.

By pieces, each a short transaction, others go on writing between any two. Each table in turn is copied into another
one beside it, which triggers keep as it is: in whatever process a row is written meanwhile. When all is there, that one
takes its name, in one step, and the old one is emptied. Pages that it gives up are overwritten (`secure_delete`), and
those of the new table hold nothing but what was there when it was copied: so nothing is left of what SQLite leaves
behind when it moves rows. Last, pages not in use are given back. What has been done stands in the file, too. So whoever
goes on, after a kill or beside another, takes the next step.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from palimpsest.stores.sqlite.layout import TABLES

PATIENCE = 1.0
"""Seconds that scrubbing waits, at most, for others who use the file."""

PAUSE = 0.005
"""Seconds between two tries to cut the write-ahead log off."""

HELD = (
    "the write-ahead log of {url} may still hold it, for another connection is in the middle of something. It is gone "
    "with the next erasure, or when the store is next opened or closed, once that is over"
)
LARGE = (
    "unused parts of pages of {url} may still hold copies that SQLite left when it moved rows: at {size:,} bytes, of "
    "which {free:,} are free, it is too large to be written anew with every erasure. `memory.vacuum` and `palimpsest "
    "vacuum` do that, a piece at a time while others go on, and give back what is free"
)
BUSY = (
    "unused parts of pages of {url} may still hold copies that SQLite left when it moved rows: the file could not be "
    "written anew ({why}). The next erasure tries again"
)

SMALL = 16 << 20
"""Bytes of a file that is written anew at once, by VACUUM: a tenth of a second or so."""

PIECE = 1 << 19
"""Bytes of rows that one step is about, at least: some milliseconds, as one of a few rows is."""

EACH = 256
"""Bytes that a row counts for beside its value: it has a place in an index, which may be on a page of its own."""

MANY = 512
"""Rows that are looked at to find as many bytes; pages that are given back in one step."""

KEYS = {"place": ("number", "coalesce(length(hot), 0)"), "cold": ("place", "length(body)")}
KEYS |= dict.fromkeys(TABLES, ("pos", "length(value)"))
"""Tables that hold what somebody has said: the key of each, and about how long a row is."""


def note(db: sqlite3.Connection) -> None:
    """Note, in the transaction that destroys something, that the file is to be scrubbed: a number of its own."""
    sql = (
        "INSERT INTO meta VALUES('scrub', random() >> 12 & 0xFFFFFFFFFFFF) ON CONFLICT DO UPDATE SET value = value + 1"
    )
    db.execute(sql)


def size_of(db: sqlite3.Connection) -> int:
    """Bytes of the database."""
    (size,) = db.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()
    return int(size)


def free_in(db: sqlite3.Connection) -> int:
    """Bytes of pages that are not in use."""
    sql = "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size"
    (free,) = db.execute(sql).fetchone()
    return int(free)


def note_in(db: sqlite3.Connection, name: str = "scrub") -> int | None:
    """The number of a note in the file: `scrub`, that something was destroyed; `clean`, up to which none is left."""
    row = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else int(row[0])


class Scrubbing:
    """Scrubs a file, of which it remembers up to which note the write-ahead log was cut off."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._cut: int | None = None

    def scrub(self, db: sqlite3.Connection, patience: float) -> tuple[str, ...]:
        """Scrub the file, if that is due, and return what could not be done. Needs the connection for itself."""
        noted = note_in(db)
        return tuple(self._scrub(db, noted, patience)) if noted is not None else ()

    def _scrub(self, db: sqlite3.Connection, noted: int, patience: float) -> Iterator[str]:
        left = None if note_in(db, "clean") == noted else _written_anew(self._url, db)
        if left is not None:
            yield left
        if left is None or self._cut != noted:  # else all that came since is nobody's who was erased
            if not _cut_off(db, patience):
                yield HELD.format(url=self._url)
                return
            self._cut = noted
        if left is None:
            with suppress(sqlite3.OperationalError):  # somebody is in the way: the note stays, which harms nobody
                # Where more was destroyed since, the note stays, and that of what is clean says nothing any more.
                db.execute("DELETE FROM meta WHERE (name = 'scrub' AND value = ?) OR name = 'clean'", (noted,))


def _cut_off(db: sqlite3.Connection, patience: float) -> bool:
    """Write the write-ahead log back and cut it off; whether others let that happen within so many seconds.

    Each try waits for nobody: one that waits for who reads would keep everybody from writing meanwhile.
    """
    (waits,) = db.execute("PRAGMA busy_timeout").fetchone()
    until = time.monotonic() + patience
    db.execute("PRAGMA busy_timeout=0")
    try:
        while busy := db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            if time.monotonic() >= until:
                break
            time.sleep(PAUSE)
    finally:
        db.execute(f"PRAGMA busy_timeout={waits}")
    return not busy


def _written_anew(url: str, db: sqlite3.Connection) -> str | None:
    """Write the database anew, where it is small; why that was not done, None where it was."""
    size = size_of(db)
    if size > SMALL:
        return LARGE.format(url=url, size=size, free=free_in(db))
    try:
        db.execute("VACUUM")
    except sqlite3.OperationalError as fault:  # busy, or no room for a second copy: what is destroyed is destroyed
        return BUSY.format(url=url, why=fault)
    return None


# --- by pieces


def step(db: sqlite3.Connection) -> int | None:
    """Take the next step, in the transaction that is open; about how many bytes are left, None if there was none."""
    size, due = size_of(db), note_in(db)
    row = db.execute("SELECT value FROM meta WHERE name = 'vacuum'").fetchone()
    if row is None:
        if due is None or size <= SMALL or note_in(db, "clean") == due:
            return _shrunk(db)
        row = (f"{due} 0 -1 0 {size}",)
    since, number, after, moved, whole = map(int, row[0].split())
    budget = PIECE
    while budget > 0 and number < len(PLAN):
        act, table = PLAN[number]
        done, end = act(db, table, after)
        number, after = (number + 1, -1) if end is None else (number, end)
        budget, moved = budget - done, moved + done
    if number == len(PLAN):
        db.execute("DELETE FROM meta WHERE name = 'vacuum'")
        db.execute("INSERT OR REPLACE INTO meta VALUES('clean', ?)", (since,))
    else:
        state = f"{since} {number} {after} {moved} {whole}"
        db.execute("INSERT OR REPLACE INTO meta VALUES('vacuum', ?)", (state,))
    return max(2 * whole - moved, PIECE) + whole


def _shrunk(db: sqlite3.Connection) -> int | None:
    """Give back pages at the end of the file, where those in use are moved to free ones for it."""
    free = free_in(db)
    if not free or db.execute("PRAGMA auto_vacuum").fetchone()[0] != 2:
        return None
    for _ in range(min(MANY, free >> 9)):  # of more than one at once the driver does the first
        db.execute("PRAGMA incremental_vacuum(1)")
    return free_in(db) + 1


# --- the plan for each table: what was done, in bytes, and where to go on, None where there is no more of it


def _make(db: sqlite3.Connection, table: str, _: int) -> tuple[int, None]:
    """Make the new table, and what keeps it as the old one is."""
    key, _size = KEYS[table]
    (made,) = db.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    db.execute(f"CREATE TABLE {table}_anew{_behind(made)}")
    for name, sql in _indexes(db, table):
        other = name.removesuffix("_2") if name.endswith("_2") else f"{name}_2"
        db.execute(f"CREATE INDEX {other} ON {table}_anew{_behind(sql)}")
    put = f"INSERT OR REPLACE INTO {table}_anew SELECT * FROM {table} WHERE {key} = new.{key}"
    for event, act in (
        ("INSERT", put),
        ("UPDATE", put),
        ("DELETE", f"DELETE FROM {table}_anew WHERE {key} = old.{key}"),
    ):
        db.execute(f"CREATE TRIGGER {table}_{event} AFTER {event} ON {table} BEGIN {act}; END")
    return 0, None


def _copy(db: sqlite3.Connection, table: str, after: int) -> tuple[int, int | None]:
    """Copy the next rows. What is there already has come by a trigger."""
    key, _ = KEYS[table]
    size, last = _piece(db, table, after)
    if last is not None:
        sql = f"INSERT OR IGNORE INTO {table}_anew SELECT * FROM {table} WHERE {key} > ? AND {key} <= ? ORDER BY {key}"
        db.execute(sql, (after, last))
    return size, last


def _swap(db: sqlite3.Connection, table: str, _: int) -> tuple[int, None]:
    """Put the new table in the place of the old one. Numbers go on where they were."""
    for event in ("INSERT", "UPDATE", "DELETE"):
        db.execute(f"DROP TRIGGER {table}_{event}")
    if db.execute("SELECT 1 FROM sqlite_sequence WHERE name = ?", (table,)).fetchone() is not None:
        db.execute("DELETE FROM sqlite_sequence WHERE name = ?", (f"{table}_anew",))
        sql = "INSERT INTO sqlite_sequence SELECT ?, seq FROM sqlite_sequence WHERE name = ?"
        db.execute(sql, (f"{table}_anew", table))
    db.execute(f"ALTER TABLE {table} RENAME TO {table}_old")
    db.execute(f"ALTER TABLE {table}_anew RENAME TO {table}")
    return 0, None


def _unindex(db: sqlite3.Connection, table: str, _: int) -> tuple[int, int | None]:
    """Drop an index of the old table, so that rows go in their own order."""
    for name, _sql in _indexes(db, f"{table}_old"):
        db.execute(f"DROP INDEX {name}")
        return PIECE, 0
    return 0, None


def _empty(db: sqlite3.Connection, table: str, _: int) -> tuple[int, int | None]:
    """Remove the next rows of the old table, and the table after the last."""
    key, _size = KEYS[table]
    size, last = _piece(db, table, -1, "_old")
    if last is None:
        db.execute(f"DROP TABLE {table}_old")
        return 0, None
    db.execute(f"DELETE FROM {table}_old WHERE {key} <= ?", (last,))
    return size, last


Act = Callable[[sqlite3.Connection, str, int], tuple[int, int | None]]

_ACTS: tuple[Act, ...] = (_make, _copy, _swap, _unindex, _empty)
PLAN = [(act, table) for table in KEYS for act in _ACTS]


def _piece(db: sqlite3.Connection, table: str, after: int, suffix: str = "") -> tuple[int, int | None]:
    """How many bytes the next rows have, about, and the key of the last of them: None where there are none."""
    key, length = KEYS[table]
    sql = f"SELECT {key}, {length} FROM {table}{suffix} WHERE {key} > ? ORDER BY {key} LIMIT {MANY}"
    size, last = 0, None
    for at, one in db.execute(sql, (after,)).fetchall():
        size, last = size + one + EACH, at
        if size >= PIECE:
            break
    return size, last


def _indexes(db: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    """The indexes of a table that are not part of it: their names, and what makes them."""
    sql = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL"
    return db.execute(sql, (table,)).fetchall()


def _behind(sql: str) -> str:
    """What stands behind the names in a statement that makes a table or an index."""
    return sql[sql.index("(") :]
