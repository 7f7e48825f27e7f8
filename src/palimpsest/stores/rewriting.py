"""The ability of stores to put stored values in the place of others: for changes of keys, and redaction afterwards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Protocol

from palimpsest.log.change import Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores import Item
from palimpsest.stores.blocking import BlockingStore


class Rewrite(Protocol):
    """Says what takes the place of a stored value: the very same object where that is to stay.

    Its methods are pure: a store may ask more than once, and in any order.
    """

    @property
    def keeps_texts(self) -> bool:
        """Whether all says what it said, as after a change of keys; if not, counts of replaced entries go."""
        ...

    def head(self, head: Head) -> Head:
        """The head in its place, with a later revision: it is a commit."""
        ...

    def branch(self, key: SessionKey, head: Head, seqs: Collection[int]) -> Head:
        """The head of another session that has these entries, too, whose texts become others in the same step."""
        ...

    def entry(self, entry: Entry) -> Entry:
        """The entry in its place, with the same id, seq, links and expiry."""
        ...

    def record(self, record: Record) -> Record:
        """The record in its place, of the same revision."""
        ...


class Rewritable(ABC):
    """Stores that can rewrite what they hold, in place: neither places nor versions or times change by it.

    What was replaced is gone, as after an erasure: its token counts (unless texts are kept), the large content that
    nothing else holds, and, when the caller has called `scrub` at the end of it all, its bytes wherever they lay.
    """

    @abstractmethod
    async def tenants(self) -> list[str]:
        """Return every tenant that has a session or an item, in the order of their ids."""

    @abstractmethod
    async def rewrite(
        self, key: SessionKey, how: Rewrite, *, after: int = 0, seqs: Collection[int] | None = None
    ) -> tuple[int, int | None]:
        """Rewrite a stretch of the session in one step: with `after` 0 its head and records, and entries after `after`.

        `seqs` are all the entries that `how` may change: then that is one step, however many there are. What `how`
        raises undoes the step. Returns how many records and entries were rewritten, and the seq to go on after, or None
        when all is done. What other writers commit meanwhile is never undone.

        Where texts are not kept, the entries that branches share become others there, too, with the heads of those:
        also in a branch that somebody makes meanwhile. That is one step, or one for each branch and the session's own
        last, so that after a kill the same again does the rest. Where texts are kept, what a branch shares may be
        rewritten with it or not, by how the store keeps it: whoever means all branches rewrites each.
        """

    @abstractmethod
    async def rewrite_items(self, tenant: str, how: Callable[[str, Item], Item]) -> int:
        """Rewrite the tenant's items; `how` is given namespace and item. Returns how many were rewritten."""


class Rest:
    """A rewrite of the entries after a place alone."""

    def __init__(self, how: Rewrite, after: int) -> None:
        self._how, self._after = how, after
        self.keeps_texts = how.keeps_texts

    def head(self, head: Head) -> Head:
        return head

    def branch(self, key: SessionKey, head: Head, seqs: Collection[int]) -> Head:
        return self._how.branch(key, head, seqs)

    def entry(self, entry: Entry) -> Entry:
        return self._how.entry(entry) if entry.seq > self._after else entry

    def record(self, record: Record) -> Record:
        return record


class Shared:
    """A rewrite of what a branch has of another session: of the entries at `seqs`, under this head."""

    def __init__(self, how: Rewrite, seqs: Collection[int], head: Head) -> None:
        self._how, self._seqs, self._head = how, frozenset(seqs), head
        self.keeps_texts = how.keeps_texts

    def head(self, _: Head) -> Head:
        return self._head

    def branch(self, _: SessionKey, head: Head, __: Collection[int]) -> Head:
        return head

    def entry(self, entry: Entry) -> Entry:
        return self._how.entry(entry) if entry.seq in self._seqs else entry

    def record(self, record: Record) -> Record:
        return record


class RewritingStore(BlockingStore, Rewritable):
    """A store of blocking functions that can rewrite what it holds. It implements those with an underscore."""

    async def tenants(self) -> list[str]:
        self.check()
        return await self._look(self._tenants)

    async def rewrite(
        self, key: SessionKey, how: Rewrite, *, after: int = 0, seqs: Collection[int] | None = None
    ) -> tuple[int, int | None]:
        self.check()
        return await self._run(self._rewrite, key, how, after, seqs)

    async def rewrite_items(self, tenant: str, how: Callable[[str, Item], Item]) -> int:
        self.check()
        return await self._run(self._rewrite_items, tenant, how)

    @abstractmethod
    def _tenants(self) -> list[str]: ...
    @abstractmethod
    def _rewrite(
        self, key: SessionKey, how: Rewrite, after: int, seqs: Collection[int] | None
    ) -> tuple[int, int | None]: ...
    @abstractmethod
    def _rewrite_items(self, tenant: str, how: Callable[[str, Item], Item]) -> int: ...
