"""How the SQLite store sees that no byte of what was destroyed is left in its file or its write-ahead log.

`secure_delete` overwrites what is deleted where it lies. Older copies may lie elsewhere: in the write-ahead log, until
that is written back and cut off, and in the unused part of pages between which rows were moved, which only writing the
database anew (VACUUM) clears. That this is due stands in the file itself: after a kill the next to open it does it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress

SMALL = 16 << 20
"""Bytes of a file that is written anew whenever something was destroyed: a tenth of a second or so."""

PATIENCE = 1.0
"""Seconds that scrubbing waits, at most, for others who use the file."""

HELD = (
    "the write-ahead log of {url} may still hold it, for another connection is in the middle of something. It is gone "
    "with the next erasure, or when the store is next opened or closed, once that is over"
)
LARGE = (
    "unused parts of pages of {url} may still hold copies that SQLite left when it moved rows: the file is too large "
    "to be written anew with every erasure. `memory.forget` and `palimpsest forget` do that"
)
BUSY = (
    "unused parts of pages of {url} may still hold copies that SQLite left when it moved rows: the file could not be "
    "written anew ({why}). The next erasure tries again"
)


def note(db: sqlite3.Connection) -> None:
    """Note, in the transaction that destroys something, that the file is to be scrubbed."""
    db.execute("INSERT INTO meta VALUES('scrub', 1) ON CONFLICT DO UPDATE SET value = value + 1")


def scrub(url: str, db: sqlite3.Connection, *, whole: bool) -> tuple[str, ...]:
    """Scrub the file, if that is due, and return what could not be done. Needs the connection for itself."""
    noted = db.execute("SELECT value FROM meta WHERE name = 'scrub'").fetchone()
    return tuple(_scrub(url, db, whole, *noted)) if noted is not None else ()


def _scrub(url: str, db: sqlite3.Connection, whole: bool, noted: int) -> Iterator[str]:
    left = _written_anew(url, db, whole)
    busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    if left is not None:
        yield left
    if busy:
        yield HELD.format(url=url)
    if left is None and not busy:
        with suppress(sqlite3.OperationalError):  # somebody is in the way: the note stays, which harms nobody
            db.execute("DELETE FROM meta WHERE name = 'scrub' AND value = ?", (noted,))  # else more was destroyed since


def _written_anew(url: str, db: sqlite3.Connection, whole: bool) -> str | None:
    """Write the database anew, where it is small or `whole` says so; why that was not done, None where it was."""
    (size,) = db.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()
    if size > SMALL and not whole:
        return LARGE.format(url=url)
    try:
        db.execute("VACUUM")
    except sqlite3.OperationalError as fault:  # busy, or no room for a second copy: what is destroyed is destroyed
        return BUSY.format(url=url, why=fault)
    return None
