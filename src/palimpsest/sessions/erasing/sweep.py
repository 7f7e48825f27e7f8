"""Erasing what has expired, deleting sessions that nobody uses any more, and what a store has to do for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta

from palimpsest.errors import ConfigError, Conflict, StoreCorrupt
from palimpsest.log import values
from palimpsest.log.checks import check_progress
from palimpsest.log.head import SessionKey
from palimpsest.sessions.erased import Vacuumed
from palimpsest.sessions.erasing.eraser import Eraser
from palimpsest.sessions.options import Options
from palimpsest.sessions.scope import MemoryScope, SessionScope
from palimpsest.sessions.scopes import Leaving
from palimpsest.stores import SessionInfo, Store
from palimpsest.stores.derivers import INDEX, Derivers

Progress = Callable[[int, int], object]
"""Called with the number of sessions that are done, and of all."""


async def sweep(
    scope: MemoryScope,
    untouched_for: timedelta | float | str | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> int:
    """As `AsyncMemory.sweep` says."""
    check_progress(progress)
    values.switch("dry_run", dry_run)
    deleted = await untouched(scope, untouched_for, progress, dry_run=dry_run)
    if dry_run:
        due = await scope.store.due(scope.tenant, scope.clock())
        return deleted + sum(len(seqs) or 1 for _, seqs in due)
    return deleted + await _expired(scope)


async def _expired(scope: MemoryScope) -> int:
    """Erase what has expired; how much that was."""
    now = scope.clock()
    due = await scope.store.due(scope.tenant, now)
    await scope.derivations.catch_up()
    standing, ended = [], await _ended(scope, due)
    due = [(key, seqs) for key, seqs in due if seqs]
    async with AsyncExitStack() as unmaking:
        for key, seqs in due:
            await unmaking.enter_async_context(scope.drop_derived(key, seqs))
        for key, _ in due:
            eraser = Eraser(SessionScope(scope, Options(key)))
            with suppress(StoreCorrupt):  # which the sweep itself tells
                standing.append((eraser, await eraser.standing([key.session])))
        swept = await scope.store.sweep(scope.tenant, now)
    for eraser, before in standing:
        await eraser.rebuild(await eraser.lost(before), None)
    await scope.scrub(scope.store)
    return swept + ended


async def end_those_over(scope: MemoryScope) -> int:
    """Destroy the sessions whose time is over; how many there were."""
    return await _ended(scope, await scope.store.due(scope.tenant, scope.clock()))


async def _ended(scope: MemoryScope, due: Iterable[tuple[SessionKey, Sequence[int]]]) -> int:
    ended, leaving = 0, Leaving(scope.store, scope.tenant)
    for key, seqs in due:
        if not seqs:
            ended += await scope.end_over(key, leaving)
    await leaving.late()
    return ended


async def untouched(
    scope: MemoryScope, length: timedelta | float | str | None, progress: Progress | None, *, dry_run: bool
) -> int:
    """Delete the sessions that nobody has written to for so long; how many those are."""
    if length is None:
        return 0
    found = await _used_before(scope, scope.clock() - values.microseconds("untouched_for", length))
    deleted, leaving = 0, Leaving(scope.store, scope.tenant)
    for number, one in enumerate(found, 1):
        deleted += dry_run or await _deleted(scope, one, leaving)
        if progress is not None:
            progress(number, len(found))
    await leaving.late()
    return deleted


async def _deleted(scope: MemoryScope, one: SessionInfo, leaving: Leaving) -> bool:
    """Delete a session that is as it was; whether it was."""
    key, gone = scope.key(one.session), False
    head = await scope.store.head(key)
    if head is None or (head.revision, head.created) != (one.revision, one.created):
        return False
    async with scope.drop_derived(key):
        with suppress(Conflict):  # somebody has written to it just now
            gone = await scope.store.delete(key, expect=one.revision)
            if gone:
                await leaving.drop(key.session)
    scope.let_go(key)
    return gone


async def _used_before(scope: MemoryScope, until: int) -> list[SessionInfo]:
    """The sessions of the tenant that were written to last before a time, read by pages, those of longest ago first."""
    found: dict[str, SessionInfo] = {}
    mark, after = 0, ""
    while page := await scope.store.used(scope.tenant, mark=mark, after=after):
        found |= {one.session: one for _, one in page if one.updated < until and not one.damaged}
        if all(one.updated >= until for _, one in page):  # all that come now are newer
            break
        mark, after = page[-1][0], page[-1][1].session
    return list(found.values())


async def vacuum(scope: MemoryScope, progress: Callable[[int, int], object] | None) -> Vacuumed:
    """As `AsyncMemory.vacuum` says."""
    check_progress(progress)
    if not scope.store.writable:
        raise ConfigError("readonly", True, "False, for a memory whose store is written anew")
    done = await scope.store.scrub(progress=progress or (lambda _, __: None))
    remains = done.remains + await scope.derivations.scrub(whole=True)
    other = await _searched(scope)
    if other is not None:  # the index is of all tenants, and this one has nothing in it
        remains += await scope.sharing(other).derivations.scrub(whole=True)
    return Vacuumed(freed=done.freed, remains=remains)


async def _searched(scope: MemoryScope) -> str | None:
    """Another tenant whose sessions were searched, where this one's never were."""
    if await _is_searched(scope.store, scope.tenant):
        return None
    after: str | None = None
    while page := await scope.store.tenants(after=after):
        for tenant in page:
            if await _is_searched(scope.store, tenant):
                return tenant
        after = page[-1]
    return None


async def _is_searched(store: Store, tenant: str) -> bool:
    return any(name.partition(":")[0] == INDEX for name in await Derivers(store, tenant).names())
