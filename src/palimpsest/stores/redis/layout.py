"""How places, heads and rows are kept in Redis, and the names of keys.

Homes are spread over 64 buckets. All keys of a bucket have its tag in braces, so they are in one slot of a cluster, and
a script changes a home and what lists it in one step. The tags lie evenly over the slots.

    PREFIX:store                       the version of this layout
    PREFIX:{TAG}:m                     hash: the last mark of the bucket, and how often something was destroyed in it
    PREFIX:{TAG}:i                     sorted set: what listings read, in the order of its bytes
        p tenant space name home           a place with a head
        r tenant space mark name home      the same, by its last write
        e tenant time home space name table key    what expires: a row, or with an empty table and key 0 a head
    PREFIX:{TAG}:h:tenant home         hash: the heads of a home. "h" space name: mark, time of expiry, hot value;
                                       "c" space name: cold value, unless it is empty
    PREFIX:{TAG}:t:tenant home space name          set: the names of the tables in which a place has rows
    PREFIX:{TAG}:r:tenant home space name table    sorted set: rows, in the order of their keys
    PREFIX:{TAG}:n:tenant home space name table    sorted set: id and key of each row that has an id

Scores are all 0: sorted sets sort by bytes then, and numbers of 64 bits, eight bytes each, are exact. A name ends with
two NULs, and a NUL in it is followed by 255: so names sort by code point, and none is the beginning of another. A row
is its key, two bytes (the length of its id, and 0x8000 if it expires), the time if so, its id, and its value.
"""

from __future__ import annotations

from binascii import crc_hqx
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

from palimpsest.stores.backend import Cells, Place, PlaceHead

VERSION = b"1"
SLOTS, BUCKETS = 16_384, 64
END = b"\0\0"
NEVER = b"\xff" * 8
"""In the place of a time that never comes."""

BEHIND = b"\xff"
"""Sorts behind whatever a name, or a number, may begin with."""

EXPIRES = 0x8000


def _tags() -> tuple[str, ...]:
    """A tag a bucket, each in a part of the slots of its own."""
    found: dict[int, str] = {}
    number = 0
    while len(found) < BUCKETS:
        found.setdefault(crc_hqx(b"%d" % number, 0) % SLOTS * BUCKETS // SLOTS, str(number))
        number += 1
    return tuple(found[part] for part in range(BUCKETS))


TAGS = _tags()


class Damaged(Exception):
    """Something in the store is not as it was written: what."""


def escaped(name: str) -> bytes:
    """A name as it stands in keys and in what is listed."""
    return name.encode().replace(b"\0", b"\0\xff") + END


def escaped_beginning(name: str) -> bytes:
    """How all names are escaped that begin with this one."""
    return escaped(name)[:-2]


def names(text: bytes, count: int) -> tuple[list[str], bytes]:
    """So many names at the beginning of a text, and the rest of it. Raises Damaged where they are not there."""
    found: list[str] = []
    for _ in range(count):
        name, end, text = text.partition(END)
        if not end:
            raise Damaged("a name in a listing has no end")
        found.append(read_name(name))
    return found, text


def read_name(name: bytes) -> str:
    """A name without its end. Raises Damaged."""
    try:
        return name.replace(b"\0\xff", b"\0").decode()
    except UnicodeDecodeError:
        raise Damaged("a name in a listing is not UTF-8") from None


class Home(NamedTuple):
    """Where a home is: the number of its bucket, and its names, escaped."""

    bucket: int
    tenant: bytes
    home: bytes


@lru_cache(4096)
def home_of(tenant: str, home: str) -> Home:
    """Where a home is."""
    one, other = escaped(tenant), escaped(home)
    return Home(crc32(one + other) % BUCKETS, one, other)


@lru_cache(4096)
def place_of(space: str, name: str) -> tuple[bytes, bytes]:
    """The names of a place in its home, escaped."""
    return escaped(space), escaped(name)


table_of = lru_cache(1024)(escaped)


# --- rows


def member_of(row: Cells) -> bytes:
    """A row as a member of a sorted set."""
    key, value, id, expires = row
    if not id and expires is None:
        return b"%b\0\0%b" % (key.to_bytes(8), value)
    name = escaped(id) if id else b""
    time = b"" if expires is None else expires.to_bytes(8)
    return b"".join((key.to_bytes(8), (len(name) | (EXPIRES if time else 0)).to_bytes(2), time, name, value))


def row_of(member: bytes) -> Cells:
    """The row that a member of a sorted set is. Raises Damaged."""
    size = int.from_bytes(member[8:10])
    if not size:
        if len(member) < 10:
            raise Damaged("a row is too short")
        return int.from_bytes(member[:8]), member[10:], "", None
    begin = 18 if size & EXPIRES else 10
    end = begin + (size & ~EXPIRES)
    if len(member) < end:
        raise Damaged(f"the row of key {int.from_bytes(member[:8])} is too short")
    expires = int.from_bytes(member[10:18]) if size & EXPIRES else None
    return int.from_bytes(member[:8]), member[end:], read_name(member[begin:end].removesuffix(END)), expires


# --- heads


def head_of(stored: bytes | None, cold: bytes | None) -> PlaceHead | None:
    """The head of a place, as it is stored. Raises Damaged."""
    if stored is None:
        return None
    if len(stored) < 16:
        raise Damaged("a head is too short")
    return PlaceHead(stored[16:], cold or b"")


# --- listings


def listed(member: bytes) -> tuple[Place, int]:
    """The place that a member of an index names, and its mark where it has one. Raises Damaged."""
    kind, mark = member[:1], 0
    if kind == b"p":
        (tenant, space, name, home), _ = names(member[1:], 4)
    else:
        (tenant, space), rest = names(member[1:], 2)
        mark = int.from_bytes(rest[:8])
        (name, home), _ = names(rest[8:], 2)
    return Place(tenant, home, space, name), mark
