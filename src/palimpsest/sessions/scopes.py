"""Scopes of working memories: which there are, and whose. A scope is a namespace of items, and its name a path."""

from __future__ import annotations

from typing import Literal, TypeAlias

from palimpsest.log.head import SessionKey
from palimpsest.stores import Store

WORKING = "working/"
"""What the namespaces of working memories begin with."""

Owner: TypeAlias = Literal["session", "user"]


async def scopes(store: Store, tenant: str, prefix: str = "", *, empty: bool = False) -> list[str]:
    """The scopes of a tenant that have facts, or with `empty` have had some, and begin so, by code points."""
    found = await store.namespaces(tenant, prefix=WORKING + prefix, empty=empty)
    return [name.removeprefix(WORKING) for name in found]


async def scopes_of(store: Store, tenant: str, owner: Owner, id: str, *, empty: bool = False) -> list[str]:
    """The scopes of a session or a user: `session/ID` with those beneath it, but for what is another's.

    An id may have "/" in it. So beneath the scope of "a" there may be that of "a/b", who is another.
    """
    own = f"{owner}/{id}"
    found = list[str]()
    for name in await scopes(store, tenant, own, empty=empty):
        rest = name.removeprefix(own)
        if rest and not rest.startswith("/"):
            continue
        parts = rest.split("/")
        others = [id + "/".join(parts[:end]) for end in range(2, len(parts) + 1)]
        if not any([await _is_there(store, tenant, owner, other) for other in others]):
            found.append(name)
    return found


async def _is_there(store: Store, tenant: str, owner: Owner, id: str) -> bool:
    if owner == "session":
        return await store.head(SessionKey(tenant, id)) is not None
    return bool(await store.sessions(tenant, user=id, limit=1))


async def is_over(store: Store, tenant: str, scope: str) -> bool:
    """Whether a scope is of a session whose time is over, and is there only because nothing may be written.

    Where it may, that session is ended, and its facts with it, before facts are read, or kept by whoever comes next.
    """
    owner, *parts = scope.split("/")
    if owner != "session":
        return False
    sessions = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any([await store.ended(SessionKey(tenant, session)) for session in sessions])


async def drop_scopes(store: Store, tenant: str, owner: Owner, id: str, *, dry_run: bool = False) -> dict[str, int]:
    """Destroy the facts of a session or a user, and what is left of facts that went before; return how many items went
    by namespace."""
    gone: dict[str, int] = {}
    for name in await scopes_of(store, tenant, owner, id, empty=not dry_run):
        gone |= await store.clear_items(tenant, WORKING + name, dry_run=dry_run)
    return gone
