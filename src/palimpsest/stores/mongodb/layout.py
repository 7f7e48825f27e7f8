"""How places are kept in one collection of MongoDB: the documents, their keys, and the form of a row.

Every document has `home`, a digest of tenant and home, and `k`, its key in there; the two are unique together. Keys of
one kind have one length, so they are in the order of their bytes. PLACE and TABLE stand for digests of names:

    l                   the lock of the home: whoever changes more than one document changes this one, too
    h PLACE             a head, with its names, and with the `tail`: rows that were put since they were last moved on
    t PLACE             the names of the tables of a place
    o PLACE PART        which head has the tail of a part of a place, and the last bucket of each table there
    r TABLE BUCKET      the rows of 32 neighbouring keys
    v NUMBER PIECE      a piece of a value that is too large for the document it belongs to

A part is what has the upper half of its keys in common. What is put to a part whose tail this head has goes there,
together with the change of the head: one update of one document, which finds it only if the head is as expected. All
else is a transaction, and empties first the tail of each part that it changes. So what is in a tail is newer than what
is in buckets, and no two tails have rows of one part.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from bson import Binary

from palimpsest.stores.backend import Cells, Place

Doc = dict[str, Any]

COLLECTION, META = "palimpsest", "palimpsest_meta"

LOCK = b"l"
BUCKET = 5
"""Bits of a key that rows of one bucket differ in."""

INLINE = 256 * 1024
"""Bytes of a row from which on its value is kept in pieces: the 32 of a bucket have to fit into a document of 16 MB."""
HEAD_INLINE = 1024 * 1024
"""The same of each value of a head."""
PIECE = 4 * 1024 * 1024
"""Bytes of a piece."""

SUM = 12


def _sum(size: int, names: Sequence[str]) -> bytes:
    hashed = blake2b(digest_size=size)
    for name in names:
        text = name.encode("utf-8")
        hashed.update(len(text).to_bytes(4))
        hashed.update(text)
    return hashed.digest()


@lru_cache(8192)
def home_of(tenant: str, home: str) -> Binary:
    """What all documents of a home have in common, and the shard key."""
    return Binary(_sum(16, (tenant, home)))


@lru_cache(8192)
def place_sum(place: Place) -> bytes:
    """The digest of a place's names."""
    return _sum(SUM, place)


@lru_cache(8192)
def table_sum(place: Place, table: str) -> bytes:
    """The digest of a table's names."""
    return _sum(SUM, (*place, table))


def id_sum(table: bytes, id: str) -> Binary:
    """What a row of a table is found by that has this id."""
    return Binary(blake2b(table + id.encode("utf-8"), digest_size=SUM).digest())


def head_key(place: Place) -> bytes:
    """The key of a head."""
    return b"h" + place_sum(place)


def names_key(place: Place) -> bytes:
    """The key of the names of a place's tables."""
    return b"t" + place_sum(place)


def part_key(place: bytes, part: int) -> bytes:
    """The key of what says who has the tail of a part."""
    return b"o" + place + part.to_bytes(4)


def bucket_key(table: bytes, bucket: int) -> bytes:
    """The key of a bucket."""
    return b"r" + table + bucket.to_bytes(8)


def bucket_of(key: bytes) -> tuple[bytes, int]:
    """The table and the number of the bucket that has this key."""
    return key[1 : 1 + SUM], int.from_bytes(key[1 + SUM :])


def claim(table: bytes, part: int) -> Binary:
    """What a head has in its `own` that has the tail of a part of a table."""
    return Binary(table + part.to_bytes(4))


# --- rows

_FORM = struct.Struct(">QqBH")
_NEVER = -1
_PLAIN = _FORM.pack(0, _NEVER, 0, 0)[8:]
"""What stands behind the key of a row that has neither a time nor an id, and its value with it."""


class Apart(bytes):
    """What refers to a value in pieces, in the place of the value."""

    __slots__ = ()


class Cell:
    """The stored form of a row: its key, when it expires, whether its value is apart, its id, its value."""

    __slots__ = ()

    @staticmethod
    def made(row: Cells, apart: bytes | None = None) -> bytes:
        """The form of a row; `apart` is the reference to its value, where that is in pieces."""
        key, value, id, expires = row
        name = id.encode("utf-8") if id else b""
        form = _FORM.pack(key, _NEVER if expires is None else expires, apart is not None, len(name))
        return b"".join((form, name, value if apart is None else apart))

    @staticmethod
    def key(cell: bytes) -> int:
        """The key of a row."""
        return int.from_bytes(cell[:8])

    @staticmethod
    def expires(cell: bytes) -> int | None:
        """When it does."""
        at = int.from_bytes(cell[8:16], signed=True)
        return None if at == _NEVER else at

    @staticmethod
    def id(cell: bytes) -> str:
        """Its id, also where somebody has damaged it: then it is that of no row."""
        size = int.from_bytes(cell[17:19])
        return cell[19 : 19 + size].decode("utf-8", "backslashreplace") if size else ""

    @staticmethod
    def apart(cell: bytes) -> bytes | None:
        """The reference to its value, if that is in pieces."""
        return cell[19 + int.from_bytes(cell[17:19]) :] if cell[16] == 1 else None

    @classmethod
    def rows(cls, cells: Iterable[bytes]) -> list[Cells]:
        """The rows. Raises ValueError for what is none."""
        found, plain = list[Cells](), _PLAIN
        for cell in cells:
            if cell[8:19] == plain and len(cell) > _FORM.size:  # as most are
                found.append((int.from_bytes(cell[:8]), cell[19:], "", None))
            else:
                found.append(cls.row(cell))
        return found

    @staticmethod
    def row(cell: bytes) -> Cells:
        """The row; one whose value is apart has the reference in its place. Raises ValueError for what is none."""
        if len(cell) < _FORM.size:
            raise ValueError("a row is cut off")
        key, expires, apart, size = _FORM.unpack_from(cell)
        value, id = cell[19 + size :], ""
        if size:
            id = cell[19 : 19 + size].decode("utf-8", "backslashreplace")
        return key, Apart(value) if apart else value, id, None if expires == _NEVER else expires


# --- values in pieces


def reference(number: bytes, size: int) -> bytes:
    """What stands for a value in pieces."""
    return number + size.to_bytes(8)


def piece_keys(reference: bytes) -> list[bytes]:
    """The keys of its pieces, in order."""
    count = -(-int.from_bytes(reference[SUM:]) // PIECE)
    return [b"v" + reference[:SUM] + number.to_bytes(4) for number in range(count)]


def in_pieces(home: Binary, reference: bytes, value: bytes) -> list[Doc]:
    """The documents that keep a value."""
    keys = enumerate(piece_keys(reference))
    return [{"home": home, "k": Binary(k), "v": Binary(value[i * PIECE : (i + 1) * PIECE])} for i, k in keys]


def bucket(home: Binary, key: bytes, place: Place, table: str, cells: Iterable[bytes]) -> Doc:
    """The document of a bucket that has these rows."""
    rows = sorted(cells)
    made: Doc = {"home": home, "k": Binary(key), "r": [Binary(cell) for cell in rows]}
    ids = sorted({id_sum(key[1 : 1 + SUM], id) for cell in rows if (id := Cell.id(cell))})
    due = [at for cell in rows if (at := Cell.expires(cell)) is not None]
    if ids:
        made["i"] = ids
    if due:
        made |= {"due": min(due), "tenant": place.tenant, "at": [*place[1:], table]}
    return made


def new_head(place: Place) -> Doc:
    """The document of a head, without its values."""
    where = {"home": home_of(place.tenant, place.home), "k": Binary(head_key(place))}
    names = {"tenant": place.tenant, "hn": place.home, "space": place.space, "name": place.name}
    return {**where, **names, "own": [], "of": [], "tail": [], "size": 0}
