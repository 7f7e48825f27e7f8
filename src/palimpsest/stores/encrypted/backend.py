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

from palimpsest.stores import MARK
from palimpsest.stores.backend import Again, Ask, Backend, Batch, Due, Listed, Place, PlaceHead, Refusal, Seen, Step
from palimpsest.stores.encrypted.anew import Anew
from palimpsest.stores.encrypted.batches import Layout, Sealing
from palimpsest.stores.encrypted.heads import Heads
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.rows import Rows
from palimpsest.stores.encrypted.values import Known, Values

T = TypeVar("T")


class SealedBackend(Backend):
    """A backend whose values are sealed. `markings` says under which keys."""

    def __init__(self, below: Backend, values: Values, markings: Markings, layout: Layout) -> None:
        self.below, self.url, self.writable, self.blocking = below, below.url, below.writable, below.blocking
        self.inline = getattr(below, "inline", False)
        self.markings = markings
        self.rows = Rows(below.url, values, markings, layout)
        self._heads = Heads(below.url, self.rows, values)
        self.anew = Anew(below, self.rows, self._heads, markings)

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

    # --- reading

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        places = [self.rows.at(ask.place) for ask in asks]
        floors = [self._heads.all.get(place) for place in places]
        seen = await self.below.look([self.rows.asked(ask, place) for ask, place in zip(asks, places, strict=True)])
        heads: list[Known | None] = []
        for ask, place, one, floor in zip(asks, places, seen, floors, strict=True):
            if one.head is None and ask.head:
                self._heads.all.pop(place, None)  # it is gone
            heads.append(self._heads.opened(place, one.head, floor) if one.head is not None else None)
        vouching = [(p, k) for p, k in zip(places, heads, strict=True) if k is not None and k.reads]
        found = []
        for ask, place, one, known in zip(asks, places, seen, heads, strict=True):
            rows = [
                self.rows.opened(place, what, some, known, vouching)
                for what, some in zip(ask.rows, one.rows, strict=True)
            ]
            found.append(Seen(known.plain if known is not None and ask.head else None, rows))
        return found

    # --- writing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        done: list[Refusal | None] = [None] * len(batches)
        left = list(range(len(batches)))
        while left:
            await self._fit([step for i in left for step in batches[i]])
            made: list[tuple[int, Sealing]] = []
            ahead: dict[Place, Known | None] = {}
            for i in left:
                sealing = Sealing(self.rows, self.markings.writing, batches[i], ahead)
                while not sealing.begin(self._heads.all):
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
        known = [self._heads.all.get(self.rows.at(step.place)) for step in steps if not step.rows_only]
        if any(one is not None and one.key_id and one.key_id != self.markings.writing for one in known):
            await self.markings.refresh()

    async def _unexpected(self, batch: Batch, ahead: dict[Place, Known | None]) -> Refusal | None:
        """Look at the heads of a batch; those that are there, unless they are as it expects them."""
        meant = [step.place for step in batch if not step.rows_only and self.rows.at(step.place) not in ahead]
        seen = dict(zip(meant, await self.look([Ask(place) for place in meant]), strict=True))
        await self._fit(batch)
        found: list[PlaceHead | None] = []
        for step in batch:
            known = ahead.get(self.rows.at(step.place)) if step.place not in seen else None
            there = seen[step.place].head if step.place in seen else known.plain if known is not None else None
            found.append(None if step.rows_only else there)
        return None if _is_expected(batch, found) else tuple(found)

    def _refusal(self, sealing: Sealing, refusal: Refusal) -> Refusal:
        found: list[PlaceHead | None] = []
        for step, head, floor in zip(sealing.batch, refusal, sealing.before, strict=True):
            place = self.rows.at(step.place)
            if head is None and not step.rows_only:
                self._heads.all.pop(place, None)
            found.append(self._heads.opened(place, head, floor).plain if head is not None else None)
        return tuple(found)

    async def _done(self, sealing: Sealing) -> None:
        made = []
        for step, before, after in zip(sealing.batch, sealing.before, sealing.after, strict=True):
            if step.rows_only or self.rows.is_clear(step.place):
                continue
            place = self.rows.at(step.place)
            if after is None:
                self._heads.all.pop(place, None)
                continue
            self._heads.remember(place, after)
            if before is None:
                made.append(place)
        if made:
            await self.markings.refresh()
            if self.markings.writing != sealing.key_id:  # a change of keys has not seen it
                for place in made:
                    await self.anew.seal(place)

    # --- listings

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        behind = self.rows.at(after) if after is not None else None
        floors = dict(self._heads.all)
        page = await self.below.places(tenant, space, beneath=beneath, after=behind, limit=limit)
        return [self._listed(one, floors) for one in page]

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        behind = self.rows.at(after) if after is not None else None
        floors = dict(self._heads.all)
        page = await self.below.recent(tenant, space, since=since, after=behind, limit=limit)
        return [self._listed(one, floors) for one in page]

    def _listed(self, one: Listed, floors: dict[Place, Known]) -> Listed:
        known = self._heads.opened(one.place, one.head, floors.get(one.place))
        return Listed(self._named_place(one.place, known), known.plain, one.mark)

    def _named_place(self, place: Place, known: Known) -> Place:
        return place._replace(name=known.name) if self.rows.hides(place) else place

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        behind = after._replace(place=self.rows.at(after.place)) if after is not None else None
        page = await self.below.expired(tenant, now, after=behind, limit=limit)
        hidden = [due.place for due in page if self.rows.hides(due.place)]
        floors = [self._heads.all.get(place) for place in hidden]
        names: dict[Place, Place] = {}
        seen = await self.below.look([Ask(place) for place in hidden]) if hidden else []
        for place, one, floor in zip(hidden, seen, floors, strict=True):
            if one.head is not None:
                names[place] = self._named_place(place, self._heads.opened(place, one.head, floor))
        return [due._replace(place=names.get(due.place, due.place)) for due in page]

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        page = await self.below.tenants(after=after, limit=limit + 1)  # one of them may be the mark's
        return [tenant for tenant in page if tenant != MARK[0]][:limit]


def _is_expected(batch: Batch, heads: Sequence[PlaceHead | None]) -> bool:
    """Whether the heads that are there are those that a batch expects."""
    return all(
        step.rows_only or (head.hot if head is not None else None) == step.expect
        for step, head in zip(batch, heads, strict=True)
    )
