"""How forgetting treats sessions whose heads cannot be read: destroy those that are meant, report the others.

The content of such a session cannot be searched any more. Its user is still known, from a note kept beside the head.
Branches keep the entries that they share with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable

from palimpsest.errors import StoreCorrupt
from palimpsest.log.head import SessionKey
from palimpsest.sessions.erased import Erased
from palimpsest.sessions.fact_scopes import Leaving
from palimpsest.sessions.paging import sessions_of
from palimpsest.sessions.scope import MemoryScope
from palimpsest.stores import Store

UNREAD = "data that cannot be read was not searched: {}"
ADVICE = "restore a backup, or destroy the session with delete_session"


async def is_damaged(store: Store, key: SessionKey) -> bool:
    """Return whether the session exists and its head cannot be read."""
    try:
        await store.head(key)
    except StoreCorrupt:
        return True
    return False


async def destroy_damaged(scope: MemoryScope, store: Store, name: str, leaving: Leaving, *, dry_run: bool) -> Erased:
    """Destroy a damaged session and what was derived from it.

    If the store cannot tell its entries from those of its branches, the session stays and the report says so.
    """
    if dry_run:
        return Erased(sessions=(name,), items=await leaving.drop(name, store, dry_run=True))
    key = scope.key(name)
    try:
        async with scope.drop_derived(key) as unmaking:
            sharing_sessions = await store.destroy(key)
    except StoreCorrupt as fault:
        return Erased(remains=(fault.reason,))
    report = Erased(sessions=(name,), items=await leaving.drop(name, store)) + unmaking.done
    if sharing_sessions:
        shared = ", ".join(map(repr, sharing_sessions))
        report += Erased(remains=(f"the head of session {name!r} was damaged: what it shared with {shared} is kept",))
    return report


async def destroy_damaged_of(scope: MemoryScope, store: Store, user: str, leaving: Leaving, *, dry_run: bool) -> Erased:
    """Destroy the damaged sessions of a user."""
    done = Erased()
    for name in [info.session async for info in sessions_of(store, scope.tenant, user) if info.damaged]:
        done += await destroy_damaged(scope, store, name, leaving, dry_run=dry_run)
    return done


async def or_remains(forgetting: Awaitable[Erased]) -> Erased:
    """Return the report of a step; of one that meets damage, that this remains, so that all others have their turn."""
    try:
        return await forgetting
    except StoreCorrupt as fault:
        return Erased(remains=(fault.reason,))


def unread(names: Iterable[str]) -> Erased:
    """Report these damaged sessions as remaining, since their content could not be searched."""
    message = "session {!r} is damaged and was not searched: " + ADVICE
    return Erased(remains=tuple(map(message.format, sorted(names))))


async def out_of_reach(scope: MemoryScope, session: str | None) -> Erased:
    """Report what no listing shows because it cannot be read, of the whole tenant or of one session."""
    return Erased(remains=tuple(map(UNREAD.format, await scope.out_of_reach(session))))
