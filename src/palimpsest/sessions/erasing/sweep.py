"""Erasing what has expired, in every session of a memory."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress

from palimpsest.errors import StoreCorrupt
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
