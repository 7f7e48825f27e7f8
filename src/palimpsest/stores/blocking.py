"""Stores of blocking functions: each one whole transaction, called inline or in a worker thread."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from palimpsest.errors import Closed, ForkedProcess
from palimpsest.log.change import Change, Record
from palimpsest.log.entry import Entry, now_us
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import Runner
from palimpsest.stores import Appended, Dump, Item, SessionInfo, Store

T = TypeVar("T")


class BlockingStore(Store):
    """A store of blocking functions, each one whole transaction, called through a `Runner`.

    A backend implements the functions of the same names with an underscore. They may run in any thread, one
    at a time or not, as its own lock says.
    """

    blocking = True

    def __init__(self, runner: Runner, clock: Callable[[], int] = now_us) -> None:
        self._runner, self._clock = runner, clock
        self._pid = os.getpid()
        self._closed = False

    @property
    def left_open(self) -> bool:
        return not self._closed and os.getpid() == self._pid

    def check(self) -> None:
        """Raise Closed after `close`, ForkedProcess in a child process."""
        if self._closed:
            raise Closed(self.url)
        if os.getpid() != self._pid:
            raise ForkedProcess(self._pid, os.getpid())

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        return await self._runner.whole(start, reads=reads)

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self._runner.read(function, *arguments)

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run one of the store's functions."""
        return await self._runner.run(function, *arguments)

    async def _look(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run one that only reads."""
        return await self._runner.read(function, *arguments)

    async def head(self, key: SessionKey) -> Head | None:
        self.check()
        return await self._look(self._head, key)

    async def append(
        self, key: SessionKey, entries: Sequence[Entry], *, check_ids: bool = False, expect: int | None = None
    ) -> Appended:
        self.check()
        return await self._run(self._append_now, key, entries, check_ids, expect)

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
        self.check()
        return await self._look(self._read, key, after, before, limit, newest_first, counter, uncounted)

    async def fetch(
        self, key: SessionKey, seqs: Iterable[int] = (), ids: Iterable[str] = (), *, counter: str | None = None
    ) -> list[Entry]:
        self.check()
        return await self._look(self._fetch, key, tuple(seqs), tuple(ids), counter)

    async def commit(
        self, key: SessionKey, change: Change, *, expect_revision: int | None = None, expect_epoch: int | None = None
    ) -> Head:
        self.check()
        return await self._run(self._commit, key, change, expect_revision, expect_epoch)

    async def fork(self, key: SessionKey, into: str, head: Head, *, expect_epoch: int, created: int = 0) -> None:
        self.check()
        await self._run(self._fork, key, into, head, expect_epoch, created)

    async def branches(self, key: SessionKey) -> list[str]:
        self.check()
        return await self._look(self._branches_of, key)

    async def records(self, key: SessionKey, *, after: int = 0, before: int | None = None) -> list[Record]:
        self.check()
        return await self._look(self._records, key, after, before)

    async def count(self, key: SessionKey, counter: str, counts: Mapping[int, int]) -> None:
        self.check()
        await self._run(self._count, key, counter, dict(counts))

    async def tally(
        self, key: SessionKey, counter: str, *, after: int = 0, before: int | None = None
    ) -> tuple[int, int]:
        self.check()
        return await self._look(self._tally, key, counter, after, before)

    async def load(self, key: SessionKey, dump: Dump, *, replace: bool = False) -> None:
        self.check()
        await self._run(self._load, key, dump, replace)

    async def delete(self, key: SessionKey, *, expect: int | None = None) -> bool:
        self.check()
        return await self._run(self._delete, key, expect)

    async def sessions(self, tenant: str, *, after: str = "", limit: int = 1000) -> list[SessionInfo]:
        self.check()
        return await self._look(self._sessions, tenant, after, limit)

    async def get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        self.check()
        return await self._look(self._get_item, tenant, namespace, key)

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
        self.check()
        return await self._run(self._put_item, tenant, namespace, key, value, expires, expect)

    async def delete_item(self, tenant: str, namespace: str, key: str) -> bool:
        self.check()
        return await self._run(self._delete_item, tenant, namespace, key)

    async def list_items(self, tenant: str, namespace: str) -> list[Item]:
        self.check()
        return await self._look(self._list_items, tenant, namespace)

    async def clear_items(self, tenant: str, *, dry_run: bool = False) -> dict[str, int]:
        self.check()
        return await self._run(self._clear_items, tenant, dry_run)

    async def lease(
        self, tenant: str, name: str, holder: str, seconds: float, *, fence: int | None = None
    ) -> int | None:
        self.check()
        return await self._run(self._lease, tenant, name, holder, seconds, fence)

    async def due(self, now: int, *, tenant: str | None = None) -> list[tuple[SessionKey, tuple[int, ...]]]:
        self.check()
        return await self._look(self._due, now, tenant)

    async def sweep(self, now: int, *, tenant: str | None = None) -> int:
        self.check()
        return await self._run(self._sweep, now, tenant)

    async def scrub(self, *, whole: bool = True) -> tuple[str, ...]:
        self.check()
        return await self._run(self._scrub, whole)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            if os.getpid() == self._pid:
                await self._run(self._close)

    def _scrub(self, whole: bool) -> tuple[str, ...]:
        return ()

    # --- what a backend implements

    @abstractmethod
    def _head(self, key: SessionKey) -> Head | None: ...
    @abstractmethod
    def _append_now(
        self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None
    ) -> Appended: ...
    @abstractmethod
    def _read(
        self,
        key: SessionKey,
        after: int,
        before: int | None,
        limit: int | None,
        newest_first: bool,
        counter: str | None,
        uncounted: bool,
    ) -> list[Entry]: ...
    @abstractmethod
    def _fetch(
        self, key: SessionKey, seqs: tuple[int, ...], ids: tuple[str, ...], counter: str | None
    ) -> list[Entry]: ...
    @abstractmethod
    def _commit(
        self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None
    ) -> Head: ...
    @abstractmethod
    def _fork(self, key: SessionKey, into: str, head: Head, expect_epoch: int, created: int) -> None: ...
    @abstractmethod
    def _branches_of(self, key: SessionKey) -> list[str]: ...
    @abstractmethod
    def _records(self, key: SessionKey, after: int, before: int | None) -> list[Record]: ...
    @abstractmethod
    def _count(self, key: SessionKey, counter: str, counts: dict[int, int]) -> None: ...
    @abstractmethod
    def _tally(self, key: SessionKey, counter: str, after: int, before: int | None) -> tuple[int, int]: ...
    @abstractmethod
    def _load(self, key: SessionKey, dump: Dump, replace: bool) -> None: ...
    @abstractmethod
    def _delete(self, key: SessionKey, expect: int | None) -> bool: ...
    @abstractmethod
    def _sessions(self, tenant: str, after: str, limit: int) -> list[SessionInfo]: ...
    @abstractmethod
    def _get_item(self, tenant: str, namespace: str, key: str) -> Item | None: ...
    @abstractmethod
    def _put_item(
        self, tenant: str, namespace: str, key: str, value: bytes, expires: int | None, expect: int | None
    ) -> Item: ...
    @abstractmethod
    def _delete_item(self, tenant: str, namespace: str, key: str) -> bool: ...
    @abstractmethod
    def _list_items(self, tenant: str, namespace: str) -> list[Item]: ...
    @abstractmethod
    def _clear_items(self, tenant: str, dry_run: bool) -> dict[str, int]: ...
    @abstractmethod
    def _lease(self, tenant: str, name: str, holder: str, seconds: float, fence: int | None) -> int | None: ...
    @abstractmethod
    def _due(self, now: int, tenant: str | None) -> list[tuple[SessionKey, tuple[int, ...]]]: ...
    @abstractmethod
    def _sweep(self, now: int, tenant: str | None) -> int: ...
    @abstractmethod
    def _close(self) -> None: ...
