"""Scopes of working memories: which there are, and whose. A scope is a namespace of items, and its name a path."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, TypeAlias

from palimpsest.log.head import SessionKey
from palimpsest.stores import Store
from palimpsest.stores.rules import behind

WORKING = "working/"
"""What the namespaces of working memories begin with."""

Owner: TypeAlias = Literal["session", "user"]

FEW = 8
"""Sessions up to which the scopes of each are looked for by themselves."""


async def scopes(store: Store, tenant: str, prefix: str = "", *, emptied: bool = False) -> list[str]:
    """The scopes of a tenant that have facts and begin so, by code points; `emptied`, those that had any, too."""
    found = await store.namespaces(tenant, prefix=WORKING + prefix, emptied=emptied)
    return [name.removeprefix(WORKING) for name in found]


async def scopes_of(
    store: Store, tenant: str, owner: Owner, id: str, among: Sequence[str] | None = None, *, emptied: bool = False
) -> list[str]:
    """The scopes of a session or a user: `session/ID` with those beneath it, but for what is another's.

    An id may have "/" in it. So beneath the scope of "a" there may be that of "a/b", who is another. `among` are all
    scopes of the tenant, where they were listed before.
    """
    own = f"{owner}/{id}"
    found = list[str]()
    if among is None:
        begun: Sequence[str] = await scopes(store, tenant, own, emptied=emptied)
    else:
        begun = among[_at(among, own) : _at(among, behind(own))]
    for name in begun:
        rest = name.removeprefix(own)
        if rest and not rest.startswith("/"):
            continue
        parts = rest.split("/")
        others = [id + "/".join(parts[:end]) for end in range(2, len(parts) + 1)]
        if not any([await _is_there(store, tenant, owner, other) for other in others]):
            found.append(name)
    return found


def _at(names: Sequence[str], name: str) -> int:
    return bisect_left(names, name)


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


async def drop_scopes(
    store: Store,
    tenant: str,
    owner: Owner,
    id: str,
    *,
    dry_run: bool = False,
    among: Sequence[str] | None = None,
) -> dict[str, int]:
    """Destroy the facts of a session or a user, and what is left of facts that went before; return how many items went
    by namespace."""
    gone: dict[str, int] = {}
    for name in await scopes_of(store, tenant, owner, id, among, emptied=not dry_run):
        gone |= await store.clear_items(tenant, WORKING + name, dry_run=dry_run)
    return gone


class Leaving:
    """The facts of sessions that go, one after the other.

    Looking for the scopes of one goes through all homes of the tenant, where a store has no order of them. So for more
    than a few sessions all scopes are listed once a pass; and once more when the sessions are gone, for what others
    have kept meanwhile.
    """

    def __init__(self, store: Store, tenant: str) -> None:
        self._store, self._tenant, self._number = store, tenant, 0
        self._there: list[str] | None = None
        self._listed = list[str]()

    def begin(self) -> None:
        """Have the next session find what is there by now."""
        self._there = None

    async def drop(self, name: str, store: Store | None = None, *, dry_run: bool = False) -> dict[str, int]:
        """Destroy the facts of a session, in an overlay of the store where one is given; how many, by namespace."""
        self._number += 1
        if self._number > FEW:
            self._listed.append(name)
            self._there = await self._all() if self._there is None else self._there
        return await self._dropped(store or self._store, name, dry_run=dry_run)

    async def late(self) -> list[dict[str, int]]:
        """Destroy what came since the scopes were listed, of sessions that are gone."""
        self._there = await self._all() if self._listed else None
        gone = [one for one in self._listed if not await _is_there(self._store, self._tenant, "session", one)]
        return [await self._dropped(self._store, name) for name in gone]

    async def _all(self) -> list[str]:
        return await scopes(self._store, self._tenant, emptied=True)

    async def _dropped(self, store: Store, name: str, *, dry_run: bool = False) -> dict[str, int]:
        return await drop_scopes(store, self._tenant, "session", name, dry_run=dry_run, among=self._there)
