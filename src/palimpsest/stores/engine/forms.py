"""The stored form of what the engine keeps: heads as two values, entries and records as rows, checksums. Pure.

A stored value ends with a checksum of eight hexadecimal digits, which also covers the seq or revision in its key. So a
value that was damaged, or moved to another key, is never taken for a sound one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any, Self, TypeVar
from zlib import adler32

import msgspec

from palimpsest.errors import StoreCorrupt, StoreError
from palimpsest.log import spans as ranges
from palimpsest.log.change import Record
from palimpsest.log.codec import decoded, encoded, ready
from palimpsest.log.entry import Entry, microseconds_of, pack
from palimpsest.log.head import Head, OpenCall, PromptSize, Usage
from palimpsest.stores.backend import Cells, Range, Row
from palimpsest.stores.values import FIGURES, figure_of

T = TypeVar("T")

LAST = 0xFFFFFFFF
"""The greatest seq or revision within a log's range of keys."""

STRETCH = 32
"""Entries that one row of counts covers at most. They are consecutive, and no row crosses a multiple of this number."""

TOKENS, FIGURE = "tokens/", "figure/"
"""Prefixes of the tables of counts (followed by the counter's name) and of figures (followed by the figure's name)."""

CHANGED = "its checksum does not match: its content was changed"
"""Why a value with a wrong checksum is refused."""

DAMAGED = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""The exceptions that reading a damaged value raises."""

_replace = msgspec.structs.replace


def figure_tables(session: str) -> list[str]:
    """Return the tables of the figures that a session has noted of entries."""
    return [FIGURE + figure_of(name, session) for name in FIGURES]


def key_of(log: int, seq: int) -> int:
    """Return the key of a seq or revision, clamped so that it stays within the log's own range of keys."""
    return log << 32 | (seq if 0 <= seq <= LAST else 0 if seq < 0 else LAST)


def stamped(body: bytes, key: int = 0) -> bytes:
    """Return a value with its checksum: Adler-32, the cheapest available, made hexadecimal in the quickest way."""
    return body + adler32(body, key & LAST).to_bytes(4).hex().encode()


def checked(value: bytes, key: int = 0) -> bytes:
    """Return the value without its checksum. Raises ValueError if the checksum is missing or wrong."""
    body = value[:-8]
    try:
        stamp = int(value[-8:], 16)
    except ValueError:
        raise ValueError("it does not end with a checksum: its content was changed") from None
    if stamp != adler32(body, key & LAST):
        raise (value.fault or ValueError(value.why)) if isinstance(value, Spoilt) else ValueError(CHANGED)
    return body


def read_as(url: str, what: str, read: Callable[[], T]) -> T:
    """Return what `read` makes of a stored value. Raises StoreCorrupt, which says that `what` cannot be read."""
    try:
        return read()
    except DAMAGED as cause:
        raise StoreCorrupt(url, f"{what} cannot be read ({cause})") from cause


class Spoilt(bytes):
    """Stands in for a value that a backend found damaged; `why` says how. Its checksum is always wrong.

    Reading it raises `fault`, if that is given: what it is may be known more closely than that it is damaged.
    """

    why = CHANGED
    fault: StoreError | None = None

    @classmethod
    def of(cls, value: bytes, why: str) -> Self:
        """Return a stand-in that keeps the readable part of a value."""
        spoilt = cls(value[:-8] + b"ffffffff")  # which no checksum is
        spoilt.why = why
        return spoilt


# --- heads


class Hot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The part of a head that every append changes, and the number of the session's log.

    `cold_version` counts the changes of the cold value: a cached cold value of another version is outdated.
    """

    log: int
    cold_version: int
    revision: int
    next_seq: int
    turn: int
    group: int
    tail: int
    reasoning: bool
    pauses: bool
    calls: tuple[OpenCall, ...]
    turns: int
    updated: int
    usage: Usage | None
    prompt: PromptSize | None


Share = tuple[int, int]
"""A share of another log: the last seq read from it, and the log's number."""


class Cold(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rest of a head, and the session's shares of other logs, ascending; its own log follows the last share."""

    head: Head
    shares: tuple[Share, ...] = ()


ready(Hot, Cold)


_HOT = tuple(name for name in Hot.__struct_fields__ if name not in {"log", "cold_version"})
_AT_REST: dict[str, Any] = {name: getattr(Head(), name) for name in _HOT}
_hot_values = attrgetter(*_HOT)
_cold_values = attrgetter(*(name for name in Head.__struct_fields__ if name not in _HOT))


def same_cold(one: Head, other: Head) -> bool:
    """Return whether the cold values of two heads are the very same objects, as they are after most appends."""
    return all(map(is_, _cold_values(one), _cold_values(other)))


def hot_of(log: int, cold_version: int, head: Head) -> bytes:
    """Return the stored hot value of a head."""
    return stamped(encoded((log, cold_version, *_hot_values(head))))


def cold_of(head: Head, shares: tuple[Share, ...]) -> bytes:
    """Return the stored cold value of a head."""
    return stamped(encoded(Cold(_replace(head, **_AT_REST), shares)))


def read_hot(value: bytes) -> Hot:
    """Decode the hot value of a head. Raises one of `DAMAGED` if it cannot be read."""
    return decoded(checked(value), Hot)


def read_cold(value: bytes) -> Cold:
    """Decode the cold value of a head. Raises one of `DAMAGED` if it cannot be read."""
    return decoded(checked(value), Cold)


def head_of(hot: Hot, cold: Head) -> Head:
    """Return the head that a hot value and the cold part of a head make up."""
    return _replace(
        cold,
        revision=hot.revision,
        next_seq=hot.next_seq,
        turn=hot.turn,
        group=hot.group,
        tail=hot.tail,
        reasoning=hot.reasoning,
        pauses=hot.pauses,
        calls=hot.calls,
        turns=hot.turns,
        updated=hot.updated,
        usage=hot.usage,
        prompt=hot.prompt,
    )


# --- entries


def due(expires: int) -> int:
    """Return the expiry as a store takes it: not before 1970, where its time begins."""
    return max(expires, 0)


def entry_row(log: int, entry: Entry) -> Cells:
    """Return the row of an entry: its stored form, and its id for the index unless the id encodes the seq."""
    seq, id, expires = entry.seq, entry.id, None
    if entry.expires_at is not None and entry.is_there:  # else a tombstone has nothing left to sweep
        expires = due(microseconds_of(entry.expires_at))
    body = pack(entry)
    indexed_id = "" if len(id) == 36 and id.endswith(seq.to_bytes(4).hex()) else id  # as `placed_at` reads them
    # Stamped here, because this is done for each entry: the lower half of the key is the seq.
    return log << 32 | seq, body + adler32(body, seq).to_bytes(4).hex().encode(), indexed_id, expires


def remains(row: Cells) -> tuple[bytes, str]:
    """Return the stored form of an entry that cannot be read, and the best guess at its id."""
    key, value, name, _ = row
    body = value[:-8] if isinstance(value, bytes) else b""  # a damaged value may be of another type
    match = re.match(rb'(?:\{"held":\[.*?\]\],|\{)"id":"([ !#-\[\]-~]{1,256})","seq":(\d+)', body)
    id = match[1].decode() if match and int(match[2]) == key & LAST else f"damaged-{key & LAST}"
    return body, name if name and isinstance(name, str) and not _is_sound(row) else id


def _is_sound(row: Cells) -> bool:
    try:
        return bool(checked(row[1], row[0]))
    except DAMAGED:
        return False


def entry_drops(*spans: tuple[int, int]) -> list[tuple[str, int, int]]:
    """Return what drops the entries of these spans of keys, and everything that is kept beside them."""
    return [*(("entry", low, high) for low, high in spans), *drops_beside(spans)]


def drops_beside(spans: Iterable[tuple[int, int]]) -> list[tuple[str, int, int]]:
    """Return what drops everything that is kept beside the entries of these spans.

    Counts of entries right behind a span may be dropped too, as they share a row; they are counted again.
    """
    return [
        drop
        for low, high in spans
        for drop in ((f"{TOKENS}*", low, high | STRETCH - 1), (f"{FIGURE}*", low, high), ("held", low, high))
    ]


# --- counts


def count_rows(counts: Mapping[int, int]) -> list[Row]:
    """Return the rows of these counts. A row's key is that of its last entry, so it says nothing of later entries."""
    rows = []
    for low, high in ranges.of(counts):
        for first in (low, *range((low | STRETCH - 1) + 1, high + 1, STRETCH)):
            last = min(first | STRETCH - 1, high)
            body = b" ".join([b"%d" % counts[key] for key in range(first, last + 1)])
            rows.append(Row(last, stamped(body, last)))
    return rows


def ask_counts(counter: str, spans: Iterable[tuple[int, int]], rows: int | None = None) -> Range:
    """Ask for the counts of these spans of keys, or for `rows` rows of them. Counts of neighbours come along."""
    widened = [(low, high | STRETCH - 1) for low, high in spans]
    return Range(TOKENS + counter, widened if rows is not None else ranges.union(widened), rows)


def counts_of(rows: Sequence[Cells]) -> dict[int, int]:
    """Return the counts in these rows, by key. A row that cannot be read is skipped: its counts are made again."""
    counts: dict[int, int] = {}
    for key, value, _, _ in rows:
        try:
            numbers = checked(value, key).split()
            counts.update(zip(range(key - len(numbers) + 1, key + 1), map(int, numbers), strict=True))
        except DAMAGED:
            continue
    return counts


# --- records


HELD = b'"compaction":{'
"""Occurs in the JSON of every record that carries a compaction, so that other records need not be read."""


def record_row(log: int, record: Record) -> Row:
    """Return the row of a record."""
    body = encoded(record)
    id = str(log) if HELD in body else ""
    return Row(log << 32 | record.revision, stamped(body, record.revision), id)


def record_of(row: Cells) -> Record:
    """Decode the record of a row. Raises one of `DAMAGED` if it cannot be read."""
    return decoded(checked(row[1], row[0]), Record)


def new_log() -> int:
    """Return a random number that, almost certainly, no log of the home has had."""
    return int.from_bytes(os.urandom(4)) >> 1 | 1
