"""The engine as sessions call it: today's `Store` and `Rewritable`, over any backend."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from palimpsest.errors import Closed, ForkedProcess, StoreUnavailable
from palimpsest.log.change import Change, Record
from palimpsest.log.entry import Entry, now_us
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores import Appended, Dump, Item, SessionInfo, Store
from palimpsest.stores.backend import Backend
from palimpsest.stores.engine.appends import Append, Appends
from palimpsest.stores.engine.branching import Branching
from palimpsest.stores.engine.changing import Changing
from palimpsest.stores.engine.expiry import Expiry
from palimpsest.stores.engine.heads import Sessions
from palimpsest.stores.engine.items import Items
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.loading import Loading
from palimpsest.stores.engine.queues import Queues
from palimpsest.stores.engine.reading import Reading
from palimpsest.stores.engine.rewriting import Rewriting
from palimpsest.stores.rewriting import Rewritable, Rewrite
from palimpsest.stores.witness import Witness

T = TypeVar("T")


class Engine(Store, Rewritable):
    """A store over a backend. Content of more than `large_bytes` is kept once a home; None: it is kept in its place."""

    def __init__(self, backend: Backend, clock: Callable[[], int] = now_us, large_bytes: int | None = None) -> None:
        self.backend = backend
        self.url, self.writable, self.blocking = backend.url, backend.writable, backend.blocking
        self._pid, self._closed = os.getpid(), False
        self._sessions = sessions = Sessions(backend)
        large = Large(backend, large_bytes)
        self._reading = Reading(sessions, large, clock)
        self._appends = Queues(backend, Appends(sessions, large, clock, self._reading.by_ids))
        self._changing = Changing(sessions, self._reading, large, clock)
        self._branching = Branching(sessions, large, clock)
        self._loading = Loading(sessions, large, clock)
        self._items = Items(backend, clock)
        self._expiry = Expiry(sessions, self._changing, self._items, self._loading, clock)
        self._rewriting = Rewriting(sessions, self._reading, large, clock)

    def ask(self, witness: Witness) -> None:
        super().ask(witness)
        self._sessions.ask(witness)

    @property
    def left_open(self) -> bool:
        return not self._closed and os.getpid() == self._pid

    def check(self) -> None:
        """Raise Closed after `close`, ForkedProcess in a child process."""
        if self._closed:
            raise Closed(self.url)
        if os.getpid() != self._pid:
            raise ForkedProcess(self._pid, os.getpid())

    # --- where it runs

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        return await self.backend.together(start, reads=reads)

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
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
            raise StoreUnavailable(self.url, "it was opened read-only, and nothing was written")

    # --- logs

    async def head(self, key: SessionKey) -> Head | None:
        known = await self._look(lambda: self._sessions.find(key))
        return None if known.there is None else known.head

    async def append(
        self, key: SessionKey, entries: Sequence[Entry], *, check_ids: bool = False, expect: int | None = None
    ) -> Appended:
        self._may_write()
        return await self._appends.run(Append(key, entries, check_ids, expect))

    async def read(
        self,
        key: SessionKey,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        counter: str | None = None,
        uncounted: bool = False,
    ) -> list[Entry]:
        return await self._look(lambda: self._reading.read(key, after, before, limit, newest_first, counter, uncounted))

    async def fetch(
        self, key: SessionKey, seqs: Iterable[int] = (), ids: Iterable[str] = (), *, counter: str | None = None
    ) -> list[Entry]:
        places, names = tuple(seqs), tuple(ids)
        return await self._look(lambda: self._reading.fetch(key, places, names, counter))

    async def records(self, key: SessionKey, *, after: int = 0, before: int | None = None) -> list[Record]:
        return await self._look(lambda: self._reading.records(key, after, before))

    async def count(self, key: SessionKey, counter: str, counts: Mapping[int, int]) -> None:
        given = dict(counts)
        self.check()
        if self.writable:
            await self._run(lambda: self._reading.count(key, counter, given))

    async def tally(
        self, key: SessionKey, counter: str, *, after: int = 0, before: int | None = None
    ) -> tuple[int, int]:
        return await self._look(lambda: self._reading.tally(key, counter, after, before))

    async def commit(
        self, key: SessionKey, change: Change, *, expect_revision: int | None = None, expect_epoch: int | None = None
    ) -> Head:
        return await self._run(lambda: self._changing.commit(key, change, expect_revision, expect_epoch))

    async def fork(self, key: SessionKey, into: str, head: Head, *, expect_epoch: int, created: int = 0) -> None:
        await self._run(lambda: self._branching.fork(key, into, head, expect_epoch, created))

    async def branches(self, key: SessionKey) -> list[str]:
        return await self._look(lambda: self._branching.branches(key))

    async def load(self, key: SessionKey, dump: Dump, *, replace: bool = False) -> None:
        await self._run(lambda: self._loading.load(key, dump, replace))

    async def delete(self, key: SessionKey, *, expect: int | None = None) -> bool:
        return await self._run(lambda: self._branching.delete(key, expect))

    async def sessions(self, tenant: str, *, after: str = "", limit: int = 1000) -> list[SessionInfo]:
        return await self._look(lambda: self._branching.sessions(tenant, after, limit))

    # --- items and leases

    async def get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        return await self._look(lambda: self._items.get(tenant, namespace, key))

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
        return await self._run(lambda: self._items.put(tenant, namespace, key, value, expires, expect))

    async def delete_item(self, tenant: str, namespace: str, key: str) -> bool:
        return await self._run(lambda: self._items.delete(tenant, namespace, key))

    async def list_items(self, tenant: str, namespace: str) -> list[Item]:
        return await self._look(lambda: self._items.listed(tenant, namespace))

    async def clear_items(self, tenant: str, *, dry_run: bool = False) -> dict[str, int]:
        if dry_run:
            return await self._look(lambda: self._items.clear(tenant, dry_run))
        await self._run(lambda: self._loading.clear(tenant))
        return await self._run(lambda: self._items.clear(tenant, dry_run))

    async def take_items(self, tenant: str, namespace: str, items: Iterable[Item]) -> None:
        """Hold these items, in this order, in a namespace that nobody has written to."""
        await self._run(lambda: self._items.take(tenant, namespace, items))

    async def lease(
        self, tenant: str, name: str, holder: str, seconds: float, *, fence: int | None = None
    ) -> int | None:
        return await self._run(lambda: self._items.lease(tenant, name, holder, seconds, fence))

    # --- expiry, rewriting, the end

    async def due(self, now: int, *, tenant: str | None = None) -> list[tuple[SessionKey, tuple[int, ...]]]:
        return await self._look(lambda: self._expiry.due(now, tenant))

    async def sweep(self, now: int, *, tenant: str | None = None) -> int:
        return await self._run(lambda: self._expiry.sweep(now, tenant))

    async def tenants(self) -> list[str]:
        return await self._look(self._branching.tenants)

    async def rewrite(
        self, key: SessionKey, how: Rewrite, *, after: int = 0, seqs: Collection[int] | None = None
    ) -> tuple[int, int | None]:
        return await self._run(lambda: self._rewriting.rewrite(key, how, after, seqs))

    async def rewrite_items(self, tenant: str, how: Callable[[str, Item], Item]) -> int:
        return await self._run(lambda: self._items.rewritten(tenant, how))

    async def scrub(self, *, whole: bool = True) -> tuple[str, ...]:
        self.check()
        return await self.backend.together(lambda: self.backend.scrub(whole=whole))

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if os.getpid() == self._pid:
                await self.backend.together(self.backend.close)
