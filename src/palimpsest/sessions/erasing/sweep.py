"""Sweeping (erasing what has expired, deleting sessions that are not used any more) and vacuuming a store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta

from palimpsest.errors import ConfigError, Conflict, StoreCorrupt
from palimpsest.log import values
from palimpsest.log.head import SessionKey
from palimpsest.log.values import check_progress
from palimpsest.sessions.erased import Vacuumed
from palimpsest.sessions.erasing.eraser import Eraser
from palimpsest.sessions.fact_scopes import Leaving
from palimpsest.sessions.options import Options
from palimpsest.sessions.scope import MemoryScope, SessionScope
from palimpsest.stores import SessionInfo, Store
from palimpsest.stores.derivers import INDEX, Derivers

Progress = Callable[[int, int], object]
"""Called with the number of sessions done, and the number of all."""


async def sweep(
    scope: MemoryScope,
    untouched_for: timedelta | float | str | None,
    progress: Progress | None,
    *,
    dry_run: bool,
) -> int:
    """Implement `AsyncMemory.sweep`."""
    check_progress(progress)
    values.switch("dry_run", dry_run)
    deleted = await delete_untouched(scope, untouched_for, progress, dry_run=dry_run)
    if dry_run:
        due = await scope.store.due(scope.tenant, scope.clock())
        return deleted + sum(len(seqs) or 1 for _, seqs in due)
    return deleted + await _sweep_expired(scope)


async def _sweep_expired(scope: MemoryScope) -> int:
    """Erase what has expired, and return how many entries and sessions that were."""
    now = scope.clock()
    due = await scope.store.due(scope.tenant, now)
    await scope.derivations.catch_up()
    standing, ended = [], await _end_expired(scope, due)
    due = [(key, seqs) for key, seqs in due if seqs]
    async with AsyncExitStack() as unmaking:
        for key, seqs in due:
            await unmaking.enter_async_context(scope.drop_derived(key, seqs))
        for key, _ in due:
            eraser = Eraser(SessionScope(scope, Options(key)))
            with suppress(StoreCorrupt):  # the sweep itself reports it
                standing.append((eraser, await eraser.shown_summaries([key.session])))
        swept = await scope.store.sweep(scope.tenant, now)
    for eraser, before in standing:
        await eraser.rebuild(await eraser.lost(before), None)
    await scope.scrub(scope.store)
    return swept + ended


async def destroy_unsearched(scope: MemoryScope) -> None:
    """Destroy the sessions whose time is over, and the facts that have expired: no search reaches them."""
    now = scope.clock()
    await _end_expired(scope, await scope.store.due(scope.tenant, now))
    with suppress(StoreCorrupt):  # whoever searches the facts reports it
        await scope.store.sweep(scope.tenant, now, entries=False)


async def _end_expired(scope: MemoryScope, due: Iterable[tuple[SessionKey, Sequence[int]]]) -> int:
    ended, leaving = 0, Leaving(scope.store, scope.tenant)
    for key, seqs in due:
        if not seqs:
            ended += await scope.end_expired(key, leaving)
    await leaving.late()
    return ended


async def delete_untouched(
    scope: MemoryScope, length: timedelta | float | str | None, progress: Progress | None, *, dry_run: bool
) -> int:
    """Delete the sessions that were not written to for this length of time, and return how many those are."""
    if length is None:
        return 0
    unused = await _used_before(scope, scope.clock() - values.microseconds("untouched_for", length))
    deleted, leaving = 0, Leaving(scope.store, scope.tenant)
    for number, info in enumerate(unused, 1):
        deleted += dry_run or await _delete_if_unchanged(scope, info, leaving)
        if progress is not None:
            progress(number, len(unused))
    await leaving.late()
    return deleted


async def _delete_if_unchanged(scope: MemoryScope, info: SessionInfo, leaving: Leaving) -> bool:
    """Delete a session unless it was written to since it was listed. Return whether it was deleted."""
    key, deleted = scope.key(info.session), False
    head = await scope.store.head(key)
    if head is None or (head.revision, head.created) != (info.revision, info.created):
        return False
    async with scope.drop_derived(key):
        with suppress(Conflict):  # somebody has written to it just now
            deleted = await scope.store.delete(key, expect=info.revision)
            if deleted:
                await leaving.drop(key.session)
    scope.let_go(key)
    return deleted


async def _used_before(scope: MemoryScope, limit: int) -> list[SessionInfo]:
    """Return the tenant's sessions whose last write was before `limit` (microseconds), the oldest writes first."""
    found: dict[str, SessionInfo] = {}
    mark, after = 0, ""
    while page := await scope.store.used(scope.tenant, mark=mark, after=after):
        found |= {info.session: info for _, info in page if info.updated < limit and not info.damaged}
        if all(info.updated >= limit for _, info in page):  # all later pages are newer
            break
        mark, after = page[-1][0], page[-1][1].session
    return list(found.values())


async def vacuum(scope: MemoryScope, progress: Callable[[int, int], object] | None) -> Vacuumed:
    """Implement `AsyncMemory.vacuum`."""
    check_progress(progress)
    if not scope.store.writable:
        raise ConfigError("readonly", True, "False: a memory opened with readonly=True cannot rewrite its store")
    done = await scope.store.scrub(progress=progress or (lambda _, __: None))
    remains = done.remains + await scope.derivations.scrub(whole=True)
    searched_tenant = await _searched(scope)
    if searched_tenant is not None:  # all tenants share one index file, and this one has nothing in it
        remains += await scope.sharing(searched_tenant).derivations.scrub(whole=True)
    return Vacuumed(freed=done.freed, remains=remains)


async def _searched(scope: MemoryScope) -> str | None:
    """Return another tenant whose sessions were searched, or None if this tenant's were, or no tenant's."""
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
