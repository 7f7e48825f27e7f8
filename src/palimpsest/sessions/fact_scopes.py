"""Scopes of working memory: listing them, finding those of a session or a user, and destroying these.

A scope is a namespace of items in the store, and its name is a path, such as "user/ann/notes".
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, TypeAlias

from palimpsest.log.head import SessionKey
from palimpsest.stores import Store
from palimpsest.stores.rules import after_prefix

WORKING = "working/"
"""The prefix of namespaces of working memory."""

Owner: TypeAlias = Literal["session", "user"]

FEW = 8
"""Up to so many sessions, the scopes of each are searched separately; beyond that all scopes are listed at once."""


async def scopes(store: Store, tenant: str, prefix: str = "", *, emptied: bool = False) -> list[str]:
    """Return the scopes of a tenant that have facts and start with `prefix`, sorted by code points.

    With `emptied`, scopes that had facts before are included.
    """
    namespaces = await store.namespaces(tenant, prefix=WORKING + prefix, emptied=emptied)
    return [name.removeprefix(WORKING) for name in namespaces]


async def scopes_of(
    store: Store, tenant: str, owner: Owner, id: str, among: Sequence[str] | None = None, *, emptied: bool = False
) -> list[str]:
    """Return the scopes of a session or a user: "session/ID" and the scopes below it.

    An id may contain "/". So a scope below "session/a" may belong to another existing session "a/b"; such scopes are
    left out. `among` are all scopes of the tenant, if the caller has listed them.
    """
    prefix = f"{owner}/{id}"
    result = list[str]()
    if among is None:
        candidates: Sequence[str] = await scopes(store, tenant, prefix, emptied=emptied)
    else:
        candidates = among[_at(among, prefix) : _at(among, after_prefix(prefix))]
    for name in candidates:
        suffix = name.removeprefix(prefix)
        if suffix and not suffix.startswith("/"):
            continue
        parts = suffix.split("/")
        longer_ids = [id + "/".join(parts[:end]) for end in range(2, len(parts) + 1)]
        if not any([await _exists(store, tenant, owner, longer_id) for longer_id in longer_ids]):
            result.append(name)
    return result


def _at(names: Sequence[str], name: str) -> int:
    return bisect_left(names, name)


async def _exists(store: Store, tenant: str, owner: Owner, id: str) -> bool:
    if owner == "session":
        return await store.head(SessionKey(tenant, id)) is not None
    return bool(await store.sessions(tenant, user=id, limit=1))


async def is_over(store: Store, tenant: str, scope: str) -> bool:
    """Whether a scope belongs to a session whose lifetime is over, in a store that must not be written.

    In a writable store `Store.ended` destroys such a session with its facts, so that nothing reads them, and a new
    session of this id does not inherit them.
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
    """Destroy the facts of a session or a user, and remnants of facts deleted before; return the numbers of items.

    The numbers are by namespace.
    """
    counts: dict[str, int] = {}
    for name in await scopes_of(store, tenant, owner, id, among, emptied=not dry_run):
        counts |= await store.clear_items(tenant, WORKING + name, dry_run=dry_run)
    return counts


class Leaving:
    """Destroys the facts of many sessions that are deleted one after the other.

    In a store without an index of scopes, finding those of one session goes through all homes of the tenant. So from
    the ninth session on (`FEW`) all scopes are listed once for a pass. They are listed once more after the sessions are
    deleted, to find facts that others stored in the meantime.
    """

    def __init__(self, store: Store, tenant: str) -> None:
        self._store, self._tenant, self._number = store, tenant, 0
        self._scopes: list[str] | None = None  # all scopes of the tenant, once they are listed
        self._by_list = list[str]()  # sessions whose scopes were looked up in that list

    def begin(self) -> None:
        """Start a new pass: scopes are listed again for its sessions."""
        self._scopes = None

    async def drop(self, name: str, store: Store | None = None, *, dry_run: bool = False) -> dict[str, int]:
        """Destroy the facts of a session, in `store` if given (an overlay); return numbers of items by namespace."""
        self._number += 1
        if self._number > FEW:
            self._by_list.append(name)
            self._scopes = await self._all() if self._scopes is None else self._scopes
        return await self._dropped(store or self._store, name, dry_run=dry_run)

    async def late(self) -> list[dict[str, int]]:
        """Destroy facts of deleted sessions that were stored after the scopes had been listed."""
        self._scopes = await self._all() if self._by_list else None
        deleted = [one for one in self._by_list if not await _exists(self._store, self._tenant, "session", one)]
        return [await self._dropped(self._store, name) for name in deleted]

    async def _all(self) -> list[str]:
        return await scopes(self._store, self._tenant, emptied=True)

    async def _dropped(self, store: Store, name: str, *, dry_run: bool = False) -> dict[str, int]:
        return await drop_scopes(store, self._tenant, "session", name, dry_run=dry_run, among=self._scopes)
