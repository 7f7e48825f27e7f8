"""How places are stored in one collection of MongoDB: the documents, and their keys.

The key of a document, its `_id`, begins with `home`, a digest of tenant and home, followed by a letter for its kind and
the rest below. Keys of one kind have one length, so that the order of their bytes is that of their parts. PLACE and
TABLE are digests of names:

    l                   the lock of the home: every transaction changes it
    h PLACE             a head, with its `tail`: rows that were put since it was last emptied, one value for each batch;
                        `own` lists the keys of the parts whose rows go to this tail
    n PLACE             the names of a place that has a head
    t PLACE             the names of the tables in which a place has buckets, and the `owners`: heads whose tails may
                        have rows of the place
    o PLACE PART        the `owner` of a part, which is the head whose tail takes its rows (or none), and in `tops` the
                        last bucket of each table in the part
    r TABLE BUCKET      a bucket: the rows of 32 neighbouring keys
    v NUMBER PIECE      a piece of a value that is too large for the document it belongs to

Heads and names have a `list` field, whose index serves listings: the heads of a space by their last write, the names by
themselves. A document with something that expires has `due`, with the first time. A bucket has `ids`, digests of the
ids of its rows, whose index finds rows by id; a document `t` has its own key there, and so is found by the same query.

A part of a place is the rows whose keys have the same upper half (32 bits). A row that is put to a part goes to the
tail of the head that owns the part, if that head is written in the same batch. This is one update of one document,
which matches only if the document is as it was last seen: `hot` ends in a random number that each write replaces, so
comparing `hot` alone tells. Every other batch is a transaction, which first empties the tails of the parts that it
changes. So a row in a tail is newer than one with its key in a bucket, and no two tails have rows of one part.
A transaction gives each head that it writes a new `made`: while `made` is unchanged, so are the documents `o` of the
parts that the head owns.
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
"""The low bits of a key in which the rows of one bucket differ: it holds 2**BUCKET rows."""

INLINE = 256 * 1024
"""Bytes of a row's value above which it is stored in pieces: a bucket of 32 rows must fit into a document of 16 MB."""
HEAD_INLINE = 1024 * 1024
"""The same limit for each of the two values of a head."""
PIECE = 4 * 1024 * 1024
"""Bytes of a piece."""
HOME = 16
"""Bytes of the digest of a home."""
NUMBER = 8
"""Bytes of the random number of a write, behind the hot value of a head."""


def _sum(size: int, names: Sequence[str]) -> bytes:
    """Return a digest of names. Their lengths are hashed too, so that differently split names differ."""
    hashed = blake2b(digest_size=size)
    for name in names:
        text = name.encode("utf-8")
        hashed.update(len(text).to_bytes(4))
        hashed.update(text)
    return hashed.digest()


# --- keys


def kind_of(key: bytes) -> bytes:
    """Return the letter in a key that says of which kind its document is."""
    return key[HOME : HOME + 1]


@lru_cache(8192)
def home_of(tenant: str, home: str) -> bytes:
    """Return the digest of a home: the beginning of the keys of all its documents, and the shard key."""
    return _sum(HOME, (tenant, home))


def lock_key(home: bytes) -> bytes:
    """Return the key of a home's lock."""
    return home + b"l"


@lru_cache(8192)
def head_key(place: Place) -> bytes:
    """Return the key of a place's head (`h`)."""
    return home_of(place.tenant, place.home) + b"h" + _sum(SUM, place)


def names_key(place: Place) -> bytes:
    """Return the key of a place's names (`n`)."""
    return _beside(head_key(place), b"n")


def tables_key(place: Place) -> bytes:
    """Return the key of the names of a place's tables (`t`)."""
    return _beside(head_key(place), b"t")


def part_key(place: Place, part: int) -> bytes:
    """Return the key of a part (`o`); `part` is the upper half of the keys of its rows."""
    return _beside(head_key(place), b"o") + part.to_bytes(4)


def tables_beside(part: bytes) -> bytes:
    """Return the key of the names of the tables (`t`) of the place that has this part, by the part's key."""
    return _beside(part[:-4], b"t")


def _beside(key: bytes, kind: bytes) -> bytes:
    """Return the key of a document of another kind with the same digest."""
    return key[:HOME] + kind + key[HOME + 1 :]


@lru_cache(8192)
def table_sum(place: Place, table: str) -> bytes:
    """Return the digest of a table of a place."""
    return _sum(SUM, (*place, table))


def bucket_key(home: bytes, table: bytes, bucket: int) -> bytes:
    """Return the key of a bucket (`r`) of a table, given by its digest."""
    return b"".join((home, b"r", table, bucket.to_bytes(8)))


def bucket_of(key: bytes) -> tuple[bytes, int]:
    """Return the digest of the table, and the number, of the bucket that has this key."""
    return key[HOME + 1 : HOME + 1 + SUM], int.from_bytes(key[HOME + 1 + SUM :])


def id_sum(table: bytes, id: str) -> bytes:
    """Return the digest of an id in a table: the buckets with rows of this id have it in `ids`."""
    return blake2b(table + id.encode("utf-8"), digest_size=HOME).digest()


def by_key(key: bytes, spread: bool) -> Doc:
    """Return a filter for the document of this key, or the beginning of one.

    The router of a sharded cluster also needs the home, the shard key. A single server needs only the key, and a longer
    filter costs it time: SecantusDB tries an index for all fields together before it uses one of a single field.
    """
    return {"_id": key, "home": key[:HOME]} if spread else {"_id": key}


def piece_keys(home: bytes, reference: bytes) -> list[bytes]:
    """Return the keys of the pieces of a value, in order, by the reference to it."""
    count = -(-int.from_bytes(reference[SUM:]) // PIECE)
    return [home + b"v" + reference[:SUM] + number.to_bytes(4) for number in range(count)]


# --- lists


def _ended(*names: str) -> str:
    """Join names to a text that sorts like them. Each ends with two NULs, which sort before all that may follow."""
    return "".join(f"{_escaped(name)}\0\0" for name in names)


def _escaped(name: str) -> str:
    return name.replace("\0", "\0\1")


def of_names(tenant: str, *more: str, beneath: str | None = None) -> str:
    """Return the beginning of the `list` of names of places, which are in order of space, name and home.

    `more` are as many of these as are given; `beneath` is the beginning of a space.
    """
    return f"n{_ended(tenant, *more)}" + ("" if beneath is None else _escaped(beneath))


def of_marks(tenant: str, space: str) -> str:
    """Return the `list` of the heads of a space. Their order is by `mark` and `at`."""
    return f"m{_ended(tenant, space)}"


def at_of(name: str, home: str) -> str:
    """Return the `at` of a head: its name and home as one text."""
    return _ended(name, home)


def place_at(tenant: str, space: str, at: str) -> Place:
    """Return the place whose head has this `at`. Raises ValueError if it is damaged."""
    name, home, _ = (text.replace("\0\1", "\0") for text in at.split("\0\0"))
    return Place(tenant, home, space, name)


# --- documents


def bucket(key: bytes, place: Place, table: str, cells: Iterable[bytes]) -> Doc:
    """Return the document of a bucket with these rows."""
    rows = sorted(cells)
    doc: Doc = {"_id": key, "home": key[:HOME], "r": rows}
    ids = {id_sum(bucket_of(key)[0], id) for cell in rows if (id := Cell.id(cell))}
    if ids:
        doc["ids"] = sorted(ids)
    due = [at for cell in rows if (at := Cell.expires(cell)) is not None]
    if due:
        doc |= {"due": due_of(place.tenant, min(due), rows=True), "of": [place.home, place.space, place.name, table]}
    return doc


def new_head(place: Place) -> Doc:
    """Return the document of a new head, without its values."""
    key = head_key(place)
    listed = {"list": of_marks(place.tenant, place.space), "at": at_of(place.name, place.home)}
    identity = {"_id": key, "home": key[:HOME], **listed, "tenant": place.tenant, "space": place.space}
    return {**identity, "own": [], "tail": []}


def names_of(place: Place) -> Doc:
    """Return the document of the names of a place that has a head."""
    key = names_key(place)
    names = {"tenant": place.tenant, "space": place.space, "name": place.name, "hn": place.home}
    return {"_id": key, "home": key[:HOME], "list": of_names(*names.values()), **names}


Put = tuple[str, str, str, list[bytes]]
"""Rows of a batch as they are stored in a tail: the space and name of their place, their table, and their cells."""

packed = msgspec.msgpack.Encoder().encode
_unpacked = msgspec.msgpack.Decoder(list[Put]).decode


def in_tail(doc: Doc) -> Iterator[tuple[Place, str, list[bytes]]]:
    """Yield place, table and cells for all rows in a head's tail, older ones first. Raises ValueError for a damaged
    tail."""
    own = place_at(doc["tenant"], doc["space"], doc["at"])
    for batch in doc["tail"]:
        for space, name, table, cells in _unpacked(batch):
            yield Place(own.tenant, own.home, space, name), table, cells


def reference(number: bytes, size: int) -> bytes:
    """Return the reference to a value in pieces: the number that its pieces have in their keys, and its size."""
    return number + size.to_bytes(8)


def in_pieces(home: bytes, reference: bytes, value: bytes) -> list[Doc]:
    """Return the documents that hold the pieces of a value."""
    keys = enumerate(piece_keys(home, reference))
    return [{"_id": key, "home": home, "v": value[i * PIECE : (i + 1) * PIECE]} for i, key in keys]


class Known(NamedTuple):
    """What is remembered of a head's document. It holds while the number at the end of `hot` is the same.

    `own` are the keys of the parts it owns, `size` is that of its tail in bytes, `exp` when the head expires, `first`
    when the first row in its tail expires, `apart` the names of its fields whose value is in pieces.
    """

    hot: bytes
    own: frozenset[bytes]
    size: int
    exp: int | None
    first: int | None
    apart: frozenset[str]

    @classmethod
    def of(cls, doc: Doc) -> Known:
        """Return what is to be remembered of this document. Raises KeyError or TypeError for a damaged one."""
        size, apart = sum(map(len, doc["tail"])), frozenset(name for name in ("hotv", "coldv") if name in doc)
        return cls(doc["hot"], frozenset(doc["own"]), size, doc.get("exp"), doc.get("first"), apart)

    @property
    def value(self) -> bytes:
        """The head's hot value, without the number."""
        return self.hot[:-NUMBER]


def due_of(tenant: str, at: int, rows: bool) -> Doc:
    """Return the `due` of a document in which something expires first at this time.

    `rows` says that rows expire, so that there may be later times in it, too.
    """
    return {"of": tenant, "rows": rows, "at": at}
