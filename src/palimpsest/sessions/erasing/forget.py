"""Forgetting across sessions: everything of a user, a session or the tenant, or everything that meets a query.

A first pass goes through all sessions. Further passes go through new sessions and what is new in the others, until a
pass finds nothing. So everything that existed at the beginning is gone, and others may keep writing meanwhile.

Of sessions that share entries, those that one session has alone are erased first, then the shared ones. The reason: a
user's interaction is recognised by its first message, so that must exist until all branches have erased what followed
it. After a kill, the same call continues with what is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial

from palimpsest.errors import ConfigError, StoreCorrupt
from palimpsest.formats import words_of
from palimpsest.log import values
from palimpsest.log.head import Head
from palimpsest.log.ids import check_id
from palimpsest.log.values import check_progress
from palimpsest.privacy.mentions import Mentions, finder
from palimpsest.sessions.erased import Erased
from palimpsest.sessions.erasing.damaged import (
    UNREAD,
    destroy_damaged,
    destroy_damaged_of,
    or_remains,
    out_of_reach,
    unread,
)
from palimpsest.sessions.erasing.eraser import checked_reason
from palimpsest.sessions.erasing.facts import forget_facts
from palimpsest.sessions.erasing.family import PASSES, FamilyEraser
from palimpsest.sessions.erasing.knowledge import forget_knowledge
from palimpsest.sessions.erasing.query import Query
from palimpsest.sessions.erasing.selection import SelectedByQuery
from palimpsest.sessions.erasing.sweep import destroy_unsearched
from palimpsest.sessions.fact_scopes import Leaving, drop_scopes
from palimpsest.sessions.lazy_parts import loaded
from palimpsest.sessions.paging import sessions_of
from palimpsest.sessions.scope import MemoryScope
from palimpsest.stores import SessionInfo
from palimpsest.stores.overlay import Overlay

BUSY = "other writers kept adding entries during the search: do the same again when they have ended"

Progress = Callable[[int, int], object]
"""Called with the number of sessions done, and the number of all."""


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
    """Implement `AsyncMemory.forget`."""
    subjects = {"user": user, "session": session, "tenant": tenant, "matches": matches}
    _check_subject(scope, {name: value for name, value in subjects.items() if value is not None})
    check_progress(progress)
    values.switch("dry_run", dry_run)
    if not (dry_run or scope.store.writable):
        raise ConfigError("readonly", True, "False; with readonly=True only `forget(..., dry_run=True)` is possible")
    query: Query | None = None
    if isinstance(matches, Query):
        query = matches
    elif user is not None or matches is not None:
        query = Query(user=user, text=matches)
    text = query.text if query is not None else None
    mentions = await loaded(scope.runner, partial(_finder, text)) if text is not None else None
    forgetting = Forgetting(
        scope, checked_reason(scope.gate, reason, mentions), progress or _no_progress, dry_run=dry_run
    )
    if session is not None:
        done = await forgetting.session(session)
    elif query is not None:
        done = await forgetting.matching(query, user)
    else:
        done = await forgetting.everything()
    done += await _facts(scope, user, query, dry_run=dry_run) + await out_of_reach(scope, session)
    if session is None:
        done += await or_remains(forget_knowledge(scope, user, query, forgetting.elsewhere, dry_run=dry_run))
    if user is not None and not done:
        done += Erased(unknown=f"no session belongs to user {user!r}, and no message has that name or user_id")
    elif session is not None and not done and not done.remains:
        done += Erased(unknown=f"there is no session {session!r}")
    if dry_run:
        return done + Erased(dry_run=True)
    await destroy_unsearched(scope)
    return done + Erased(remains=await scope.scrub(scope.store))


def _check_subject(scope: MemoryScope, given: dict[str, str | Query]) -> None:
    """Raise ConfigError unless exactly one subject is given, as an id where it is one, and the tenant is this one."""
    if len(given) != 1:
        subjects = " and ".join(given) or "nothing"
        raise ConfigError("forget", subjects, "exactly one of user, session, tenant and matches")
    ((name, value),) = given.items()
    if name != "matches":
        check_id(value, name)
    if name == "tenant" and value != scope.tenant:
        raise ConfigError("tenant", value, f"{scope.tenant!r}, this memory's tenant; open one for the other tenant")


def _finder(text: str) -> Mentions:
    """Return the finder of a text. Loads the words of the formats, too, which it does not count as mentions."""
    words_of(None)
    return finder(text)


async def _facts(scope: MemoryScope, user: str | None, query: Query | None, *, dry_run: bool) -> Erased:
    """Destroy the facts of a user, or those that meet a query."""
    if user is not None:
        return Erased(items=await drop_scopes(scope.store, scope.tenant, "user", user, dry_run=dry_run))
    return await forget_facts(scope, query, dry_run=dry_run) if query is not None else Erased()


def _is_new(info: SessionInfo, seen: Head | None) -> bool:
    """Return whether something was written to a session since it was looked at, or it was never looked at."""
    return seen is None or (info.revision, info.created) != (seen.revision, seen.created)


def _no_progress(_: int, __: int) -> None:
    pass


class Forgetting:
    """One run of forgetting over the sessions of a memory."""

    def __init__(self, scope: MemoryScope, reason: str, progress: Progress, *, dry_run: bool) -> None:
        self._scope, self._store = scope, scope.store
        self._reason, self._progress, self._dry_run = reason, progress, dry_run
        self._leaving = Leaving(scope.store, scope.tenant)

    async def _listed(self) -> list[SessionInfo]:
        """List the tenant's sessions for a new pass."""
        self._leaving.begin()
        return [info async for info in sessions_of(self._store, self._scope.tenant)]

    async def _families(
        self, infos: Collection[SessionInfo], damaged: Collection[str]
    ) -> AsyncIterator[tuple[list[str], int]]:
        """Yield each session with those that share entries with it, and how many of `infos` have been passed by then.

        A damaged session is never part of another one's family; if it is among `infos` it comes alone. So does one of
        which nobody can say which others share its entries.
        """
        passed, names = set[str](), [info.session for info in infos]
        for name in names:
            if name not in passed:
                branches: Sequence[str] = ()
                with suppress(StoreCorrupt):  # raised again by whatever is to be done to the session
                    branches = () if name in damaged else await self._store.branches(self._scope.key(name))
                family = [name, *(branch for branch in branches if branch not in damaged)]
                passed.update(family)
                yield family, len(passed.intersection(names))

    def _family_eraser(self) -> FamilyEraser:
        """Return an eraser for sessions that share entries. In a dry run it writes to an overlay of the store only."""
        scope = self._scope
        if self._dry_run:
            scope = scope.with_store(Overlay(self._store, scope.clock))
        return FamilyEraser(scope, self._reason, self._leaving, dry_run=self._dry_run)

    async def session(self, name: str) -> Erased:
        """Forget a session: its entries go wherever they are shared, then it is deleted."""
        done = await self._family_eraser().remove_session(name, everywhere=True)
        self._progress(1, 1)
        return done

    async def everything(self) -> Erased:
        """Forget the tenant: all its sessions, then all its items."""
        done, removed_count, attempted, dry_run = Erased(), 0, set[str](), self._dry_run
        for _ in range(1 if dry_run else PASSES):
            infos = [info for info in await self._listed() if info.session not in attempted]
            if not infos:
                break
            attempted |= (damaged := {info.session for info in infos if info.damaged})
            async for family, _ in self._families(infos, damaged):
                eraser = self._family_eraser()
                for name in family:
                    try:
                        done += await eraser.remove_session(name, everywhere=False)
                    except StoreCorrupt:
                        attempted.add(name)
                        done += await destroy_damaged(self._scope, self._store, name, self._leaving, dry_run=dry_run)
                    removed_count += 1
                    self._progress(removed_count, max(removed_count, len(infos)))
        else:
            done += self._busy()
        try:
            return done + Erased(items=await self._store.clear_items(self._scope.tenant, dry_run=dry_run))
        except StoreCorrupt as fault:  # the rest is gone: report what could not be read
            return done + Erased(remains=(UNREAD.format(fault.reason),))

    async def matching(self, query: Query, user: str | None) -> Erased:
        """Forget what meets a query. With a `user` also delete the user's sessions, and sessions emptied by this."""
        done, choices, seen, damaged = Erased(), dict[str, SelectedByQuery](), dict[str, Head](), set[str]()
        if user is not None:
            done += await destroy_damaged_of(self._scope, self._store, user, self._leaving, dry_run=self._dry_run)
        for number in range(1 if self._dry_run else PASSES):
            infos = await self._listed()
            damaged = {info.session for info in infos if info.damaged}.difference(done.sessions)
            todo = [info for info in infos if not info.damaged and _is_new(info, seen.get(info.session))]
            owned = {info.session for info in infos if info.user is not None and info.user == user}
            pass_report = Erased()
            async for family, passed in self._families(todo, damaged):
                eraser, others = self._family_eraser(), [name for name in family if name not in owned]
                for name in owned.intersection(family):
                    pass_report += await or_remains(eraser.remove_session(name, everywhere=True))
                if others:
                    forgetting = eraser.forget(others, query, choices, seen, whole=user is not None)
                    pass_report += await or_remains(forgetting)
                self._progress(passed, len(todo))
            done += pass_report
            if number and not pass_report:
                break
        else:
            done += self._busy()
        for items in [] if self._dry_run else await self._leaving.late():
            done += Erased(items=items)
        unread_entries = [
            sentence
            for name, selection in choices.items()
            if name not in done.sessions
            for sentence in selection.remains(name)
        ]
        return done + unread(damaged) + Erased(remains=tuple(unread_entries))

    async def elsewhere(self, tenant: str, query: Query) -> Erased:
        """Forget what meets a query under another tenant's name, as knowledge bases have it."""
        scope = self._scope.sharing(tenant)
        forgetting = Forgetting(scope, self._reason, _no_progress, dry_run=self._dry_run)
        return await forgetting.matching(query, None) + await out_of_reach(scope, None)

    def _busy(self) -> Erased:
        """Report that new entries kept coming until the last pass; nothing in a dry run, which makes one pass only."""
        return Erased(remains=() if self._dry_run else (BUSY,))
