"""Erasing in sessions that share entries: first entries of one session alone, then shared ones, then empty sessions."""

from __future__ import annotations

from functools import partial
from typing import Any

from palimpsest.errors import Conflict
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.privacy.mentions import Mentions
from palimpsest.sessions.erased import Erased, media_in
from palimpsest.sessions.erasing.damaged import destroy_damaged, is_damaged
from palimpsest.sessions.erasing.eraser import Eraser, Lost
from palimpsest.sessions.erasing.query import Query
from palimpsest.sessions.erasing.selection import Picked, SelectedAll, SelectedByQuery
from palimpsest.sessions.fact_scopes import Leaving
from palimpsest.sessions.history import since
from palimpsest.sessions.options import Options
from palimpsest.sessions.scope import MemoryScope, SessionScope

PASSES = 10
"""How often to go through what others write meanwhile. Passes after the first have little to do."""

MARK = "forgotten"
"""Key in the details of the records of a forgetting. Its value says whether an emptied session is to be deleted."""


class FamilyEraser:
    """Erases in sessions that share entries.

    `leaving` destroys the facts of sessions that are deleted. In a dry run observers hear nothing and no summary is
    made anew.
    """

    def __init__(self, scope: MemoryScope, reason: str, leaving: Leaving, *, dry_run: bool) -> None:
        self._scope, self._store, self._leaving = scope, scope.store, leaving
        self._reason, self._dry_run = reason, dry_run

    def _session(self, name: str) -> SessionScope:
        options = Options(self._scope.key(name), persistence="ephemeral" if self._dry_run else "incremental")
        return SessionScope(self._scope, options, self._store)

    def _eraser(self, name: str) -> Eraser:
        return Eraser(self._session(name))

    async def remove_session(self, name: str, *, everywhere: bool) -> Erased:
        """Delete a session, including what others add to it meanwhile.

        With `everywhere` its entries are erased before, so that they go from branches, too. That reaches branches that
        are forked meanwhile, since all is erased before anything is deleted.
        """
        if await is_damaged(self._store, self._scope.key(name)):
            return await destroy_damaged(self._scope, self._store, name, self._leaving, dry_run=self._dry_run)
        report, lost_summaries = Erased(), Lost()
        if everywhere:
            report, lost_summaries = await self._eraser(name).erase(SelectedAll(), self._reason)
        report += await self._drop_facts(name)
        for number in range(PASSES):
            head = await self._store.head(self._scope.key(name))
            if head is None:
                break
            deleted = await self._delete(name, head, certainly=number == PASSES - 1)
            if deleted is not None:
                report += deleted
                break
        lost_summaries.pop(name, None)
        return report + await self._rebuild(name, lost_summaries, None)

    async def _delete_if_emptied(self, name: str) -> Erased:
        """Delete a session if forgetting a user has emptied it, as the mark in one of its records says."""
        for _ in range(PASSES):
            head = await self._store.head(self._scope.key(name))
            if head is None or head.entries + head.hidden:
                break
            if not any(record.detail.get(MARK) is True for record in await self._store.records(self._scope.key(name))):
                break
            facts = await self._drop_facts(name)
            deleted = await self._delete(name, head)
            if deleted is not None:
                return deleted + facts
        return Erased()

    async def _drop_facts(self, name: str) -> Erased:
        """Destroy the facts of a session. Called before the session goes: if the process were killed after that,
        nothing would tell whose the facts were."""
        return Erased(items=await self._leaving.drop(name, self._store))

    async def _delete(self, name: str, head: Head, *, certainly: bool = False) -> Erased | None:
        """Delete a session and return the report; None if somebody has written to it since `head`.

        With `certainly` it is deleted all the same, with what was written since.
        """
        session = self._session(name)
        entries = await SelectedAll().find(self._store, session.options, head)
        own_entries = await self._unshared(name, entries)
        async with session.drop_derived(None) as unmaking:
            try:
                await self._store.delete(session.key, expect=head.revision)
            except Conflict:
                if not certainly:
                    return None
                await self._store.delete(session.key)
                await unmaking.tell_again()
        if entries:
            facts = {"seqs": tuple(entry.seq for entry in entries), "reason": self._reason, "branches": ()}
            await session.tell("erased", **facts)
        return Erased(entries=len(own_entries), sessions=(name,), media=sum(map(media_in, own_entries))) + unmaking.done

    async def _unshared(self, name: str, found: list[Entry]) -> list[Entry]:
        """Return those of these entries that no other session shares."""
        sharing = await self._store.sharing(self._scope.key(name), [entry.seq for entry in found])
        shared = {seq for seqs in sharing.values() for seq in seqs}
        return [entry for entry in found if entry.seq not in shared]

    async def forget(
        self,
        family: list[str],
        query: Query,
        choices: dict[str, SelectedByQuery],
        seen: dict[str, Head],
        *,
        whole: bool,
    ) -> Erased:
        """Forget what meets a query in these sessions, which share entries.

        With `whole` sessions in which nothing else is left are deleted. `choices` keeps the selection of each session
        from pass to pass, and `seen` the head up to which it has looked; both are updated.
        """
        found_entries: dict[str, list[Entry]] = {}
        for name in family:
            selection, head = (
                choices.setdefault(name, SelectedByQuery(query)),
                await self._store.head(self._scope.key(name)) or Head(),
            )
            before = seen.get(name)
            if before is not None and await since(self._store, self._scope.key(name), before, head) is None:
                before = None
            find = partial(selection.find, self._store, self._session(name).options, head, before)
            found_entries[name] = await self._store.together(find, reads=True)
            seen[name] = head
        mentions = choices[family[0]].mentions
        unshared = (
            {name: await self._unshared(name, entries) for name, entries in found_entries.items()}
            if len(family) > 1
            else {}
        )
        steps = [(name, Picked([entry.id for entry in entries])) for name, entries in unshared.items() if entries]
        steps += [(name, Picked([entry.id for entry in each], mentions)) for name, each in found_entries.items()]
        report, lost_summaries = await self._erase_picked(steps, whole=whole)
        for name in family if whole else ():
            if emptied := await self._delete_if_emptied(name):
                report += emptied
                lost_summaries.pop(name, None)
        report += await self._rebuild(family[0], lost_summaries, mentions)
        if any(found_entries.values()):  # freeing thousands of entries takes milliseconds: not on the event loop
            await self._store.apart(_clear, found_entries, unshared, lost_summaries)
        return report

    async def _erase_picked(self, steps: list[tuple[str, Picked]], *, whole: bool) -> tuple[Erased, Lost]:
        """Erase what was picked in each of these sessions, one after the other."""
        total, lost_summaries = Erased(), Lost()
        for name, picked in steps:
            report, newly_lost = await self._eraser(name).erase(picked, self._reason, detail={MARK: whole})
            total += report + Erased(branches=(name,) if report.branches else ())
            lost_summaries = {
                session: [*lost_summaries.get(session, ()), *newly_lost.get(session, ())]
                for session in {**lost_summaries, **newly_lost}
            }
        return total, lost_summaries

    async def _rebuild(self, name: str, lost: Lost, mentions: Mentions | None) -> Erased:
        """Make lost summaries anew; in a dry run make none."""
        if self._dry_run or not lost:
            return Erased()
        return Erased(rebuilt=await self._eraser(name).rebuild(lost, mentions))


def _clear(*held: dict[str, list[Any]]) -> None:
    for each in held:
        each.clear()
