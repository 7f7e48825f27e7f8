"""The facts of a scope in their store: read as what they are, and written where nobody was first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.facts import Fact, Stored, fact_of
from palimpsest.log.typed import from_json
from palimpsest.privacy.gate import Gate
from palimpsest.sessions.scopes import WORKING, is_over
from palimpsest.stores import Item, Put, Store


class Home(Protocol):
    """What the facts of a scope are kept by: a memory, or a session."""

    @property
    def tenant(self) -> str:
        """Whose facts they are."""
        ...

    @property
    def store(self) -> Store:
        """Where they are kept."""
        ...

    @property
    def gate(self) -> Gate:
        """What may be kept."""
        ...

    @property
    def clock(self) -> Callable[[], int]:
        """Microseconds since 1970."""
        ...


class KeptFacts:
    """The facts of one scope: items of a namespace, each of which has a fact with its history.

    `look` raises where they may not be seen, or changed: it is called before they are (None: they always may).
    """

    def __init__(self, home: Home, scope: str, look: Callable[[], Awaitable[None]] | None = None) -> None:
        self._home, self._scope, self._namespace, self._look = home, scope, WORKING + scope, look

    # --- reading

    async def item(self, key: str) -> Item | None:
        """The item under a key; None where there is none."""
        if await self._is_over():
            return None
        return await self._home.store.get_item(self._home.tenant, self._namespace, key)

    async def items(self, prefix: str) -> list[Item]:
        """All items whose keys begin so, in the order in which they came first."""
        if await self._is_over():
            return []
        return await self._home.store.list_items(self._home.tenant, self._namespace, prefix=prefix)

    async def page(self, prefix: str, after: str, limit: int) -> tuple[list[Item], str | None]:
        """Some of them, in an order of the store's own, and where the next page begins (None: there is none)."""
        store, tenant = self._home.store, self._home.tenant
        if await self._is_over():
            return [], None
        return await store.page_items(tenant, self._namespace, prefix=prefix, after=after, limit=limit)

    async def _is_over(self) -> bool:
        """Look, and return whether the scope is of a session whose time is over. Each verb begins so."""
        if self._look is not None:
            await self._look()
        return await is_over(self._home.store, self._home.tenant, self._scope)

    def value(self, item: Item) -> Any:
        """The value of an item's fact. Raises StoreCorrupt."""
        try:
            return from_json(self._stored(item).value)
        except ValueError as cause:
            raise _corrupt(self._home.store, self._scope, item, cause) from cause

    def fact(self, item: Item) -> Fact:
        """The fact of an item. Raises StoreCorrupt."""
        return read_fact(self._home.store, self._scope, item)

    def _stored(self, item: Item) -> Stored:
        try:
            return Stored.of(item.value)
        except ValueError as cause:
            raise _corrupt(self._home.store, self._scope, item, cause) from cause

    # --- changing: made anew where somebody was first

    async def put(
        self,
        texts: Mapping[str, str],
        new: Callable[[Stored | None, str, int], Stored],
        length: int | None,
        version: int | None,
    ) -> list[Fact]:
        """Keep values, as JSON by key, in one step: `new` makes what is stored of what was there, the value and the
        time, and for `length` microseconds it is seen (None: for ever). Raises Conflict where the first one has another
        `version` (None: any)."""
        store, tenant = self._home.store, self._home.tenant
        await self._is_over()
        while True:
            now = self._home.clock()
            expires = now + length if length is not None else None
            olds = await store.get_items(tenant, self._namespace, list(texts))
            puts = list[Put]()
            for (key, text), old in zip(texts.items(), olds, strict=True):
                if version is not None:
                    self._check_version(key, old, version)
                stored = new(None if old is None else self._stored(old), text, now)
                puts.append(Put(key, stored.to_bytes(), expires, 0 if old is None else old.version))
            try:
                items = await store.put_items(tenant, self._namespace, puts)
            except Conflict:
                continue  # somebody was first
            return [self.fact(item) for item in items]

    async def delete(self, key: str, version: int | None) -> bool:
        """Take a fact away; whether there was one. Raises Conflict where it has another `version` (None: any)."""
        while (item := await self.item(key)) is not None:
            if version is not None:
                self._check_version(key, item, version)
            try:
                return await self._home.store.delete_item(
                    self._home.tenant, self._namespace, key, expect=item.version, destroys=True
                )
            except Conflict:
                continue  # somebody was first
        if version:
            self._check_version(key, None, version)
        return False

    async def clear(self) -> int:
        """Take all facts away, and return how many there were."""
        await self._is_over()
        gone = await self._home.store.clear_items(self._home.tenant, self._namespace)
        return sum(gone.values())

    def _check_version(self, key: str, item: Item | None, version: int) -> None:
        there = 0 if item is None else self._stored(item).version
        if there != version:
            raise Conflict(f"fact {key!r} of {self._scope!r}", f"has version {there}, not {version}: read it again")


def read_fact(store: Store, scope: str, item: Item) -> Fact:
    """The fact of an item of a scope. Raises StoreCorrupt, naming it, where it cannot be read."""
    try:
        return fact_of(item.key, Stored.of(item.value), item.expires)
    except ValueError as cause:
        raise _corrupt(store, scope, item, cause) from cause


def _corrupt(store: Store, scope: str, item: Item, cause: Exception) -> StoreCorrupt:
    told = f"the fact {item.key!r} of the working memory {scope!r} cannot be read ({type(cause).__name__})"
    return StoreCorrupt(store.url, told)
