"""Destroying a session whose head cannot be read. What belonged to it is inferred from everything else in its home.

The tree of its home says what the branches read; anything of its logs that no other session reads is dropped. A session
that never had a branch is not in the tree. If it is in the home of its own name, its logs are those that no session in
the tree reads and that nobody is laying.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import suppress

from palimpsest.errors import StoreCorrupt
from palimpsest.log.head import SessionKey
from palimpsest.stores.backend import LAST_KEY, Ask, Listed, PlaceHead, Range, Step
from palimpsest.stores.engine.known import ENDS, LAID, OWNED, Known, own_place, pointer_place
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.sessions import Sessions
from palimpsest.stores.engine.trees import Tree, figure_drops, session_drops, spans_of
from palimpsest.stores.rules import all_places, expect_of, heads_at


class Destroying:
    """Destroys sessions without reading their heads."""

    def __init__(self, sessions: Sessions, large: Large) -> None:
        self._sessions, self._large = sessions, large
        self._backend, self._url = sessions.backend, sessions.url

    async def destroy(self, key: SessionKey) -> tuple[str, ...] | None:
        """Destroy the session; return which others of its home may share entries with it, or None if it does not exist.

        Raises StoreCorrupt if its own logs cannot be told apart any more, and other sessions are in its home.
        """
        while True:
            known, stored = await self._locate(key)
            if stored is None:
                return None
            # Before the tree and what is being laid are read: else a log begun in between would be taken for its own.
            logs = await self._logs_present(known)
            steps, others = await self._destruction_steps(known, stored, logs)
            if await self._sessions.write(steps, self._sessions.clock()) is None:
                self._sessions.forget(key)
                if known.place.home != key.session and known.pointer is not None:
                    drop_pointer = Step(pointer_place(key), known.pointer, destroys=True)
                    await self._sessions.write([drop_pointer], self._sessions.clock())
                return others

    async def _locate(self, key: SessionKey) -> tuple[Known, PlaceHead | None]:
        """Return where the session is, and its stored head (None: there is no such session)."""
        own_head, pointer_head = await heads_at(self._backend, [own_place(key), pointer_place(key)])
        pointer = expect_of(pointer_head)
        known = Known(key, own_place(key), 0, pointer=pointer)
        if own_head is not None or pointer is None:
            return known, own_head
        place = known.place._replace(home=self._sessions.home_of(key, pointer))
        (stored,) = await heads_at(self._backend, [place])
        return Known(key, place, 0, pointer=pointer), stored

    async def _logs_present(self, known: Known) -> set[int] | None:
        """Return the logs that have any rows in the session's home; None if that cannot be read."""
        logs = set[int]()
        with suppress(StoreCorrupt):
            for table in ("entry", "record"):
                next_key = 0
                while next_key <= LAST_KEY:
                    (seen,) = await self._backend.look([known.ask(Range(table, [(next_key, LAST_KEY)], 1))])
                    if not seen.rows[0]:
                        break
                    log = seen.rows[0][0][0] >> 32
                    logs.add(log)
                    next_key = (log + 1) << 32
            return logs
        return None

    async def _destruction_steps(
        self, known: Known, stored: PlaceHead, present: set[int] | None
    ) -> tuple[list[Step], tuple[str, ...]]:
        """Return the steps that destroy the session, and the other sessions that may share entries with it."""
        place, name = known.place, known.key.session
        steps = [Step(place, stored.hot, destroys=True), *await self._note_removals(known)]
        being_laid = {int(one.place.name) async for one in self._in_home(known, LAID)}
        tree = await self._tree(known)
        if present is None or tree is None:
            # Nobody can tell which logs are the session's: everything in the home goes, if it is alone there.
            await self._check_alone(known)
            whole = [("*", 0, LAST_KEY)]
            beside = (known.logs, known.tree, known.large)
            return [*steps, *(Step(one, rows_only=True, drop=whole, destroys=True) for one in beside)], ()
        own_logs, logs_read = tree.left_by(name)
        if place.home == name:
            # A session that never had a branch is not in the tree: its log is one that no session reads.
            own_logs |= present - tree.logs - logs_read - being_laid
        pieces = tree.unread(sorted(own_logs | logs_read))
        drop = [*session_drops(sorted(own_logs), pieces), *figure_drops(name, sorted(own_logs | logs_read))]
        steps += [tree.step(last=not tree.sessions), *await self._large.release_steps(known, spans_of(pieces))]
        steps.append(Step(known.logs, rows_only=True, drop=drop, destroys=True))
        return steps, tuple(sorted(tree.sharing_any(logs_read)))

    async def _tree(self, known: Known) -> Tree | None:
        """Return the tree of the session's home; None if it cannot be read."""
        with suppress(StoreCorrupt):
            (seen,) = await self._backend.look([Ask(known.tree, [Range("share", [(0, LAST_KEY)])])])
            return Tree(self._url, known, seen)
        return None

    async def _check_alone(self, known: Known) -> None:
        """Raise StoreCorrupt if other sessions are in the home."""
        others = {one.place.name async for one in self._in_home(known, "session")}
        async for one in all_places(self._backend, known.place.tenant, "where"):
            with suppress(StoreCorrupt):
                key = SessionKey(one.place.tenant, one.place.name)
                if self._sessions.home_of(key, one.head.hot) == known.place.home:
                    others.add(key.session)
        others.discard(known.key.session)
        if others:
            name, beside = known.key.session, ", ".join(map(repr, sorted(others)))
            problem = f"session {name!r} cannot be told apart from {beside}, which may share entries with it"
            raise StoreCorrupt(self._url, f"{problem}, because the record of that is damaged: restore a backup")

    async def _note_removals(self, known: Known) -> list[Step]:
        """Return the steps that remove the session's notes, found by listing, as its head does not tell them."""
        notes = [one async for one in self._in_home(known, OWNED, beneath=True)]
        notes += [one async for one in self._in_home(known, ENDS)]
        return [Step(one.place, one.head.hot, destroys=True) for one in notes if one.place.name == known.key.session]

    async def _in_home(self, known: Known, space: str, *, beneath: bool = False) -> AsyncIterator[Listed]:
        """Yield the places of a space that are in the session's home."""
        async for one in all_places(self._backend, known.place.tenant, space, beneath=beneath):
            if one.place.home == known.place.home:
                yield one
