"""Encryption at rest: a backend around another one, which keeps what it holds under keys that that one never sees.

Heads, values and ids of rows are sealed (`values`), each bound to its address; ids that rows are found by, and names of
items, are keyed tokens. What a `Layout` names stays in clear. One head vouches for rows beside it:

    its own     a place with a head has of its rows all in the notes of that head, with the token of who put each. They
                are few: whichever are asked for, all are read
    of a log    a place without a head has rows of logs (the upper half of a key), vouched for by the heads that have
                those logs, as far as these are asked for in the same look. Of some tables the head that owns the log
                knows which rows there are; of the others which were written anew, and nothing of the rest: that none
                is missing is known to who reads them

Heads are compared as they are stored. So a change of keys, which leaves what is in them as it is, stops whoever would
write under the key of before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from palimpsest.errors import StoreCorrupt
from palimpsest.log.spans import Span, common, within
from palimpsest.stores import MARK
from palimpsest.stores.backend import (
    LAST_KEY,
    Ask,
    Backend,
    Batch,
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
from palimpsest.stores.encrypted.batches import Layout, Sealing
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.notes import NOTHING, Notes
from palimpsest.stores.encrypted.sealing import Unsealed, token
from palimpsest.stores.encrypted.values import Known, Values, key_of

T = TypeVar("T")

KEPT = 4096
"""Heads that are remembered at once."""

STRETCH = 256
"""Rows that a change of keys seals in one step, so that writers go on."""

BROKEN = b"00000000"
"""In the place of a row's value that is not authentic, and of the end of one that is where what is beside it is not. No
checksum of the engine's is that."""


class SealedBackend(Backend):
    """A backend whose values are sealed. `markings` says under which keys."""

    def __init__(self, below: Backend, values: Values, markings: Markings, layout: Layout) -> None:
        self.below, self.url, self.writable, self.blocking = below, below.url, below.writable, below.blocking
        self.inline = getattr(below, "inline", False)
        self.markings, self.values, self.layout = markings, values, layout
        self._known: dict[Place, Known] = {}

    async def together(self, start: Callable[[], Any], *, reads: bool = False) -> Any:
        return await self.below.together(start, reads=reads)

    async def surely(self, start: Callable[[], Any]) -> Any:
        return await self.below.surely(start)

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self.below.apart(function, *arguments)

    async def scrub(self, *, whole: bool = True) -> tuple[str, ...]:
        return await self.below.scrub(whole=whole)

    async def close(self) -> None:
        await self.below.close()

    # --- addresses

    def hides(self, place: Place) -> bool:
        return place.space.startswith(self.layout.hidden_names)

    def at(self, place: Place) -> Place:
        """Where a place is kept."""
        return place._replace(name=self._token("name", *place)) if self.hides(place) else place

    def _token(self, *names: str) -> str:
        return token(self.markings.secret, *names)

    def found_by(self, place: Place, table: str, id: str) -> str:
        return self._token("id", place.tenant, place.home, place.space, table, id) if id else ""

    def is_clear(self, place: Place) -> bool:
        """Whether what a place has is not sealed."""
        return place.space in self.layout.clear_spaces

    def is_clear_table(self, table: str) -> bool:
        return table.startswith(self.layout.clear_tables)

    # --- heads

    def _opened(self, place: Place, stored: PlaceHead, floor: Known | None) -> Known:
        """The head of a place as it is stored, which is no earlier one than `floor`. Raises StoreCorrupt, WrongKey."""
        if self.is_clear(place):
            return Known(stored, stored, "", b"", 0)
        before = self._known.get(place)
        if before is not None and before.stored == stored:
            known = before
        else:
            try:
                known = self.values.opened(place, stored, before)
            except Unsealed as fault:
                raise fault.told(self.url, self._what(place)) from None
            if place.space == self.layout.heads:
                known = known._replace(reads=self.layout.reads(known.plain, before))
        if floor is not None and floor.life == known.life and floor.moves > known.moves:
            raise StoreCorrupt(self.url, f"{self._what(place)} is of an earlier time: a later one was there before")
        self._remember(place, known)
        return known

    def _remember(self, place: Place, known: Known) -> None:
        before = self._known.get(place)
        if before is not None and before.life == known.life and before.moves > known.moves:
            return
        if len(self._known) >= KEPT:
            self._known.clear()
        self._known[place] = known

    def _what(self, place: Place) -> str:
        if place.space == self.layout.heads:
            return f"the head of session {place.name!r}"
        if self.hides(place):
            known = self._known.get(place)
            return f"the item {place.home}/{known.name if known is not None else place.name}"
        return f"the head of {place.space} {place.name or place.home!r}"

    # --- reading

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        places = [self.at(ask.place) for ask in asks]
        floors = [self._known.get(place) for place in places]
        seen = await self.below.look([self._asked(ask, place) for ask, place in zip(asks, places, strict=True)])
        heads = [
            self._opened(place, one.head, floor) if one.head is not None else None
            for place, one, floor in zip(places, seen, floors, strict=True)
        ]
        vouching = [(p, k) for p, k in zip(places, heads, strict=True) if k is not None and k.reads]
        found = []
        for ask, place, one, known in zip(asks, places, seen, heads, strict=True):
            rows = [
                self._rows(place, what, some, known, vouching) for what, some in zip(ask.rows, one.rows, strict=True)
            ]
            found.append(Seen(known.plain if known is not None and ask.head else None, rows))
        return found

    def _asked(self, ask: Ask, place: Place) -> Ask:
        if not ask.rows:
            return ask if place is ask.place else Ask(place, (), ask.head)
        if place.space in self.layout.own_tables:  # its head vouches for all of its rows together
            return Ask(place, [one if self.is_clear_table(one.table) else _all_of(one.table) for one in ask.rows])
        return Ask(place, [self._named(place, one) for one in ask.rows], ask.head)

    def _named(self, place: Place, one: Range | Named) -> Range | Named:
        if isinstance(one, Range) or self.is_clear_table(one.table):
            return one
        return Named(one.table, [self.found_by(place, one.table, id) for id in one.ids])

    def _rows(
        self,
        place: Place,
        asked: Range | Named,
        rows: Sequence[Cells],
        known: Known | None,
        vouching: Sequence[tuple[Place, Known]],
    ) -> Sequence[Cells]:
        table = asked.table
        if self.is_clear_table(table):
            return rows
        if place.space not in self.layout.own_tables:
            heads = [one for at, one in vouching if at[:2] == place[:2]] if place.space == self.layout.log else ()
            if heads and table in self.layout.listed and isinstance(asked, Range):
                self._complete(place, asked, rows, heads)
            return [self._row(place, table, row, heads) for row in rows]
        notes = known.notes if known is not None else NOTHING
        if [row[0] for row in rows] != notes.keys(table, [(0, LAST_KEY)]):
            told = "rows are missing, or too many: somebody has changed it"
            raise StoreCorrupt(self.url, f"{self._what(place)} does not vouch for what is beside it: {told}")
        return _meant(asked, [self._own_row(place, table, row, notes) for row in rows])

    def _own_row(self, place: Place, table: str, row: Cells, notes: Notes) -> Row:
        opened, mark = self._row_opened(place, table, row)
        if opened is None or mark != notes.token(table, row[0]) or not self._same(place, table, row, opened):
            told = f"a row of {table} of {place.space} {place.name or place.home!r}"
            raise StoreCorrupt(self.url, f"{told} is not as it was committed: it was changed, or comes from elsewhere")
        return opened

    def _row(self, place: Place, table: str, row: Cells, heads: Sequence[Known]) -> Cells:
        """A row of a log; without its value, or with a spoilt one, where it is not authentic: who reads it tells."""
        opened, mark = self._row_opened(place, table, row)
        if opened is None:
            return (row[0], BROKEN, "", row[3])
        listed = table in self.layout.listed
        meant = [one for one in heads if within(one.reads[:1] if listed else one.reads, row[0])]
        if meant and all((one.notes.token(table, row[0]) or b"") != mark for one in meant):
            return (row[0], BROKEN, "", row[3])
        if not self._same(place, table, row, opened):
            return opened._replace(value=opened.value[:-8] + BROKEN)
        return opened

    def _row_opened(self, place: Place, table: str, row: Cells) -> tuple[Row | None, bytes]:
        try:
            return self.values.row_opened(place, table, row)
        except Unsealed as fault:
            if fault.key_id:
                raise fault.told(self.url, _what_row(place, table, row[0])) from None
            return None, b""

    def _same(self, place: Place, table: str, row: Cells, opened: Row) -> bool:
        """Whether what stands in clear beside a row is what was sealed with it."""
        return row[3] == opened.expires and row[2] == self.found_by(place, table, opened.id)

    def _complete(self, place: Place, asked: Range, rows: Sequence[Cells], heads: Sequence[Known]) -> None:
        """Raise StoreCorrupt unless of a log's listed table all are there that a head knows, and no others."""
        for known in heads:
            own = known.reads[:1]
            meant = [common([span], own) for span in asked.spans]
            if not any(meant):
                continue
            keys = [key for spans in meant for key in known.notes.keys(asked.table, spans)]
            keys = keys[::-1] if asked.newest_first else keys
            if [row[0] for row in rows if within(own, row[0])] != keys[: asked.limit]:
                told = f"the {asked.table}s of a session in {place.home!r} are not those that its head knows"
                raise StoreCorrupt(self.url, f"{told}: some are missing, or it is of an earlier time: there are others")

    # --- writing

    async def write(self, batches: Sequence[Batch], at: int, *, lasting: bool = True) -> list[Refusal | None]:
        done: list[Refusal | None] = [None] * len(batches)
        left = list(range(len(batches)))
        while left:
            await self._fit([step for i in left for step in batches[i]])
            made: list[tuple[int, Sealing]] = []
            ahead: dict[Place, Known | None] = {}
            for i in left:
                sealing = Sealing(self, self.markings.writing, batches[i], ahead)
                while not sealing.begin(self._known):
                    done[i] = await self._unexpected(batches[i], ahead)
                    if done[i] is not None:
                        break
                if done[i] is None:
                    sealing.finish()
                    made.append((i, sealing))
            results = await self.below.write([one.steps for _, one in made], at, lasting=lasting) if made else []
            left = []
            for (i, sealing), refusal in zip(made, results, strict=True):
                if refusal is None:
                    await self._done(sealing)
                    continue
                done[i] = heads = self._refusal(sealing, refusal)
                if _is_expected(batches[i], heads):  # its heads were sealed anew: once more
                    done[i] = None
                    left.append(i)
        return done

    async def _fit(self, steps: Sequence[Step]) -> None:
        """See what the store says of its keys where a head is under another than the one that is written with.

        Whoever retires a key seals all heads anew after that: so one that is under ours needs no look at the mark.
        """
        known = [self._known.get(self.at(step.place)) for step in steps if not step.rows_only]
        if any(one is not None and one.key_id and one.key_id != self.markings.writing for one in known):
            await self.markings.refresh()

    async def _unexpected(self, batch: Batch, ahead: dict[Place, Known | None]) -> Refusal | None:
        """Look at the heads of a batch; those that are there, unless they are as it expects them."""
        meant = [step.place for step in batch if not step.rows_only and self.at(step.place) not in ahead]
        seen = dict(zip(meant, await self.look([Ask(place) for place in meant]), strict=True))
        await self._fit(batch)
        found: list[PlaceHead | None] = []
        for step in batch:
            known = ahead.get(self.at(step.place)) if step.place not in seen else None
            there = seen[step.place].head if step.place in seen else known.plain if known is not None else None
            found.append(None if step.rows_only else there)
        return None if _is_expected(batch, found) else tuple(found)

    def _refusal(self, sealing: Sealing, refusal: Refusal) -> Refusal:
        found: list[PlaceHead | None] = []
        for step, head, floor in zip(sealing.batch, refusal, sealing.before, strict=True):
            place = self.at(step.place)
            if head is None and not step.rows_only:
                self._known.pop(place, None)
            found.append(self._opened(place, head, floor).plain if head is not None else None)
        return tuple(found)

    async def _done(self, sealing: Sealing) -> None:
        made = []
        for step, before, after in zip(sealing.batch, sealing.before, sealing.after, strict=True):
            if step.rows_only or self.is_clear(step.place):
                continue
            place = self.at(step.place)
            if after is None:
                self._known.pop(place, None)
                continue
            self._remember(place, after)
            if before is None:
                made.append(place)
        if made:
            await self.markings.refresh()
            if self.markings.writing != sealing.key_id:  # a change of keys has not seen it
                for place in made:
                    await self.seal_anew(place)

    # --- a change of keys

    async def seal_anew(self, place: Place) -> int:
        """Bring a head, and the rows that it vouches for, under the key that is written with.

        Returns how many rows were under another; of a head that has none, whether it was. `place` is where it is kept.
        """
        moved, known = await self._head_anew(place), self._known.get(place)
        if known is None or not known.reads:
            return int(moved)
        return sum([await self._rows_anew(place, table, span) for span in known.reads for table in self.layout.tables])

    async def _head_anew(self, place: Place) -> bool:
        own, own_tables = self.markings.writing, self.layout.own_tables.get(place.space, ())
        while True:
            floor = self._known.get(place)
            (seen,) = await self.below.look([Ask(place, [_all_of(table) for table in own_tables])])
            if seen.head is None:
                return False
            known = self._opened(place, seen.head, floor)
            put = [(table, self._anew(place, table, rows)) for table, rows in zip(own_tables, seen.rows, strict=True)]
            if known.key_id == own and not any(rows for _, rows in put):
                return False
            after = self.values.head(place, known._replace(bound=b""), own, known.name)
            stored = after.stored
            step = Step(place, seen.head.hot, stored.hot, stored.cold, known.expires, put=put, destroys=True)
            (refusal,) = await self.below.write([[step]], 0)
            if refusal is None:
                self._remember(place, after)
                return True

    async def _rows_anew(self, place: Place, table: str, span: Span) -> int:
        """Bring rows of a log under the key that is written with, a stretch at a time; how many were under another.

        The head of `place` vouches for them. Whoever only appends meanwhile is not in the way.
        """
        changed, (low, high) = 0, span
        logs = Place(place.tenant, place.home, self.layout.log, "")
        while True:
            floor = self._known.get(place)
            head, seen = await self.below.look(
                [Ask(place), Ask(logs, [Range(table, [(low, high)], STRETCH)], head=False)]
            )
            rows = seen.rows[0]
            if head.head is None or not rows:
                return changed
            known = self._opened(place, head.head, floor)
            put = self._anew(logs, table, rows)
            if put and not await self._put_anew(
                place, known, Step(logs, rows_only=True, put=[(table, put)], destroys=True)
            ):
                continue
            changed += len(put)
            if len(rows) < STRETCH:
                return changed
            low = rows[-1][0] + 1

    async def _put_anew(self, place: Place, known: Known, step: Step) -> bool:
        """Put rows if nothing has become of the head since but appends."""
        now = known
        while now.notes is known.notes and now.reads == known.reads:
            stored = now.stored.hot
            (refusal,) = await self.below.write([[Step(place, stored, stored), step]], 0)
            if refusal is None:
                return True
            if refusal[0] is None:
                return False
            now = self._opened(place, refusal[0], now)
        return False

    def _anew(self, place: Place, table: str, rows: Sequence[Cells]) -> list[Row]:
        """Those of these rows that are under another key, sealed anew. Raises StoreCorrupt, WrongKey."""
        own, found = self.markings.writing, []
        for row in rows:
            if key_of(row[1]) == own:
                continue
            opened, mark = self._row_opened(place, table, row)
            if opened is None:
                raise StoreCorrupt(self.url, f"{_what_row(place, table, row[0])} cannot be read: `repair` it first")
            found.append(self.values.row(place, table, opened, mark, own, row[2]))
        return found

    # --- listings

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        behind = self.at(after) if after is not None else None
        floors = dict(self._known)
        page = await self.below.places(tenant, space, beneath=beneath, after=behind, limit=limit)
        return [self._listed(one, floors) for one in page]

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        behind = self.at(after) if after is not None else None
        floors = dict(self._known)
        page = await self.below.recent(tenant, space, since=since, after=behind, limit=limit)
        return [self._listed(one, floors) for one in page]

    def _listed(self, one: Listed, floors: dict[Place, Known]) -> Listed:
        known = self._opened(one.place, one.head, floors.get(one.place))
        return Listed(self._named_place(one.place, known), known.plain, one.mark)

    def _named_place(self, place: Place, known: Known) -> Place:
        return place._replace(name=known.name) if self.hides(place) else place

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        behind = after._replace(place=self.at(after.place)) if after is not None else None
        page = await self.below.expired(tenant, now, after=behind, limit=limit)
        hidden = [due.place for due in page if self.hides(due.place)]
        floors = [self._known.get(place) for place in hidden]
        names: dict[Place, Place] = {}
        seen = await self.below.look([Ask(place) for place in hidden]) if hidden else []
        for place, one, floor in zip(hidden, seen, floors, strict=True):
            if one.head is not None:
                names[place] = self._named_place(place, self._opened(place, one.head, floor))
        return [due._replace(place=names.get(due.place, due.place)) for due in page]

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        page = await self.below.tenants(after=after, limit=limit + 1)  # one of them may be the mark's
        return [tenant for tenant in page if tenant != MARK[0]][:limit]


def _all_of(table: str) -> Range:
    return Range(table, [(0, LAST_KEY)])


def _meant(asked: Range | Named, rows: Sequence[Row]) -> Sequence[Row]:
    """Those of all rows of a table, in order, that were asked for."""
    if isinstance(asked, Named):
        return [row for row in rows if row.id in asked.ids and row.id]
    found = [row for low, high in asked.spans for row in rows if low <= row.key <= high]
    return (found[::-1] if asked.newest_first else found)[: asked.limit]


def _is_expected(batch: Batch, heads: Sequence[PlaceHead | None]) -> bool:
    """Whether the heads that are there are those that a batch expects."""
    return all(
        step.rows_only or (head.hot if head is not None else None) == step.expect
        for step, head in zip(batch, heads, strict=True)
    )


def _what_row(place: Place, table: str, key: int) -> str:
    what = {"entry": f"entry {key & 0xFFFFFFFF}", "record": f"the record of revision {key & 0xFFFFFFFF}"}
    return f"{what.get(table, f'{table} {key}')} of session {place.home!r}"
