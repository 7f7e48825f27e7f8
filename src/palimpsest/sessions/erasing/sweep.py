"""Erasing what has expired, in every session of a memory, and what its store has to do for good."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack, suppress

from palimpsest.errors import ConfigError, StoreCorrupt
from palimpsest.log.checks import check_progress
from palimpsest.sessions.erased import Vacuumed
from palimpsest.sessions.erasing.eraser import Eraser
from palimpsest.sessions.options import Options
from palimpsest.sessions.scope import MemoryScope, SessionScope


async def sweep(scope: MemoryScope) -> int:
    """As `AsyncMemory.sweep` says."""
    now = scope.clock()
    due = await scope.store.due(now, tenant=scope.tenant)
    await scope.derivations.catch_up()
    standing = []
    async with AsyncExitStack() as unmaking:
        for key, seqs in due:
            await unmaking.enter_async_context(scope.drop_derived(key, seqs))
        for key, _ in due:
            eraser = Eraser(SessionScope(scope, Options(key)))
            with suppress(StoreCorrupt):  # which the sweep itself tells
                standing.append((eraser, await eraser.standing([key.session])))
        swept = await scope.store.sweep(now, tenant=scope.tenant)
    for eraser, before in standing:
        await eraser.rebuild(await eraser.lost(before), None)
    await scope.store.scrub(whole=False)
    return swept


async def vacuum(scope: MemoryScope, progress: Callable[[int, int], object] | None) -> Vacuumed:
    """As `AsyncMemory.vacuum` says."""
    check_progress(progress)
    if not scope.store.writable:
        raise ConfigError("readonly", True, "False, for a memory whose store is written anew")
    done = await scope.store.scrub(progress=progress or (lambda _, __: None))
    return Vacuumed(freed=done.freed, remains=done.remains)
