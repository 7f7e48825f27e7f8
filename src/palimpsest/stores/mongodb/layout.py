"""How places are kept in one collection of MongoDB: the documents, and their keys.

The key of a document, its `_id`, is a digest of tenant and home, `home`, and what it is in there. Keys of one kind have
one length, so they are in the order of their bytes. PLACE and TABLE stand for digests of names:

    l                   the lock of the home: whoever changes more than one document changes this one, too
    h PLACE             a head, with the `tail`: rows that were put since they were last moved on, a value each batch;
                        and in `own` the keys of the parts that this is the tail of
    n PLACE             the names of a place that has a head
    t PLACE             the names of the tables of a place that have buckets, and the heads with tails of its parts
    o PLACE PART        which head has the tail of a part of a place, and the last bucket of each table there
    r TABLE BUCKET      the rows of 32 neighbouring keys
    v NUMBER PIECE      a piece of a value that is too large for the document it belongs to

Heads and names have a `list`, by which one index finds them: the heads of a space in order of their last write, its
names in their own. What has something that expires has `due`: the first of these times. Buckets have `ids`, digests of
those of their rows, by which an index finds them, and the tables of their place with them.

A part is what has the upper half of its keys in common. What is put to a part whose tail this head has goes there,
together with the change of the head: one update of one document, which finds it only if it is as it was seen. So that
this can be told by one value, `hot` ends in a number of the last write, which no other has. All else is a transaction,
and empties first the tail of each part that it changes. So what is in a tail is newer than what is in buckets, and no
two tails have rows of one part. It gives each head that it writes another `made`: while a head has the same, what is
said of its parts is as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from palimpsest.stores.backend import Place
from palimpsest.stores.mongodb.rows import SUM, Cell, Doc

COLLECTION, META = "palimpsest", "palimpsest_meta"

BUCKET = 5
"""Bits of a key that rows of one bucket differ in."""

INLINE = 256 * 1024
"""Bytes of a row from which on its value is kept in pieces: the 32 of a bucket have to fit into a document of 16 MB."""
HEAD_INLINE = 1024 * 1024
"""The same of each value of a head."""
PIECE = 4 * 1024 * 1024
"""Bytes of a piece."""
HOME = 16
"""Bytes of the digest of a home."""
NUMBER = 8
"""Bytes of the number of a write, behind the hot value of a head."""


def _sum(size: int, names: Sequence[str]) -> bytes:
    hashed = blake2b(digest_size=size)
    for name in names:
        text = name.encode("utf-8")
        hashed.update(len(text).to_bytes(4))
        hashed.update(text)
    return hashed.digest()


# --- keys


def kind_of(key: bytes) -> bytes:
    """What a key is of: its letter."""
    return key[HOME : HOME + 1]


@lru_cache(8192)
def home_of(tenant: str, home: str) -> bytes:
    """What all documents of a home have in common, and the shard key."""
    return _sum(HOME, (tenant, home))


def lock_key(home: bytes) -> bytes:
    """The key of the lock of a home."""
    return home + b"l"


@lru_cache(8192)
def head_key(place: Place) -> bytes:
    """The key of a head."""
    return home_of(place.tenant, place.home) + b"h" + _sum(SUM, place)


def names_key(place: Place) -> bytes:
    """The key of the names of a place."""
    return _beside(head_key(place), b"n")


def tables_key(place: Place) -> bytes:
    """The key of the names of a place's tables."""
    return _beside(head_key(place), b"t")


def part_key(place: Place, part: int) -> bytes:
    """The key of what says who has the tail of a part."""
    return _beside(head_key(place), b"o") + part.to_bytes(4)


def tables_beside(part: bytes) -> bytes:
    """The key of the names of the tables of the place of a part, by the key of that."""
    return _beside(part[:-4], b"t")


def _beside(key: bytes, kind: bytes) -> bytes:
    return key[:HOME] + kind + key[HOME + 1 :]


@lru_cache(8192)
def table_sum(place: Place, table: str) -> bytes:
    """The digest of a table's names."""
    return _sum(SUM, (*place, table))


def bucket_key(home: bytes, table: bytes, bucket: int) -> bytes:
    """The key of a bucket."""
    return b"".join((home, b"r", table, bucket.to_bytes(8)))


def bucket_of(key: bytes) -> tuple[bytes, int]:
    """The table and the number of the bucket that has this key."""
    return key[HOME + 1 : HOME + 1 + SUM], int.from_bytes(key[HOME + 1 + SUM :])


def id_sum(table: bytes, id: str) -> bytes:
    """What buckets of a table are found by that have rows of this id."""
    return blake2b(table + id.encode("utf-8"), digest_size=HOME).digest()


def by_key(key: bytes, spread: bool) -> Doc:
    """What finds a document, where it is the whole filter or begins it.

    A router of documents that are spread over shards goes by their home. A server needs the key alone, and more fields
    only cost it time: SecantusDB goes by the first that has an index, after it has tried them together.
    """
    return {"_id": key, "home": key[:HOME]} if spread else {"_id": key}


def piece_keys(home: bytes, reference: bytes) -> list[bytes]:
    """The keys of the pieces of a value, in order."""
    count = -(-int.from_bytes(reference[SUM:]) // PIECE)
    return [home + b"v" + reference[:SUM] + number.to_bytes(4) for number in range(count)]


# --- lists


def _ended(*names: str) -> str:
    """Names, one after the other, as a text that sorts as they do: with what is less than all that may follow."""
    return "".join(f"{_open(name)}\0\0" for name in names)


def _open(name: str) -> str:
    return name.replace("\0", "\0\1")


def of_names(tenant: str, *more: str, beneath: str | None = None) -> str:
    """What begins the `list` of the names of places, by space, name and home; `beneath` is the beginning of a space."""
    return f"n{_ended(tenant, *more)}" + ("" if beneath is None else _open(beneath))


def of_marks(tenant: str, space: str) -> str:
    """The `list` of the heads of a space, which `mark` and `at` put in order."""
    return f"m{_ended(tenant, space)}"


def at_of(name: str, home: str) -> str:
    """The `at` of a head: name and home."""
    return _ended(name, home)


def place_at(tenant: str, space: str, at: str) -> Place:
    """The place that has this `at`. Raises ValueError for what is none."""
    name, home, _ = (one.replace("\0\1", "\0") for one in at.split("\0\0"))
    return Place(tenant, home, space, name)


# --- documents


def bucket(key: bytes, place: Place, table: str, cells: Iterable[bytes]) -> Doc:
    """The document of a bucket that has these rows."""
    rows = sorted(cells)
    made: Doc = {"_id": key, "home": key[:HOME], "r": rows}
    ids = {id_sum(bucket_of(key)[0], id) for cell in rows if (id := Cell.id(cell))}
    if ids:
        made["ids"] = sorted(ids)
    due = [at for cell in rows if (at := Cell.expires(cell)) is not None]
    if due:
        made |= {"due": due_of(place.tenant, min(due), rows=True), "of": [place.home, place.space, place.name, table]}
    return made


def new_head(place: Place) -> Doc:
    """The document of a head, without its values."""
    key = head_key(place)
    listed = {"list": of_marks(place.tenant, place.space), "at": at_of(place.name, place.home)}
    found = {"_id": key, "home": key[:HOME], **listed, "tenant": place.tenant, "space": place.space}
    return {**found, "own": [], "tail": []}


def names_of(place: Place) -> Doc:
    """The document of the names of a place that has a head."""
    key = names_key(place)
    names = {"tenant": place.tenant, "space": place.space, "name": place.name, "hn": place.home}
    return {"_id": key, "home": key[:HOME], "list": of_names(*names.values()), **names}


Put = tuple[str, str, str, list[bytes]]
"""Rows of a batch as they stand in a tail: the space and the name of their place, their table, and they."""

packed = msgspec.msgpack.Encoder().encode
_unpacked = msgspec.msgpack.Decoder(list[Put]).decode


def in_tail(doc: Doc) -> Iterator[tuple[Place, str, list[bytes]]]:
    """The places, tables and rows of a head's tail, newer ones behind older. Raises ValueError for what is none."""
    own = place_at(doc["tenant"], doc["space"], doc["at"])
    for batch in doc["tail"]:
        for space, name, table, cells in _unpacked(batch):
            yield Place(own.tenant, own.home, space, name), table, cells


def reference(number: bytes, size: int) -> bytes:
    """What stands for a value in pieces."""
    return number + size.to_bytes(8)


def in_pieces(home: bytes, reference: bytes, value: bytes) -> list[Doc]:
    """The documents that keep a value."""
    keys = enumerate(piece_keys(home, reference))
    return [{"_id": key, "home": home, "v": value[i * PIECE : (i + 1) * PIECE]} for i, key in keys]


class Known(NamedTuple):
    """What is known of a head's document as the number behind `hot` tells it: another number, and it may be otherwise.

    `own` are the keys of its parts, `size` is of its tail in bytes, `exp` when the head expires, `first` when the first
    row of its tail does, `apart` the fields with a value in pieces.
    """

    hot: bytes
    own: frozenset[bytes]
    size: int
    exp: int | None
    first: int | None
    apart: frozenset[str]

    @classmethod
    def of(cls, doc: Doc) -> Known:
        """The same of a document."""
        size, apart = sum(map(len, doc["tail"])), frozenset(name for name in ("hotv", "coldv") if name in doc)
        return cls(doc["hot"], frozenset(doc["own"]), size, doc.get("exp"), doc.get("first"), apart)

    @property
    def value(self) -> bytes:
        """The hot value."""
        return self.hot[:-NUMBER]


def due_of(tenant: str, at: int, rows: bool) -> Doc:
    """What finds a document by when the first of what it has expires; `rows`: of rows there may be more than that."""
    return {"of": tenant, "rows": rows, "at": at}
