"""The SQLite store's sessions: their numbers, heads and what they share, remembered as they were last seen.

Connections share what is remembered: it is compared with what is stored before anybody relies on it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.log.codec import decoded, encoded
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores.sqlite.branches import Branches, Shared, home, spans
from palimpsest.stores.sqlite.rows import CHANGED, LAST, Span, checksum, place
from palimpsest.stores.witness import Witness

KNOWN = 4096
"""Heads remembered at once, so that an append need not read what this process wrote last."""


class Known(msgspec.Struct, frozen=True):
    """A session's number and head, with the head's stored form, and what it shares, as they were last seen."""

    number: int
    head: Head
    body: bytes
    shared: Shared

    def spans(self, after: int = 0, before: int | None = None) -> list[Span]:
        """Where its entries between two places lie. Those that it has cleared are not its own, though branches may."""
        return spans(self.number, self.shared, max(after, self.head.first_seq - 1), before)

    def places(self, seqs: Iterable[int]) -> dict[int, int]:
        """Where its entries of these lie, by seq."""
        first = self.head.first_seq
        return {seq: place(home(self.number, self.shared, seq), seq) for seq in seqs if first <= seq <= LAST}


class Heads:
    """The table `session`, with a memory: what is remembered may be outdated, and `save` finds that out."""

    def __init__(
        self,
        url: str,
        db: sqlite3.Connection,
        branches: Branches,
        known: dict[SessionKey, Known],
        witness: Callable[[], Witness],
    ) -> None:
        self._url, self._db, self._branches, self._known, self._witness = url, db, branches, known, witness

    def remembered(self, key: SessionKey) -> Known | None:
        """The session as it was last seen; None where it was not."""
        return self._known.get(key)

    def forget(self, key: SessionKey) -> None:
        """Remember the session no longer."""
        self._known.pop(key, None)

    def unmoved(self, key: SessionKey) -> Known | None:
        """The session as it was last seen, if it is still stored so: one statement, which needs no transaction."""
        known = self._known.get(key)
        if known is None:
            return None
        row = self._db.execute("SELECT head FROM session WHERE number = ?", (known.number,)).fetchone()
        return known if row is not None and row[0] == known.body else None

    def find(self, key: SessionKey) -> Known | None:
        """The session's number and head as they are stored now, remembered for the next append."""
        known = self._known.get(key)
        row = None
        if known is not None:
            row = self._db.execute("SELECT head, sum FROM session WHERE number = ?", (known.number,)).fetchone()
            if row is not None and row[0] == known.body:
                return known
            number = known.number
        if row is None:
            row = self._db.execute("SELECT head, sum, number FROM session WHERE tenant = ? AND id = ?", key).fetchone()
            if row is None:
                self._known.pop(key, None)
                return None
            number = row[2]
        head = self.decode(row[0], row[1], key.session)
        return self._know(key, Known(number, head, row[0], self._branches.shared(number)))

    def _know(self, key: SessionKey, known: Known) -> Known:
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[key] = known
        return known

    def decode(self, body: bytes, written: int | None, session: str) -> Head:
        """Return the head that was stored. Raises StoreCorrupt naming the session where it cannot be read."""
        try:
            head = decoded(body, Head)
        except (ValueError, TypeError) as cause:
            raise StoreCorrupt(self._url, f"the head of session {session!r} cannot be read ({cause})") from cause
        if written is not None and written != checksum(body):
            raise StoreCorrupt(self._url, f"the head of session {session!r} cannot be read ({CHANGED})")
        return head

    def create(self, key: SessionKey) -> Known:
        """Make a session with a number that no other has ever had."""
        body = encoded(Head())
        sql = "INSERT INTO session(tenant, id, head, sum) VALUES(?, ?, ?, ?)"
        number = self._db.execute(sql, (*key, body, checksum(body))).lastrowid
        assert number is not None, "an inserted row has a number"
        return self._know(key, Known(number, Head(), body, ()))

    def save(self, key: SessionKey, known: Known, head: Head, shared: Shared | None = None) -> bool:
        """Put `head` in the place of the one known; return whether that was still there."""
        head = self._witness().head(key, known.head, head)
        body = encoded(head)
        sql = "UPDATE session SET head = ?, sum = ? WHERE number = ? AND head = ?"
        if self._db.execute(sql, (body, checksum(body), known.number, known.body)).rowcount == 0:
            return False
        self._known[key] = Known(known.number, head, body, known.shared if shared is None else shared)
        return True
