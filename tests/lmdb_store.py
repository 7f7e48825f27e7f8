"""A store over LMDB, an embedded engine of ordered keys: written by what `docs/stores.md` says, and nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from struct import Struct
from typing import Any

import lmdb
import msgspec

from palimpsest.errors import StoreUnavailable
from palimpsest.runtime.runner import Runner
from palimpsest.stores.backend import (
    Ask,
    BlockingBackend,
    Due,
    Listed,
    Named,
    Place,
    PlaceHead,
    Range,
    Row,
    Scrubbed,
    Seen,
    Step,
)

KEY = Struct(">QIQ")  # of a place, a table and a row, by their numbers
pack = msgspec.msgpack.encode


class Kept(msgspec.Struct, array_like=True):
    """What is kept of a place: its head, and the numbers of its tables."""

    place: Place
    hot: bytes | None = None
    cold: bytes = b""
    expires: int | None = None
    mark: int = 0
    tables: dict[str, int] = {}

    @property
    def head(self) -> PlaceHead | None:
        """The place's head."""
        return None if self.hot is None else PlaceHead(self.hot, self.cold)


read_kept = msgspec.msgpack.Decoder(Kept).decode
read_row = msgspec.msgpack.Decoder(tuple[bytes, str, int | None]).decode


class LMDBBackend(BlockingBackend):
    """Places and rows in one environment. Ids and times are indexes of keys without values."""

    def __init__(self, path: str, runner: Runner) -> None:
        super().__init__(runner)
        self.url, self._path, self._lock = f"lmdb://{path}", path, threading.RLock()
        self._open()

    def _open(self) -> None:
        self._env = lmdb.open(self._path, map_size=1 << 32, max_dbs=5)
        names = (b"numbers", b"places", b"rows", b"ids", b"due")
        self._numbers, self._places, self._rows, self._ids, self._due = map(self._env.open_db, names)

    @contextmanager
    def _begun(self, *, write: bool = False) -> Iterator[Any]:
        try:
            with self._lock, self._env.begin(write=write) as txn:
                yield txn
        except lmdb.Error as cause:
            raise StoreUnavailable(self.url, str(cause)) from cause

    def _found(self, txn: Any, place: Place) -> tuple[bytes, Kept]:
        number = txn.get(_digest(place), db=self._numbers)
        return (number, read_kept(txn.get(number, db=self._places))) if number else (b"", Kept(place))

    def _between(self, txn: Any, db: Any, low: bytes, high: bytes, back: bool = False) -> Iterator[tuple[bytes, bytes]]:
        with txn.cursor(db) as cursor:
            if not back:
                there = cursor.set_range(low)
            elif there := cursor.set_range(high) or cursor.last():
                there = cursor.key() <= high or cursor.prev()
            for key, value in (cursor.iterprev if back else cursor.iternext)() if there else ():
                if not low <= key <= high:
                    return
                yield bytes(key), value

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        with self._begun() as txn:
            return [self._seen(txn, ask, *self._found(txn, ask.place)) for ask in asks]

    def _seen(self, txn: Any, ask: Ask, number: bytes, there: Kept) -> Seen:
        return Seen(there.head if ask.head else None, [self._asked(txn, number, there, one) for one in ask.rows])

    def _asked(self, txn: Any, number: bytes, there: Kept, ask: Range | Named) -> list[Row]:
        found: list[Row] = []
        table = number + there.tables.get(ask.table, 0).to_bytes(4)
        if ask.table in there.tables and isinstance(ask, Named):
            near = ((id, table + _digest(id)[:16]) for id in set(ask.ids))
            keys = [(key[-8:], id) for id, at in near for key, _ in self._between(txn, self._ids, at, at + b"\xff" * 9)]
            rows = [(_row(table + key, txn.get(table + key, db=self._rows)), id) for key, id in sorted(keys)]
            found = [row for row, id in rows if row.id == id]
        elif ask.table in there.tables and isinstance(ask, Range):
            back = ask.newest_first
            for low, high in reversed(ask.spans) if back else ask.spans:
                for key, value in self._between(
                    txn, self._rows, table + low.to_bytes(8), table + high.to_bytes(8), back
                ):
                    if ask.limit is not None and len(found) >= ask.limit:
                        return found
                    found.append(_row(key, value))
        return found[: ask.limit] if isinstance(ask, Range) else found

    async def write(
        self, batches: Sequence[Sequence[Step]], at: int, *, lasting: bool = True, again: Any = None
    ) -> list[Any]:
        with self._begun(write=True) as txn:
            return [self._batch(txn, batch) for batch in batches]

    def _batch(self, txn: Any, batch: Sequence[Step]) -> Any:
        there = [self._found(txn, step.place) for step in batch]
        if any(was.hot != step.expect and not step.rows_only for step, (_, was) in zip(batch, there, strict=True)):
            return tuple(None if step.rows_only else was.head for step, (_, was) in zip(batch, there, strict=True))
        mark = int.from_bytes(txn.get(b"mark", b"", db=self._numbers)) + 1  # also the number of a new place
        txn.put(b"mark", (mark + len(batch)).to_bytes(8), db=self._numbers)
        for i, (step, (number, was)) in enumerate(zip(batch, there, strict=True)):
            self._step(txn, step, number or (mark + i).to_bytes(8), was, mark)
        return None

    def _step(self, txn: Any, step: Step, number: bytes, was: Kept, mark: int) -> None:
        tables = dict(was.tables)
        for name, low, high in step.drop:
            for one in [t for t in tables if t == name or (name.endswith("*") and t.startswith(name[:-1]))]:
                at = number + tables[one].to_bytes(4)
                for key, _ in list(self._between(txn, self._rows, at + low.to_bytes(8), at + high.to_bytes(8))):
                    self._drop(txn, key)
        for name, rows in step.put:
            at = number + tables.setdefault(name, len(tables) + 1).to_bytes(4)
            for row in map(Row._make, rows):
                key = at + row.key.to_bytes(8)
                self._drop(txn, key)
                txn.put(key, pack((row.value, row.id, row.expires)), db=self._rows)
                if row.id:
                    txn.put(at + _digest(row.id)[:16] + row.key.to_bytes(8), b"", db=self._ids)
                self._time(txn, key, None, row.expires)
        now = msgspec.structs.replace(was, tables=tables)
        if not step.rows_only and (step.hot != step.expect or step.cold is not None):
            cold = was.cold if step.cold is None else step.cold
            now = (
                Kept(step.place, step.hot, cold, step.expires, mark, tables)
                if step.hot is not None
                else Kept(step.place, tables=tables)
            )
            self._time(txn, KEY.pack(int.from_bytes(number), 0, 0), was.expires, now.expires)
        if now.hot is not None or any(self._between(txn, self._rows, number, number + b"\xff" * 12)):
            txn.put(_digest(step.place), number, db=self._numbers)
            txn.put(number, pack(now), db=self._places)
        else:
            txn.delete(_digest(step.place), db=self._numbers)
            txn.delete(number, db=self._places)

    def _drop(self, txn: Any, key: bytes) -> None:
        if (value := txn.pop(key, db=self._rows)) is not None:
            _, id, expires = read_row(value)
            txn.delete(key[:12] + _digest(id)[:16] + key[12:], db=self._ids)
            self._time(txn, key, expires, None)

    def _time(self, txn: Any, key: bytes, before: int | None, now: int | None) -> None:
        if before is not None:
            txn.delete(before.to_bytes(8) + key, db=self._due)
        if now is not None:
            txn.put(now.to_bytes(8) + key, b"", db=self._due)

    def _all(self) -> list[Kept]:
        with self._begun() as txn, txn.cursor(self._places) as cursor:
            return [there for _, value in cursor if (there := read_kept(value)).hot is not None]

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        meant = [one for one in self._all() if one.place.tenant == tenant]
        meant = [one for one in meant if one.place.space == space or (beneath and one.place.space.startswith(space))]
        meant = sorted((one for one in meant if after is None or _order(one) > _order(Kept(after))), key=_order)
        return [Listed(one.place, one.head) for one in meant[:limit] if one.head is not None]

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        meant = [(one.mark, _order(one), one) for one in self._all() if one.place[::2] == (tenant, space)]
        begin = (since, _order(Kept(after)) if after is not None else ())
        meant = sorted((one for one in meant if one[:2] > begin), key=lambda one: one[:2])
        return [Listed(one.place, one.head, one.mark) for _, _, one in meant[:limit] if one.head is not None]

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        found: list[Due] = []
        with self._begun() as txn:
            for timed, _ in self._between(txn, self._due, b"", now.to_bytes(8) + b"\xff" * 20):
                _, table, key = KEY.unpack(timed[8:])
                there = read_kept(txn.get(timed[8:16], db=self._places))
                name = next((name for name, one in there.tables.items() if one == table), "")
                found.append(Due(int.from_bytes(timed[:8]), there.place, name, key))
        found = [due for due in found if due.place.tenant == tenant and (after is None or due > after)]
        return sorted(found)[:limit]

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        found = {one.place.tenant for one in self._all()}
        return sorted(tenant for tenant in found if after is None or tenant > after)[:limit]

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        with self._lock:  # free pages keep what was in them: only a copy has none
            os.makedirs(f"{self._path}/copy", exist_ok=True)
            self._env.copy(f"{self._path}/copy", compact=True)
            self._env.close()
            os.replace(f"{self._path}/copy/data.mdb", f"{self._path}/data.mdb")
            self._open()
        return Scrubbed()

    async def close(self) -> None:
        self._env.close()


def _digest(name: object) -> bytes:
    return blake2b(pack(name), digest_size=32).digest()


def _order(one: Kept) -> tuple[str, str, str]:
    return one.place.space, one.place.name, one.place.home


def _row(key: bytes, value: bytes) -> Row:
    return Row(int.from_bytes(key[-8:]), *read_row(value))
