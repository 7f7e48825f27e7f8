"""A backend over any engine of ordered pairs: an embedded one such as LMDB or RocksDB, or a table of two columns.

The engine provides transactions over pairs of bytes. Names may be longer than the keys that engines accept, so keys
contain digests of names (`_sum`), 20 bytes each, and no key is longer than 100 bytes:

    h  tenant, place                  the place's head, its expiry, the mark of its last write, the names of its tables
    r  place, table, key              a row
    i  place, table, id, key          says that the row has this id; no value
    d  tenant, time, place, table, key    something that expires, and where it is
    m                                 the mark of the last write
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Protocol, TypeVar

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import (
    Again,
    Ask,
    Batch,
    BlockingBackend,
    Cells,
    Due,
    Listed,
    Named,
    Place,
    PlaceHead,
    Range,
    Refusal,
    Seen,
    Step,
)
from palimpsest.stores.rules import by_mark, by_name, is_meant, page_of, refused, try_batch

T = TypeVar("T")
SUM = 20
_END = b"\xff" * (SUM + 64)
"""Sorts after every continuation of a key."""


class Pairs(Protocol):
    """A transaction over pairs, ordered by the bytes of their keys."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None if there is no such pair."""
        ...

    def put(self, key: bytes, value: bytes) -> object:
        """Store a value, replacing the one that is stored."""
        ...

    def delete(self, key: bytes) -> object:
        """Remove a pair, if it exists."""
        ...

    def between(self, low: bytes, high: bytes, last_first: bool = False) -> Iterable[tuple[bytes, bytes]]:
        """Yield the pairs whose keys are from `low` to `high`, both included, in order or in the opposite order.

        Reads no further than it is iterated. Nothing is written during the iteration.
        """
        ...


class Kept(msgspec.Struct, array_like=True):
    """What is stored of a place beside its rows."""

    place: Place
    head: tuple[bytes, bytes] | None = None
    expires: int | None = None
    mark: int = 0
    tables: tuple[str, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_row = msgspec.msgpack.Decoder(tuple[bytes, str, int | None])
_kept = msgspec.msgpack.Decoder(Kept)
_due = msgspec.msgpack.Decoder(Due)


class KeyedBackend(BlockingBackend):
    """A backend of pairs. A subclass adds `begun`, `close`, and `scrub` if its engine leaves bytes of removed pairs."""

    @abstractmethod
    def begun(self, *, write: bool = False) -> AbstractContextManager[Pairs]:
        """Begin a transaction, which sees one state. The `with` commits it, or rolls it back after an error.

        Transactions with `write` wait for each other. Raises StoreUnavailable as verbs do.
        """

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        with self.begun() as pairs:
            return self._seen(pairs, asks)

    def _seen(self, pairs: Pairs, asks: Sequence[Ask]) -> list[Seen]:
        return [
            Seen(
                _head(self._kept(pairs, ask.place)) if ask.head else None,
                [self._rows(pairs, ask.place, rows_ask) for rows_ask in ask.rows],
            )
            for ask in asks
        ]

    def _read(self, decoder: msgspec.msgpack.Decoder[T], value: bytes) -> T:
        try:
            return decoder.decode(value)
        except msgspec.DecodeError as cause:
            raise StoreCorrupt(self.url, f"stored data cannot be read ({cause})") from cause

    def _kept(self, pairs: Pairs, place: Place) -> Kept:
        value = pairs.get(_at(place))
        return Kept(place) if value is None else self._read(_kept, value)

    def _rows(self, pairs: Pairs, place: Place, ask: Range | Named) -> list[Cells]:
        table = _sums(place, ask.table)
        if isinstance(ask, Named):
            prefixes = [b"i%b%b" % (table, _sum(id)) for id in ask.ids]
            keys = sorted({key[-8:] for prefix in prefixes for key, _ in pairs.between(prefix, prefix + _END)})
            return [self._cells(key, pairs.get(b"r%b%b" % (table, key)) or b"") for key in keys]
        cells: list[Cells] = []
        for low, high in reversed(ask.spans) if ask.newest_first else ask.spans:
            span = b"r%b%b" % (table, low.to_bytes(8)), b"r%b%b" % (table, high.to_bytes(8))
            for key, value in pairs.between(*span, ask.newest_first) if len(cells) != ask.limit else ():
                cells.append(self._cells(key[-8:], value))
                if len(cells) == ask.limit:
                    break
        return cells

    def _cells(self, key: bytes, value: bytes) -> Cells:
        return int.from_bytes(key), *self._read(_row, value)

    # --- listings: each reads all heads of the tenant

    def _listed(self, tenant: bytes) -> list[Listed]:
        with self.begun() as pairs:
            kept = [self._read(_kept, value) for _, value in pairs.between(b"h" + tenant, b"h" + tenant + _END)]
        return [Listed(one.place, head, one.mark) for one in kept if (head := _head(one)) is not None]

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        listed = self._listed(_sum(tenant))
        in_space = [
            one for one in listed if one.place.space == space or (beneath and one.place.space.startswith(space))
        ]
        return by_name(in_space, after, limit)

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        return by_mark([one for one in self._listed(_sum(tenant)) if one.place.space == space], since, after, limit)

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        tenants = {one.place.tenant for one in self._listed(b"")}
        return page_of(tenants, after, limit)

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        prefix = b"d" + _sum(tenant)
        with self.begun() as pairs:
            expired = [self._read(_due, value) for _, value in pairs.between(prefix, prefix + now.to_bytes(8) + _END)]
        return page_of(expired, after, limit)

    # --- writing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        with self.begun(write=True) as pairs:
            do, look = partial(self._do, pairs), partial(self._seen, pairs)
            return [try_batch(number, batch, do, again, look) for number, batch in enumerate(batches)]

    def _do(self, pairs: Pairs, batch: Batch) -> Refusal | None:
        """Do a batch, unless its heads refuse it; return the refusal."""
        kept_before = [self._kept(pairs, step.place) for step in batch]
        refusal = refused(batch, [_head(kept_place) for kept_place in kept_before])
        if refusal is None:
            mark = int.from_bytes(pairs.get(b"m") or b"") + 1
            pairs.put(b"m", mark.to_bytes(8))
            for step, kept in zip(batch, kept_before, strict=True):
                self._change(pairs, step, kept, mark)
        return refusal

    def _change(self, pairs: Pairs, step: Step, kept: Kept, mark: int) -> None:
        """Do a step in a place of which this is stored."""
        tables, dropped = dict.fromkeys(kept.tables), set[str]()
        for name, low, high in step.drop:
            for table in [one for one in tables if is_meant(one, name)]:
                dropped.add(table)
                self._drop(pairs, step.place, table, low, high)
        for table, rows in step.put:
            for row in rows:
                self._put(pairs, step.place, table, row)
                tables[table] = None
        for table in dropped:
            prefix = b"r" + _sums(step.place, table)
            if next(iter(pairs.between(prefix, prefix + _END)), None) is None:
                del tables[table]
        kept_after = Kept(step.place, kept.head, kept.expires, kept.mark, tuple(tables))
        if step.moves:
            head = step.after(_head(kept))
            kept_after.head = None if head is None else (head.hot, head.cold)
            kept_after.expires, kept_after.mark = None if head is None else step.expires, mark
            _move_expiry(pairs, kept.expires, kept_after.expires, step.place)
        if kept_after.head is None and not tables:
            pairs.delete(_at(step.place))
        elif kept_after != kept:
            pairs.put(_at(step.place), _encode(kept_after))

    def _put(self, pairs: Pairs, place: Place, table: str, row: Cells) -> None:
        key, value, id, expires = row
        self._drop(pairs, place, table, key, key)
        sums, at = _sums(place, table), key.to_bytes(8)
        pairs.put(b"r%b%b" % (sums, at), _encode((value, id, expires)))
        if id:
            pairs.put(b"i%b%b%b" % (sums, _sum(id), at), b"")
        _move_expiry(pairs, None, expires, place, table, key)

    def _drop(self, pairs: Pairs, place: Place, table: str, low: int, high: int) -> None:
        sums = _sums(place, table)
        for at, value in list(pairs.between(b"r%b%b" % (sums, low.to_bytes(8)), b"r%b%b" % (sums, high.to_bytes(8)))):
            key, _, id, expires = self._cells(at[-8:], value)
            pairs.delete(at)
            if id:
                pairs.delete(b"i%b%b%b" % (sums, _sum(id), at[-8:]))
            _move_expiry(pairs, expires, None, place, table, key)


def _move_expiry(
    pairs: Pairs, before: int | None, after: int | None, place: Place, table: str = "", key: int = 0
) -> None:
    """Store when a row, or a head, expires, and remove its earlier expiry."""
    if before is not None:
        pairs.delete(_timed(before, place, table, key))
    if after is not None:
        pairs.put(_timed(after, place, table, key), _encode(Due(after, place, table, key)))


@lru_cache(4096)
def _sum(*names: str) -> bytes:
    """Return a digest of names, different for different names."""
    return blake2b(_encode(names), digest_size=SUM).digest()


def _at(place: Place) -> bytes:
    """Return the key of what is stored of a place beside its rows."""
    return b"h" + _sum(place.tenant) + _sum(*place)


def _sums(place: Place, table: str) -> bytes:
    """Return the part of a key that names a table of a place."""
    return _sum(*place) + _sum(table)


def _timed(at: int, place: Place, table: str, key: int) -> bytes:
    return b"d%b%b%b%b" % (_sum(place.tenant), at.to_bytes(8), _sums(place, table), key.to_bytes(8))


def _head(kept: Kept) -> PlaceHead | None:
    return None if kept.head is None else PlaceHead(*kept.head)
