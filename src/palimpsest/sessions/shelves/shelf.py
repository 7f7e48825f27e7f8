"""One shelf: putting documents on it, reading and removing them.

Putting takes three steps, and a process may be killed between any of them. First the chunks of the new version are
written, then its record, which makes the version current, then other versions are deleted. Chunks that a killed process
has left are not found, since no record names their version. They go when the document is put again, or removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol, Self

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.privacy.gate import Gate
from palimpsest.runtime.runner import Runner
from palimpsest.sessions.shelves.records import DOCUMENTS, SHELVES, Kind, Place, Record, document_key, tenant_of
from palimpsest.stores import Put, Store


class Home(Protocol):
    """What keeps shelves: the scope of a memory."""

    @property
    def tenant(self) -> str: ...
    @property
    def store(self) -> Store: ...
    @property
    def gate(self) -> Gate: ...
    @property
    def runner(self) -> Runner: ...
    @property
    def clock(self) -> Callable[[], int]: ...

    def sharing(self, tenant: str) -> Self: ...
    def drop_derived(self, key: SessionKey) -> AbstractAsyncContextManager[Any]: ...
    async def scrub(self, store: Store) -> tuple[str, ...]: ...


VERSIONS = 16
"""How many versions of a document are listed at once. Usually there are two, the new one and the one before."""


class Shelf:
    """The documents of one place. `scope` is the memory scope of the shelf's own tenant."""

    def __init__(self, home: Home, place: Place) -> None:
        self._home, self.place = home, place
        self.scope = home.sharing(tenant_of(home.tenant, place))

    @property
    def tenant(self) -> str:
        """The tenant that stores the shelf."""
        return self.scope.tenant

    async def record(self, kind: Kind, id: str) -> Record | None:
        """Return the record of a document, or None."""
        return (await self.records_of([document_key(kind, id)]))[0]

    async def records_of(self, keys: Sequence[str]) -> list[Record | None]:
        """Return the records of these keys, in their order; None for a document that does not exist."""
        items = await self._home.store.get_items(self.tenant, DOCUMENTS, keys)
        return [None if item is None else msgspec.json.decode(item.value, type=Record) for item in items]

    async def records(self) -> list[Record]:
        """Return all records, in the order in which the documents were first added."""
        items = await self._home.store.list_items(self.tenant, DOCUMENTS)
        return [msgspec.json.decode(item.value, type=Record) for item in items]

    async def count(self) -> int:
        """Return how many documents there are, damaged ones included."""
        return (await self._home.store.clear_items(self.tenant, dry_run=True)).get(DOCUMENTS, 0)

    async def put(self, record: Record, entries: Sequence[Entry], *, replaces: bool = False) -> None:
        """Write a version of a document, make it current, and delete the others.

        With `replaces`, title and metadata of the version before are destroyed, like its chunks.
        """
        store, key = self._home.store, SessionKey(self.tenant, record.session)
        await self._register()
        head = await store.head(key)
        if head is not None and (head.erased or head.entries != len(entries)):  # incomplete, or partly forgotten
            await self._drop(record.session)
        await store.append(key, entries, check_ids=True)
        await self.note(record, destroys=replaces)
        await self._register()  # another process may have emptied the shelf meanwhile
        await self._drop_versions(record.key, but=record.session)

    async def _register(self) -> None:
        """Add the shelf to the tenant's list of shelves, by which an erasure finds it."""
        store, home = self._home.store, tenant_of(self._home.tenant)
        if await store.get_item(home, SHELVES, self.place.key) is None:
            await store.put_item(home, SHELVES, self.place.key, msgspec.json.encode(self.place))

    async def note(self, record: Record, *, destroys: bool = False) -> None:
        """Write the record of a document. With `destroys`, no byte of the one before is left after `scrub`."""
        put = Put(record.key, msgspec.json.encode(record), destroys=destroys)
        await self._home.store.put_items(self.tenant, DOCUMENTS, [put])

    async def remove(self, kind: Kind, id: str) -> int:
        """Remove a document with all its versions; return how many chunks were removed."""
        key = document_key(kind, id)
        await self._home.store.delete_item(self.tenant, DOCUMENTS, key, destroys=True)
        return await self._drop_versions(key)

    async def empty(self) -> int:
        """Remove all documents and the shelf itself; return how many documents there were."""
        store, removed = self._home.store, await self.count()
        with suppress(StoreCorrupt):  # what cannot be read goes with all the rest
            for record in await self.records():
                await self.remove(record.kind, record.id)
        while infos := await store.sessions(self.tenant):  # versions without a record
            for info in infos:
                await self._drop(info.session)
        await store.clear_items(self.tenant)
        await store.delete_item(tenant_of(self._home.tenant), SHELVES, self.place.key, destroys=True)
        return removed

    async def _drop_versions(self, key: str, but: str = "") -> int:
        """Delete the versions of a document except the session `but`; return how many chunks they had."""
        removed, after = 0, ""
        while infos := await self._home.store.sessions(self.tenant, after=after, begin=key, limit=VERSIONS):
            for info in infos:
                if not info.session.startswith(key):
                    return removed
                if info.session != but:
                    await self._drop(info.session)
                    removed += info.entries
            if len(infos) < VERSIONS:
                return removed
            after = infos[-1].session
        return removed

    async def _drop(self, session: str) -> None:
        key = SessionKey(self.tenant, session)
        async with self.scope.drop_derived(key):
            await self._home.store.delete(key)


async def shelves(home: Home) -> list[Shelf]:
    """Return all shelves of a tenant."""
    items = await home.store.list_items(tenant_of(home.tenant), SHELVES)
    return [Shelf(home, msgspec.json.decode(item.value, type=Place)) for item in items]
