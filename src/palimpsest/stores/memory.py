"""`memory://`: a store in this process, gone with it. Every other store is compared with it in tests.

A signal handler may raise between any two steps. So a write prepares everything that it changes aside, and puts it in
place with one call of C. Only rows at the end of a table are appended in place, beyond the end that is in force: nobody
reads beyond that, and the next writer removes them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from palimpsest.errors import ConfigError
from palimpsest.log.spans import Span
from palimpsest.runtime.once import new_lock
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
from palimpsest.stores.rules import by_mark, by_name, is_meant, page_of, refused, rows_in_spans


def open_memory(url: str, runner: Runner, **options: Any) -> MemoryBackend:
    """Open an empty store. Raises ConfigError for any option, or an address with a path."""
    accepted(url, **options)
    return MemoryBackend(runner)


def accepted(url: str, **options: Any) -> None:
    """Raise ConfigError for anything that is not accepted: any option, or an address with a path."""
    if url not in ("memory:", "memory://"):
        shown = discreet_address(url)
        raise ConfigError("store", shown, "memory:// (it has no name: nobody else can open it)")
    if options:
        raise ConfigError("option", min(options), "none (memory:// has no options)")


class _Table(NamedTuple):
    """The first `end` of `rows`, in order of their keys; and keys of rows by id, some of which may be gone."""

    rows: list[Row]
    end: int
    ids: dict[str, tuple[int, ...]]

    def among(self, low: int, high: int) -> tuple[int, int]:
        """Return the indexes, first and behind the last, of the rows of a span of keys."""
        begin = bisect_left(self.rows, (low,), 0, self.end)
        return begin, bisect_right(self.rows, high, begin, self.end, key=_key)

    def read(self, ask: Range) -> list[Row]:
        return rows_in_spans(ask, lambda low, high: self.rows[slice(*self.among(low, high))])

    def named(self, ids: Iterable[str]) -> list[Row]:
        """Return the rows that have one of these ids, by key."""
        keys = sorted({(key, id) for id in ids for key in self.ids.get(id, ())})
        rows = ((self.at(key), id) for key, id in keys)
        return [row for row, id in rows if row is not None and row.id == id]

    def at(self, key: int) -> Row | None:
        i = bisect_left(self.rows, (key,), 0, self.end)
        return self.rows[i] if i < self.end and self.rows[i].key == key else None

    def without(self, low: int, high: int) -> _Table:
        """Return the table without the rows of this span of keys."""
        begin, end = self.among(low, high)
        return self if begin == end else _table_of([*self.rows[:begin], *self.rows[end : self.end]])

    def with_rows(self, given: Sequence[Cells]) -> _Table:
        """Return the table with these rows in it, each replacing one with the same key."""
        new_rows = [Row(*row) for row in given]
        if self.end and any(row.key <= self.rows[self.end - 1].key for row in new_rows):
            by_key = {row.key: row for row in chain(self.rows[: self.end], new_rows)}
            return _table_of([by_key[key] for key in sorted(by_key)])
        new_rows = sorted({row.key: row for row in new_rows}.values())
        del self.rows[self.end :]
        self.rows.extend(new_rows)
        for row in new_rows:
            if row.id:
                self.ids[row.id] = (*self.ids.get(row.id, ()), row.key)
        return _Table(self.rows, self.end + len(new_rows), self.ids)


_key = attrgetter("key")


def _table_of(rows: list[Row]) -> _Table:
    ids: dict[str, tuple[int, ...]] = {}
    for row in rows:
        if row.id:
            ids[row.id] = (*ids.get(row.id, ()), row.key)
    return _Table(rows, len(rows), ids)


class Stored(NamedTuple):
    """A place: its head, when that expires, the mark of its last write, its tables. `hidden` is for overlays."""

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
        self._lock = new_lock()
        self._places: dict[Place, Stored] = {}
        self._mark = 0

    def all(self) -> list[tuple[Place, Stored]]:
        """Return every place. The caller holds the lock."""
        return list(self._places.items())

    def at(self, place: Place) -> Stored:
        """Return a place as it is. The caller holds the lock."""
        return self._places.get(place, NOTHING)

    # --- reading

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        with self._lock:
            return [self._seen(ask) for ask in asks]

    def _seen(self, ask: Ask) -> Seen:
        stored = self.at(ask.place)
        return Seen(
            stored.head if ask.head else None,
            [_rows(stored.tables.get(rows_ask.table), rows_ask) for rows_ask in ask.rows],
        )

    def _listed(self, tenant: str, space: str, beneath: bool = False) -> list[Listed]:
        """Return the places of these spaces, in any order."""
        with self._lock:
            places = self.all()
        return [
            Listed(place, stored.head, stored.mark)
            for place, stored in places
            if place.tenant == tenant
            and stored.head is not None
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
            places = [entry for entry in self._places.items() if entry[0].tenant == tenant]
        expired = [
            Due(entry.expires, place) for place, entry in places if entry.expires is not None and entry.expires <= now
        ]
        for place, stored in places:
            for name, table in stored.tables.items():
                due = (row for row in table.rows[: table.end] if row.expires is not None and row.expires <= now)
                expired += [Due(row.expires or 0, place, name, row.key) for row in due]
        return page_of(expired, after, limit)

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        with self._lock:
            places = self.all()
        tenants = {place.tenant for place, stored in places if stored.head is not None}
        return page_of(tenants, after, limit)

    # --- writing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        with self._lock:
            return [self._write(batch) for batch in batches]

    def _write(self, batch: Batch) -> Refusal | None:
        stored_before = [self.at(step.place) for step in batch]
        if (refusal := refused(batch, [stored.head for stored in stored_before])) is not None:
            return refusal
        mark = self._mark + 1
        changed = {
            step.place: self.after_step(step, stored, mark) for step, stored in zip(batch, stored_before, strict=True)
        }
        self._mark = mark
        self._places.update(changed)
        for place in [place for place, after in changed.items() if self.is_none(after)]:
            self._places.pop(place, None)
        return None

    def is_none(self, place: Stored) -> bool:
        """Return whether this place need not be stored."""
        return place.head is None and not place.tables

    def after_step(self, step: Step, before: Stored, mark: int) -> Stored:
        """Return a place as it is after a step. The head was compared already."""
        tables = before.tables
        if step.drop or step.put:
            tables = dict(tables)
            for name, low, high in step.drop:
                for table_name in [table_name for table_name in tables if is_meant(table_name, name)]:
                    tables[table_name] = tables[table_name].without(low, high)
            for name, rows in step.put:
                tables[name] = (
                    tables.get(name, _table_of([])).with_rows(rows) if rows else tables.get(name, _table_of([]))
                )
            tables = {name: table for name, table in tables.items() if table.end}
        if not step.moves:
            return before._replace(tables=tables)
        head = step.after(before.head)
        return Stored(head, step.expires if head is not None else None, mark, tables, before.hidden)

    async def durability(self) -> str:
        return "everything in it ends with this process"

    async def close(self) -> None:
        self._places.clear()


def _rows(table: _Table | None, ask: Range | Named) -> list[Row]:
    if table is None:
        return []
    return table.read(ask) if isinstance(ask, Range) else table.named(ask.ids)
