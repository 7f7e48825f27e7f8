"""The part of `Store` that is not about logs: opening and closing, where its verbs run, items and leases."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from palimpsest.errors import Closed, ForkedProcess, StoreUnavailable
from palimpsest.stores.backend import Backend
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.engine.items import Items, Leases
from palimpsest.stores.rules import READ_ONLY
from palimpsest.stores.values import Item, Put

T = TypeVar("T")


class Opened:
    """A backend in use: whether it may still be called, where its calls run, and its items and leases."""

    def __init__(self, backend: Backend, crowds: Crowds, clock: Callable[[], int]) -> None:
        self.backend, self.url, self.writable = backend, backend.url, backend.writable
        self.blocking, self.remote = backend.blocking, backend.remote
        self._pid, self._closed = os.getpid(), False
        self._items, self._leases = Items(backend, crowds, clock), Leases(backend, crowds, clock)

    @property
    def left_open(self) -> bool:
        """Whether `close` is still due in this process; a memory that is dropped without it warns."""
        return not self._closed and os.getpid() == self._pid

    def check(self) -> None:
        """Raise Closed after `close`, ForkedProcess in a child process."""
        if self._closed:
            raise Closed(self.url)
        if os.getpid() != self._pid:
            raise ForkedProcess(self._pid, os.getpid())

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        """Run a coroutine that awaits nothing but this store where its verbs run, so that several calls go in one.

        With `reads` it only reads, or its writes may be given up. Long computations belong into `apart`.
        """
        return await self.backend.together(start, reads=reads)

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns that computes for long and awaits nothing, without blocking an event loop."""
        return await self.backend.apart(function, *arguments)

    async def _look(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.check()
        return await self.backend.together(start, reads=True)

    async def _run(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._may_write()
        return await self.backend.together(start)

    def _may_write(self) -> None:
        if self._closed or not self.writable or os.getpid() != self._pid:
            self.check()
            raise StoreUnavailable(self.url, READ_ONLY)

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        """Return a page of the tenants that sort after `after` and have anything here, Palimpsest's own included."""
        return await self._look(lambda: self.backend.tenants(after=after, limit=limit))

    async def unread(self, tenant: str | None = None) -> Mapping[str, Collection[str]]:
        """Return what of the tenant's (None: of anybody's) cannot be read and is in no listing.

        Maps the reason to the sessions that are known to be affected. No verb that goes through all sessions reaches
        these.
        """
        return await self._look(lambda: self.backend.unread(tenant))

    async def durability(self) -> str:
        """Say, for people, which acknowledged writes are lost with the machine, or with the server."""
        return await self._look(self.backend.durability)

    async def close(self) -> None:
        """Release everything. Closing twice is fine."""
        if not self._closed:
            self._closed = True
            if os.getpid() == self._pid:
                self.backend.give_up()
                try:
                    await self.backend.together(self.backend.close)
                except BaseException:  # on another event loop, or cancelled: `close` may be called again
                    self._closed = False
                    raise

    # --- items and leases

    async def get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        """Return the item, or None if it does not exist or has expired."""
        return await self._look(lambda: self._items.get(tenant, namespace, key))

    async def get_items(self, tenant: str, namespace: str, keys: Sequence[str]) -> list[Item | None]:
        """Return the items of these keys as of one moment, in the order of the keys; None as in `get_item`."""
        return await self._look(lambda: self._items.several(tenant, namespace, keys)) if keys else []

    async def put_item(
        self,
        tenant: str,
        namespace: str,
        key: str,
        value: bytes,
        *,
        expires: int | None = None,
        expect: int | None = None,
    ) -> Item:
        """Store the value under the key and return it with its new version.

        With `expect`, raises Conflict unless the present version is that number (0: none).
        """
        return (await self.put_items(tenant, namespace, [Put(key, value, expires, expect)]))[0]

    async def put_items(self, tenant: str, namespace: str, puts: Sequence[Put]) -> list[Item]:
        """Store several values, each under a key of its own, in one step: all or none. Otherwise like `put_item`."""
        if not puts:
            return []
        return await self._run(lambda: self._items.put(tenant, namespace, puts))

    async def delete_item(
        self, tenant: str, namespace: str, key: str, *, expect: int | None = None, destroys: bool = False
    ) -> bool:
        """Remove the item; return whether there was one.

        With `expect`, raises Conflict unless the present version is that number. With `destroys`, no byte of it is left
        once the store has been scrubbed.
        """
        return await self._run(lambda: self._items.delete(tenant, namespace, key, expect, destroys))

    async def list_items(self, tenant: str, namespace: str, *, prefix: str = "") -> list[Item]:
        """Return the namespace's unexpired items whose keys begin with `prefix`, in the order their keys were first
        put.
        """
        return await self._look(lambda: self._items.listed(tenant, namespace, prefix))

    async def page_items(
        self, tenant: str, namespace: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> tuple[list[Item], str | None]:
        """Return a page of such items, and the `after` of the next page (None: this is the last).

        The order is the store's own and stable. An item that is added meanwhile may be missed; no other is.
        """
        return await self._look(lambda: self._items.page(tenant, namespace, prefix, after, limit))

    async def namespaces(self, tenant: str, *, prefix: str = "", emptied: bool = False) -> list[str]:
        """Return the tenant's namespaces that have an item and begin with `prefix`, by code points.

        With `emptied` those that once had one are included, which takes fewer looks.
        """
        return await self._look(lambda: self._items.namespaces(tenant, prefix, emptied=emptied))

    async def lease(
        self, tenant: str, name: str, holder: str, seconds: float, *, fence: int | None = None
    ) -> int | None:
        """Take, or with `fence` renew, the lease `name` for `seconds`; return its fence, or None if another holds it.

        A fence is greater than every earlier fence of this lease; two leases may have the same. A lease ends by the
        clock, or when a caller has seen it unchanged for its whole length. An ended lease can still be renewed until
        somebody else takes it. `seconds` of 0 gives it back. Taking a lease that one already holds renews it: so a
        holder that never got an answer may ask again, or give it back, and then a late request is refused.
        """
        return await self._run(lambda: self._leases.lease(tenant, name, holder, seconds, fence))
