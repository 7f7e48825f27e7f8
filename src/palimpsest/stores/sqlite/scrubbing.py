"""How the SQLite store sees that no byte of what was destroyed is left in its file or its write-ahead log.

`secure_delete` overwrites what is deleted where it lies. Older copies may lie elsewhere: in the write-ahead log, until
that is written back and cut off, and in the unused part of pages between which rows were moved, which only writing the
database anew clears: at once where it is small, by `palimpsest.stores.sqlite.vacuuming` where it is not. That this is
due stands in the file itself: after a kill the next to open it does it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress

from palimpsest.stores.sqlite import vacuuming

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


def note(db: sqlite3.Connection) -> None:
    """Note, in the transaction that destroys something, that the file is to be scrubbed: a number of its own."""
    sql = (
        "INSERT INTO meta VALUES('scrub', random() >> 12 & 0xFFFFFFFFFFFF) ON CONFLICT DO UPDATE SET value = value + 1"
    )
    db.execute(sql)


class Scrubbing:
    """Scrubs a file, of which it remembers up to which note the write-ahead log was cut off."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._cut: int | None = None

    def scrub(self, db: sqlite3.Connection, patience: float) -> tuple[str, ...]:
        """Scrub the file, if that is due, and return what could not be done. Needs the connection for itself."""
        noted = vacuuming.noted(db)
        return tuple(self._scrub(db, noted, patience)) if noted is not None else ()

    def _scrub(self, db: sqlite3.Connection, noted: int, patience: float) -> Iterator[str]:
        left = None if vacuuming.noted(db, "clean") == noted else _written_anew(self._url, db)
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
    size = vacuuming.size_of(db)
    if size > vacuuming.SMALL:
        return LARGE.format(url=url, size=size, free=vacuuming.free_in(db))
    try:
        db.execute("VACUUM")
    except sqlite3.OperationalError as fault:  # busy, or no room for a second copy: what is destroyed is destroyed
        return BUSY.format(url=url, why=fault)
    return None
