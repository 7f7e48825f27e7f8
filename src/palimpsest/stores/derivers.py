"""What derives from a tenant's entries (indexes, knowledge bases): marks in its store, and what is left to remove.

A mark exists from when something first joined under a name, and outlives the process. If entries are erased while what
bears a mark is not loaded, a note is left before they go. The next to join under the name finds the note, removes what
it says, and deletes it. Marks and notes are items of a tenant of their own, whose name no user's tenant can have.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from palimpsest.log.codec import ready
from palimpsest.log.ids import new_ids

if TYPE_CHECKING:
    from palimpsest.stores import Store

OWNER = "\x01derived"
"""The tenant that owns these items."""

INDEX, KNOWLEDGE = "palimpsest.recall", "palimpsest.knowledge"
"""The names of a store's own derivers: its search index, and its knowledge bases. The name of an index in a file on
some machine goes on after a colon."""


class Note(msgspec.Struct, frozen=True):
    """What is to be removed of a session: what was made from these entries, ids by `seq` (None: from any of them)."""

    session: str
    entries: dict[int, str] | None = None


ready(Note)


class Derivers:
    """The marks and notes of a tenant's derivers, in its store."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store, self._tenant = store, tenant

    async def names(self) -> list[str]:
        """Return the names under which something has joined, oldest first."""
        return [item.key for item in await self._store.list_items(OWNER, self._tenant)]

    async def mark(self, name: str) -> None:
        """Make the store know this name."""
        if await self._store.get_item(OWNER, self._tenant, name) is None:
            await self._store.put_item(OWNER, self._tenant, name, b"")

    async def unmark(self, name: str) -> bool:
        """Make the store forget this name, and drop its notes; return whether it knew it."""
        was_known = await self._store.delete_item(OWNER, self._tenant, name)
        async for id, _ in self.notes(name):
            await self.done(name, id)
        return was_known

    async def leave(self, name: str, session: str, entries: Mapping[int, str] | None) -> None:
        """Leave a note for the next that joins under this name."""
        note = Note(session, None if entries is None else dict(entries))
        await self._store.put_item(OWNER, self._notes(name), new_ids(1, 0)[0], msgspec.json.encode(note))

    async def notes(self, name: str) -> AsyncIterator[tuple[str, Note]]:
        """Yield the notes left for this name, oldest first, each with its id."""
        for item in await self._store.list_items(OWNER, self._notes(name)):
            yield item.key, msgspec.json.decode(item.value, type=Note)

    async def done(self, name: str, id: str) -> None:
        """Delete a note."""
        await self._store.delete_item(OWNER, self._notes(name), id)

    def _notes(self, name: str) -> str:
        """Return the namespace of a name's notes. It has a control character, so it is never a tenant's own."""
        return f"{self._tenant}\x01{name}"
