"""Who makes something from a tenant's entries, as the store knows it, and what each of them has still to remove.

A mark is there from when something first joined under a name, and outlives the process. Who erases entries while what
bears a mark is not at hand leaves a note, before they go: the next that joins under the name finds it, removes what it
says, and takes it away. Marks and notes are items of a tenant of their own, which no user's can be called.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from palimpsest.log.codec import ready
from palimpsest.log.entry import new_ids

if TYPE_CHECKING:
    from palimpsest.stores import Store

OWNER = "\x01derived"
"""The tenant whose items they are."""

INDEX, KNOWLEDGE = "palimpsest.recall", "palimpsest.knowledge"
"""The names of what is a store's own: its search index, and its knowledge bases. An index in a file of some machine has
more behind a colon."""


class Note(msgspec.Struct, frozen=True):
    """What is to be removed of a session: what was made of these entries, ids by `seq` (None: of any of it)."""

    session: str
    entries: dict[int, str] | None = None


ready(Note)


class Derivers:
    """The marks and notes of a tenant's derivers, in its store."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store, self._tenant = store, tenant

    async def names(self) -> list[str]:
        """The names under which something has joined, oldest first."""
        return [item.key for item in await self._store.list_items(OWNER, self._tenant)]

    async def mark(self, name: str) -> None:
        """Have the store know this name."""
        if await self._store.get_item(OWNER, self._tenant, name) is None:
            await self._store.put_item(OWNER, self._tenant, name, b"")

    async def unmark(self, name: str) -> bool:
        """Have the store know this name no longer, and drop its notes; return whether it did."""
        there = await self._store.delete_item(OWNER, self._tenant, name)
        async for id, _ in self.notes(name):
            await self.done(name, id)
        return there

    async def leave(self, name: str, session: str, entries: Mapping[int, str] | None) -> None:
        """Leave a note for the next that joins under this name."""
        note = Note(session, None if entries is None else dict(entries))
        await self._store.put_item(OWNER, self._notes(name), new_ids(1, 0)[0], msgspec.json.encode(note))

    async def notes(self, name: str) -> AsyncIterator[tuple[str, Note]]:
        """Yield what was left for this name, in the order in which it was, each with its id."""
        for item in await self._store.list_items(OWNER, self._notes(name)):
            yield item.key, msgspec.json.decode(item.value, type=Note)

    async def done(self, name: str, id: str) -> None:
        """Take a note away."""
        await self._store.delete_item(OWNER, self._notes(name), id)

    def _notes(self, name: str) -> str:
        """The namespace of a name's notes: no tenant's own, for those have no control characters."""
        return f"{self._tenant}\x01{name}"
