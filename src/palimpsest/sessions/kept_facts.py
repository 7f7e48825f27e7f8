"""The facts of one scope as items of a store: reading them, and writing them with compare-and-set."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.facts import Fact, Stored, fact_of
from palimpsest.log.typed import from_json
from palimpsest.privacy.gate import Gate
from palimpsest.sessions.fact_scopes import WORKING, is_over
from palimpsest.stores import Item, Put, Store


class Home(Protocol):
    """What owns the facts of a scope: the scope of a memory or of a session."""

    @property
    def tenant(self) -> str:
        """The tenant that owns the facts."""
        ...

    @property
    def store(self) -> Store:
        """The store that keeps the facts."""
        ...

    @property
    def gate(self) -> Gate:
        """The gate that redacts what is stored."""
        ...

    @property
    def clock(self) -> Callable[[], int]:
        """Returns microseconds since 1970."""
        ...


class KeptFacts:
    """The facts of one scope: items of one namespace, each of which holds a fact with its history.

    `check_access` is called before facts are read or changed, and raises if that is not allowed (None: always allowed).
    """

    def __init__(self, home: Home, scope: str, check_access: Callable[[], Awaitable[None]] | None = None) -> None:
        self._home, self._scope, self._namespace, self._check_access = home, scope, WORKING + scope, check_access

    # --- reading

    async def item(self, key: str) -> Item | None:
        """Return the item under a key, or None if there is none."""
        if await self._is_over():
            return None
        return await self._home.store.get_item(self._home.tenant, self._namespace, key)

    async def items(self, prefix: str) -> list[Item]:
        """Return all items whose keys begin with `prefix`, in the order in which the keys were first written."""
        if await self._is_over():
            return []
        return await self._home.store.list_items(self._home.tenant, self._namespace, prefix=prefix)

    async def page(self, prefix: str, after: str, limit: int) -> tuple[list[Item], str | None]:
        """Return up to `limit` of them in the store's own order, and the `after` of the next page (None: no more)."""
        store, tenant = self._home.store, self._home.tenant
        if await self._is_over():
            return [], None
        return await store.page_items(tenant, self._namespace, prefix=prefix, after=after, limit=limit)

    async def _is_over(self) -> bool:
        """Check access, and return whether the scope is of a session whose time is over. Each verb calls this first."""
        if self._check_access is not None:
            await self._check_access()
        return await is_over(self._home.store, self._home.tenant, self._scope)

    def value(self, item: Item) -> Any:
        """Return the value of an item's fact. Raises StoreCorrupt if it cannot be read."""
        try:
            return from_json(self._stored(item).value)
        except ValueError as cause:
            raise _corrupt(self._home.store, self._scope, item, cause) from cause

    def fact(self, item: Item) -> Fact:
        """Return the fact of an item. Raises StoreCorrupt if it cannot be read."""
        return read_fact(self._home.store, self._scope, item)

    def _stored(self, item: Item) -> Stored:
        try:
            return Stored.of(item.value)
        except ValueError as cause:
            raise _corrupt(self._home.store, self._scope, item, cause) from cause

    # --- changing: tried again from the new state if another writer was first

    async def put(
        self,
        texts: Mapping[str, str],
        new: Callable[[Stored | None, str, int], Stored],
        length: int | None,
        version: int | None,
    ) -> list[Fact]:
        """Store values, given as JSON by key, in one step, and return the new facts.

        `new` makes the fact to store from the old one (None: there was none), the value and the time. Facts expire
        after `length` microseconds (None: never). Raises Conflict if a fact has another `version` (None: any).
        """
        store, tenant = self._home.store, self._home.tenant
        await self._is_over()
        while True:
            now = self._home.clock()
            expires = now + length if length is not None else None
            old_items = await store.get_items(tenant, self._namespace, list(texts))
            puts = list[Put]()
            for (key, text), old_item in zip(texts.items(), old_items, strict=True):
                if version is not None:
                    self._check_version(key, old_item, version)
                stored = new(None if old_item is None else self._stored(old_item), text, now)
                puts.append(Put(key, stored.to_bytes(), expires, 0 if old_item is None else old_item.version))
            try:
                items = await store.put_items(tenant, self._namespace, puts)
            except Conflict:
                continue  # another writer was first
            return [self.fact(item) for item in items]

    async def delete(self, key: str, version: int | None) -> bool:
        """Delete a fact, and return whether there was one. Raises Conflict if it has another `version` (None: any)."""
        while (item := await self.item(key)) is not None:
            if version is not None:
                self._check_version(key, item, version)
            try:
                return await self._home.store.delete_item(
                    self._home.tenant, self._namespace, key, expect=item.version, destroys=True
                )
            except Conflict:
                continue  # another writer was first
        if version:
            self._check_version(key, None, version)
        return False

    async def clear(self) -> int:
        """Delete all facts, and return how many there were."""
        await self._is_over()
        deleted = await self._home.store.clear_items(self._home.tenant, self._namespace)
        return sum(deleted.values())

    def _check_version(self, key: str, item: Item | None, version: int) -> None:
        current = 0 if item is None else self._stored(item).version
        if current != version:
            raise Conflict(f"fact {key!r} of {self._scope!r}", f"has version {current}, not {version}: read it again")


def read_fact(store: Store, scope: str, item: Item) -> Fact:
    """Return the fact of an item of a scope. Raises StoreCorrupt, which names the fact, if it cannot be read."""
    try:
        return fact_of(item.key, Stored.of(item.value), item.expires)
    except ValueError as cause:
        raise _corrupt(store, scope, item, cause) from cause


def _corrupt(store: Store, scope: str, item: Item, cause: Exception) -> StoreCorrupt:
    reason = f"the fact {item.key!r} of the working memory {scope!r} cannot be read ({type(cause).__name__})"
    return StoreCorrupt(store.url, reason)
