"""A store that reads through to another and keeps whatever is written to itself: nothing below it is ever changed.

Of a place that is there below, an overlay takes the head when that is first looked at. From then on the place is a
branch of its own: what others append below is not seen, and what is written here is in memory, gone with the overlay.
Rows from before that moment are read below whenever they are asked for. So nothing is copied but what changes, and what
is erased, cleared or deleted below is gone here, too. A sweep is of what was written here; leases are its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple, TypeVar

from palimpsest.log.entry import now_us
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
from palimpsest.stores.rules import in_order, is_meant
from palimpsest.stores.wrappers import RunsBelow

T = TypeVar("T")

ABOVE = 1 << 62
"""The mark of the first write here: behind every one below."""

Hidden = tuple[str, str, int, int]
"""A space, a table or how several begin (`*`), and the first and last key of rows that are not seen."""


class Overlay(Store):
    """The engine over an `OverBackend` of a store, which may be read-only. Closing it leaves that store open."""

    def __init__(self, store: Store, clock: Callable[[], int] = now_us) -> None:
        super().__init__(OverBackend(store.backend), clock)
        self._below = store

    left_open = False  # it holds nothing but memory

    def check(self) -> None:
        super().check()
        self._below.check()


class Taken(NamedTuple):
    """A head as it was first looked at below, as it is there now, and what below is therefore not seen beside it."""

    then: PlaceHead | None
    now: PlaceHead | None
    hidden: Sequence[Hidden]


class OverBackend(RunsBelow, MemoryBackend):
    """Writes over another backend that never reach it."""

    def __init__(self, below: Backend) -> None:
        super().__init__(Inline())
        self.url, self.blocking, self.gathers = f"an overlay of {below.url}", below.blocking, below.gathers
        self.inline = below.inline
        self.lacking: set[Place] = set()
        self.below, self._taken, self._mark = below, dict[Place, Taken](), ABOVE

    # --- what is here

    def at(self, place: Place) -> Stored:
        there = self._there.get(place)
        if there is None:
            taken = self._taken.get(place)
            return NOTHING if taken is None else NOTHING._replace(head=taken.then, mark=ABOVE)
        return there

    def all(self) -> list[tuple[Place, Stored]]:
        return [(place, self.at(place)) for place in {**self._taken, **self._there}]

    def after_step(self, step: Step, was: Stored, mark: int) -> Stored:
        new, hidden = super().after_step(step, was, mark), dict(was.hidden)
        for name, low, high in step.drop:
            hidden[name] = union(hidden.get(name, ()), [(low, high)])
        return new._replace(hidden=hidden)

    def is_none(self, place: Stored) -> bool:
        return False  # it says that what is below is gone

    def _take(self, place: Place, now: PlaceHead | None) -> None:
        """Note the head of a place as it is below now."""
        with self._lock:
            was = self._taken.setdefault(place, Taken(now, now, hidden_by(place, now, now)))
            if was.now != now:
                new = Taken(was.then, now, hidden_by(place, was.then, now))
                if new.hidden != was.hidden:
                    self.lacking.add(place)
                self._taken[place] = new

    # --- reading

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        shared = [ask for ask in asks if ask.place.space != LEASES]
        while True:
            asked = [self._asked(ask, asks) for ask in shared]
            found = await self.below.look(asked) if asked else []
            for ask, one in zip(asked, found, strict=True):
                if ask.head:
                    self._take(ask.place, one.head)
            if asked == [self._asked(ask, asks) for ask in shared]:
                break  # nothing was dropped meanwhile, here or below
        here, below = await super().look(asks), iter(found)
        return [
            seen if ask.place.space == LEASES else Seen(seen.head, [*self._merged(ask, seen, next(below), asks)])
            for ask, seen in zip(asks, here, strict=True)
        ]

    def _asked(self, ask: Ask, asks: Sequence[Ask]) -> Ask:
        """What is asked below: for no rows that are hidden."""
        rows = [self._narrowed(one, self._hidden(ask.place, one.table, asks)) for one in ask.rows]
        return Ask(ask.place, rows, ask.head)

    def _narrowed(self, one: Range | Named, hidden: Sequence[Span]) -> Range | Named:
        if not hidden or isinstance(one, Named):
            return one
        spans = [span for low, high in one.spans for span in visible(hidden, low - 1, high + 1)]
        return Range(one.table, spans, one.limit, one.newest_first)

    def _hidden(self, place: Place, table: str, asks: Sequence[Ask]) -> tuple[Span, ...]:
        """The keys of rows below that are none of a place as it is here, by its head or one that is asked for too."""
        dropped = [(name, *span) for name, spans in self.at(place).hidden.items() for span in spans]
        heads = [self._taken.get(ask.place) for ask in asks if ask.head and ask.place[:2] == place[:2]]
        beside = [one[1:] for head in heads if head for one in head.hidden if one[0] == place.space]
        return union([(low, high) for name, low, high in chain(dropped, beside) if is_meant(table, name)])

    def _merged(self, ask: Ask, here: Seen, below: Seen, asks: Sequence[Ask]) -> Iterator[Sequence[Cells]]:
        """The rows of a place, of here and of below, as they are asked for."""
        tables = self.at(ask.place).tables
        for one, mine, old in zip(ask.rows, here.rows, below.rows, strict=True):
            if not mine and isinstance(one, Range):
                yield old
            elif isinstance(one, Range):
                found = {row[0]: row for row in chain(old, mine)}
                places = sorted((low, number) for number, (low, _) in enumerate(one.spans))
                order = {key: (places[bisect_right(places, (key, LAST_KEY)) - 1][1], key) for key in found}
                yield [found[key] for key in sorted(found, key=order.__getitem__, reverse=one.newest_first)][
                    : one.limit
                ]
            else:
                table, hidden = tables.get(one.table), self._hidden(ask.place, one.table, asks)
                replaced = {row[0] for row in old if table is not None and table.at(row[0]) is not None}
                kept = [row for row in old if row[0] not in replaced and not within(hidden, row[0])]
                yield sorted([*kept, *mine], key=lambda row: row[0])

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        found = await super().places(tenant, space, beneath=beneath, after=after, limit=limit)
        while True:
            page = await self.below.places(tenant, space, beneath=beneath, after=after, limit=limit)
            found += [one for one in page if not self._is_here(one.place)]
            found.sort(key=lambda one: in_order(one.place))
            known = [one for one in found if len(page) < limit or in_order(one.place) <= in_order(page[-1].place)]
            if len(page) < limit or len(known) >= limit:
                return known[:limit]
            after = page[-1].place

    def _is_here(self, place: Place) -> bool:
        return place in self._there or place in self._taken or place.space == LEASES

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        found, mark, behind = list[Listed](), since, after
        while len(found) < limit:
            page = await self.below.recent(tenant, space, since=mark, after=behind, limit=limit)
            found += [one for one in page if not self._is_here(one.place)]
            if len(page) < limit:
                break
            mark, behind = page[-1].mark, page[-1].place
        return [*found, *await super().recent(tenant, space, since=since, after=after, limit=limit)][:limit]

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        found, last = set(await super().tenants(after=after, limit=LAST)), after
        while page := await self.below.tenants(after=last, limit=limit):
            found.update(page)
            last = page[-1]
        there = [one for one in sorted(found) if await self.places(one, "", beneath=True, limit=1)]
        return there[:limit]

    # --- writing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        new = {step.place for batch in batches for step in batch if not self._is_here(step.place)}
        if new:
            await self.look([Ask(place) for place in new])
        return await super().write(batches, at, lasting=lasting, again=again)


def hidden_by(place: Place, then: PlaceHead | None, now: PlaceHead | None) -> list[Hidden]:
    """What is not to be seen of the rows below where a head was like this, and is like that now.

    That is what came after the first, and what is no longer its own by the second.
    """
    if then is None or place.space not in ("session", "tree"):
        return []
    try:
        if place.space == "tree":
            return [("tree", "*", int(then.hot), LAST_KEY)]
        was, cold = read_hot(then.hot), read_cold(then.cold)
        there = now is not None and (now is then or read_hot(now.hot).log == was.log)
        first = read_cold(now.cold).head.first_seq if now is not None and now.cold != then.cold else 0
    except DAMAGED:  # whoever reads it says so
        return []
    log, logs = was.log, (was.log, *(log for _, log in cold.shares))
    if not there:
        return [("log", "*", key_of(log, 0), key_of(log, LAST)) for log in logs]
    gone = [("record", key_of(log, was.revision + 1), key_of(log, LAST))]
    gone += entry_drops((key_of(log, was.next_seq), key_of(log, LAST)))
    if first > cold.head.first_seq:
        gone += entry_drops(*((key_of(log, 0), key_of(log, first - 1)) for log in logs))
    return [("log", *one) for one in gone]
