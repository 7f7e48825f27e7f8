"""Destroying a session whose head cannot be read: what it was is gone, and what was its own is told by everything else.

The tree of its home says what the branches read. What nobody else reads there goes. A session that never had a branch
is not in the tree: in the home of its own name it has the logs that nobody in the tree reads, and nobody is laying.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

from palimpsest.errors import StoreCorrupt
from palimpsest.log.head import SessionKey
from palimpsest.stores.backend import LAST_KEY, Ask, Listed, PlaceHead, Range, Step
from palimpsest.stores.engine.known import ENDS, LAID, OWNED, Known, root, where_of
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.sessions import Sessions
from palimpsest.stores.engine.trees import Tree, dropped, figures_of, spans_of
from palimpsest.stores.rules import all_places, expect_of, heads_at


class Destroying:
    """Destroys sessions without reading their heads."""

    def __init__(self, sessions: Sessions, large: Large) -> None:
        self._sessions, self._large = sessions, large
        self._backend, self._url = sessions.backend, sessions.url

    async def destroy(self, key: SessionKey) -> tuple[str, ...] | None:
        """Destroy the session, and return which others of its home may share entries with it; None: there is none.

        Raises StoreCorrupt where nobody can tell any more what is its own, and others are in its home.
        """
        while True:
            known, there = await self._found(key)
            if there is None:
                return None
            own = await self._logs(known)  # before it is seen who lays, and who reads, so that nobody is in between
            steps, others = await self._steps(known, there, own)
            if await self._sessions.write(steps, self._sessions.clock()) is None:
                self._sessions.forget(key)
                if known.place.home != key.session and known.pointer is not None:
                    gone = Step(where_of(key), known.pointer, destroys=True)
                    await self._sessions.write([gone], self._sessions.clock())
                return others

    async def _found(self, key: SessionKey) -> tuple[Known, PlaceHead | None]:
        """Where the session is, and its head as it is stored."""
        own, other = await heads_at(self._backend, [root(key), where_of(key)])
        pointer = expect_of(other)
        known = Known(key, root(key), 0, pointer=pointer)
        if own is not None or pointer is None:
            return known, own
        place = known.place._replace(home=self._sessions.home_of(key, pointer))
        (there,) = await heads_at(self._backend, [place])
        return Known(key, place, 0, pointer=pointer), there

    async def _logs(self, known: Known) -> set[int] | None:
        """The logs of which there is anything in its home; None where that cannot be read."""
        found = set[int]()
        with suppress(StoreCorrupt):
            for table in ("entry", "record"):
                at = 0
                while at <= LAST_KEY:
                    (seen,) = await self._backend.look([known.ask(Range(table, [(at, LAST_KEY)], 1))])
                    if not seen.rows[0]:
                        break
                    log = seen.rows[0][0][0] >> 32
                    found.add(log)
                    at = (log + 1) << 32
            return found
        return None

    async def _steps(self, known: Known, there: PlaceHead, own: set[int] | None) -> tuple[list[Step], tuple[str, ...]]:
        """What destroys it, and the others in its home."""
        place, name = known.place, known.key.session
        steps = [Step(place, there.hot, destroys=True), *await self._notes(known)]
        laid = {int(one.place.name) async for one in self._in_home(known, LAID)}
        tree = await self._tree(known)
        if own is None or tree is None:
            await self._alone(known)
            whole = [("*", 0, LAST_KEY)]
            beside = (known.logs, known.tree, known.large)
            return [*steps, *(Step(one, rows_only=True, drop=whole, destroys=True) for one in beside)], ()
        mine, read = tree.left_by(name)
        if place.home == name:
            mine |= own - tree.logs - read - laid
        pieces = tree.unread(sorted(mine | read))
        drop = [*dropped(sorted(mine), pieces), *figures_of(name, sorted(mine | read))]
        steps += [tree.step(last=not tree.sessions), *await self._large.let_go(known, spans_of(pieces))]
        steps.append(Step(known.logs, rows_only=True, drop=drop, destroys=True))
        return steps, tuple(sorted(tree.sharing_any(read)))

    async def _tree(self, known: Known) -> Tree | None:
        """Who reads what in its home; None where that cannot be read."""
        with suppress(StoreCorrupt):
            (seen,) = await self._backend.look([Ask(known.tree, [Range("share", [(0, LAST_KEY)])])])
            return Tree(self._url, known, seen)
        return None

    async def _alone(self, known: Known) -> None:
        """Raise StoreCorrupt where others are in its home."""
        others = {one.place.name async for one in self._in_home(known, "session")}
        async for one in all_places(self._backend, known.place.tenant, "where"):
            with suppress(StoreCorrupt):
                key = SessionKey(one.place.tenant, one.place.name)
                if self._sessions.home_of(key, one.head.hot) == known.place.home:
                    others.add(key.session)
        others.discard(known.key.session)
        if others:
            name, beside = known.key.session, ", ".join(map(repr, sorted(others)))
            told = f"session {name!r} cannot be told apart from {beside}, which may share entries with it"
            raise StoreCorrupt(self._url, f"{told}, because of what else is damaged: restore a backup")

    async def _notes(self, known: Known) -> list[Step]:
        """What takes away what is noted of it: nobody knows any more what that is."""
        noted = [one async for one in self._in_home(known, OWNED, beneath=True)]
        noted += [one async for one in self._in_home(known, ENDS)]
        return [Step(one.place, one.head.hot, destroys=True) for one in noted if one.place.name == known.key.session]

    async def _in_home(self, known: Known, space: str, *, beneath: bool = False) -> AsyncIterator[Listed]:
        async for one in all_places(self._backend, known.place.tenant, space, beneath=beneath):
            if one.place.home == known.place.home:
                yield one
