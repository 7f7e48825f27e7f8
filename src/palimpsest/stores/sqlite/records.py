"""The SQLite store's records of what was changed: the table `record`, by session number and revision."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from palimpsest.errors import StoreCorrupt
from palimpsest.log.change import Record
from palimpsest.log.codec import decoded, encoded
from palimpsest.stores.records import HELD
from palimpsest.stores.sqlite.rows import CHANGED, checksum

Row = tuple[bytes, int | None, int]
"""Stored form, checksum and revision."""

SELECT = "SELECT body, sum, revision FROM record WHERE number = ? "


class Records:
    """The table `record`."""

    def __init__(self, url: str, db: sqlite3.Connection) -> None:
        self._url, self._db = url, db

    def read(self, number: int, session: str, after: int, before: int | None) -> list[Record]:
        """Return the records of a session between two revisions, both exclusive, oldest first."""
        sql = SELECT + "AND revision > ? AND revision < ? ORDER BY revision"
        rows = self._db.execute(sql, (number, after, 2**62 if before is None else before)).fetchall()
        return self._read(rows, session)

    def compactions(self, number: int, session: str, others: Sequence[int] = ()) -> list[Record]:
        """Return the records of a session that carry a compaction, and those of other revisions, oldest first."""
        sql = SELECT + "AND (instr(body, ?) > 0 OR instr(?, ',' || revision || ',') > 0) ORDER BY revision"
        named = f",{','.join(map(str, others))},"
        return self._read(self._db.execute(sql, (number, HELD, named)).fetchall(), session)

    def _read(self, rows: Iterable[Row], session: str) -> list[Record]:
        found = []
        for body, written, revision in rows:
            told = f"the record of revision {revision} of session {session!r} cannot be read"
            try:
                found.append(decoded(body, Record))
            except (ValueError, TypeError) as cause:
                raise StoreCorrupt(self._url, f"{told} ({cause})") from cause
            if written is not None and written != checksum(body, revision):
                raise StoreCorrupt(self._url, f"{told} ({CHANGED})")
        return found

    def put(self, number: int, records: Sequence[Record]) -> None:
        """Write records of a session, each in the place of one of its revision."""
        for record in records:
            body = encoded(record)
            row = (number, record.revision, body, checksum(body, record.revision))
            self._db.execute("INSERT OR REPLACE INTO record VALUES(?, ?, ?, ?)", row)

    def copy(self, number: int, into: int, revision: int) -> None:
        """Give another session the records up to a revision."""
        sql = "INSERT INTO record SELECT ?, revision, body, sum FROM record WHERE number = ? AND revision <= ?"
        self._db.execute(sql, (into, number, revision))

    def remove(self, number: int) -> None:
        """Remove the records of a session."""
        self._db.execute("DELETE FROM record WHERE number = ?", (number,))
