"""Encryption at rest: a backend around another one, which keeps what it holds under keys that that one never sees.

Heads, values and ids of rows are sealed (`sealed_bytes`), each bound to its address; ids that rows are found by, and
names of items, are keyed tokens. How an old head, or an old row, is noticed that somebody has put back stands in the
package.

Heads are compared as they are stored. So a change of keys, which leaves what is in them as it is, stops whoever would
write under the key of before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from palimpsest.errors import StoreCorrupt, WrongKey
from palimpsest.stores import MARK, Item
from palimpsest.stores.backend import Again, Ask, Backend, Batch, Due, Listed, Look, Place, PlaceHead, Refusal, Seen
from palimpsest.stores.encrypted import Encryption
from palimpsest.stores.encrypted.keys import Keys
from palimpsest.stores.encrypted.mark import Markings, read_mark
from palimpsest.stores.encrypted.resealing import Resealer
from palimpsest.stores.encrypted.sealed_batch import Sealing
from palimpsest.stores.encrypted.sealed_bytes import SealedHead, Values
from palimpsest.stores.encrypted.sealed_rows import LOG, SESSION, VOUCHED, Heads, Owned, Rows, agrees, hides
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.engine.items import Items
from palimpsest.stores.engine.known import OWNED
from palimpsest.stores.rules import heads_at, refused
from palimpsest.stores.wrappers import Wrapper


async def unlocked_backend(
    backend: Backend, mark: Item | None, encryption: Encryption | None, clock: Callable[[], int]
) -> SealedBackend:
    """Return what reads and writes a backend with these keys; `mark` is what it says of its encryption (None: nothing).

    Raises WrongKey where it is encrypted and they do not fit, or none were given; ConfigError where it holds what is
    not encrypted; MissingExtra without the extra.
    """
    if encryption is None:
        assert mark is not None, "a store that is not encrypted needs no unlocking"
        current = read_mark(backend.url, mark.value).current
        advice = "it is encrypted: open it with encryption=Keys(...) that has this key, or set PALIMPSEST_KEY"
        raise WrongKey(backend.url, current, f"{advice} for the command line")
    keys = Keys.of(encryption)
    values, items = Values(keys), Items(backend, Crowds(backend), clock)
    markings = await backend.together(lambda: Markings.opened(backend, items, keys, values))
    return SealedBackend(backend, values, markings)


class Looking(NamedTuple):
    """What is asked for: of which places as they are kept, what below, and which heads there are known not to be
    older than."""

    asks: Sequence[Ask]
    places: Sequence[Place]
    below: Sequence[Ask]
    floors: Sequence[SealedHead | None]


class SealedBackend(Wrapper):
    """A backend whose values are sealed. `markings` says under which keys."""

    def __init__(self, below: Backend, values: Values, markings: Markings) -> None:
        super().__init__(below)
        self.markings = markings
        self.rows = Rows(below.url, values, markings)
        self._heads = Heads(below.url, self.rows)
        self.resealer = Resealer(below, self.rows, self._heads, markings)
        self._unopened: dict[str, StoreCorrupt] = {}

    # --- reading

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        looking = self._looking(asks)
        return self._opened(looking, await self.below.look(looking.below), self._heads)

    def glance(self, place: Place) -> PlaceHead | None:
        """One that is stored as it was when it was opened, or sealed, here: others are held against the log's notes."""
        known = self._heads.all.get(kept := self.rows.at(place))
        return known.plain if known is not None and self.below.glance(kept) == known.stored else None

    def _looking(self, asks: Sequence[Ask]) -> Looking:
        """What is asked for below."""
        rows = self.rows
        places = [rows.at(ask.place) for ask in asks]
        below, vouching = list[Ask](), dict[Place, bool]()  # what vouches for rows, and whether it is asked for
        for ask, place in zip(asks, places, strict=True):
            head = ask.head
            if place.space == SESSION and head:
                vouching.setdefault(Place(*place[:2], LOG, ""), False)
            elif ask.rows and place.space in VOUCHED and not vouching.get(place):
                head = vouching[place] = True
            below.append(rows.asked(ask, place, head))
        below += [Ask(place) for place, asked in vouching.items() if not asked]
        return Looking(asks, places, below, [self._heads.all.get(ask.place) for ask in below])

    def _opened(self, looking: Looking, seen: Sequence[Seen], by: Heads) -> list[Seen]:
        """What was asked for, of what was seen below, with heads that are opened `by` these."""
        rows, heads = self.rows, dict[Place, SealedHead | None]()
        alone = not any(ask.rows for ask in looking.asks)
        for ask, one, floor in zip(looking.below, seen, looking.floors, strict=True):
            if ask.head:
                heads[ask.place] = by.seen(ask.place, one.head, floor, alone=alone)
        if not agrees(list(heads.items())):
            sessions = [(place, one.stored) for place, one in heads.items() if one and place.space == SESSION]
            told = f"{', '.join(rows.what(place) for place, _ in sessions)} is of an earlier time"
            fault = StoreCorrupt(self.url, f"{told}, or what is noted of its rows is")
            if not alone:
                raise fault
            heads |= {place: SealedHead.unread(stored, fault.reason) for place, stored in sessions}
        found = []
        for ask, place, one in zip(looking.asks, looking.places, seen, strict=False):
            known = heads.get(place)
            some = [rows.opened(place, what, its, known) for what, its in zip(ask.rows, one.rows, strict=True)]
            found.append(Seen(known.plain if known is not None and ask.head else None, some))
        return found

    # --- writing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        batches = list(batches)
        done: list[Refusal | None] = [None] * len(batches)
        left, tries = list(range(len(batches))), 0
        while left:
            tries += 1
            made: list[tuple[int, Sealing]] = []
            ahead: dict[Place, SealedHead | None] = {}
            for i in left:
                sealing, done[i] = await self._begun(batches[i], ahead)
                if done[i] is None:
                    sealing.finish()
                    made.append((i, sealing))
                elif tries == 1 and again is not None and not self.remote and sealing.probe():
                    made.append((i, sealing))  # else who never pauses could be in its way for ever
            steps = [one.steps for _, one in made]
            tried = {id(one.steps): one for _, one in made}
            over = partial(self._over, batches, made, tried, again, list[Looking]()) if again is not None else None
            results = await self.below.write(steps, at, lasting=lasting, again=over) if made else []
            left = []
            for (i, sealing), refusal in zip(made, results, strict=True):
                if refusal is None:
                    done[i] = None
                    await self._done(sealing)
                    continue
                heads, instead = self._refusal(sealing, refusal, self._heads), batches[i] is not sealing.batch
                # Its heads were sealed anew, or another session's rows were noted, or it was made anew.
                alike = instead or refused(sealing.batch, heads) is None
                if alike and (tries == 1 or not self.remote):  # who is in a crowd waits where he holds nothing
                    left.append(i)
                else:
                    done[i] = await self._there(batches[i]) if instead else heads
        return done

    async def _there(self, batch: Batch) -> Refusal:
        """The heads that there are in the places of a batch."""
        there = iter(await heads_at(self, [step.place for step in batch if not step.rows_only]))
        return tuple(None if step.rows_only else next(there) for step in batch)

    def _over(
        self,
        batches: list[Batch],
        made: list[tuple[int, Sealing]],
        tried: dict[int, Sealing],
        again: Again,
        looked: list[Looking],
        number: int,
        given: Batch,
        refusal: Refusal,
        look: Look,
    ) -> Batch | None:
        """What is to be written in the place of a batch, as these heads are there: as `write` says.

        Not where another batch may have moved what is noted of the logs among them, which is not committed yet. Who is
        asked what to write has told from then on what is in that, as the ids of entries: it takes the batch's place
        even where it cannot be written at once.

        What is seen here may be taken back, with what the others of the call have written: nothing of it is remembered.
        Over a driver this is called again with what was `looked` at before: what was known then, and no more, is what
        that may not be older than.
        """
        i, sealing = made[number]
        sealing = tried.get(id(given), sealing)  # of a transaction that is begun anew the first one
        made[number], batches[i] = (i, sealing), sealing.batch
        if len(made) > 1 and any(place is not None and place.space == LOG for place in sealing.places):
            return None
        inside, before = Heads(self.url, self.rows), iter([*looked])
        inside.all = dict(self._heads.all)

        def seen(asks: Sequence[Ask]) -> list[Seen]:
            looking = next(before, None)
            if looking is None or looking.asks != asks:
                looking = self._looking(asks)
                looked.append(looking)
            return self._opened(looking, look(looking.below), inside)

        batch = again(i, sealing.batch, self._refusal(sealing, refusal, inside), seen)
        if batch is None:
            return None
        batches[i] = batch
        anew = Sealing(self.rows, sealing.key_id, batch, {}, sealing.others)
        if not anew.begin(inside.all) or not self._others(anew, inside) <= anew.others:
            return None
        anew.finish()
        made[number], tried[id(anew.steps)] = (i, anew), anew
        return anew.steps

    async def _begun(self, batch: Batch, ahead: dict[Place, SealedHead | None]) -> tuple[Sealing, Refusal | None]:
        """A batch that has its heads, under the key that is to be written with; or the heads that are in its way.

        Where one of its heads is under another key, the store is asked what it says of its keys, after that head was
        seen: another thread may have heard of a change in between, and what was sealed under the key of before would
        stand over a head that is under the new one. Whoever retires a key seals all heads anew after that: so a batch
        whose heads are all under its own key needs no look at the mark.
        """
        while True:
            sealing, refusal = Sealing(self.rows, self.markings.writing, batch, ahead), None
            while refusal is None and not sealing.begin(self._heads.all):
                refusal = await self._unexpected(sealing, ahead)
            others = self._others(sealing, self._heads)
            if others:
                await self.markings.refresh()
                if self.markings.writing != sealing.key_id:
                    continue
                sealing.others = others
            return sealing, refusal

    def _others(self, sealing: Sealing, heads: Heads) -> set[str]:
        """The keys that heads of a batch, or those that are known beside it, are under, but for its own."""
        known = [*sealing.before, *(heads.all.get(self.rows.at(step.place)) for step in sealing.batch)]
        return {one.key_id for one in known if one is not None} - {"", sealing.key_id}

    async def _unexpected(self, sealing: Sealing, ahead: dict[Place, SealedHead | None]) -> Refusal | None:
        """Look at the heads of a batch; those that are there, unless they are as it expects them."""
        meant = [
            step.place
            for step, place in zip(sealing.batch, sealing.places, strict=True)
            if place is not None and place not in ahead
        ]
        seen = dict(zip(meant, await heads_at(self, meant), strict=True))
        found: list[PlaceHead | None] = []
        for step in sealing.batch:
            known = ahead.get(self.rows.at(step.place))
            found.append(seen.get(step.place, known.plain if known is not None else None))
        return refused(sealing.batch, found)

    def _refusal(self, sealing: Sealing, refusal: Refusal, by: Heads) -> Refusal:
        found: list[PlaceHead | None] = []
        for step, place, head, floor in zip(sealing.batch, sealing.places, refusal, sealing.before, strict=True):
            looked = place if step.rows_only else self.rows.at(step.place)
            known = by.opened(looked, head, floor) if looked is not None else None
            found.append(known.plain if known is not None and not step.rows_only else None)
        return tuple(found)

    async def _done(self, sealing: Sealing) -> None:
        made = False
        for place, before, after in zip(sealing.places, sealing.before, sealing.after, strict=True):
            if place is not None and after is not None:
                self._heads.remember(place, after)
                made = made or (before is None and place.space != LOG)
            elif place is not None:
                self._heads.all.pop(place, None)
        if made:
            await self.markings.refresh()
            if self.markings.writing != sealing.key_id:  # a change of keys has not seen it
                for place in filter(None, sealing.places):
                    await self.resealer.head(place)
                for step in sealing.batch:
                    await self.resealer.rows(step.place)

    # --- listings

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        behind, floors = self.rows.at(after) if after is not None else None, dict(self._heads.all)
        found, space = list[Listed](), self.rows.space(tenant, space)
        while len(found) < limit:
            wanted = limit - len(found)
            page = await self.below.places(tenant, space, beneath=beneath, after=behind, limit=wanted)
            found += [self._listed(one, floors) for one in page if one.place.space != LOG]
            if len(page) < wanted:
                break
            behind = page[-1].place
        return found

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        behind, floors = self.rows.at(after) if after is not None else None, dict(self._heads.all)
        page = await self.below.recent(tenant, space, since=since, after=behind, limit=limit)
        return [self._listed(one, floors) for one in page]

    async def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        behind, floors = self.rows.at(after) if after is not None else None, dict(self._heads.all)
        page = await self.below.newest(tenant, space, until=until, after=behind, limit=limit)
        return [self._listed(one, floors) for one in page]

    def _listed(self, one: Listed, floors: dict[Place, SealedHead]) -> Listed:
        known = self._heads.seen(one.place, one.head, floors.get(one.place), alone=True)
        assert known is not None, "what is listed has a head"
        return Listed(_named(one.place, known), known.plain, one.mark)

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        if after is None:
            self._unopened.pop(tenant, None)
        behind, found = after and after._replace(place=self.rows.at(after.place)), list[Due]()
        while len(found) < limit:
            wanted = limit - len(found)
            page = await self.below.expired(tenant, now, after=behind, limit=wanted)
            found += await self._due(page)
            if len(page) < wanted:
                break
            behind = page[-1]
        if not found and (damaged := self._unopened.pop(tenant, None)) is not None:
            raise damaged
        return found

    async def _due(self, page: Sequence[Due]) -> list[Due]:
        """What of a page can be named. Of the rest the first is remembered, to be told when there is nothing else."""
        heads = [due.place for due in page if not due.table]
        floors = [self._heads.all.get(place) for place in heads]
        seen = await heads_at(self.below, heads) if heads else []
        names: dict[Place, Place | None] = {}
        for place, stored, floor in zip(heads, seen, floors, strict=True):
            try:
                known = self._heads.opened(place, stored, floor)
                names[place] = _named(place, known) if known is not None else place
            except StoreCorrupt as fault:
                names[place] = None
                self._unopened.setdefault(place.tenant, fault)
        places = [names.get(due.place, due.place) for due in page]
        return [due._replace(place=place) for due, place in zip(page, places, strict=True) if place is not None]

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        page = await self.below.tenants(after=after, limit=limit + 1)  # one of them may be the mark's
        return [tenant for tenant in page if tenant != MARK[0]][:limit]


def _named(place: Place, known: SealedHead) -> Place:
    """The place as the engine knows it."""
    if place.space.startswith(OWNED):
        return place._replace(space=Owned(place.space))
    return place._replace(name=known.name) if hides(place) else place
