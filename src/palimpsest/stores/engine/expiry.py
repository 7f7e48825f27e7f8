"""What has expired: which entries are due, in every session that has them, and their erasure, and that of items."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial

from palimpsest.errors import StoreCorrupt
from palimpsest.log.change import Change
from palimpsest.log.head import SessionKey
from palimpsest.stores.backend import Ask, Due, Place, Step
from palimpsest.stores.engine.branching import Branching
from palimpsest.stores.engine.changing import Changing
from palimpsest.stores.engine.forms import LAST
from palimpsest.stores.engine.heads import Sessions
from palimpsest.stores.engine.items import ITEMS, Items
from palimpsest.stores.engine.leases import LEASES, Leases
from palimpsest.stores.engine.loading import LAID, Loading
from palimpsest.stores.engine.owners import ENDS
from palimpsest.stores.engine.places import BARRED, root
from palimpsest.stores.engine.trees import Tree, named

PAGE = 1000

Readers = dict[SessionKey, tuple[int, ...]]
"""The places that are due, by the session that has them."""


class Expiry:
    """Finds what has expired, and erases it."""

    def __init__(
        self,
        sessions: Sessions,
        changing: Changing,
        branching: Branching,
        items: Items,
        leases: Leases,
        loading: Loading,
    ) -> None:
        self._sessions, self._changing, self._branching = sessions, changing, branching
        self._items, self._leases, self._loading = items, leases, loading
        self._backend = sessions.backend

    async def _pages(self, tenant: str, now: int) -> AsyncIterator[list[Due]]:
        """Yield what is due, in larger and larger pages: so it ends beside somebody who goes on adding what is."""
        after, limit, whole = None, PAGE, True
        while page := await self._backend.expired(tenant, now, after=after, limit=limit):
            if not whole:  # this came since the last one; it was asked for to hear of what is damaged
                return
            yield page
            after, limit, whole = page[-1], 2 * limit, len(page) == limit

    async def due(self, tenant: str, now: int) -> list[tuple[SessionKey, tuple[int, ...]]]:
        found: dict[SessionKey, set[int]] = {}
        over = dict[SessionKey, tuple[int, ...]]()
        with suppress(StoreCorrupt):  # `sweep` raises it
            async for page in self._pages(tenant, now):
                over |= {SessionKey(tenant, due.place.name): () for due in page if due.place.space == ENDS}
                for (place, log), seqs in _by_log(page).items():
                    with suppress(StoreCorrupt):
                        for key, read in (await self._readers(place, log, seqs)).items():
                            found.setdefault(key, set()).update(read)
        return list(({key: tuple(sorted(seqs)) for key, seqs in found.items()} | over).items())

    async def sweep(self, tenant: str, now: int) -> int:
        """Erase what is due when it is called: beside somebody who goes on adding what has expired it ends, too."""
        swept, damaged = 0, list[StoreCorrupt]()
        heads, entries = list[Place](), dict[tuple[Place, int], list[int]]()
        try:
            async for page in self._pages(tenant, now):
                heads += [due.place for due in page if not due.table]
                for where, seqs in _by_log(page).items():
                    entries.setdefault(where, []).extend(seqs)
        except StoreCorrupt as fault:
            damaged.append(fault)
        steps = [partial(self._taken, place, now) for place in heads]
        for (place, log), seqs in entries.items():
            steps += [partial(self._erased, place, log, seqs[i : i + PAGE]) for i in range(0, len(seqs), PAGE)]
        for step in steps:
            try:
                swept += await step()
            except StoreCorrupt as fault:  # all else is swept all the same
                damaged.append(fault)
        if damaged:
            raise damaged[0]
        return swept

    async def _taken(self, place: Place, now: int) -> int:
        """Take away what is there and has a head that has expired; how many items that were."""
        if place.space.startswith(ITEMS):
            return await self._items.swept(place, now)
        if place.space == LEASES:
            await self._leases.swept(place)
            return 0
        if place.space == LAID:
            await self._loading.taken_away(place)
        elif place.space == BARRED:  # whoever began to make a branch has given up long ago
            (seen,) = await self._backend.look([Ask(place)])
            if seen.head is not None:
                await self._sessions.write([Step(place, seen.head.hot)], now)
        elif place.space == ENDS:
            return int(await self._branching.end(SessionKey(place.tenant, place.name)))
        return 0

    async def _erased(self, place: Place, log: int, seqs: list[int]) -> int:
        """Erase entries of a log in all who read them, in one step where one of these has them all; how many that were.

        So whoever has the most is first.
        """
        left, readers = set(seqs), await self._readers(place, log, seqs)
        for key, read in sorted(readers.items(), key=lambda one: -len(one[1])):
            meant = tuple(seq for seq in read if seq in left)
            if meant:
                await self._changing.commit(key, Change(kind="erase", reason="expiry", seqs=meant), None, None)
                left.difference_update(meant)
        return len(seqs) - len(left)

    async def _readers(self, place: Place, log: int, seqs: list[int]) -> Readers:
        """The sessions that have these entries of a log, and which."""
        tree = Place(place.tenant, place.home, "tree", "")
        owner = SessionKey(place.tenant, place.home)
        own, readers = await self._backend.look([Ask(root(owner)), Ask(tree, [named([log])])])
        known = self._sessions.read(owner, root(owner), own.head)
        shared = Tree(self._sessions.url, known, readers)
        if shared.owner(log) is None and known.there is not None and known.log == log:  # it has never had a branch
            mine = tuple(seq for seq in seqs if seq >= known.head.first_seq)
            return {owner: mine} if mine else {}
        there = shared.readers(log, seqs)
        return {SessionKey(place.tenant, name): read for (name, _), read in sorted(there.items())}


def _by_log(page: list[Due]) -> dict[tuple[Place, int], list[int]]:
    """The places of the entries that are due, by where they are and the number of their log."""
    found: dict[tuple[Place, int], list[int]] = {}
    for due in page:
        if due.table == "entry":
            found.setdefault((due.place, due.key >> 32), []).append(due.key & LAST)
    return {where: sorted(seqs) for where, seqs in found.items()}
