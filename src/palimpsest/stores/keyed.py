"""A backend over any engine of ordered pairs: an embedded one such as LMDB or RocksDB, or a table of two columns.

The engine gives transactions over pairs of bytes. Names may be longer than the keys that engines take, so keys have
digests of them (`_sum`), 20 bytes each, and no key is longer than 100 bytes:

    h  tenant, place                  the place's head, when that expires and was written, the names of its tables
    r  place, table, key              a row
    i  place, table, id, key          which rows have an id, without a value
    d  tenant, time, place, table, key    what expires, and where that is
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
from palimpsest.stores.rules import by_mark, by_name, is_meant, page_of, refused, tried

T = TypeVar("T")
SUM = 20
_END = b"\xff" * (SUM + 64)
"""Sorts behind whatever a key goes on with."""


class Pairs(Protocol):
    """A transaction over pairs, which are in the order of their keys' bytes."""

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key; None where there is no such pair."""
        ...

    def put(self, key: bytes, value: bytes) -> object:
        """Store a value, in the place of the one that was there."""
        ...

    def delete(self, key: bytes) -> object:
        """Remove a pair, if it is there."""
        ...

    def between(self, low: bytes, high: bytes, last_first: bool = False) -> Iterable[tuple[bytes, bytes]]:
        """Give the pairs whose keys are not before `low`, nor behind `high`, in order or the other way round.

        What is asked for no further is read no further. Nothing is written meanwhile.
        """
        ...


class Kept(msgspec.Struct, array_like=True):
    """What is kept of a place beside its rows."""

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
    """A backend of pairs. What is left is `begun`, `close`, and `scrub` where the engine leaves bytes of what goes."""

    @abstractmethod
    def begun(self, *, write: bool = False) -> AbstractContextManager[Pairs]:
        """Begin a transaction, which sees one state, and ends with the `with`: committed, or by an error taken back.

        Those that `write` wait for each other. Raises StoreUnavailable as verbs do.
        """

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        with self.begun() as pairs:
            return self._seen(pairs, asks)

    def _seen(self, pairs: Pairs, asks: Sequence[Ask]) -> list[Seen]:
        return [
            Seen(
                _head(self._kept(pairs, ask.place)) if ask.head else None,
                [self._rows(pairs, ask.place, one) for one in ask.rows],
            )
            for ask in asks
        ]

    def _read(self, decoder: msgspec.msgpack.Decoder[T], value: bytes) -> T:
        try:
            return decoder.decode(value)
        except msgspec.DecodeError as cause:
            raise StoreCorrupt(self.url, f"what it keeps cannot be read ({cause})") from cause

    def _kept(self, pairs: Pairs, place: Place) -> Kept:
        found = pairs.get(_at(place))
        return Kept(place) if found is None else self._read(_kept, found)

    def _rows(self, pairs: Pairs, place: Place, ask: Range | Named) -> list[Cells]:
        table = _sums(place, ask.table)
        if isinstance(ask, Named):
            near = [b"i%b%b" % (table, _sum(id)) for id in ask.ids]
            keys = sorted({key[-8:] for one in near for key, _ in pairs.between(one, one + _END)})
            return [self._cells(key, pairs.get(b"r%b%b" % (table, key)) or b"") for key in keys]
        found: list[Cells] = []
        for low, high in reversed(ask.spans) if ask.newest_first else ask.spans:
            span = b"r%b%b" % (table, low.to_bytes(8)), b"r%b%b" % (table, high.to_bytes(8))
            for key, value in pairs.between(*span, ask.newest_first) if len(found) != ask.limit else ():
                found.append(self._cells(key[-8:], value))
                if len(found) == ask.limit:
                    break
        return found

    def _cells(self, key: bytes, value: bytes) -> Cells:
        return int.from_bytes(key), *self._read(_row, value)

    # --- listings: of a tenant all heads are read

    def _listed(self, tenant: bytes) -> list[Listed]:
        with self.begun() as pairs:
            kept = [self._read(_kept, value) for _, value in pairs.between(b"h" + tenant, b"h" + tenant + _END)]
        return [Listed(one.place, head, one.mark) for one in kept if (head := _head(one)) is not None]

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        found = self._listed(_sum(tenant))
        meant = [one for one in found if one.place.space == space or (beneath and one.place.space.startswith(space))]
        return by_name(meant, after, limit)

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        return by_mark([one for one in self._listed(_sum(tenant)) if one.place.space == space], since, after, limit)

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        found = {one.place.tenant for one in self._listed(b"")}
        return page_of(found, after, limit)

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        mine = b"d" + _sum(tenant)
        with self.begun() as pairs:
            found = [self._read(_due, value) for _, value in pairs.between(mine, mine + now.to_bytes(8) + _END)]
        return page_of(found, after, limit)

    # --- writing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        with self.begun(write=True) as pairs:
            do, look = partial(self._done, pairs), partial(self._seen, pairs)
            return [tried(number, batch, do, again, look) for number, batch in enumerate(batches)]

    def _done(self, pairs: Pairs, batch: Batch) -> Refusal | None:
        there = [self._kept(pairs, step.place) for step in batch]
        refusal = refused(batch, [_head(one) for one in there])
        if refusal is None:
            mark = int.from_bytes(pairs.get(b"m") or b"") + 1
            pairs.put(b"m", mark.to_bytes(8))
            for step, kept in zip(batch, there, strict=True):
                self._change(pairs, step, kept, mark)
        return refusal

    def _change(self, pairs: Pairs, step: Step, kept: Kept, mark: int) -> None:
        """Take a step in a place of which this is kept."""
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
            whole = b"r" + _sums(step.place, table)
            if next(iter(pairs.between(whole, whole + _END)), None) is None:
                del tables[table]
        after = Kept(step.place, kept.head, kept.expires, kept.mark, tuple(tables))
        if step.moves:
            head = step.after(_head(kept))
            after.head = None if head is None else (head.hot, head.cold)
            after.expires, after.mark = None if head is None else step.expires, mark
            _time(pairs, kept.expires, after.expires, step.place)
        if after.head is None and not tables:
            pairs.delete(_at(step.place))
        elif after != kept:
            pairs.put(_at(step.place), _encode(after))

    def _put(self, pairs: Pairs, place: Place, table: str, row: Cells) -> None:
        key, value, id, expires = row
        self._drop(pairs, place, table, key, key)
        sums, at = _sums(place, table), key.to_bytes(8)
        pairs.put(b"r%b%b" % (sums, at), _encode((value, id, expires)))
        if id:
            pairs.put(b"i%b%b%b" % (sums, _sum(id), at), b"")
        _time(pairs, None, expires, place, table, key)

    def _drop(self, pairs: Pairs, place: Place, table: str, low: int, high: int) -> None:
        sums = _sums(place, table)
        for at, value in list(pairs.between(b"r%b%b" % (sums, low.to_bytes(8)), b"r%b%b" % (sums, high.to_bytes(8)))):
            key, _, id, expires = self._cells(at[-8:], value)
            pairs.delete(at)
            if id:
                pairs.delete(b"i%b%b%b" % (sums, _sum(id), at[-8:]))
            _time(pairs, expires, None, place, table, key)


def _time(pairs: Pairs, before: int | None, after: int | None, place: Place, table: str = "", key: int = 0) -> None:
    """Note when a row, or a head, expires, and no longer when it did before."""
    if before is not None:
        pairs.delete(_timed(before, place, table, key))
    if after is not None:
        pairs.put(_timed(after, place, table, key), _encode(Due(after, place, table, key)))


@lru_cache(4096)
def _sum(*names: str) -> bytes:
    """A digest of names, which no others have."""
    return blake2b(_encode(names), digest_size=SUM).digest()


def _at(place: Place) -> bytes:
    """Where it stands what is kept of a place."""
    return b"h" + _sum(place.tenant) + _sum(*place)


def _sums(place: Place, table: str) -> bytes:
    """How the keys of a table go on."""
    return _sum(*place) + _sum(table)


def _timed(at: int, place: Place, table: str, key: int) -> bytes:
    return b"d%b%b%b%b" % (_sum(place.tenant), at.to_bytes(8), _sums(place, table), key.to_bytes(8))


def _head(kept: Kept) -> PlaceHead | None:
    return None if kept.head is None else PlaceHead(*kept.head)
