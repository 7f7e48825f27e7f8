"""`memory://`: a store in this process, gone with it. Also what every other store is compared with.

Signals. A handler may raise between any two steps, so a write makes all that it changes aside, and one call of C puts
it in place. Only rows at the end of a table are put where they stay, behind the end that is in place: nobody reads on
beyond that, and the next who writes there takes them away.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from palimpsest.errors import ConfigError
from palimpsest.log.spans import Span
from palimpsest.runtime.runner import Runner
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
    Row,
    Seen,
    Step,
)
from palimpsest.stores.options import discreet_address
from palimpsest.stores.rules import by_mark, by_name, in_spans, is_meant, page_of, refused


def open_memory(url: str, runner: Runner, **options: Any) -> MemoryBackend:
    """Open an empty one. Raises ConfigError for any option, or an address with a path."""
    accepted(url, **options)
    return MemoryBackend(runner)


def accepted(url: str, **options: Any) -> None:
    """Raise ConfigError for what is not accepted: any option, or an address with a path."""
    if url not in ("memory:", "memory://"):
        shown = discreet_address(url)
        raise ConfigError("store", shown, "memory:// (it has no name: nobody else can open it)")
    if options:
        raise ConfigError("option", min(options), "none (memory:// has no options)")


class _Table(NamedTuple):
    """Rows in order of their keys, the first `end` of them, and the keys of rows by id, some of which may be gone."""

    rows: list[Row]
    end: int
    ids: dict[str, tuple[int, ...]]

    def among(self, low: int, high: int) -> tuple[int, int]:
        """From where to where the rows of a span of keys are."""
        begin = bisect_left(self.rows, (low,), 0, self.end)
        return begin, bisect_right(self.rows, high, begin, self.end, key=_key)

    def read(self, ask: Range) -> list[Row]:
        return in_spans(ask, lambda low, high: self.rows[slice(*self.among(low, high))])

    def named(self, ids: Iterable[str]) -> list[Row]:
        keys = sorted({(key, id) for id in ids for key in self.ids.get(id, ())})
        rows = ((self.at(key), id) for key, id in keys)
        return [row for row, id in rows if row is not None and row.id == id]

    def at(self, key: int) -> Row | None:
        i = bisect_left(self.rows, (key,), 0, self.end)
        return self.rows[i] if i < self.end and self.rows[i].key == key else None

    def without(self, low: int, high: int) -> _Table:
        begin, end = self.among(low, high)
        return self if begin == end else _made([*self.rows[:begin], *self.rows[end : self.end]])

    def having(self, given: Sequence[Cells]) -> _Table:
        new = [Row(*row) for row in given]
        if self.end and any(row.key <= self.rows[self.end - 1].key for row in new):
            kept = {row.key: row for row in chain(self.rows[: self.end], new)}
            return _made([kept[key] for key in sorted(kept)])
        new = sorted({row.key: row for row in new}.values())
        del self.rows[self.end :]
        self.rows.extend(new)
        for row in new:
            if row.id:
                self.ids[row.id] = (*self.ids.get(row.id, ()), row.key)
        return _Table(self.rows, self.end + len(new), self.ids)


_key = attrgetter("key")


def _made(rows: list[Row]) -> _Table:
    ids: dict[str, tuple[int, ...]] = {}
    for row in rows:
        if row.id:
            ids[row.id] = (*ids.get(row.id, ()), row.key)
    return _Table(rows, len(rows), ids)


class Stored(NamedTuple):
    """A place: its head, when that expires and was written last, its tables; and what is hidden below an overlay."""

    head: PlaceHead | None
    expires: int | None
    mark: int
    tables: dict[str, _Table]
    hidden: dict[str, tuple[Span, ...]]


NOTHING = Stored(None, None, 0, {}, {})


class MemoryBackend(BlockingBackend):
    """Everything in dictionaries, under one lock."""

    url = "memory://"

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner)
        self._lock = threading.Lock()
        self._there: dict[Place, Stored] = {}
        self._mark = 0

    def all(self) -> list[tuple[Place, Stored]]:
        """Every place that there is, for whoever has the lock."""
        return list(self._there.items())

    def at(self, place: Place) -> Stored:
        """A place as it is, for whoever has the lock."""
        return self._there.get(place, NOTHING)

    # --- reading

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        with self._lock:
            return [self._seen(ask) for ask in asks]

    def _seen(self, ask: Ask) -> Seen:
        there = self.at(ask.place)
        return Seen(there.head if ask.head else None, [_rows(there.tables.get(one.table), one) for one in ask.rows])

    def _listed(self, tenant: str, space: str, beneath: bool = False) -> list[Listed]:
        """The places of these spaces, in any order."""
        with self._lock:
            there = self.all()
        return [
            Listed(place, one.head, one.mark)
            for place, one in there
            if place.tenant == tenant
            and one.head is not None
            and (place.space.startswith(space) if beneath else place.space == space)
        ]

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        return by_name(self._listed(tenant, space, beneath), after, limit)

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        return by_mark(self._listed(tenant, space), since, after, limit)

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        with self._lock:
            there = [one for one in self._there.items() if one[0].tenant == tenant]
        found = [Due(one.expires, place) for place, one in there if one.expires is not None and one.expires <= now]
        for place, stored in there:
            for name, table in stored.tables.items():
                due = (row for row in table.rows[: table.end] if row.expires is not None and row.expires <= now)
                found += [Due(row.expires or 0, place, name, row.key) for row in due]
        return page_of(found, after, limit)

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        with self._lock:
            there = self.all()
        found = {place.tenant for place, one in there if one.head is not None}
        return page_of(found, after, limit)

    # --- writing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        with self._lock:
            return [self._write(batch) for batch in batches]

    def _write(self, batch: Batch) -> Refusal | None:
        befores = [self.at(step.place) for step in batch]
        if (refusal := refused(batch, [before.head for before in befores])) is not None:
            return refusal
        mark = self._mark + 1
        new = {step.place: self.after_step(step, was, mark) for step, was in zip(batch, befores, strict=True)}
        self._mark = mark
        self._there.update(new)
        for place in [place for place, one in new.items() if self.is_none(one)]:
            self._there.pop(place, None)
        return None

    def is_none(self, place: Stored) -> bool:
        """Whether this is a place that there need not be."""
        return place.head is None and not place.tables

    def after_step(self, step: Step, was: Stored, mark: int) -> Stored:
        """What a place is after a step that can be done."""
        tables = was.tables
        if step.drop or step.put:
            tables = dict(tables)
            for name, low, high in step.drop:
                for one in [one for one in tables if is_meant(one, name)]:
                    tables[one] = tables[one].without(low, high)
            for name, rows in step.put:
                tables[name] = tables.get(name, _made([])).having(rows) if rows else tables.get(name, _made([]))
            tables = {name: table for name, table in tables.items() if table.end}
        if not step.moves:
            return was._replace(tables=tables)
        head = step.after(was.head)
        return Stored(head, step.expires if head is not None else None, mark, tables, was.hidden)

    async def durability(self) -> str:
        return "everything in it ends with this process"

    async def close(self) -> None:
        self._there.clear()


def _rows(table: _Table | None, ask: Range | Named) -> list[Row]:
    if table is None:
        return []
    return table.read(ask) if isinstance(ask, Range) else table.named(ask.ids)
