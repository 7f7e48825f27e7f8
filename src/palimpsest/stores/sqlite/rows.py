"""How the SQLite store keeps entries as rows, with their counts, and large content once: the tables of a log.

A log is a range of `pos`: its number * 2^32 + seq. Which logs a session reads is the business of
`palimpsest.stores.sqlite.branches`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from zlib import adler32

from palimpsest.errors import StoreCorrupt
from palimpsest.log.entry import Entry, microseconds_of, pack, set_aside, unpack
from palimpsest.log.late import sha256
from palimpsest.runtime.logs import warn
from palimpsest.stores.large import put_back, take_out
from palimpsest.stores.witness import Witness

LAST = 0xFFFFFFFF
"""The last place of a log's range."""

SELECT = "SELECT e.pos, e.id, e.body, e.sum, t.n FROM entry e LEFT JOIN tokens t ON t.counter = ? AND t.pos = e.pos "
INSERT = "INSERT INTO entry(pos, id, given, expires, body, sum) VALUES(?, ?, ?, ?, ?, ?)"

KNOWN = 8192
"""Ids whose spelling is remembered."""

CHANGED = "its checksum is another: something in it was changed"
"""Why a row is refused that is not as it was written."""

BEFORE = SELECT + "WHERE e.pos > ? AND e.pos < ? ORDER BY e.pos DESC LIMIT 8"
BEHIND = SELECT + "WHERE e.pos > ? AND e.pos <= ? ORDER BY e.pos LIMIT 8"
"""The rows beside one that cannot be read, nearest first."""

OWNER = """
SELECT id FROM session WHERE number IN (SELECT ?1 UNION SELECT number FROM share WHERE log = ?1)
ORDER BY number <> ?1 LIMIT 1
"""
"""Who is named for a log: its own session, or else one that reads it."""

DAMAGED = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""What is raised for a row that is not as it was written."""

Row = tuple[int, bytes | str, bytes, int | None, int | None]
Span = tuple[int, int]
"""Bounds of `pos`, both exclusive."""


class Rows:
    """Entries as rows. `limit` is how many bytes a string of an entry may have before it is kept apart."""

    def __init__(self, url: str, db: sqlite3.Connection, limit: int, witness: Callable[[], Witness]) -> None:
        self._url, self._db, self._limit, self._witness = url, db, limit, witness
        self._told: set[int] = set()

    # --- in

    def insert(self, tenant: str, number: int, new: Iterable[Entry]) -> None:
        """Write entries into a log. An id that does not name the entry's own place is marked, to be indexed."""
        rows = []
        for entry in new:
            seq, body = entry.seq, pack(entry)
            pos, id = number << 32 | seq, stored_id(entry.id)
            if len(body) > self._limit:
                body = self._apart(tenant, pos, body)
            given = None if isinstance(id, bytes) and int.from_bytes(id[12:]) == seq else 1
            expires = _expiry(entry) if entry.expires_at is not None else None
            rows.append((pos, id, given, expires, body, checksum(body, pos, id)))
        self._db.executemany(INSERT, rows)

    def _apart(self, tenant: str, pos: int, body: bytes) -> bytes:
        """Keep what is large in this stored form apart, and return the form without it."""
        slim, large = take_out(body, self._limit)
        for digest, content in large.items():
            key = _key(tenant, digest)
            self._db.execute("INSERT OR IGNORE INTO large VALUES(?, ?)", (key, content))
            self._db.execute("INSERT OR IGNORE INTO large_use VALUES(?, ?)", (pos, key))
        return slim

    def replace(self, tenant: str, pos: int, entry: Entry, *, keep_counts: bool) -> None:
        """Write an entry in the place of the one that is there, which has the same id."""
        self._let_go(pos, pos)
        if not keep_counts:
            self._db.execute("DELETE FROM tokens WHERE pos = ?", (pos,))
        id, body = stored_id(entry.id), pack(entry)
        if len(body) > self._limit:
            body = self._apart(tenant, pos, body)
        self._db.execute("UPDATE entry SET body = ?, sum = ? WHERE pos = ?", (body, checksum(body, pos, id), pos))

    # --- out

    def read(
        self, tenant: str, spans: Sequence[Span], counter: str | None, limit: int | None, newest: bool, uncounted: bool
    ) -> list[Entry]:
        """Return entries of these spans, which are in order, with their counts."""
        sql = SELECT + "WHERE e.pos > ? AND e.pos < ? " + ("AND t.n IS NULL " if uncounted else "")
        sql += "ORDER BY e.pos DESC LIMIT ?" if newest else "ORDER BY e.pos LIMIT ?"
        rows: list[Row] = []
        for low, high in reversed(spans) if newest else spans:
            left = -1 if limit is None else limit - len(rows)
            if left == 0:
                break
            rows += self._rows(sql, (counter, low, high, left))
        return self.entries(tenant, rows, in_order=True)

    def at(self, tenant: str, places: Iterable[int], counter: str | None) -> list[Entry]:
        """Return the entries at these places that there are."""
        rows: list[Row] = []
        for pos in places:
            rows += self._rows(SELECT + "WHERE e.pos = ?", (counter, pos))
        return self.entries(tenant, rows)

    def named(self, tenant: str, id: str, pos: int | None, spans: Sequence[Span], counter: str | None) -> list[Entry]:
        """Return the entry of this id: at `pos`, which the id may name, or else among those that were given ids."""
        key = stored_id(id)
        rows = self._rows(SELECT + "WHERE e.pos = ? AND e.id = ?", (counter, pos, key))
        for span in spans if not rows else ():
            sql = SELECT + "WHERE e.id = ? AND e.given IS NOT NULL AND e.pos > ? AND e.pos < ?"
            rows += self._rows(sql, (counter, key, *span))
        return self.entries(tenant, rows)

    def _rows(self, sql: str, values: Sequence[object]) -> list[Row]:
        """What `SELECT` gives. A damaged row may hold text that is none, which the driver would refuse to read."""
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.OperationalError as fault:
            if "decode" not in str(fault):
                raise
        try:
            self._db.text_factory = _lenient
            return self._db.execute(sql, values).fetchall()
        finally:
            self._db.text_factory = str

    def entries(self, tenant: str, rows: Sequence[Row], *, in_order: bool = False) -> list[Entry]:
        """Return the entries of rows that `SELECT` gave, with what stands for those that cannot be read.

        Raises StoreCorrupt where one of these is not in its place among rows that are `in_order` of theirs.
        """
        found = []
        for i, (pos, id, body, written, tokens) in enumerate(rows):
            if written is not None and written != checksum(body, pos, id):
                if in_order and 0 < i < len(rows) - 1 and not _is_between(pos, rows[i - 1][0], rows[i + 1][0]):
                    told = f"an entry of {self._owner(pos >> 32)} is not in its place, but has the number {pos & LAST}"
                    raise StoreCorrupt(self._url, f"{told}: the table is damaged")
                found.append(self._aside(pos, id, body, CHANGED))
                continue
            try:
                whole = self._whole(tenant, body) if body[:8] == b'{"held":' else body
                found.append(unpack(whole, _text(id), pos & LAST, tokens))
            except DAMAGED as fault:
                found.append(self._aside(pos, id, body, fault))
        return found

    def _aside(self, pos: int, id: bytes | str, body: object, why: object) -> Entry:
        """What stands for the entry of a row that cannot be read. That it is so is told, once."""
        if pos not in self._told:
            self._told.add(pos)
            told = f"entry {pos & LAST} of {self._owner(pos >> 32)} cannot be read ({why})"
            warn("%s: %s", self._url, f"{told}; it is set aside, and `repair` takes it out")
        seq = pos & LAST
        before = self._beside(BEFORE, pos & ~LAST, pos)
        behind = self._beside(BEHIND, pos, pos | LAST)
        try:
            name = _text(id)
        except TypeError:
            name = f"damaged-{seq}"
        return set_aside(name, seq, body if isinstance(body, bytes) else b"", before, behind)

    def _owner(self, log: int) -> str:
        """The session whose log it is, in words; of one that is gone a branch that reads it."""
        found = self._db.execute(OWNER, (log,)).fetchone()
        return f"session {found[0]!r}" if found is not None else "no session"

    def _beside(self, sql: str, low: int, high: int) -> list[Entry]:
        """The entries beside one, nearest first, that can be read."""
        rows = self._rows(sql, (None, low, high))
        return [entry for row in rows if (entry := self._sound(row)) is not None]

    def _sound(self, row: Row) -> Entry | None:
        """The entry of a row, without what is kept apart, where that can be read."""
        pos, id, body, written, tokens = row
        if written is not None and written != checksum(body, pos, id):
            return None
        try:
            return unpack(body, _text(id), pos & LAST, tokens)
        except DAMAGED:
            return None

    def _whole(self, tenant: str, body: bytes) -> bytes:
        return put_back(body, self._loader(tenant))

    def _loader(self, tenant: str) -> Callable[[str], bytes]:
        def load(digest: str) -> bytes:
            found = self._db.execute("SELECT body FROM large WHERE digest = ?", (_key(tenant, digest),)).fetchone()
            if found is None:
                raise ValueError(f"its large content {digest} is missing")
            content: bytes = found[0]
            if sha256(content).hex() != digest:
                raise ValueError(f"its large content {digest} is damaged")
            return content

        return load

    # --- away

    def living(self, number: int, seqs: Iterable[int]) -> Iterator[Entry]:
        """Yield those of these entries of a log that are there and no tombstones, without what is kept apart.

        One that cannot be read is there until it is taken out.
        """
        for entry in self._stored(number, seqs):
            if entry.damaged or not (entry.erased and self._witness().is_grave(entry.id, entry.seq)):
                yield entry

    def _stored(self, number: int, seqs: Iterable[int]) -> Iterator[Entry]:
        for seq in seqs:
            pos = place(number, seq)
            for _, id, body, written, _ in self._rows(SELECT + "WHERE e.pos = ?", (None, pos)):
                yield self._sound((pos, id, body, written, None)) or self._aside(pos, id, body, CHANGED)

    def graves(self, spans: Iterable[Span]) -> set[int]:
        """The places of the tombstones in these spans that can be read."""
        found = set[int]()
        for span in spans:
            sql = SELECT + "WHERE e.pos > ? AND e.pos < ? AND instr(e.body, ?) > 0"
            rows = self._rows(sql, (None, *span, b'"erased":true'))
            found |= {entry.seq for row in rows if (entry := self._sound(row)) is not None and entry.erased}
        return found

    def bury(self, number: int, seqs: Iterable[int]) -> None:
        """Make tombstones of these entries of a log."""
        for seq in seqs:
            pos = number << 32 | seq
            for _, id, body, written, _ in self._rows(SELECT + "WHERE e.pos = ?", (None, pos)):
                # What it held apart is not needed.
                entry = self._sound((pos, id, body, written, None)) or self._aside(pos, id, body, CHANGED)
                key = id if isinstance(id, bytes | str) else entry.id
                tomb = pack(self._witness().grave(entry))
                sql = "UPDATE entry SET id = ?, body = ?, sum = ?, expires = NULL WHERE pos = ?"
                self._db.execute(sql, (key, tomb, checksum(tomb, pos, key), pos))
                self._db.execute("DELETE FROM tokens WHERE pos = ?", (pos,))
                self._let_go(pos, pos)

    def remove(self, low: int, high: int) -> None:
        """Remove the rows from `low` to `high`, both included."""
        self._db.execute("DELETE FROM entry WHERE pos BETWEEN ? AND ?", (low, high))
        self._db.execute("DELETE FROM tokens WHERE pos BETWEEN ? AND ?", (low, high))
        self._let_go(low, high)

    def _let_go(self, low: int, high: int) -> None:
        """Remove the large contents that nobody but these places refers to."""
        sql = "SELECT DISTINCT digest FROM large_use WHERE pos BETWEEN ? AND ?"
        digests = self._db.execute(sql, (low, high)).fetchall()
        if digests:
            self._db.execute("DELETE FROM large_use WHERE pos BETWEEN ? AND ?", (low, high))
            sql = "DELETE FROM large WHERE digest = ?1 AND NOT EXISTS(SELECT 1 FROM large_use WHERE digest = ?1)"
            self._db.executemany(sql, digests)

    # --- counts

    def count(self, counter: str, counts: Iterable[tuple[int, int]]) -> None:
        """Store counts by place, but of what does not exist or is erased."""
        erased = b'"erased":true'
        self._db.executemany(
            "INSERT OR REPLACE INTO tokens SELECT ?, pos, ? FROM entry WHERE pos = ? AND (instr(body, ?) = 0 "
            "OR json_extract(CAST(body AS TEXT), '$.erased') IS NULL)",
            [(counter, n, pos, erased) for pos, n in counts],
        )

    def tally(self, counter: str, spans: Iterable[Span]) -> tuple[int, int]:
        """Return how many counts there are in these spans, and their sum."""
        sql = "SELECT count(*), coalesce(sum(n), 0) FROM tokens WHERE counter = ? AND pos > ? AND pos < ?"
        figures = [self._db.execute(sql, (counter, *span)).fetchone() for span in spans]
        return sum(number for number, _ in figures), sum(total for _, total in figures)


def _key(tenant: str, digest: str) -> bytes:
    """The key of a large content: tenants share nothing, not even what is alike."""
    return sha256(f"{tenant}\0{digest}".encode("utf-8", "surrogatepass"))


def checksum(body: bytes, pos: int = 0, id: bytes | str = b"") -> int:
    """What tells that a row is as it was written, at its place and under its id: Adler-32, the cheapest there is.

    What a damaged row holds in their place has none: -1.
    """
    try:
        key = id.encode("utf-8", "surrogatepass") if isinstance(id, str) else id
        return adler32(body, adler32(key) ^ (pos & LAST))
    except TypeError:
        return -1


def _is_between(pos: int, before: int, behind: int) -> bool:
    """Whether a place is between its neighbours, as far as these are of its log."""
    near = [other for other in (before, behind) if other >> 32 == pos >> 32]
    return len(near) < 2 or before < pos < behind or behind < pos < before


def place(number: int, seq: int) -> int:
    """The `pos` of a seq as a bound: whatever was asked for, it stays within the log's own range."""
    return number << 32 | min(max(seq, 0), LAST)


def stored_id(id: str) -> bytes | str:
    """The stored form of an id: 16 bytes where it is a UUID in its usual spelling, else the text itself."""
    if len(id) == 36 and id[8:24:5] == "----" and id == id.lower():
        try:
            raw = bytes.fromhex(id.replace("-", ""))
        except ValueError:
            return id
        if len(raw) == 16:
            return raw
    return id


@lru_cache(KNOWN)
def _text(id: bytes | str) -> str:
    """The id of a stored form. Remembered, for a window is read again and again."""
    if isinstance(id, str):
        return id
    if not isinstance(id, bytes):
        raise TypeError(f"an id is stored as {type(id).__name__}")
    digits = id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _expiry(entry: Entry) -> int | None:
    if entry.expires_at is None or entry.erased:  # a tombstone has nothing left to sweep
        return None
    return microseconds_of(entry.expires_at)
