"""What forgetting does about sessions whose heads cannot be read: those that are meant go, others are told of.

Nobody can look into one any more. Whose it is a note beside it says; what of it branches read, they keep.
"""

from __future__ import annotations

from collections.abc import Iterable

from palimpsest.errors import StoreCorrupt
from palimpsest.log.head import SessionKey
from palimpsest.sessions.erased import Erased
from palimpsest.sessions.paging import sessions_of
from palimpsest.sessions.scope import MemoryScope
from palimpsest.sessions.scopes import Leaving
from palimpsest.stores import Store

UNREAD = "nobody looked into what cannot be read: {}"
ADVICE = "restore a backup, or destroy it with delete_session"


async def is_damaged(store: Store, key: SessionKey) -> bool:
    """Whether the session is there, and its head cannot be read."""
    try:
        await store.head(key)
    except StoreCorrupt:
        return True
    return False


async def destroyed(scope: MemoryScope, store: Store, name: str, leaving: Leaving, *, dry_run: bool) -> Erased:
    """Destroy such a session, and what is made of it. Where it cannot be told from its branches, it remains."""
    if dry_run:
        return Erased(sessions=(name,), items=await leaving.drop(name, store, dry_run=True))
    key = scope.key(name)
    try:
        async with scope.drop_derived(key) as unmade:
            others = await store.destroy(key)
    except StoreCorrupt as fault:
        return Erased(remains=(fault.reason,))
    done = Erased(sessions=(name,), items=await leaving.drop(name, store)) + unmade.done
    if others:
        shared = ", ".join(map(repr, others))
        done += Erased(remains=(f"the head of session {name!r} was damaged: what it shared with {shared} stays there",))
    return done


async def destroyed_of(scope: MemoryScope, store: Store, user: str, leaving: Leaving, *, dry_run: bool) -> Erased:
    """Destroy the damaged sessions of a user."""
    done = Erased()
    for name in [one.session async for one in sessions_of(store, scope.tenant, user) if one.damaged]:
        done += await destroyed(scope, store, name, leaving, dry_run=dry_run)
    return done


def unread(names: Iterable[str]) -> Erased:
    """What remains of sessions that nobody could look into."""
    told = "session {!r} is damaged, so nobody looked into it: " + ADVICE
    return Erased(remains=tuple(map(told.format, sorted(names))))


async def out_of_reach(scope: MemoryScope, session: str | None) -> Erased:
    """What remains of the tenant's, or of a session's alone, because no listing tells of it."""
    return Erased(remains=tuple(map(UNREAD.format, await scope.out_of_reach(session))))
