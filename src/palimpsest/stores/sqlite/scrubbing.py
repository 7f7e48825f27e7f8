"""How an SQLite store sees to it that no byte of what was destroyed is left in its file or its write-ahead log.

`secure_delete` overwrites deleted data in its place. Older copies may lie elsewhere: in the write-ahead log, until that
is written back and truncated; and in unused parts of pages between which SQLite has moved rows, which only rewriting
the database clears. A small file is rewritten at once, by VACUUM, a large one by pieces. The file itself notes that
this is due: after a kill, the next process to open it does it.

By pieces, each a short transaction, so that others can write in between. Each table in turn is copied into a new one
beside it, and triggers keep the copy up to date, whichever process writes. When it is complete it takes the table's
name, in one step, and the old table is emptied. Pages that the old table gives up are overwritten (`secure_delete`);
pages of the new one never held anything but what existed when it was copied. So nothing is left of what SQLite leaves
behind when it moves rows. Last, free pages are given back. The file notes how far this has come, so that after a kill,
or beside another process, whoever goes on takes the next step.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from palimpsest.stores.sqlite.layout import TABLES

PATIENCE = 1.0
"""Seconds that scrubbing waits at most for other users of the file."""

PAUSE = 0.005
"""Seconds between two tries to truncate the write-ahead log."""

HELD = (
    "the write-ahead log of {url} may still hold erased data, since another connection is reading or writing. The next "
    "erasure removes it after that, or the next time that the store is opened or closed"
)
LARGE = (
    "unused parts of pages of {url} may still hold copies that SQLite left when it moved rows: with {size:,} bytes, of "
    "which {free:,} are free, it is too large to rewrite with every erasure. `memory.vacuum` and `palimpsest vacuum` "
    "rewrite it a piece at a time, beside other work, and free the unused space"
)
BUSY = (
    "unused parts of pages of {url} may still hold copies that SQLite left when it moved rows: the file could not be "
    "rewritten ({why}). The next erasure tries again"
)

SMALL = 16 << 20
"""The largest file, in bytes, that is rewritten at once, by VACUUM: that takes about a tenth of a second."""

PIECE = 1 << 19
"""Bytes of rows that one step handles at least: some milliseconds, which a step of a few rows takes anyway."""

EACH = 256
"""Bytes that a row counts beside its value, for its entries in indexes, which may be on pages of their own."""

MANY = 512
"""Rows that one step looks at to find `PIECE` bytes; pages that one step gives back."""

KEYS = {"place": ("number", "coalesce(length(hot), 0)"), "cold": ("place", "length(body)")}
KEYS |= dict.fromkeys(TABLES, ("pos", "length(value)"))
"""Tables that hold content: the key column of each, and an expression for the approximate length of a row."""


def note(db: sqlite3.Connection) -> None:
    """Note, in the transaction that destroys something, that the file is to be scrubbed, under a new number."""
    sql = (
        "INSERT INTO meta VALUES('scrub', random() >> 12 & 0xFFFFFFFFFFFF) ON CONFLICT DO UPDATE SET value = value + 1"
    )
    db.execute(sql)


def size_of(db: sqlite3.Connection) -> int:
    """Return the size of the database in bytes."""
    (size,) = db.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()
    return int(size)


def free_in(db: sqlite3.Connection) -> int:
    """Return the bytes in pages that are not in use."""
    sql = "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size"
    (free,) = db.execute(sql).fetchone()
    return int(free)


def note_in(db: sqlite3.Connection, name: str = "scrub") -> int | None:
    """Return the number of a note: of `scrub`, or of `clean`, the last `scrub` that the file was rewritten for."""
    row = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return None if row is None else int(row[0])


class Scrubbing:
    """Scrubs a file. Remembers up to which `scrub` note the write-ahead log was truncated."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._truncated: int | None = None

    def scrub(self, db: sqlite3.Connection, patience: float) -> tuple[str, ...]:
        """Scrub the file if that is due. Return sentences about what could not be done.

        Nobody else may use the connection, and no transaction may be open.
        """
        noted = note_in(db)
        return tuple(self._scrub(db, noted, patience)) if noted is not None else ()

    def _scrub(self, db: sqlite3.Connection, noted: int, patience: float) -> Iterator[str]:
        obstacle = None if note_in(db, "clean") == noted else _written_anew(self._url, db)
        if obstacle is not None:
            yield obstacle
        # A file that is too large to be rewritten here keeps its note. Once its log was truncated for this note, that
        # has nothing more that was destroyed: a later destruction would have moved the note.
        if obstacle is None or self._truncated != noted:
            if not _truncate_log(db, patience):
                yield HELD.format(url=self._url)
                return
            self._truncated = noted
        if obstacle is None:
            with suppress(sqlite3.OperationalError):  # somebody is in the way: the note stays, which is harmless
                # If more was destroyed since, `scrub` has moved on and stays, and `clean` does not hold any more.
                db.execute("DELETE FROM meta WHERE (name = 'scrub' AND value = ?) OR name = 'clean'", (noted,))


def _truncate_log(db: sqlite3.Connection, patience: float) -> bool:
    """Write the write-ahead log back and truncate it. Return whether others let that happen within `patience` seconds.

    Each try waits for nobody: one that waited for readers would keep all writers out meanwhile.
    """
    (timeout,) = db.execute("PRAGMA busy_timeout").fetchone()
    until = time.monotonic() + patience
    db.execute("PRAGMA busy_timeout=0")
    try:
        while busy := db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            if time.monotonic() >= until:
                break
            time.sleep(PAUSE)
    finally:
        db.execute(f"PRAGMA busy_timeout={timeout}")
    return not busy


def _written_anew(url: str, db: sqlite3.Connection) -> str | None:
    """Rewrite the database if it is small. Return None if that was done, else a sentence that says why not."""
    size = size_of(db)
    if size > SMALL:
        return LARGE.format(url=url, size=size, free=free_in(db))
    try:
        db.execute("VACUUM")
    except sqlite3.OperationalError as fault:  # busy, or no room for a second copy: not worth failing an erasure
        return BUSY.format(url=url, why=fault)
    return None


# --- by pieces


def step(db: sqlite3.Connection) -> int | None:
    """Take the next step in the open transaction. Return about how many bytes are left; None if no step was left."""
    size, due = size_of(db), note_in(db)
    row = db.execute("SELECT value FROM meta WHERE name = 'vacuum'").fetchone()
    if row is None:
        if due is None or size <= SMALL or note_in(db, "clean") == due:
            return _shrunk(db)
        row = (f"{due} 0 -1 0 {size}",)
    # The `scrub` note that this is for; the number of the act in PLAN, and the last key that it has handled; the bytes
    # handled so far, and the size of the file at the beginning.
    noted, number, after, moved, whole = map(int, row[0].split())
    budget = PIECE
    while budget > 0 and number < len(PLAN):
        act, table = PLAN[number]
        done, end = act(db, table, after)
        number, after = (number + 1, -1) if end is None else (number, end)
        budget, moved = budget - done, moved + done
    if number == len(PLAN):
        db.execute("DELETE FROM meta WHERE name = 'vacuum'")
        db.execute("INSERT OR REPLACE INTO meta VALUES('clean', ?)", (noted,))
    else:
        state = f"{noted} {number} {after} {moved} {whole}"
        db.execute("INSERT OR REPLACE INTO meta VALUES('vacuum', ?)", (state,))
    return max(2 * whole - moved, PIECE) + whole  # all is copied, then deleted; at last pages are given back


def _shrunk(db: sqlite3.Connection) -> int | None:
    """Move pages from the end of the file into free ones, and give back the end. Return as `step` does."""
    free = free_in(db)
    if not free or db.execute("PRAGMA auto_vacuum").fetchone()[0] != 2:
        return None
    for _ in range(min(MANY, free >> 9)):  # of several pages in one statement the driver does only one
        db.execute("PRAGMA incremental_vacuum(1)")
    return free_in(db) + 1


# --- acts of the plan: each returns the bytes it has handled, and the key to go on after (None: the act is complete)


def _make(db: sqlite3.Connection, table: str, _: int) -> tuple[int, None]:
    """Make the new table with its indexes, and the triggers that keep it like the old one."""
    key, _size = KEYS[table]
    (ddl,) = db.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone()
    db.execute(f"CREATE TABLE {table}_anew{_definition(ddl)}")
    for name, sql in _indexes(db, table):
        other = name.removesuffix("_2") if name.endswith("_2") else f"{name}_2"
        db.execute(f"CREATE INDEX {other} ON {table}_anew{_definition(sql)}")
    put = f"INSERT OR REPLACE INTO {table}_anew SELECT * FROM {table} WHERE {key} = new.{key}"
    for event, act in (
        ("INSERT", put),
        ("UPDATE", put),
        ("DELETE", f"DELETE FROM {table}_anew WHERE {key} = old.{key}"),
    ):
        db.execute(f"CREATE TRIGGER {table}_{event} AFTER {event} ON {table} BEGIN {act}; END")
    return 0, None


def _copy(db: sqlite3.Connection, table: str, after: int) -> tuple[int, int | None]:
    """Copy the next rows, but for those that a trigger has put there already: they are newer."""
    key, _ = KEYS[table]
    size, last = _piece(db, table, after)
    if last is not None:
        sql = f"INSERT OR IGNORE INTO {table}_anew SELECT * FROM {table} WHERE {key} > ? AND {key} <= ? ORDER BY {key}"
        db.execute(sql, (after, last))
    return size, last


def _swap(db: sqlite3.Connection, table: str, _: int) -> tuple[int, None]:
    """Give the new table the name of the old one. Its AUTOINCREMENT goes on where the old one was."""
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
    """Drop one index of the old table, so that its rows are deleted in the order of their own tree alone."""
    for name, _sql in _indexes(db, f"{table}_old"):
        db.execute(f"DROP INDEX {name}")
        return PIECE, 0
    return 0, None


def _empty(db: sqlite3.Connection, table: str, _: int) -> tuple[int, int | None]:
    """Delete the next rows of the old table, and drop it after the last."""
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
    """Return the approximate bytes of the next rows, and the key of the last of them; None if there are none."""
    key, length = KEYS[table]
    sql = f"SELECT {key}, {length} FROM {table}{suffix} WHERE {key} > ? ORDER BY {key} LIMIT {MANY}"
    size, last = 0, None
    for at, row_length in db.execute(sql, (after,)).fetchall():
        size, last = size + row_length + EACH, at
        if size >= PIECE:
            break
    return size, last


def _indexes(db: sqlite3.Connection, table: str) -> list[tuple[str, str]]:
    """Return the name and the statement of each index of a table that was made by a statement of its own."""
    sql = "SELECT name, sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql IS NOT NULL"
    return db.execute(sql, (table,)).fetchall()


def _definition(sql: str) -> str:
    """Return what follows the name in a CREATE TABLE, or the table's name in a CREATE INDEX."""
    return sql[sql.index("(") :]
