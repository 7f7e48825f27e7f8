"""What the engine stores: heads as two values, entries and records as rows, and checksums over all of it. Pure.

A stored value ends with a checksum in eight digits, which knows its place, too. So what was not written so is never
read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, is_
from typing import Any, Self, TypeVar
from zlib import adler32

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.log import spans as ranges
from palimpsest.log.change import Record
from palimpsest.log.codec import decoded, encoded, ready
from palimpsest.log.entry import Entry, microseconds_of, pack
from palimpsest.log.head import Head, OpenCall, PromptSize, Usage
from palimpsest.stores.backend import Cells, Range, Row
from palimpsest.stores.values import FIGURES, figure_of

T = TypeVar("T")

LAST = 0xFFFFFFFF
"""The last place of a log's range of keys."""

STRETCH = 32
"""A row of counts is of at most so many entries, one behind the other; none goes over a multiple of it."""

TOKENS, FIGURE = "tokens/", "figure/"
"""How tables of counts begin, and of figures: by the counter, by what they tell."""

CHANGED = "its checksum is another: something in it was changed"
"""Why a value is refused that is not as it was written."""

DAMAGED = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""What is raised for a value that is not as it was written."""

_replace = msgspec.structs.replace


def figure_tables(session: str) -> list[str]:
    """The tables of what a session has noted of entries."""
    return [FIGURE + figure_of(name, session) for name in FIGURES]


def key_of(log: int, seq: int) -> int:
    """The key of a seq, or revision, as a bound: whatever was asked for, it stays within the log's own range."""
    return log << 32 | (seq if 0 <= seq <= LAST else 0 if seq < 0 else LAST)


def stamped(body: bytes, key: int = 0) -> bytes:
    """A value with its checksum: Adler-32, the cheapest there is, in digits that a format would make more slowly."""
    return body + adler32(body, key & LAST).to_bytes(4).hex().encode()


def checked(value: bytes, key: int = 0) -> bytes:
    """The value without its checksum. Raises ValueError where that is another."""
    body = value[:-8]
    try:
        stamp = int(value[-8:], 16)
    except ValueError:
        raise ValueError("it does not end with a checksum: something in it was changed") from None
    if stamp != adler32(body, key & LAST):
        raise ValueError(value.why if isinstance(value, Spoilt) else CHANGED)
    return body


def read_as(url: str, what: str, read: Callable[[], T]) -> T:
    """What is read of a stored value, that of `what`. Raises StoreCorrupt where it is not as it was written."""
    try:
        return read()
    except DAMAGED as cause:
        raise StoreCorrupt(url, f"{what} cannot be read ({cause})") from cause


class Spoilt(bytes):
    """In the place of a value that a backend knows not to be as it was written: `why`. No checksum fits it."""

    why = CHANGED

    @classmethod
    def of(cls, value: bytes, why: str) -> Self:
        """What is left of a value."""
        spoilt = cls(value[:-8] + b"00000000")
        spoilt.why = why
        return spoilt


# --- heads


class Hot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What every append moves of a head, and the number of the session's log.

    `stirred` counts the changes of the cold value: who remembers one under another number remembers an old one.
    """

    log: int
    stirred: int
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
"""Up to which seq, and of which log."""


class Cold(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rest of a head, and what the session reads of other logs, ascending; after that comes its own."""

    head: Head
    shares: tuple[Share, ...] = ()


ready(Hot, Cold)


_HOT = tuple(name for name in Hot.__struct_fields__ if name not in {"log", "stirred"})
_AT_REST: dict[str, Any] = {name: getattr(Head(), name) for name in _HOT}
_hot_values = attrgetter(*_HOT)
_cold_values = attrgetter(*(name for name in Head.__struct_fields__ if name not in _HOT))


def same_cold(one: Head, other: Head) -> bool:
    """Whether two heads are made of the same cold values: the very same objects, as they are after most appends."""
    return all(map(is_, _cold_values(one), _cold_values(other)))


def hot_of(log: int, stirred: int, head: Head) -> bytes:
    """The hot value of a head."""
    return stamped(encoded((log, stirred, *_hot_values(head))))


def cold_of(head: Head, shares: tuple[Share, ...]) -> bytes:
    """The cold value of a head."""
    return stamped(encoded(Cold(_replace(head, **_AT_REST), shares)))


def read_hot(value: bytes) -> Hot:
    """The hot value of a head. Raises one of `DAMAGED` where it cannot be read."""
    return decoded(checked(value), Hot)


def read_cold(value: bytes) -> Cold:
    """The cold value of a head. Raises one of `DAMAGED` where it cannot be read."""
    return decoded(checked(value), Cold)


def head_of(hot: Hot, cold: Head) -> Head:
    """The head that its two values are of."""
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
    """When a store is to find what expires then: not before 1970, where time begins for it."""
    return max(expires, 0)


def entry_row(log: int, entry: Entry) -> Cells:
    """The row of an entry: its stored form. Its id is found where it does not name its seq."""
    seq, id, expires = entry.seq, entry.id, None
    if entry.expires_at is not None and entry.is_there:  # else a tombstone has nothing left to sweep
        expires = due(microseconds_of(entry.expires_at))
    key = log << 32 | seq
    found_by = "" if len(id) == 36 and id.endswith(seq.to_bytes(4).hex()) else id  # as `placed_at` reads them
    return key, stamped(pack(entry), key), found_by, expires


def remains(row: Cells) -> tuple[bytes, str]:
    """What can still be made out of the stored form of an entry that cannot be read, and of its id."""
    key, value, name, _ = row
    body = value[:-8] if isinstance(value, bytes) else b""  # what is damaged may be of another type, too
    found = re.match(rb'(?:\{"held":\[.*?\]\],|\{)"id":"([ !#-\[\]-~]{1,256})","seq":(\d+)', body)
    id = found[1].decode() if found and int(found[2]) == key & LAST else f"damaged-{key & LAST}"
    return body, name if name and isinstance(name, str) and not _is_sound(row) else id


def _is_sound(row: Cells) -> bool:
    try:
        return bool(checked(row[1], row[0]))
    except DAMAGED:
        return False


def of_entries(*spans: tuple[int, int]) -> list[tuple[str, int, int]]:
    """What drops the entries of these spans of keys, and all that is kept beside them."""
    return [*(("entry", low, high) for low, high in spans), *beside_entries(spans)]


def beside_entries(spans: Iterable[tuple[int, int]]) -> list[tuple[str, int, int]]:
    """What drops all that is kept beside these; counts of some behind them go, too, and are made again."""
    return [
        drop
        for low, high in spans
        for drop in ((f"{TOKENS}*", low, high | STRETCH - 1), (f"{FIGURE}*", low, high), ("held", low, high))
    ]


# --- counts


def count_rows(counts: Mapping[int, int]) -> list[Row]:
    """The rows of counts by key. The key of a row is that of its last entry: so none tells of what comes later."""
    rows = []
    for low, high in ranges.of(counts):
        for first in (low, *range((low | STRETCH - 1) + 1, high + 1, STRETCH)):
            last = min(first | STRETCH - 1, high)
            body = b" ".join([b"%d" % counts[key] for key in range(first, last + 1)])
            rows.append(Row(last, stamped(body, last)))
    return rows


def ask_counts(counter: str, spans: Iterable[tuple[int, int]], rows: int | None = None) -> Range:
    """What asks for the counts of these spans of keys, or so many rows of them; counts of others come with them."""
    near = [(low, high | STRETCH - 1) for low, high in spans]
    return Range(TOKENS + counter, near if rows is not None else ranges.union(near), rows)


def counts_of(rows: Sequence[Cells]) -> dict[int, int]:
    """The counts of rows, by key. One that cannot be read is lost, and made again."""
    counts: dict[int, int] = {}
    for key, value, _, _ in rows:
        try:
            found = checked(value, key).split()
            counts.update(zip(range(key - len(found) + 1, key + 1), map(int, found), strict=True))
        except DAMAGED:
            continue
    return counts


# --- records


HELD = b'"compaction":{'
"""Stands in the JSON of every record that carries a compaction, so that others need not be read."""


def record_row(log: int, record: Record) -> Row:
    """The row of a record."""
    body = encoded(record)
    id = str(log) if HELD in body else ""
    return Row(log << 32 | record.revision, stamped(body, record.revision), id)


def record_of(row: Cells) -> Record:
    """The record of a row. Raises one of `DAMAGED` where it cannot be read."""
    return decoded(checked(row[1], row[0]), Record)


def new_log() -> int:
    """A number that no log of the home has had, as good as certainly."""
    return int.from_bytes(os.urandom(4)) >> 1 | 1
