"""What of the engine neither an append nor a context needs: loaded, and made, when it is first asked for.

Here is what lists sessions, finds and erases what has expired, and scrubs. What makes and removes sessions it has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.change import Change
from palimpsest.log.head import SessionKey
from palimpsest.runtime.logs import warn
from palimpsest.stores.backend import Ask, Due, Listed, Place, Scrubbed, Step
from palimpsest.stores.engine.changing import Changing
from palimpsest.stores.engine.forms import LAST
from palimpsest.stores.engine.items import ITEMS, LEASES, Items, Leases
from palimpsest.stores.engine.known import BARRED, ENDS, FAR, LAID, OWNED, root
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.loading import Loading
from palimpsest.stores.engine.sessions import Sessions
from palimpsest.stores.engine.trees import Tree, named, read_by
from palimpsest.stores.engine.whole_sessions import WholeSessions
from palimpsest.stores.rules import heads_at
from palimpsest.stores.values import SessionInfo

HEADS = 100
"""Heads of a user's sessions that are looked at together."""

PAGE = 1000


class Maintenance:
    """Lists sessions, sweeps what has expired, scrubs; has what makes and removes sessions; has `changing` erase."""

    def __init__(self, sessions: Sessions, changing: Changing, large: Large, items: Items, leases: Leases) -> None:
        self._changing, self.wholes, self.loading = changing, WholeSessions(sessions, large), Loading(sessions, large)
        self._sessions, self._items, self._leases, self._backend = sessions, items, leases, sessions.backend
        self._told = set[SessionKey]()

    # --- listing

    async def sessions(self, tenant: str, after: str, limit: int, begin: str, user: str | None) -> list[SessionInfo]:
        space = "session" if user is None else OWNED + user
        found: dict[str, SessionInfo] = {}
        last = Place(tenant, "", space, begin) if begin > after else Place(tenant, FAR, space, after)
        while len(found) < limit:
            wanted = limit - len(found)
            page = await self._backend.places(tenant, space, after=last, limit=wanted)
            infos = map(self._info, page) if user is None else await self._of(page, user)
            found |= {info.session: info for info in infos if user in (None, info.user)}
            if len(page) < wanted:
                break
            last = page[-1].place._replace(space=space)  # an encrypted store has another name for a user's
        return list(found.values())

    async def used(
        self, tenant: str, mark: int | None, after: str, limit: int, newest_first: bool
    ) -> list[tuple[int, SessionInfo]]:
        behind = Place(tenant, FAR, "session", after) if after else None
        if newest_first:
            page = await self._backend.newest(tenant, "session", until=mark, after=behind, limit=limit)
        else:
            page = await self._backend.recent(tenant, "session", since=mark or 0, after=behind, limit=limit)
        return [(one.mark, self._info(one)) for one in page]

    async def _of(self, notes: list[Listed], user: str) -> list[SessionInfo]:
        """The sessions that these notes are of, and that are still there."""
        found: list[SessionInfo] = []
        for i in range(0, len(notes), HEADS):
            places = [one.place._replace(space="session") for one in notes[i : i + HEADS]]
            heads = zip(places, await heads_at(self._backend, places), strict=True)
            found += [self._info(Listed(place, head), user) for place, head in heads if head is not None]
        return found

    def _info(self, one: Listed, user: str | None = None) -> SessionInfo:
        """A session as it is listed: one whose head is damaged, which is told once, is a note's `user`'s."""
        key = SessionKey(one.place.tenant, one.place.name)
        try:
            return SessionInfo.of(key.session, self._sessions.read(key, one.place, one.head).head)
        except StoreCorrupt as fault:
            if key not in self._told:
                self._told.add(key)
                warn("%s", fault)
            return SessionInfo.unread(key.session, user)

    # --- expiry

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
        steps = [partial(self._swept, place, now) for place in heads]
        for (place, log), seqs in entries.items():
            steps += [partial(self._erased, place, log, seqs[i : i + PAGE]) for i in range(0, len(seqs), PAGE)]
        for step in steps:
            try:
                swept += await step()
            except StoreCorrupt as fault:  # all else is swept all the same
                damaged.append(fault)
            except Conflict:  # it is over by now, or somebody has made it anew: what is due of it is for the next sweep
                continue
        if damaged:
            raise damaged[0]
        return swept

    async def _swept(self, place: Place, now: int) -> int:
        """Take away what is there and has a head that has expired; how many items that were."""
        if place.space.startswith(ITEMS):
            return await self._items.swept(place, now)
        if place.space == LEASES:
            await self._leases.swept(place)
            return 0
        if place.space == LAID:
            await self.loading.taken_away(place)
        elif place.space == BARRED:  # whoever began to make a branch has given up long ago
            (head,) = await heads_at(self._backend, [place])
            if head is not None:
                await self._sessions.write([Step(place, head.hot)], now)
        elif place.space == ENDS:
            return int(await self.wholes.end(SessionKey(place.tenant, place.name)))
        return 0

    async def _erased(self, place: Place, log: int, seqs: list[int]) -> int:
        """Erase entries of a log in all who read them, in one step where one of these has them all; how many that were.

        So whoever has the most is first.
        """
        left, readers = set(seqs), await self._readers(place, log, seqs)
        for key, read in sorted(readers.items(), key=lambda one: -len(one[1])):
            meant = tuple(seq for seq in read if seq in left)
            if meant and log in read_by(known := await self._sessions.find(key)):
                change = Change(kind="erase", reason="expiry", created=known.head.created, seqs=meant)
                await self._changing.commit(key, change, None, None)
                left.difference_update(meant)
        return len(seqs) - len(left)

    async def _readers(self, place: Place, log: int, seqs: list[int]) -> dict[SessionKey, tuple[int, ...]]:
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

    # --- scrubbing

    async def scrub(self, whole: bool, progress: Callable[[int, int], object], check: Callable[[], None]) -> Scrubbed:
        """As `Store.scrub` says; `check` is called before each piece."""
        all_done, most = Scrubbed(left=1), 1
        while all_done.left:
            check()
            done = await self._backend.together(lambda: self._backend.scrub(whole=whole))
            all_done = Scrubbed((*all_done.remains, *done.remains), done.left, all_done.freed + done.freed)
            most = max(most, done.left)
            progress(most - done.left, most)
        return Scrubbed(all_done.remains, all_done.left, max(all_done.freed, 0))


def _by_log(page: list[Due]) -> dict[tuple[Place, int], list[int]]:
    """The places of the entries that are due, by where they are and the number of their log."""
    found: dict[tuple[Place, int], list[int]] = {}
    for due in page:
        if due.table == "entry":
            found.setdefault((due.place, due.key >> 32), []).append(due.key & LAST)
    return {where: sorted(seqs) for where, seqs in found.items()}
