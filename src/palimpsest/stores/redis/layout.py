"""How places, heads and rows are stored in Redis: the names of keys, and the bytes in them.

Homes are spread over 64 buckets. All keys of a bucket have its tag in braces, so they are in one slot of a cluster, and
a script changes a home and the index that lists it in one step. The tags are spread evenly over the slots.

    PREFIX:store                       the version of this layout
    PREFIX:{TAG}:m                     hash: the last mark of the bucket, and how often something was destroyed in it
    PREFIX:{TAG}:i                     sorted set: the index that listings read, in the order of its bytes
        p tenant space name home           a place with a head
        r tenant space mark name home      the same place, by its last write
        e tenant time home space name table key    a row that expires, or with an empty table and key 0 a head
    PREFIX:{TAG}:h:tenant home         hash: the heads of a home. "h" space name: mark, time of expiry, hot value;
                                       "c" space name: cold value, unless it is empty
    PREFIX:{TAG}:t:tenant home space name          set: the names of the tables in which a place has rows
    PREFIX:{TAG}:r:tenant home space name table    sorted set: rows, in the order of their keys
    PREFIX:{TAG}:n:tenant home space name table    sorted set: id and key of each row that has an id

All scores are 0: members then sort by their bytes. Numbers are 8 bytes, big-endian, and so exact up to 64 bits, which a
score would not be. A name ends with two NULs, and a NUL in it is followed by the byte 255: so names sort by code point,
and none is a prefix of another. A row is its key, two bytes (the length of its id, plus 0x8000 if it expires), the time
of expiry if it has one, its id, and its value.
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
"""Stored in place of a time of expiry for what never expires."""

BEHIND = b"\xff"
"""Sorts behind every byte that a name or a number can begin with."""

EXPIRES = 0x8000


def _tags() -> tuple[str, ...]:
    """Return a tag for each bucket. The slots are cut into as many equal ranges, and each tag is in its own."""
    tags: dict[int, str] = {}
    number = 0
    while len(tags) < BUCKETS:
        tags.setdefault(crc_hqx(b"%d" % number, 0) % SLOTS * BUCKETS // SLOTS, str(number))
        number += 1
    return tuple(tags[part] for part in range(BUCKETS))


TAGS = _tags()


class Damaged(Exception):
    """Something in the store is not as it was written. The text says what."""


def escaped(name: str) -> bytes:
    """Return a name as it is stored in keys and in the index, with its end."""
    return name.encode().replace(b"\0", b"\0\xff") + END


def escaped_beginning(name: str) -> bytes:
    """Return the bytes with which the escaped forms of all names begin that begin with this one."""
    return escaped(name)[:-2]


def names(text: bytes, count: int) -> tuple[list[str], bytes]:
    """Return the first `count` names of a stored text, and its rest. Raises Damaged if it does not hold as many."""
    found: list[str] = []
    for _ in range(count):
        name, end, text = text.partition(END)
        if not end:
            raise Damaged("a name in a listing has no end")
        found.append(read_name(name))
    return found, text


def read_name(name: bytes) -> str:
    """Return the name that is stored as these bytes, given without its end. Raises Damaged."""
    try:
        return name.replace(b"\0\xff", b"\0").decode()
    except UnicodeDecodeError:
        raise Damaged("a name in a listing is not UTF-8") from None


class Home(NamedTuple):
    """The location of a home: the number of its bucket, and its names, escaped."""

    bucket: int
    tenant: bytes
    home: bytes


@lru_cache(4096)
def home_of(tenant: str, home: str) -> Home:
    """Return the location of a home."""
    tenant_bytes, home_bytes = escaped(tenant), escaped(home)
    return Home(crc32(tenant_bytes + home_bytes) % BUCKETS, tenant_bytes, home_bytes)


@lru_cache(4096)
def place_of(space: str, name: str) -> tuple[bytes, bytes]:
    """Return the names of a place within its home, escaped."""
    return escaped(space), escaped(name)


table_of = lru_cache(1024)(escaped)


# --- rows


def member_of(row: Cells) -> bytes:
    """Return a row as a member of a sorted set."""
    key, value, id, expires = row
    if not id and expires is None:
        return b"%b\0\0%b" % (key.to_bytes(8), value)
    name = escaped(id) if id else b""
    time = b"" if expires is None else expires.to_bytes(8)
    return b"".join((key.to_bytes(8), (len(name) | (EXPIRES if time else 0)).to_bytes(2), time, name, value))


def row_of(member: bytes) -> Cells:
    """Return the row that this member of a sorted set holds. Raises Damaged."""
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
    """Return the head that these two stored values hold, None if there is none. Raises Damaged."""
    if stored is None:
        return None
    if len(stored) < 16:
        raise Damaged("a head is too short")
    return PlaceHead(stored[16:], cold or b"")


# --- listings


def listed_place(member: bytes) -> tuple[Place, int]:
    """Return the place that a member `p` or `r` of the index names, and its mark (0 for `p`). Raises Damaged."""
    kind, mark = member[:1], 0
    if kind == b"p":
        (tenant, space, name, home), _ = names(member[1:], 4)
    else:
        (tenant, space), rest = names(member[1:], 2)
        mark = int.from_bytes(rest[:8])
        (name, home), _ = names(rest[8:], 2)
    return Place(tenant, home, space, name), mark
