"""`SealedBackend`: the verbs of a backend, over one below that holds sealed values only.

Heads, values and ids of rows are sealed (`sealed_bytes`), each bound to its address. Ids by which rows are found, and
names of items, are keyed tokens. The package's docstring explains how an old head or row that was put back is noticed.

Heads are compared as stored, that is, sealed. So a change of keys, which seals each head again without changing its
content, refuses every writer that still expects the head under the old key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from palimpsest.errors import StoreCorrupt, WrongKey
from palimpsest.stores import MARK, Item
from palimpsest.stores.backend import Again, Ask, Backend, Batch, Due, Listed, Look, Place, PlaceHead, Refusal, Seen
from palimpsest.stores.encrypted import Encryption
from palimpsest.stores.encrypted.keys import Keys
from palimpsest.stores.encrypted.mark import Markings, read_mark
from palimpsest.stores.encrypted.resealing import Resealer
from palimpsest.stores.encrypted.sealed_batch import Sealing
from palimpsest.stores.encrypted.sealed_bytes import KeyMissing, SealedHead, Values
from palimpsest.stores.encrypted.sealed_rows import LOG, Heads, Looking, Rows, named
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.engine.items import Items
from palimpsest.stores.rules import heads_at, refused
from palimpsest.stores.wrappers import Wrapper

T = TypeVar("T")


async def unlocked_backend(
    backend: Backend, mark: Item | None, encryption: Encryption | None, clock: Callable[[], int]
) -> SealedBackend:
    """Return `backend` wrapped in encryption with these keys. `mark` is the store's mark (None: the store has none).

    Raises WrongKey when the store is encrypted and the keys do not fit or none were given; ConfigError when it holds
    unencrypted data; MissingExtra when the `encryption` extra is not installed.
    """
    if encryption is None:
        assert mark is not None, "a store that is not encrypted needs no unlocking"
        current = read_mark(backend.url, mark.value).current
        advice = "the store is encrypted with it: open the store with encryption=Keys(...) that has this key, or set"
        raise WrongKey(backend.url, current, f"{advice} PALIMPSEST_KEY for the command line")
    keys = Keys.of(encryption)
    values, items = Values(keys), Items(backend, Crowds(backend), clock)
    markings = await backend.together(lambda: Markings.opened(backend, items, keys, values))
    return SealedBackend(backend, values, markings)


class SealedBackend(Wrapper):
    """A backend whose values are sealed. `markings` says under which keys."""

    def __init__(self, below: Backend, values: Values, markings: Markings) -> None:
        super().__init__(below)
        self.markings = markings
        self.rows = Rows(below.url, values, markings)
        self._heads = Heads(below.url, self.rows)
        self.resealer = Resealer(below, self.rows, self._heads, markings)
        self._unreadable_due: dict[str, StoreCorrupt] = {}

    # --- reading

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        looking = self.rows.translate(asks, self._heads.by_place)
        seen = await self.below.look(looking.below)
        return await self._sure_of_key(lambda: self._open(looking, seen, self._heads))

    async def _sure_of_key(self, opening: Callable[[], T]) -> T:
        """Return what `opening` returns. If some of that is under a key that is not given, first read the mark again.

        That raises WrongKey if the key is the store's by now: then all is under that key, and nothing is damaged.
        """
        missing = self._heads.missing
        try:
            opened = opening()
        except KeyMissing:
            await self.markings.refresh()
            raise
        if self._heads.missing != missing:
            await self.markings.refresh()
        return opened

    def glance(self, place: Place) -> PlaceHead | None:
        """Answer only if the stored head is still the one remembered here: any other must be checked with its log's."""
        remembered = self._heads.by_place.get(stored_place := self.rows.at(place))
        if remembered is None or self.below.glance(stored_place) != remembered.stored:
            return None
        return remembered.plain

    def _open(self, looking: Looking, seen: Sequence[Seen], opener: Heads) -> list[Seen]:
        """Open what the backend below has `seen`, and return the answers to the asks of `looking`."""
        rows, heads = self.rows, opener.open_all(looking, seen)
        answers = []
        for ask, place, answer in zip(looking.asks, looking.places, seen, strict=False):
            head = heads.get(place)
            opened = [rows.open(place, want, found, head) for want, found in zip(ask.rows, answer.rows, strict=True)]
            answers.append(Seen(head.plain if head is not None and ask.head else None, opened))
        return answers

    # --- writing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        batches = list(batches)
        outcomes: list[Refusal | None] = [None] * len(batches)
        pending, tries = list(range(len(batches))), 0
        while pending:
            tries += 1
            attempts: list[tuple[int, Sealing]] = []  # what is written in this round, by the batch's number
            ahead: dict[Place, SealedHead | None] = {}
            for i in pending:
                sealing, outcomes[i] = await self._prepare(batches[i], ahead)
                if outcomes[i] is None:
                    sealing.finish()
                    attempts.append((i, sealing))
                elif tries == 1 and again is not None and not self.remote and sealing.probe():
                    attempts.append((i, sealing))  # else a writer that never pauses could overtake this one for ever
            steps = [sealing.steps for _, sealing in attempts]
            by_steps = {id(sealing.steps): sealing for _, sealing in attempts}
            replace = None
            if again is not None:
                replace = partial(self._replacement, batches, attempts, by_steps, again, list[Looking]())
            results = await self.below.write(steps, at, lasting=lasting, again=replace) if attempts else []
            pending = []
            for (i, sealing), refusal in zip(attempts, results, strict=True):
                if refusal is None:
                    outcomes[i] = None
                    await self._remember_written(sealing)
                    continue
                heads, untried = sealing.opened(refusal, self._heads), batches[i] is not sealing.batch
                # The engine's heads may be as expected all the same: they were sealed again by a change of keys, or
                # another session moved the head of the log. Or `again` gave a batch that has not been tried yet.
                worth_trying = untried or (refused(sealing.batch, heads) is None and not sealing.drops_unread)
                if worth_trying and (tries == 1 or not self.remote):  # on a server the caller waits, holding nothing
                    pending.append(i)
                else:
                    outcomes[i] = await self._current_heads(batches[i]) if untried else heads
        return outcomes

    async def _current_heads(self, batch: Batch) -> Refusal:
        """Return the heads that are stored now in the places of a batch, as its refusal."""
        heads = iter(await heads_at(self, [step.place for step in batch if not step.rows_only]))
        return tuple(None if step.rows_only else next(heads) for step in batch)

    def _replacement(
        self,
        batches: list[Batch],
        attempts: list[tuple[int, Sealing]],
        by_steps: dict[int, Sealing],
        again: Again,
        looked: list[Looking],
        number: int,
        given: Batch,
        refusal: Refusal,
        look: Look,
    ) -> Batch | None:
        """Ask `again` for a batch in the place of a refused one, and return that sealed; None: the refusal stands.

        `write` gives this to the backend below as its `again`, which calls it while nobody else can write. None also
        when the batch moves the head of its log and is one of several in the call: another of them may have moved that
        head in the same transaction, which is not committed yet.

        What `again` returns takes the batch's place in `batches` even if it cannot be sealed here: its maker now counts
        on that, for instance on the ids of its entries. `write` tries it in its next round.

        The transaction may yet be rolled back, with what other batches of the call have written. So heads seen here are
        opened by a copy of what is known, and not remembered. Over a driver this runs again from its beginning after
        each look (`rules.ask_again`). `looked` keeps the earlier looks: a repeated answer is checked against the
        heads known when it was first given, not against later ones.
        """
        i, sealing = attempts[number]
        sealing = by_steps.get(id(given), sealing)  # a transaction that was begun anew is back at its first batch
        attempts[number], batches[i] = (i, sealing), sealing.batch
        if len(attempts) > 1 and any(place is not None and place.space == LOG for place in sealing.places):
            return None
        inside, at = Heads(self.url, self.rows), 0
        inside.by_place = dict(self._heads.by_place)

        def look_inside(asks: Sequence[Ask]) -> list[Seen]:
            nonlocal at
            places = chain(range(at, len(looked)), range(at))
            i = next((i for i in places if looked[i].asks == asks), len(looked))
            if i == len(looked):
                looked.append(self.rows.translate(asks, self._heads.by_place))
            at = i + 1
            return self._open(looked[i], look(looked[i].below), inside)

        batch = again(i, sealing.batch, sealing.opened(refusal, inside), look_inside)
        if batch is None:
            return None
        batches[i] = batch
        replacement = Sealing(self.rows, sealing.key_id, batch, {}, sealing.others)
        if not replacement.begin(inside.by_place) or not self._other_keys(replacement, inside) <= replacement.others:
            return None
        replacement.finish()
        attempts[number], by_steps[id(replacement.steps)] = (i, replacement), replacement
        return replacement.steps

    async def _prepare(self, batch: Batch, ahead: dict[Place, SealedHead | None]) -> tuple[Sealing, Refusal | None]:
        """Return the batch with its heads, under the key to write with, and the refusal if these are not as expected.

        When one of its heads is under another key, the mark is read again, after that head was seen. Otherwise another
        thread might have learnt of a change of keys in between, and a head under the new key would be overwritten by
        one under the retired key. Retiring a key seals every head anew, so heads that are all under the key in use need
        no look at the mark.
        """
        while True:
            sealing, refusal = Sealing(self.rows, self.markings.writing, batch, ahead), None
            while refusal is None and not sealing.begin(self._heads.by_place):
                refusal = await self._look_up(sealing, ahead)
            others = self._other_keys(sealing, self._heads)
            if others:
                await self.markings.refresh()
                if self.markings.writing != sealing.key_id:
                    continue
                sealing.others = others
            return sealing, refusal

    def _other_keys(self, sealing: Sealing, heads: Heads) -> set[str]:
        """Return the ids of keys other than the batch's own that heads of its places are known to be sealed under."""
        known = [*sealing.before, *(heads.by_place.get(self.rows.at(step.place)) for step in sealing.batch)]
        return {head.key_id for head in known if head is not None} - {"", sealing.key_id}

    async def _look_up(self, sealing: Sealing, ahead: dict[Place, SealedHead | None]) -> Refusal | None:
        """Look at the heads of a batch, which remembers them; return the refusal if they are not as it expects.

        Those that cannot be opened are not looked at: the backend below compares them as they are stored.
        """
        unread = {
            step.place: before
            for step, before in zip(sealing.batch, sealing.before, strict=True)
            if before is not None and before.spoilt is not None
        }
        unknown = [
            step.place
            for step, place in zip(sealing.batch, sealing.places, strict=True)
            if place is not None and place not in ahead and step.place not in unread
        ]
        seen = dict(zip(unknown, await heads_at(self, unknown), strict=True))
        heads: list[PlaceHead | None] = []
        for step in sealing.batch:
            earlier = unread.get(step.place) or ahead.get(self.rows.at(step.place))
            heads.append(seen.get(step.place, earlier.plain if earlier is not None else None))
        return refused(sealing.batch, heads)

    async def _remember_written(self, sealing: Sealing) -> None:
        """Remember the heads that a batch wrote. A new one is sealed anew if its key was retired meanwhile."""
        is_new = False
        for place, before, after in zip(sealing.places, sealing.before, sealing.after, strict=True):
            if place is not None and after is not None:
                self._heads.remember(place, after)
                is_new = is_new or (before is None and place.space != LOG)
            elif place is not None:
                self._heads.by_place.pop(place, None)
        if is_new:
            await self.markings.refresh()
            if self.markings.writing != sealing.key_id:  # the change of keys may have listed the places before this one
                for place in filter(None, sealing.places):
                    await self.resealer.head(place)
                for step in sealing.batch:
                    await self.resealer.rows(step.place)

    # --- listings

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        behind, floors = self.rows.at(after) if after is not None else None, dict(self._heads.by_place)
        listed, space = list[Listed](), self.rows.space(tenant, space)
        while len(listed) < limit:
            wanted = limit - len(listed)
            page = await self.below.places(tenant, space, beneath=beneath, after=behind, limit=wanted)
            listed += await self._listed([row for row in page if row.place.space != LOG], floors)
            if len(page) < wanted:
                break
            behind = page[-1].place
        return listed

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        behind, floors = self.rows.at(after) if after is not None else None, dict(self._heads.by_place)
        page = await self.below.recent(tenant, space, since=since, after=behind, limit=limit)
        return await self._listed(page, floors)

    async def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        behind, floors = self.rows.at(after) if after is not None else None, dict(self._heads.by_place)
        page = await self.below.newest(tenant, space, until=until, after=behind, limit=limit)
        return await self._listed(page, floors)

    async def _listed(self, page: Sequence[Listed], floors: dict[Place, SealedHead]) -> list[Listed]:
        def opened(row: Listed) -> Listed:
            head = self._heads.open_or_unread(row.place, row.head, floors.get(row.place), alone=True)
            assert head is not None, "what is listed has a head"
            return Listed(named(row.place, head), head.plain, row.mark)

        return await self._sure_of_key(lambda: list(map(opened, page)))

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        if after is None:
            self._unreadable_due.pop(tenant, None)
        behind, found = after and after._replace(place=self.rows.at(after.place)), list[Due]()
        while len(found) < limit:
            wanted = limit - len(found)
            page = await self.below.expired(tenant, now, after=behind, limit=wanted)
            found += await self._due(page)
            if len(page) < wanted:
                break
            behind = page[-1]
        if not found and (damaged := self._unreadable_due.pop(tenant, None)) is not None:
            raise damaged
        return found

    async def _due(self, page: Sequence[Due]) -> list[Due]:
        """Return the items of a page with their engine places, but for those with a damaged head.

        The first fault of such a head is kept, for `expired` to raise when nothing else is left.
        """
        places = [due.place for due in page if not due.table]
        floors = [self._heads.by_place.get(place) for place in places]
        stored_heads = await heads_at(self.below, places) if places else []
        engine_place: dict[Place, Place | None] = {}
        for place, stored, floor in zip(places, stored_heads, floors, strict=True):
            try:
                head = self._heads.open(place, stored, floor)
                engine_place[place] = named(place, head) if head is not None else place
            except StoreCorrupt as fault:
                if isinstance(fault, KeyMissing):
                    await self.markings.refresh()
                engine_place[place] = None
                self._unreadable_due.setdefault(place.tenant, fault)
        engine_places = [engine_place.get(due.place, due.place) for due in page]
        return [due._replace(place=place) for due, place in zip(page, engine_places, strict=True) if place is not None]

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        page = await self.below.tenants(after=after, limit=limit + 1)  # one of them may be the mark's
        return [tenant for tenant in page if tenant != MARK[0]][:limit]
