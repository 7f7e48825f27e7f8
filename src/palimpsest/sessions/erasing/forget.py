"""Forgetting over sessions: all that belongs to a user, a session or the tenant, or that meets a query.

All sessions are gone through, then those that are new, and what is new in the others, until nothing more is found: so
what was there when it began is gone, and nobody who goes on writing is in its way. Of branches the entries
that one alone has go first, then those that they share: an interaction is told by its first message, so that is there
until all branches are done with what came of it. So, after a kill, the same again goes on with what is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection
from functools import partial

from palimpsest.errors import ConfigError, Conflict, StoreCorrupt
from palimpsest.formats import words_of
from palimpsest.log import values
from palimpsest.log.checks import check_progress
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.log.ids import check_id
from palimpsest.privacy.mentions import Mentions, finder
from palimpsest.sessions.erased import Erased, media_in
from palimpsest.sessions.erasing.damaged import destroyed, destroyed_of, is_damaged, unread
from palimpsest.sessions.erasing.eraser import Eraser, Lost, checked_reason
from palimpsest.sessions.erasing.facts import forget_facts
from palimpsest.sessions.erasing.knowledge import forget_knowledge
from palimpsest.sessions.erasing.query import Query
from palimpsest.sessions.erasing.selection import Picked, SelectedAll, SelectedByQuery
from palimpsest.sessions.erasing.sweep import end_those_over
from palimpsest.sessions.history import since
from palimpsest.sessions.options import Options
from palimpsest.sessions.paging import sessions_of
from palimpsest.sessions.parts import loaded
from palimpsest.sessions.scope import MemoryScope, SessionScope
from palimpsest.sessions.scopes import drop_scopes
from palimpsest.stores import SessionInfo
from palimpsest.stores.overlay import Overlay

PASSES = 10
"""How often what others write meanwhile is gone through: all but the first time that is little."""

MARK = "forgotten"
"""Stands in the details of what forgetting has erased: whether a session in which nothing is left is to go."""

BUSY = "others kept adding while it was looked for: do the same again when they have ended"

Progress = Callable[[int, int], object]
"""Called with the number of sessions that are done, and of all."""


async def forget(
    scope: MemoryScope,
    user: str | None,
    session: str | None,
    tenant: str | None,
    matches: str | Query | None,
    reason: str,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> Erased:
    """As `AsyncMemory.forget` says."""
    subjects = {"user": user, "session": session, "tenant": tenant, "matches": matches}
    given = [name for name, value in subjects.items() if value is not None]
    if len(given) != 1:
        raise ConfigError(
            "forget", " and ".join(given) or "nothing", "exactly one of user, session, tenant and matches"
        )
    check_progress(progress)
    if given[0] in ("session", "tenant"):
        check_id(subjects[given[0]], given[0])
    if tenant is not None and tenant != scope.tenant:
        raise ConfigError("tenant", tenant, f"{scope.tenant!r}, whose memory this is; open one of the other tenant")
    values.switch("dry_run", dry_run)
    if not (dry_run or scope.store.writable):
        raise ConfigError("readonly", True, "False, for a memory that forgets; with dry_run nothing is written")
    query: Query | None = None
    if isinstance(matches, Query):
        query = matches
    elif user is not None or matches is not None:
        query = Query(user=user, text=matches)
    text = query.text if query is not None else None
    mentions = await loaded(scope.runner, partial(_sought, text)) if text is not None else None
    forgetting = Forgetting(scope, checked_reason(scope.gate, reason, mentions), progress or _nobody, dry_run=dry_run)
    if session is not None:
        done = await forgetting.session(session)
    elif query is not None:
        done = await forgetting.matching(query, user)
    else:
        done = await forgetting.everything()
    done += Erased(items=await _facts(scope, user, query, dry_run=dry_run))
    if session is None:
        done += await forget_knowledge(scope, user, query, forgetting.elsewhere, dry_run=dry_run)
    if user is not None and not done:
        done += Erased(unknown=f"no session is of user {user!r}, and no message has that name or user_id")
    elif session is not None and not done and not done.remains:
        done += Erased(unknown=f"there is no session {session!r}")
    if dry_run:
        return done + Erased(dry_run=True)
    await end_those_over(scope)  # in which nobody finds anything
    return done + Erased(remains=await scope.scrub(scope.store))


def _sought(text: str) -> Mentions:
    """What finds a text. The words that formats are made of, which it looks past, are loaded with it."""
    words_of(None)
    return finder(text)


async def _facts(scope: MemoryScope, user: str | None, query: Query | None, *, dry_run: bool) -> dict[str, int]:
    """Destroy the facts of a user, or those that a query means; return how many by namespace."""
    if user is not None:
        return await drop_scopes(scope.store, scope.tenant, "user", user, dry_run=dry_run)
    return await forget_facts(scope, query, dry_run=dry_run) if query is not None else {}


def _is_new(info: SessionInfo, seen: Head | None) -> bool:
    """Whether something was written to a session since it was looked at."""
    return seen is None or (info.revision, info.created) != (seen.revision, seen.created)


def _nobody(_: int, __: int) -> None:
    pass


class FamilyEraser:
    """Erases in sessions that share entries. In a dry run nobody is told, and no summary is made anew."""

    def __init__(self, scope: MemoryScope, reason: str, *, dry_run: bool) -> None:
        self._scope, self._store = scope, scope.store
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
            return await destroyed(self._scope, self._store, name, dry_run=self._dry_run)
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
        return Erased(items=await drop_scopes(self._store, self._scope.tenant, "session", name))

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
        done, lost = Erased(), Lost()
        for name, picked in steps:
            more, gone = await self._eraser(name).erase(picked, self._reason, detail={MARK: whole})
            done += more + Erased(branches=(name,) if more.branches else ())
            lost = {each: [*lost.get(each, ()), *gone.get(each, ())] for each in {**lost, **gone}}
        for name in family if whole else ():
            if more := await self._emptied(name):
                done += more
                lost.pop(name, None)
        return done + await self._rebuilt(family[0], lost, mentions)

    async def _rebuilt(self, name: str, lost: Lost, mentions: Mentions | None) -> Erased:
        """Make anew what was lost; in a dry run only what would go is told."""
        if self._dry_run or not lost:
            return Erased()
        return Erased(rebuilt=await self._eraser(name).rebuild(lost, mentions))


class Forgetting:
    """One run over sessions of a memory."""

    def __init__(self, scope: MemoryScope, reason: str, progress: Progress, *, dry_run: bool) -> None:
        self._scope, self._store = scope, scope.store
        self._reason, self._progress, self._dry_run = reason, progress, dry_run

    async def _listed(self) -> list[SessionInfo]:
        """The tenant's sessions."""
        return [info async for info in sessions_of(self._store, self._scope.tenant)]

    async def _families(
        self, there: Collection[SessionInfo], damaged: Collection[str]
    ) -> AsyncIterator[tuple[list[str], int]]:
        """Yield sessions, each with those that share entries with it, and how many of them are behind us by then.

        One that is damaged comes alone, if it comes.
        """
        behind, names = set[str](), [info.session for info in there]
        for name in names:
            if name not in behind:
                branches = [] if name in damaged else await self._store.branches(self._scope.key(name))
                family = [name, *(one for one in branches if one not in damaged)]
                behind.update(family)
                yield family, len(behind.intersection(names))

    def _family_eraser(self) -> FamilyEraser:
        """What erases in sessions that share entries: in a dry run in an overlay, so that nothing stays."""
        scope = self._scope
        if self._dry_run:
            scope = scope.over(Overlay(self._store, scope.clock))
        return FamilyEraser(scope, self._reason, dry_run=self._dry_run)

    async def session(self, name: str) -> Erased:
        """Forget a session: its entries go wherever they are shared, then it is deleted."""
        done = await self._family_eraser().removed(name, everywhere=True)
        self._progress(1, 1)
        return done

    async def everything(self) -> Erased:
        """Forget the tenant: all sessions, then all items."""
        done, gone, tried = Erased(), 0, set[str]()
        for _ in range(1 if self._dry_run else PASSES):
            there = [info for info in await self._listed() if info.session not in tried]
            if not there:
                break
            tried |= (damaged := {info.session for info in there if info.damaged})
            async for family, _ in self._families(there, damaged):
                eraser = self._family_eraser()
                for name in family:
                    done += await eraser.removed(name, everywhere=False)
                    gone += 1
                    self._progress(gone, max(gone, len(there)))
        else:
            done += self._busy()
        return done + Erased(items=await self._store.clear_items(self._scope.tenant, dry_run=self._dry_run))

    async def matching(self, query: Query, user: str | None) -> Erased:
        """Forget what meets a query; of a `user`'s, their sessions, too, and those in which nothing else is left."""
        done, choices, seen, damaged = Erased(), dict[str, SelectedByQuery](), dict[str, Head](), set[str]()
        if user is not None:
            done += await destroyed_of(self._scope, self._store, user, dry_run=self._dry_run)
        for number in range(1 if self._dry_run else PASSES):
            there = await self._listed()
            damaged = {info.session for info in there if info.damaged}.difference(done.sessions)
            todo = [info for info in there if not info.damaged and _is_new(info, seen.get(info.session))]
            owned = {info.session for info in there if info.user is not None and info.user == user}
            more = Erased()
            async for family, passed in self._families(todo, damaged):
                eraser, rest = self._family_eraser(), [name for name in family if name not in owned]
                for name in owned.intersection(family):
                    more += await eraser.removed(name, everywhere=True)
                try:
                    more += (
                        await eraser.forgotten(rest, query, choices, seen, whole=user is not None) if rest else Erased()
                    )
                except StoreCorrupt as fault:
                    if not damaged:
                        raise
                    more += Erased(remains=(fault.reason,))
                self._progress(passed, len(todo))
            done += more
            if number and not more:
                break
        else:
            done += self._busy()
        left = (selection.remains(name) for name, selection in choices.items() if name not in done.sessions)
        return done + unread(damaged) + Erased(remains=tuple(told for each in left for told in each))

    async def elsewhere(self, tenant: str, query: Query) -> Erased:
        """Forget what meets a query in what is kept under another tenant's name."""
        within = Forgetting(self._scope.sharing(tenant), self._reason, _nobody, dry_run=self._dry_run)
        return await within.matching(query, None)

    def _busy(self) -> Erased:
        """What remains after so many passes; a dry run is one."""
        return Erased(remains=() if self._dry_run else (BUSY,))
