"""How the SQLite store writes an entry as a row, and reads it back."""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.entries import Entry, pack, placed_at, unpack
from palimpsest.errors import StoreCorrupt

LAST = 0xFFFFFFFF
"""The last place of a session's range."""

SELECT = "SELECT e.pos, e.id, e.body, t.n FROM entry e LEFT JOIN tokens t ON t.counter = ? AND t.pos = e.pos "
INSERT = "INSERT INTO entry(pos, id, given, expires, body) VALUES(?, ?, ?, ?, ?)"

Row = tuple[int, bytes | str, bytes, int | None]


def row(number: int, entry: Entry) -> tuple[int, bytes | str, int | None, int | None, bytes]:
    """The row that `INSERT` takes. An id that does not name the entry's own place is marked, to be indexed."""
    expires = _expiry(entry) if entry.expires_at is not None else None
    given = None if placed_at(entry.id) == entry.seq else 1
    return number << 32 | entry.seq, stored_id(entry.id), given, expires, pack(entry)


def entries(url: str, rows: Sequence[Row]) -> list[Entry]:
    """The entries of rows that `SELECT` gave. Raises StoreCorrupt naming the first that cannot be read."""
    try:
        return [unpack(body, _text(id), pos & 0xFFFFFFFF, tokens) for pos, id, body, tokens in rows]
    except (ValueError, TypeError) as cause:
        raise StoreCorrupt(url, _damaged(rows)) from cause


def place(number: int, seq: int) -> int:
    """The `pos` of a seq as a bound: whatever was asked for, it stays within the session's own range."""
    return number << 32 | min(max(seq, 0), 0xFFFFFFFF)


def stored_id(id: str) -> bytes | str:
    """The stored form of an id: 16 bytes where it is a UUID in its usual spelling, else the text itself."""
    if len(id) == 36 and id[8] == id[13] == id[18] == id[23] == "-" and id == id.lower():
        try:
            raw = bytes.fromhex(id.replace("-", ""))
        except ValueError:
            return id
        if len(raw) == 16:
            return raw
    return id


def _text(id: bytes | str) -> str:
    if isinstance(id, str):
        return id
    if not isinstance(id, bytes):
        raise TypeError(f"an id is stored as {type(id).__name__}")
    digits = id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _expiry(entry: Entry) -> int | None:
    if entry.expires_at is None or entry.erased:  # a tombstone has nothing left to sweep
        return None
    return int(entry.expires_at.timestamp() * 1_000_000)


def _damaged(rows: Sequence[Row]) -> str:
    for pos, id, body, _ in rows:
        try:
            unpack(body, _text(id), 0, None)
        except (ValueError, TypeError) as fault:
            return f"entry {pos & 0xFFFFFFFF} of session number {pos >> 32} cannot be read ({fault})"
    return "an entry cannot be read"
