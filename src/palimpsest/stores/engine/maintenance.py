"""What neither an append nor a context needs of the engine: loaded on first use.

Lists sessions, finds and erases what has expired, and scrubs. It also holds the parts that make and delete sessions.
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
from palimpsest.stores.engine.forms import LAST, Spoilt
from palimpsest.stores.engine.items import ITEMS, LEASES, Items, Leases
from palimpsest.stores.engine.known import BARRED, ENDS, FAR, LAID, OWNED, own_place
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.loading import Loading
from palimpsest.stores.engine.sessions import Sessions
from palimpsest.stores.engine.trees import Tree, logs_read_by, readers_of
from palimpsest.stores.engine.whole_sessions import WholeSessions
from palimpsest.stores.rules import heads_at
from palimpsest.stores.values import SessionInfo

HEADS = 100
"""Heads of a user's sessions that are looked at together."""

PAGE = 1000


class Maintenance:
    """Lists sessions, sweeps what has expired, scrubs. `wholes` makes and deletes sessions, `changing` erases."""

    def __init__(self, sessions: Sessions, changing: Changing, large: Large, items: Items, leases: Leases) -> None:
        self._changing, self.wholes, self.loading = changing, WholeSessions(sessions, large), Loading(sessions, large)
        self._sessions, self._items, self._leases, self._backend = sessions, items, leases, sessions.backend
        self._warned = set[SessionKey]()

    # --- listing

    async def sessions(self, tenant: str, after: str, limit: int, begin: str, user: str | None) -> list[SessionInfo]:
        """Return a page of the tenant's sessions, as `Store.sessions` says."""
        space = "session" if user is None else OWNED + user
        listed: dict[str, SessionInfo] = {}
        last = Place(tenant, "", space, begin) if begin > after else Place(tenant, FAR, space, after)
        while len(listed) < limit:
            wanted = limit - len(listed)
            page = await self._backend.places(tenant, space, after=last, limit=wanted)
            infos = map(self._info, page) if user is None else await self._sessions_of_notes(page, user)
            listed |= {info.session: info for info in infos if user in (None, info.user)}
            if len(page) < wanted:
                break
            last = page[-1].place._replace(space=space)  # an encrypted store lists a user's space by another name
        return list(listed.values())

    async def used(
        self, tenant: str, mark: int | None, after: str, limit: int, newest_first: bool
    ) -> list[tuple[int, SessionInfo]]:
        """Return a page of the tenant's sessions by their last write, as `Store.used` says."""
        behind = Place(tenant, FAR, "session", after) if after else None
        if newest_first:
            page = await self._backend.newest(tenant, "session", until=mark, after=behind, limit=limit)
        else:
            page = await self._backend.recent(tenant, "session", since=mark or 0, after=behind, limit=limit)
        return [(one.mark, self._info(one)) for one in page]

    async def _sessions_of_notes(self, notes: list[Listed], user: str) -> list[SessionInfo]:
        """Return the sessions that these notes of a user name and that still exist.

        A note that was changed says nothing about the user of a session whose own head is damaged.
        """
        infos: list[SessionInfo] = []
        for i in range(0, len(notes), HEADS):
            several = notes[i : i + HEADS]
            places = [one.place._replace(space="session") for one in several]
            for note, place, head in zip(several, places, await heads_at(self._backend, places), strict=True):
                if head is not None:
                    infos.append(self._info(Listed(place, head), None if isinstance(note.head.hot, Spoilt) else user))
        return infos

    def _info(self, listed: Listed, user: str | None = None) -> SessionInfo:
        """Return a session as listed. One whose head is damaged is attributed to `user`, and logged once."""
        key = SessionKey(listed.place.tenant, listed.place.name)
        try:
            return SessionInfo.of(key.session, self._sessions.read(key, listed.place, listed.head).head)
        except StoreCorrupt as fault:
            if key not in self._warned:
                self._warned.add(key)
                warn("%s", fault)
            return SessionInfo.unread(key.session, user)

    # --- expiry

    async def _pages(self, tenant: str, now: int) -> AsyncIterator[list[Due]]:
        """Yield what is due, in ever larger pages: so this ends beside a writer that keeps adding expired entries."""
        after, limit, was_full = None, PAGE, True
        while page := await self._backend.expired(tenant, now, after=after, limit=limit):
            if not was_full:  # came since the last page; this look was only made to raise StoreCorrupt
                return
            yield page
            after, limit, was_full = page[-1], 2 * limit, len(page) == limit

    async def due(self, tenant: str, now: int) -> list[tuple[SessionKey, tuple[int, ...]]]:
        """Return the entries that have expired, by session, as `Store.due` says."""
        due_seqs: dict[SessionKey, set[int]] = {}
        expired = dict[SessionKey, tuple[int, ...]]()
        with suppress(StoreCorrupt):  # `sweep` raises it
            async for page in self._pages(tenant, now):
                expired |= {SessionKey(tenant, due.place.name): () for due in page if due.place.space == ENDS}
                for (place, log), seqs in _by_log(page).items():
                    with suppress(StoreCorrupt):
                        for key, read in (await self._readers(place, log, seqs)).items():
                            due_seqs.setdefault(key, set()).update(read)
        return list(({key: tuple(sorted(seqs)) for key, seqs in due_seqs.items()} | expired).items())

    async def sweep(self, tenant: str, now: int, *, entries: bool) -> int:
        """Erase what is due at the time of the call. It ends beside a writer that keeps adding expired entries."""
        swept, damaged = 0, list[StoreCorrupt]()
        heads, due_seqs = list[Place](), dict[tuple[Place, int], list[int]]()
        try:
            async for page in self._pages(tenant, now):
                heads += [due.place for due in page if not due.table]
                for where, seqs in _by_log(page).items():
                    due_seqs.setdefault(where, []).extend(seqs)
        except StoreCorrupt as fault:
            damaged.append(fault)
        steps = [partial(self._sweep_head, place, now) for place in heads]
        for (place, log), seqs in due_seqs.items() if entries else ():
            steps += [partial(self._erase_expired, place, log, seqs[i : i + PAGE]) for i in range(0, len(seqs), PAGE)]
        for step in steps:
            try:
                swept += await step()
            except StoreCorrupt as fault:  # raised after everything else was swept
                damaged.append(fault)
            except Conflict:  # the session has expired or was made anew: the next sweep takes what is due of it
                continue
        if damaged:
            raise damaged[0]
        return swept

    async def _sweep_head(self, place: Place, now: int) -> int:
        """Remove what a place with an expired head stands for; return how many items or sessions that were."""
        if place.space.startswith(ITEMS):
            return await self._items.sweep(place, now)
        if place.space == LEASES:
            await self._leases.sweep(place)
            return 0
        if place.space == LAID:
            await self.loading.remove_laid(place)
        elif place.space == BARRED:  # the branch that it bars was given up long ago
            (head,) = await heads_at(self._backend, [place])
            if head is not None:
                await self._sessions.write([Step(place, head.hot)], now)
        elif place.space == ENDS:
            return int(await self.wholes.end(SessionKey(place.tenant, place.name)))
        return 0

    async def _erase_expired(self, place: Place, log: int, seqs: list[int]) -> int:
        """Erase entries of a log in every session that reads them; return how many were erased.

        Sessions with the most of these entries come first: if one has them all, one step suffices.
        """
        remaining, readers = set(seqs), await self._readers(place, log, seqs)
        for key, read in sorted(readers.items(), key=lambda one: -len(one[1])):
            own = tuple(seq for seq in read if seq in remaining)
            if own and log in logs_read_by(known := await self._sessions.find(key)):
                change = Change(kind="erase", reason="expiry", created=known.head.created, seqs=own)
                await self._changing.commit(key, change, None, None)
                remaining.difference_update(own)
        return len(seqs) - len(remaining)

    async def _readers(self, place: Place, log: int, seqs: list[int]) -> dict[SessionKey, tuple[int, ...]]:
        """Return the sessions that have these entries of a log, and which."""
        tree_place = Place(place.tenant, place.home, "tree", "")
        owner = SessionKey(place.tenant, place.home)
        owner_seen, tree_seen = await self._backend.look([Ask(own_place(owner)), Ask(tree_place, [readers_of([log])])])
        known = self._sessions.read(owner, own_place(owner), owner_seen.head)
        tree = Tree(self._sessions.url, known, tree_seen)
        if tree.owner(log) is None and known.stored is not None and known.log == log:  # a session without branches
            owned = tuple(seq for seq in seqs if seq >= known.head.first_seq)
            return {owner: owned} if owned else {}
        read_by_session = tree.readers(log, seqs)
        return {SessionKey(place.tenant, name): read for (name, _), read in sorted(read_by_session.items())}

    # --- scrubbing

    async def scrub(self, whole: bool, progress: Callable[[int, int], object], check: Callable[[], None]) -> Scrubbed:
        """Scrub piece by piece, as `Store.scrub` says; `check` is called before each piece."""
        total, largest = Scrubbed(left=1), 1
        while total.left:
            check()
            done = await self._backend.together(lambda: self._backend.scrub(whole=whole))
            total = Scrubbed((*total.remains, *done.remains), done.left, total.freed + done.freed)
            largest = max(largest, done.left)
            progress(largest - done.left, largest)
        return Scrubbed(total.remains, total.left, max(total.freed, 0))


def _by_log(page: list[Due]) -> dict[tuple[Place, int], list[int]]:
    """Group the entries that are due by their place and log; seqs ascend."""
    by_log: dict[tuple[Place, int], list[int]] = {}
    for due in page:
        if due.table == "entry":
            by_log.setdefault((due.place, due.key >> 32), []).append(due.key & LAST)
    return {where: sorted(seqs) for where, seqs in by_log.items()}
