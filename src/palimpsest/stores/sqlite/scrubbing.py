"""How the SQLite store sees that no byte of what was destroyed is left in its file or its write-ahead log.

`secure_delete` overwrites what is deleted where it lies. Older copies may lie elsewhere: in the write-ahead log, until
that is written back and cut off, and in the unused part of pages between which rows were moved, which only writing the
database anew (VACUUM) clears. That this is due stands in the file itself: after a kill the next to open it does it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from palimpsest.stores.sqlite.db import Database

SMALL = 16 << 20
"""Bytes of a file that is written anew whenever something was destroyed: a tenth of a second or so."""

PATIENCE = 1.0
"""Seconds that scrubbing waits for others who use the file."""

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


class Scrubber:
    """Scrubs one database, through its connection."""

    def __init__(self, url: str, database: Database, busy_seconds: float) -> None:
        self._url, self._database, self._busy_seconds = url, database, busy_seconds
        self._db = database.connection

    def note(self) -> None:
        """Note, in the transaction that destroys something, that the file is to be scrubbed."""
        self._db.execute("INSERT OR IGNORE INTO meta VALUES('scrub', 1)")

    @property
    def is_due(self) -> bool:
        """Whether something was destroyed since the file was scrubbed."""
        return self._db.execute("SELECT 1 FROM meta WHERE name = 'scrub'").fetchone() is not None

    def scrub(self, *, whole: bool) -> tuple[str, ...]:
        """Scrub the file, if that is due, and return what could not be done. Needs the database's lock."""
        if not self.is_due:
            return ()
        with self._impatiently():
            return tuple(self._scrub(whole))

    def finish(self) -> None:
        """Scrub before the connection is closed: what others were in the way of. Closing does not fail by it."""
        with suppress(sqlite3.Error):
            self.scrub(whole=False)

    def _scrub(self, whole: bool) -> Iterator[str]:
        left = self._written_anew(whole)
        busy = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if left is not None:
            yield left
        if busy:
            yield HELD.format(url=self._url)
        if left is None and not busy:
            self._db.execute("DELETE FROM meta WHERE name = 'scrub'")

    def _written_anew(self, whole: bool) -> str | None:
        """Write the database anew, where it is small or `whole` says so; why that was not done, None where it was."""
        (size,) = self._db.execute("SELECT page_count * page_size FROM pragma_page_count, pragma_page_size").fetchone()
        if size > SMALL and not whole:
            return LARGE.format(url=self._url)
        try:
            self._db.execute("VACUUM")
        except sqlite3.OperationalError as fault:  # busy, or no room for a second copy: what is destroyed is destroyed
            return BUSY.format(url=self._url, why=fault)
        return None

    @contextmanager
    def _impatiently(self) -> Iterator[None]:
        """Wait for others less than a writer would."""
        self._db.execute(f"PRAGMA busy_timeout={int(min(self._busy_seconds, PATIENCE) * 1000)}")
        try:
            yield
        finally:
            self._db.execute(f"PRAGMA busy_timeout={int(self._busy_seconds * 1000)}")
