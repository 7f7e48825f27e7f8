"""What the engine stores: heads as two values, entries and records as rows, and checksums over all of it. Pure.

A stored value ends with a checksum in eight digits, which knows its place, too. So what was not written so is never
read.
"""

from __future__ import annotations

from operator import attrgetter, is_
from typing import Any
from zlib import adler32

import msgspec

from palimpsest.log.change import Record
from palimpsest.log.codec import decoded, encoded
from palimpsest.log.entry import Entry, microseconds_of, pack, placed_at, unpack
from palimpsest.log.head import Head, OpenCall, PromptSize, Usage
from palimpsest.stores.backend import Row
from palimpsest.stores.records import HELD

LAST = 0xFFFFFFFF
"""The last place of a log's range of keys."""

CHANGED = "its checksum is another: something in it was changed"
"""Why a value is refused that is not as it was written."""

DAMAGED = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""What is raised for a value that is not as it was written."""

_replace = msgspec.structs.replace


def key_of(log: int, seq: int) -> int:
    """The key of a seq, or revision, as a bound: whatever was asked for, it stays within the log's own range."""
    return log << 32 | (seq if 0 <= seq <= LAST else 0 if seq < 0 else LAST)


def stamped(body: bytes, key: int = 0) -> bytes:
    """A value with its checksum: Adler-32, the cheapest there is."""
    return b"%b%08x" % (body, adler32(body, key & LAST))


def checked(value: bytes, key: int = 0) -> bytes:
    """The value without its checksum. Raises ValueError where that is another."""
    body = value[:-8]
    if b"%08x" % adler32(body, key & LAST) != value[-8:]:
        raise ValueError(CHANGED)
    return body


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
    mac: str


Share = tuple[int, int]
"""Up to which seq, and of which log."""


class Cold(msgspec.Struct, frozen=True, omit_defaults=True):
    """The rest of a head, and what the session reads of other logs, ascending; after that comes its own."""

    head: Head
    shares: tuple[Share, ...] = ()


_HOT = tuple(name for name in Hot.__struct_fields__ if name not in {"log", "stirred"})
_AT_REST: dict[str, Any] = {name: getattr(Head(), name) for name in _HOT}
_cold_values = attrgetter(*(name for name in Head.__struct_fields__ if name not in _HOT))


def same_cold(one: Head, other: Head) -> bool:
    """Whether two heads are made of the same cold values: the very same objects, as they are after most appends."""
    return all(map(is_, _cold_values(one), _cold_values(other)))


def hot_of(log: int, stirred: int, head: Head) -> bytes:
    """The hot value of a head."""
    value = Hot(
        log,
        stirred,
        head.revision,
        head.next_seq,
        head.turn,
        head.group,
        head.tail,
        head.reasoning,
        head.pauses,
        head.calls,
        head.turns,
        head.updated,
        head.usage,
        head.prompt,
        head.mac,
    )
    return stamped(encoded(value))


def cold_of(head: Head, shares: tuple[Share, ...]) -> bytes:
    """The cold value of a head."""
    return stamped(encoded(Cold(_replace(head, **_AT_REST), shares)))


def read_hot(value: bytes) -> Hot:
    """The hot value of a head. Raises one of `DAMAGED` where it cannot be read."""
    return decoded(checked(value), Hot)


def read_cold(value: bytes) -> Cold:
    """The cold value of a head. Raises one of `DAMAGED` where it cannot be read."""
    return decoded(checked(value), Cold)


def whole(hot: Hot, cold: Head) -> Head:
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
        mac=hot.mac,
    )


# --- entries


def entry_row(log: int, entry: Entry, body: bytes | None = None) -> Row:
    """The row of an entry; `body` is its stored form, where that is another than `pack` makes.

    Its id stands behind that, and is found by where it does not name the entry's own seq.
    """
    seq, id = entry.seq, entry.id
    expires = None
    if entry.expires_at is not None and not entry.erased:  # a tombstone has nothing left to sweep
        expires = microseconds_of(entry.expires_at)
    value = b"%b\n%b" % (pack(entry) if body is None else body, id.encode("utf-8", "surrogatepass"))
    return Row(log << 32 | seq, stamped(value, seq), "" if placed_at(id) == seq else id, expires)


def body_of(row: Row) -> tuple[bytes, str]:
    """The stored form of an entry, and its id. Raises one of `DAMAGED` where they cannot be read."""
    value = checked(row.value, row.key)
    end = value.rindex(b"\n")
    return value[:end], value[end + 1 :].decode("utf-8", "surrogatepass")


def entry_of(row: Row, tokens: int | None = None) -> Entry:
    """The entry of a row. Raises one of `DAMAGED` where it cannot be read."""
    body, id = body_of(row)
    return unpack(body, id, row.key & LAST, tokens)


def remains(row: Row) -> tuple[bytes, str]:
    """What can still be made out of the stored form of an entry that cannot be read, and of its id."""
    body, _, rest = row.value[:-8].rpartition(b"\n")
    try:
        id = rest.decode()
    except UnicodeDecodeError:
        id = ""
    return body, id if 0 < len(id) <= 256 and id.isprintable() else f"damaged-{row.key & LAST}"


# --- records


def record_row(log: int, record: Record) -> Row:
    """The row of a record."""
    body = encoded(record)
    id = str(log) if HELD in body else ""
    return Row(log << 32 | record.revision, stamped(body, record.revision), id)


def record_of(row: Row) -> Record:
    """The record of a row. Raises one of `DAMAGED` where it cannot be read."""
    return decoded(checked(row.value, row.key), Record)
