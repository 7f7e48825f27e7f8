"""One shelf: documents are put on it, found and taken away.

Putting is three steps that may end anywhere: the chunks of the new version, then its record, which is what makes it
hold, then away with what other versions there are. What a process that was killed has left is not found, since no
record holds of it, and goes when the document is put again, or taken away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Self

import msgspec

from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.privacy.gate import Gate
from palimpsest.runtime.runner import Runner
from palimpsest.sessions.shelves.records import DOCUMENTS, SHELVES, Kind, Place, Record, document_key, tenant_of
from palimpsest.stores import Store


class Home(Protocol):
    """What shelves are kept by: the scope of a memory."""

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


class Shelf:
    """A collection's documents, of one user, of everybody, or of nobody. `scope` is that of its own tenant."""

    def __init__(self, home: Home, place: Place) -> None:
        self._home, self.place = home, place
        self.scope = home.sharing(tenant_of(home.tenant, place))

    @property
    def tenant(self) -> str:
        """The tenant that it is."""
        return self.scope.tenant

    async def record(self, kind: Kind, id: str) -> Record | None:
        """The record of a document, or None."""
        return (await self.records_of([document_key(kind, id)]))[0]

    async def records_of(self, keys: Sequence[str]) -> list[Record | None]:
        """The records of documents, by their keys."""
        found = await self._home.store.get_items(self.tenant, DOCUMENTS, keys)
        return [None if item is None else msgspec.json.decode(item.value, type=Record) for item in found]

    async def records(self) -> list[Record]:
        """All records, in the order in which documents came first."""
        items = await self._home.store.list_items(self.tenant, DOCUMENTS)
        return [msgspec.json.decode(item.value, type=Record) for item in items]

    async def put(self, record: Record, entries: Sequence[Entry]) -> None:
        """Have a version of a document hold, and no other."""
        store, key = self._home.store, SessionKey(self.tenant, record.session)
        await self._known()
        head = await store.head(key)
        if head is not None and (head.erased or head.entries != len(entries)):  # something of it was forgotten
            await self._drop(record.session)
        await store.append(key, entries, check_ids=True)
        await self.note(record)
        await self._known()  # somebody may have emptied it meanwhile
        await self._drop_versions(record.key, record.session)

    async def _known(self) -> None:
        """See that the shelf is among those that there are, which an erasure asks for."""
        store, home = self._home.store, tenant_of(self._home.tenant)
        if await store.get_item(home, SHELVES, self.place.key) is None:
            await store.put_item(home, SHELVES, self.place.key, msgspec.json.encode(self.place))

    async def note(self, record: Record) -> None:
        """Have this be what is known of a document."""
        await self._home.store.put_item(self.tenant, DOCUMENTS, record.key, msgspec.json.encode(record))

    async def remove(self, kind: Kind, id: str) -> int:
        """Take a document away, with all versions; return how many chunks that were."""
        key = document_key(kind, id)
        await self._home.store.delete_item(self.tenant, DOCUMENTS, key, destroys=True)
        return await self._drop_versions(key)

    async def empty(self) -> int:
        """Take away all that is on it, and forget the shelf; return how many documents that were."""
        store, gone = self._home.store, 0
        for record in await self.records():
            await self.remove(record.kind, record.id)
            gone += 1
        while left := await store.sessions(self.tenant):
            for info in left:
                await self._drop(info.session)
        await store.clear_items(self.tenant)
        await store.delete_item(tenant_of(self._home.tenant), SHELVES, self.place.key, destroys=True)
        return gone

    async def _drop_versions(self, key: str, but: str = "") -> int:
        infos = await self._home.store.sessions(self.tenant, begin=key, limit=16)
        there = [info for info in infos if info.session.startswith(key) and info.session != but]
        for info in there:
            await self._drop(info.session)
        return sum(info.entries for info in there)

    async def _drop(self, session: str) -> None:
        key = SessionKey(self.tenant, session)
        async with self.scope.drop_derived(key):
            await self._home.store.delete(key)


async def shelves(home: Home) -> list[Shelf]:
    """All shelves of a tenant."""
    items = await home.store.list_items(tenant_of(home.tenant), SHELVES)
    return [Shelf(home, msgspec.json.decode(item.value, type=Place)) for item in items]
