"""Erasing in sessions that share entries: what one has alone goes first, then what they share, then what is empty."""

from __future__ import annotations

from functools import partial
from typing import Any

from palimpsest.errors import Conflict
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.privacy.mentions import Mentions
from palimpsest.sessions.erased import Erased, media_in
from palimpsest.sessions.erasing.damaged import destroyed, is_damaged
from palimpsest.sessions.erasing.eraser import Eraser, Lost
from palimpsest.sessions.erasing.query import Query
from palimpsest.sessions.erasing.selection import Picked, SelectedAll, SelectedByQuery
from palimpsest.sessions.history import since
from palimpsest.sessions.options import Options
from palimpsest.sessions.scope import MemoryScope, SessionScope
from palimpsest.sessions.scopes import Leaving

PASSES = 10
"""How often what others write meanwhile is gone through: all but the first time that is little."""

MARK = "forgotten"
"""Stands in the details of what forgetting has erased: whether a session in which nothing is left is to go."""


class FamilyEraser:
    """Erases in sessions that share entries. In a dry run nobody is told, and no summary is made anew.

    `leaving` destroys the facts of those that go.
    """

    def __init__(self, scope: MemoryScope, reason: str, leaving: Leaving, *, dry_run: bool) -> None:
        self._scope, self._store, self._leaving = scope, scope.store, leaving
        self._reason, self._dry_run = reason, dry_run

    def _session(self, name: str) -> SessionScope:
        options = Options(self._scope.key(name), persistence="ephemeral" if self._dry_run else "incremental")
        return SessionScope(self._scope, options, self._store)

    def _eraser(self, name: str) -> Eraser:
        return Eraser(self._session(name))

    async def removed(self, name: str, *, everywhere: bool) -> Erased:
        """Delete a session, with what others add meanwhile; before that, `everywhere`, erase what branches share of it.

        Also what a branch shares that somebody makes meanwhile: so all is erased before anything is deleted.
        """
        if await is_damaged(self._store, self._scope.key(name)):
            return await destroyed(self._scope, self._store, name, self._leaving, dry_run=self._dry_run)
        done, lost = Erased(), Lost()
        if everywhere:
            done, lost = await self._eraser(name).erase(SelectedAll(), self._reason)
        done += await self._without_facts(name)
        for last in range(PASSES):
            head = await self._store.head(self._scope.key(name))
            if head is None:
                break
            more = await self._deleted(name, head, certainly=last == PASSES - 1)
            if more is not None:
                done += more
                break
        lost.pop(name, None)
        return done + await self._rebuilt(name, lost, None)

    async def _emptied(self, name: str) -> Erased:
        """Delete a session if nothing is left of it, by what forgetting a user has erased."""
        for _ in range(PASSES):
            head = await self._store.head(self._scope.key(name))
            if head is None or head.entries + head.hidden:
                break
            if not any(record.detail.get(MARK) is True for record in await self._store.records(self._scope.key(name))):
                break
            facts = await self._without_facts(name)
            done = await self._deleted(name, head)
            if done is not None:
                return done + facts
        return Erased()

    async def _without_facts(self, name: str) -> Erased:
        """Destroy the facts of a session, before it goes: after a kill nobody would know whose they were."""
        return Erased(items=await self._leaving.drop(name, self._store))

    async def _deleted(self, name: str, head: Head, *, certainly: bool = False) -> Erased | None:
        """Delete a session and return what that took; None where somebody has written to it since this head.

        With `certainly` that goes, too.
        """
        session = self._session(name)
        found = await SelectedAll().find(self._store, session.options, head)
        own = await self._alone(name, found)
        async with session.drop_derived(None) as unmade:
            try:
                await self._store.delete(session.key, expect=head.revision)
            except Conflict:
                if not certainly:
                    return None
                await self._store.delete(session.key)
                await unmade.again()
        if found:
            facts = {"seqs": tuple(entry.seq for entry in found), "reason": self._reason, "branches": ()}
            await session.tell("erased", **facts)
        return Erased(entries=len(own), sessions=(name,), media=sum(map(media_in, own))) + unmade.done

    async def _alone(self, name: str, found: list[Entry]) -> list[Entry]:
        """Those of these entries that no other session shares."""
        sharing = await self._store.sharing(self._scope.key(name), [entry.seq for entry in found])
        shared = {seq for seqs in sharing.values() for seq in seqs}
        return [entry for entry in found if entry.seq not in shared]

    async def forgotten(
        self,
        family: list[str],
        query: Query,
        choices: dict[str, SelectedByQuery],
        seen: dict[str, Head],
        *,
        whole: bool,
    ) -> Erased:
        """Forget what meets a query in these sessions; with `whole` those in which nothing else is left are deleted.

        `seen` are the heads up to which they were looked at before, each with its choice, and become those of now.
        """
        found: dict[str, list[Entry]] = {}
        for name in family:
            selection, head = (
                choices.setdefault(name, SelectedByQuery(query)),
                await self._store.head(self._scope.key(name)) or Head(),
            )
            before = seen.get(name)
            if before is not None and await since(self._store, self._scope.key(name), before, head) is None:
                before = None
            find = partial(selection.find, self._store, self._session(name).options, head, before)
            found[name] = await self._store.together(find, reads=True)
            seen[name] = head
        mentions = choices[family[0]].mentions
        own = {name: await self._alone(name, entries) for name, entries in found.items()} if len(family) > 1 else {}
        steps = [(name, Picked([entry.id for entry in entries])) for name, entries in own.items() if entries]
        steps += [(name, Picked([entry.id for entry in each], mentions)) for name, each in found.items()]
        done, lost = await self._erased(steps, whole=whole)
        for name in family if whole else ():
            if more := await self._emptied(name):
                done += more
                lost.pop(name, None)
        done += await self._rebuilt(family[0], lost, mentions)
        if any(found.values()):  # to let go of thousands of entries takes milliseconds
            await self._store.apart(_let_go, found, own, lost)
        return done

    async def _erased(self, steps: list[tuple[str, Picked]], *, whole: bool) -> tuple[Erased, Lost]:
        """Erase what was picked of each of these sessions, one after the other."""
        done, lost = Erased(), Lost()
        for name, picked in steps:
            more, gone = await self._eraser(name).erase(picked, self._reason, detail={MARK: whole})
            done += more + Erased(branches=(name,) if more.branches else ())
            lost = {each: [*lost.get(each, ()), *gone.get(each, ())] for each in {**lost, **gone}}
        return done, lost

    async def _rebuilt(self, name: str, lost: Lost, mentions: Mentions | None) -> Erased:
        """Make anew what was lost; in a dry run only what would go is told."""
        if self._dry_run or not lost:
            return Erased()
        return Erased(rebuilt=await self._eraser(name).rebuild(lost, mentions))


def _let_go(*held: dict[str, list[Any]]) -> None:
    for each in held:
        each.clear()
