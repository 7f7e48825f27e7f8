"""A store that reads through to another and keeps whatever is written to itself; the one below is never changed.

When the overlay first looks at a place, it takes over the head that the place has below. From then on the place is a
branch of its own: what others append below is not seen, and what is written here is kept in memory, gone with the
overlay. Rows from before that moment are read below whenever they are asked for. So only changes are copied, and what
is erased, cleared or deleted below is gone here, too. A sweep covers what was written here; leases are the overlay's
own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

from palimpsest.log.entry import now_us
from palimpsest.log.head import SessionKey
from palimpsest.log.spans import Span, union, visible, within
from palimpsest.runtime.runner import Inline
from palimpsest.stores.backend import (
    LAST_KEY,
    Again,
    Ask,
    Backend,
    Batch,
    Cells,
    Listed,
    Named,
    Place,
    PlaceHead,
    Range,
    Refusal,
    Seen,
    Step,
)
from palimpsest.stores.engine.forms import DAMAGED, LAST, entry_drops, key_of, read_cold, read_hot
from palimpsest.stores.engine.items import LEASES
from palimpsest.stores.engine.store import Store
from palimpsest.stores.memory import NOTHING, MemoryBackend, Stored
from palimpsest.stores.rules import is_meant, listing_key
from palimpsest.stores.wrappers import RunsBelow

T = TypeVar("T")

ABOVE = 1 << 62
"""The mark before the first write here: greater than every mark below."""

Hidden = tuple[str, str, int, int]
"""A space, a table (or a prefix and `*`), and the first and last key of rows that must not be seen."""


class Overlay(Store):
    """The engine over an `OverBackend` of a store, which may be read-only. Closing it leaves that store open."""

    def __init__(self, store: Store, clock: Callable[[], int] = now_us) -> None:
        self._over = OverBackend(store.backend)
        super().__init__(self._over, clock)
        self._below = store

    left_open = False  # it holds nothing but memory

    def has_lost(self, key: SessionKey) -> bool:
        """Return whether entries were erased, cleared or deleted below since the session was first seen here."""
        known = self._sessions.remembered(key)
        return known is not None and self._over.has_lost(known.place)

    def check(self) -> None:
        super().check()
        self._below.check()


class HeadBelow(NamedTuple):
    """The head that a place has below: as it was first seen, as it is now, and the rows below that are hidden since."""

    first: PlaceHead | None
    current: PlaceHead | None
    hidden: Sequence[Hidden]


class OverBackend(RunsBelow, MemoryBackend):
    """A backend over another one whose writes never reach that one."""

    def __init__(self, below: Backend) -> None:
        super().__init__(Inline())
        self.url, self.blocking, self.gathers = f"an overlay of {below.url}", below.blocking, below.gathers
        self.inline = below.inline
        self.lacking: set[Place] = set()
        self.below, self._heads_below, self._mark = below, dict[Place, HeadBelow](), ABOVE

    # --- what is here

    def at(self, place: Place) -> Stored:
        stored = self._places.get(place)
        if stored is None:
            head_below = self._heads_below.get(place)
            return NOTHING if head_below is None else NOTHING._replace(head=head_below.first, mark=ABOVE)
        return stored

    def all(self) -> list[tuple[Place, Stored]]:
        return [(place, self.at(place)) for place in {**self._heads_below, **self._places}]

    def after_step(self, step: Step, before: Stored, mark: int) -> Stored:
        after, hidden = super().after_step(step, before, mark), dict(before.hidden)
        for name, low, high in step.drop:
            hidden[name] = union(hidden.get(name, ()), [(low, high)])
        return after._replace(hidden=hidden)

    def is_none(self, place: Stored) -> bool:
        return False  # even an empty place is kept, as it hides the one below

    def _note_head_below(self, place: Place, now: PlaceHead | None) -> None:
        """Note the head that a place has below now."""
        with self._lock:
            before = self._heads_below.setdefault(place, HeadBelow(now, now, hidden_by(place, now, now)))
            if before.current != now:
                head_below = HeadBelow(before.first, now, hidden_by(place, before.first, now))
                if head_below.hidden != before.hidden:
                    self.lacking.add(place)
                self._heads_below[place] = head_below

    def has_lost(self, place: Place) -> bool:
        """Return whether entries of a session were erased, cleared or deleted below since it was first seen here."""
        below = self._heads_below.get(place)
        return below is not None and below.first is not None and _has_lost(below.first, below.current)

    # --- reading

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        """Look here and below at once. Asks below again if a head seen there changes which rows are hidden."""
        shared = [ask for ask in asks if ask.place.space != LEASES]
        while True:
            asked = [self._asked(ask, asks) for ask in shared]
            below_seen = await self.below.look(asked) if asked else []
            for ask, place_seen in zip(asked, below_seen, strict=True):
                if ask.head:
                    self._note_head_below(ask.place, place_seen.head)
            if asked == [self._asked(ask, asks) for ask in shared]:
                break  # no rows became hidden during the look, by a write here or below
        here, below = await super().look(asks), iter(below_seen)
        return [
            seen if ask.place.space == LEASES else Seen(seen.head, [*self._merged(ask, seen, next(below), asks)])
            for ask, seen in zip(asks, here, strict=True)
        ]

    def _asked(self, ask: Ask, asks: Sequence[Ask]) -> Ask:
        """Return what to ask of the store below: the same, without rows that are hidden."""
        rows = [self._narrowed(rows_ask, self._hidden(ask.place, rows_ask.table, asks)) for rows_ask in ask.rows]
        return Ask(ask.place, rows, ask.head)

    def _narrowed(self, rows_ask: Range | Named, hidden: Sequence[Span]) -> Range | Named:
        if not hidden or isinstance(rows_ask, Named):
            return rows_ask
        spans = [span for low, high in rows_ask.spans for span in visible(hidden, low - 1, high + 1)]
        return Range(rows_ask.table, spans, rows_ask.limit, rows_ask.newest_first)

    def _hidden(self, place: Place, table: str, asks: Sequence[Ask]) -> tuple[Span, ...]:
        """Return the keys of hidden rows: those dropped here, and those that a head asked for together hides."""
        dropped = [(name, *span) for name, spans in self.at(place).hidden.items() for span in spans]
        heads = [self._heads_below.get(ask.place) for ask in asks if ask.head and ask.place[:2] == place[:2]]
        by_heads = [
            hidden_rows[1:] for head in heads if head for hidden_rows in head.hidden if hidden_rows[0] == place.space
        ]
        return union([(low, high) for name, low, high in chain(dropped, by_heads) if is_meant(table, name)])

    def _merged(self, ask: Ask, here: Seen, below: Seen, asks: Sequence[Ask]) -> Iterator[Sequence[Cells]]:
        """Yield, for each range or list of ids that is asked for, the rows of here and of below together."""
        tables = self.at(ask.place).tables
        for rows_ask, own_rows, rows_below in zip(ask.rows, here.rows, below.rows, strict=True):
            if not own_rows and isinstance(rows_ask, Range):
                yield rows_below
            elif isinstance(rows_ask, Range):
                by_key = {row[0]: row for row in chain(rows_below, own_rows)}
                span_starts = sorted((low, number) for number, (low, _) in enumerate(rows_ask.spans))
                order = {key: (span_starts[bisect_right(span_starts, (key, LAST_KEY)) - 1][1], key) for key in by_key}
                yield [by_key[key] for key in sorted(by_key, key=order.__getitem__, reverse=rows_ask.newest_first)][
                    : rows_ask.limit
                ]
            else:
                table, hidden = tables.get(rows_ask.table), self._hidden(ask.place, rows_ask.table, asks)
                replaced = {row[0] for row in rows_below if table is not None and table.at(row[0]) is not None}
                kept_below = [row for row in rows_below if row[0] not in replaced and not within(hidden, row[0])]
                yield sorted([*kept_below, *own_rows], key=lambda row: row[0])

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        places = await super().places(tenant, space, beneath=beneath, after=after, limit=limit)
        while True:
            page = await self.below.places(tenant, space, beneath=beneath, after=after, limit=limit)
            places += [listed for listed in page if not self._is_here(listed.place)]
            places.sort(key=lambda listed: listing_key(listed.place))
            complete = [
                listed
                for listed in places
                if len(page) < limit or listing_key(listed.place) <= listing_key(page[-1].place)
            ]
            if len(page) < limit or len(complete) >= limit:
                return complete[:limit]
            after = page[-1].place

    def _is_here(self, place: Place) -> bool:
        return place in self._places or place in self._heads_below or place.space == LEASES

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        places, mark, last = list[Listed](), since, after
        while len(places) < limit:
            page = await self.below.recent(tenant, space, since=mark, after=last, limit=limit)
            places += [listed for listed in page if not self._is_here(listed.place)]
            if len(page) < limit:
                break
            mark, last = page[-1].mark, page[-1].place
        return [*places, *await super().recent(tenant, space, since=since, after=after, limit=limit)][:limit]

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        tenants, last = set(await super().tenants(after=after, limit=LAST)), after
        while page := await self.below.tenants(after=last, limit=limit):
            tenants.update(page)
            last = page[-1]
        visible_tenants = [tenant for tenant in sorted(tenants) if await self.places(tenant, "", beneath=True, limit=1)]
        return visible_tenants[:limit]

    # --- writing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        unseen = {step.place for batch in batches for step in batch if not self._is_here(step.place)}
        if unseen:
            await self.look([Ask(place) for place in unseen])
        return await super().write(batches, at, lasting=lasting, again=again)


def hidden_by(place: Place, first: PlaceHead | None, current: PlaceHead | None) -> list[Hidden]:
    """Return the rows below that must not be seen beside a head that was `first` when first seen, and is `current` now.

    These are rows that came after `first`, and rows that are no longer the session's according to `current`.
    """
    if first is None or place.space not in ("session", "tree"):
        return []
    try:
        if place.space == "tree":
            return [("tree", "*", int(first.hot), LAST_KEY)]
        hot, cold = read_hot(first.hot), read_cold(first.cold)
        still_there = current is not None and _is_same(first, current)
        first_seq = read_cold(current.cold).head.first_seq if current is not None and current.cold != first.cold else 0
    except DAMAGED:  # reported when the head is read
        return []
    log, logs = hot.log, (hot.log, *(log for _, log in cold.shares))
    if not still_there:
        return [("log", "*", key_of(log, 0), key_of(log, LAST)) for log in logs]
    hidden = [("record", key_of(log, hot.revision + 1), key_of(log, LAST))]
    hidden += entry_drops((key_of(log, hot.next_seq), key_of(log, LAST)))
    if first_seq > cold.head.first_seq:
        hidden += entry_drops(*((key_of(log, 0), key_of(log, first_seq - 1)) for log in logs))
    return [("log", *drop) for drop in hidden]


def _is_same(first: PlaceHead, current: PlaceHead) -> bool:
    """Return whether two heads are of the same session, and not of another one that has taken its place."""
    return current is first or read_hot(current.hot).log == read_hot(first.hot).log


def _has_lost(first: PlaceHead, current: PlaceHead | None) -> bool:
    """Return whether a session has lost entries between two of its heads."""
    try:
        if current is None or not _is_same(first, current):
            return True
        before, after = read_cold(first.cold).head, read_cold(current.cold).head
        return (before.first_seq, before.erased) != (after.first_seq, after.erased)
    except DAMAGED:  # reported when the head is read
        return False
