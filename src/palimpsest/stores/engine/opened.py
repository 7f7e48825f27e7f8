"""What `Store` does beside logs: it is opened and closed, says where its verbs run, and has items and leases."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from palimpsest.errors import Closed, ForkedProcess, StoreUnavailable
from palimpsest.stores.backend import Backend
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.engine.items import Items, Leases
from palimpsest.stores.rules import READ_ONLY
from palimpsest.stores.values import Item, Put

T = TypeVar("T")


class Opened:
    """A backend in use: whether it may be called still, where what is asked of it runs, and its items and leases."""

    def __init__(self, backend: Backend, crowds: Crowds, clock: Callable[[], int]) -> None:
        self.backend, self.url, self.writable = backend, backend.url, backend.writable
        self.blocking, self.remote = backend.blocking, backend.remote
        self._pid, self._closed = os.getpid(), False
        self._items, self._leases = Items(backend, crowds, clock), Leases(backend, crowds, clock)

    @property
    def left_open(self) -> bool:
        """Whether `close` is still due in this process: what a memory that is let go of warns about."""
        return not self._closed and os.getpid() == self._pid

    def check(self) -> None:
        """Raise Closed after `close`, ForkedProcess in a child process."""
        if self._closed:
            raise Closed(self.url)
        if os.getpid() != self._pid:
            raise ForkedProcess(self._pid, os.getpid())

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        """Run a coroutine that waits for nothing but this store where its verbs run, several in one go; with `reads` it
        only reads, or writes what it may do without. What it computes at length belongs into `apart`."""
        return await self.backend.together(start, reads=reads)

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns that takes long and waits for nothing, without holding up an event loop."""
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
        """Return the tenants that sort behind `after` and have anything here, Palimpsest's own, too: a page."""
        return await self._look(lambda: self.backend.tenants(after=after, limit=limit))

    async def durability(self) -> str:
        """Say, for people, what is lost with the machine, or with the server, of what was acknowledged."""
        return await self._look(self.backend.durability)

    async def close(self) -> None:
        """Let go of everything. Closing twice is fine."""
        if not self._closed:
            self._closed = True
            if os.getpid() == self._pid:
                self.backend.give_up()
                try:
                    await self.backend.together(self.backend.close)
                except BaseException:  # as on another event loop, or cancelled: who comes back closes it
                    self._closed = False
                    raise

    # --- items and leases

    async def get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        """Return the item, or None where there is none or it has expired."""
        return await self._look(lambda: self._items.get(tenant, namespace, key))

    async def get_items(self, tenant: str, namespace: str, keys: Sequence[str]) -> list[Item | None]:
        """Return the items of several keys as they are at one moment, in the order of these; None as in `get_item`."""
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
        """Store several values, each under a key of its own, in one step; as `put_item` does, all or none."""
        if not puts:
            return []
        return await self._run(lambda: self._items.put(tenant, namespace, puts))

    async def delete_item(
        self, tenant: str, namespace: str, key: str, *, expect: int | None = None, destroys: bool = False
    ) -> bool:
        """Remove the item; return whether there was one.

        With `expect`, raises Conflict unless the present version is that number. `destroys` says that no byte of it may
        be left when the store has been scrubbed.
        """
        return await self._run(lambda: self._items.delete(tenant, namespace, key, expect, destroys))

    async def list_items(self, tenant: str, namespace: str, *, prefix: str = "") -> list[Item]:
        """Return the namespace's items that have not expired and whose keys begin so, in the order in which their keys
        came first."""
        return await self._look(lambda: self._items.listed(tenant, namespace, prefix))

    async def page_items(
        self, tenant: str, namespace: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> tuple[list[Item], str | None]:
        """Return a page of such items, by an order of the store's own that stays, and what is `after` for the next page
        (None: there is none). An item that comes meanwhile may be on no page; no other is missed."""
        return await self._look(lambda: self._items.page(tenant, namespace, prefix, after, limit))

    async def namespaces(self, tenant: str, *, prefix: str = "", empty: bool = False) -> list[str]:
        """Return the names of the tenant's namespaces that have an item and begin so, by code points; with `empty` also
        of those whose items went one by one."""
        return await self._look(lambda: self._items.namespaces(tenant, prefix, empty))

    async def lease(
        self, tenant: str, name: str, holder: str, seconds: float, *, fence: int | None = None
    ) -> int | None:
        """Take, or with `fence` renew, the lease `name` for `seconds`; return its fence, None if another holds it.

        A fence is greater than every fence of this lease that was given out before; one of another lease may be the
        same. A lease ends by itself: by the clock, and where whoever asks has seen nobody renew it for its whole
        length. Until somebody takes it it can be renewed. `seconds` of 0 gives it back. Who takes what is his renews
        it: so one who never learned whether he has it may ask again, or give it back.
        """
        return await self._run(lambda: self._leases.lease(tenant, name, holder, seconds, fence))
