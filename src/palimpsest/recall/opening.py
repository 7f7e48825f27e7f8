"""Open a tenant's index wherever it is kept: beside the store, inside its database, in another file, or in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from palimpsest.errors import PalimpsestError, StoreUnavailable
from palimpsest.recall.follower import Follower
from palimpsest.recall.index import Index, Size
from palimpsest.recall.memory.index import PlainIndex
from palimpsest.recall.sqlite.identity import recognise
from palimpsest.recall.sqlite.index import File, FtsIndex, has_fts5
from palimpsest.runtime.logs import warn
from palimpsest.runtime.once import new_lock
from palimpsest.runtime.runner import Runner
from palimpsest.stores import Store
from palimpsest.stores.derivers import INDEX

if TYPE_CHECKING:
    from palimpsest.recall.embedders import Embedder
    from palimpsest.recall.embedding import Embedding

NAME = INDEX
"""The name under which a store knows that it has a search index, so that erasures remove text from it, too. An index in
a file that other machines may not have is known as this name, a colon, and the id of the file."""

ALONE = "the search index is kept in memory, and each process builds its own: %s"


class Recall:
    """One tenant's index together with its follower. It is a `Derived`, the face that erasures use."""

    def __init__(self, index: Index, follower: Follower, name: str = NAME, embedding: Embedding | None = None) -> None:
        self.index, self.follower, self.name, self.embedding = index, follower, name, embedding

    async def erased(self, tenant: str, session: str, entries: Mapping[int, str]) -> int:
        """Remove these entries from the index before they are erased, and keep them out."""
        return await self.follower.remove(session, list(entries))

    async def gone(self, tenant: str, session: str) -> int:
        """Remove a session from the index before it is deleted, and keep it out."""
        return await self.follower.remove_all(session)

    async def settled(self, tenant: str, session: str, entries: Mapping[int, str] | None) -> None:
        """After an erasure or deletion, index again what is still in the log."""
        await self.follower.settle(session, [0] if entries is None else list(entries))

    async def scrub(self, *, whole: bool) -> tuple[str, ...]:
        """Erase the bytes of what was removed; return sentences for people that say what remains."""
        return await self.index.scrub(whole=whole)

    async def size(self) -> tuple[Size, int]:
        """Return how large the index is, and how many sessions have something that is not in it yet."""
        return await self.index.size(), len(await self.follower.behind())


class Indexes:
    """The indexes of a store's tenants that this process has open."""

    def __init__(
        self,
        store: Store,
        runner: Runner,
        clock: Callable[[], int],
        path: str | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        self._store, self._runner, self._clock, self._path, self._embedder = store, runner, clock, path, embedder
        self._lock, self._file = new_lock(), list[File]()  # one at most
        self._recalls = dict[str, Recall]()
        self._lacks_fts5 = False

    async def of(self, tenant: str) -> Recall:
        """Return the index of a tenant, opened at the first call."""
        recall = self._recalls.get(tenant)
        if recall is None:
            inside = await self._in_tables(tenant)
            index = inside or await self._in_file(tenant)
            is_usually_kept = self._store.backend.companion or self._store.backend.tables
            name = index.name or (f"{NAME} in memory" if is_usually_kept else NAME)
            follower = Follower(self._store, tenant, index, self._clock, apart=inside is None)
            opened = Recall(index, follower, name, await self._embedding(tenant, index))
            recall = self._recalls.setdefault(tenant, opened)  # another task may have opened it meanwhile
        return recall

    async def _embedding(self, tenant: str, index: Index) -> Embedding | None:
        """Return what keeps vectors for an index; None without an embedder, or if the index keeps none."""
        if self._embedder is None:
            return None
        from palimpsest.recall.embedding import Embedding  # an extra

        rows = await index.vectors()
        if rows is None:
            warn("the search index %s cannot keep vectors, so searches compare only words", index.where)
            return None
        return Embedding(self._store, tenant, index, rows, self._embedder, self._runner)

    async def _in_tables(self, tenant: str) -> Index | None:
        """Return the index in the store's own database; None if it has no tables for one, or they may not be
        written."""
        backend = self._store.backend
        if backend.tables is None or self._path is not None or not self._store.writable:
            return None
        from palimpsest.recall.postgres.index import PostgresIndex, passes  # only over PostgreSQL

        index = PostgresIndex(backend.tables, tenant, NAME, backend.url)
        try:
            await index.open(vectors=self._embedder is not None)
        except StoreUnavailable as fault:
            if passes(fault):
                raise  # the next search tries again: until the process ends an index in memory would be used
            warn(ALONE, fault)
            return None
        return index

    async def _in_file(self, tenant: str) -> Index:
        """Return the index in a file, or in memory."""
        file = await self._runner.read(self._opened)
        if file is None:
            return PlainIndex(self._runner)
        path = file.path or file.copied
        name = f"{NAME}:{await self._runner.read(file.id)}" if self._path is not None and path else NAME
        index = FtsIndex(file, tenant, self._runner, name if file.path else "")
        if path:
            await recognise(self._store, tenant, index, name)
        return index

    def _opened(self) -> File | None:
        """Return the file of all indexes, opened at the first call; None without FTS5."""
        with self._lock:
            if not self._file and not self._lacks_fts5:
                self._lacks_fts5 = not has_fts5()
                if self._lacks_fts5:
                    warn(ALONE, "this Python's SQLite was built without FTS5")
                else:
                    self._file.append(_file_of(self._store, self._path or self._store.backend.companion))
        return self._file[0] if self._file else None

    def close(self) -> None:
        """Close what is open."""
        for file in self._file:
            file.close()

    async def end(self) -> None:
        """Close what is open in a thread: closing writes what was written last back to the file."""
        try:
            self._store.check()
        except PalimpsestError:  # a forked process has inherited the store, but not its threads
            self.close()
        else:
            await self._runner.read(self.close)


def _file_of(store: Store, path: str | None) -> File:
    """Return the file at a path that processes share, or a database in memory if there is no path or it may not be
    written, or read.

    For a store that is only read, an index file that exists is copied into memory and brought up to date there.
    """
    if path is None:
        return File()
    file = File(path) if store.writable else File(copied=path if os.path.exists(path) else "")
    try:
        file.open()
    except StoreUnavailable as fault:
        if fault.late:
            raise  # another program keeps it locked, and will not for ever
        warn(ALONE, fault)
        return File()
    return file
