"""The seam to where logs live: `Store`, what it gives and takes, and the table of backends.

`palimpsest.testing.StoreConformance` is the contract that every store passes. A new one is a smaller thing, a
`palimpsest.stores.backend.Backend` with `palimpsest.stores.engine` over it, and has a line in `STORES`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from palimpsest.errors import StoreUnavailable
from palimpsest.log.change import Change, Record
from palimpsest.log.entry import Entry, moment
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.summary import Compaction
from palimpsest.runtime.registry import Registry
from palimpsest.stores.witness import NOBODY, Witness

if TYPE_CHECKING:
    from datetime import datetime

T = TypeVar("T")

LARGE = 32 * 1024
"""Bytes from which on a text, or the data of an image, is kept once however many entries hold it."""


class Appended(msgspec.Struct, frozen=True):
    """What an append did: the head after it, the entries with their places, how many of them are new."""

    head: Head
    entries: tuple[Entry, ...]
    added: int


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A session in a listing. Times are microseconds since 1970, UTC.

    `entries` counts what is neither erased nor rewound; `forked_from` is the session that it branched off, and its
    revision then.
    """

    session: str
    entries: int
    revision: int
    epoch: int
    created: int
    updated: int
    forked_from: tuple[str, int] | None = None

    @property
    def created_at(self) -> datetime:
        """When the first entry was written, UTC."""
        return moment(self.created)

    @property
    def updated_at(self) -> datetime:
        """When something was written last, UTC."""
        return moment(self.updated)


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """A value of a namespace with its version (1, 2, … per key) and expiry (microseconds since 1970, or None)."""

    key: str
    value: bytes
    version: int
    expires: int | None = None


class Dump(msgspec.Struct, frozen=True, kw_only=True):
    """A whole session as stored: what an import writes in one step."""

    head: Head
    entries: tuple[Entry, ...]
    records: tuple[Record, ...]


class Store(ABC):
    """Where logs, heads and side data live.

    Every call is one atomic step: it happens whole or not at all, and what it has acknowledged survives the
    process (for durable stores, in the default setting, the machine). Entries go in and come out as values;
    changing what came out changes nothing stored. A session that nobody has written to is empty, not an error.

    Any call raises Closed after `close`, ForkedProcess in a child of the process that opened the store,
    StoreUnavailable when the backend cannot be reached, is full or is locked for too long, and StoreCorrupt
    when what is stored cannot be read. Writes raise StoreUnavailable, too, where the store is read-only.
    """

    url: str
    writable: bool = True
    witness: Witness = NOBODY
    blocking: bool = False
    """Whether its verbs are functions that block, and never suspend where they may (`blocking.BlockingStore`).

    Else they are awaited on the caller's event loop, as those of a driver for it are.
    """

    def ask(self, witness: Witness) -> None:
        """From now on ask `witness` about each head, record and tombstone, in the step that commits it.

        Without that an encrypted store cannot be kept here. The heads, records and tombstones that are stored are
        those that it returns.
        """
        self.witness = witness

    @property
    def left_open(self) -> bool:
        """Whether `close` is still due in this process: what a memory that is let go of warns about."""
        return False

    async def together(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        """Run a coroutine that waits for nothing but this store where its verbs run: several of them in one go.

        With `reads` it only reads, or writes what it may do without. One that is `blocking` runs all of it in its own
        thread. Else it is awaited here: what it computes at length between two verbs belongs into `apart`.
        """
        return await start()

    async def undisturbed(self, key: SessionKey, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine that writes to this session by compare-and-set, and has lost to others several times.

        A store that can keeps other processes' writers of the session waiting meanwhile. One that cannot only runs it.
        """
        return await start()

    async def apart(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what a function returns that takes long and waits for nothing, without holding up an event loop."""
        import asyncio  # only under an event loop

        return await asyncio.to_thread(function, *arguments)

    @abstractmethod
    async def head(self, key: SessionKey) -> Head | None:
        """Return the session's head, or None for a session that does not exist."""

    @abstractmethod
    async def append(
        self, key: SessionKey, entries: Sequence[Entry], *, check_ids: bool = False, expect: int | None = None
    ) -> Appended:
        """Append entries as one batch: linked by `palimpsest.log.linking.link`, committed once.

        `check_ids` says that ids were given: an id that the session has and that says the same is left out,
        one that says something else raises Conflict, and then nothing of the batch is stored. With `expect`,
        raises Conflict unless the session's revision is that number.
        """

    @abstractmethod
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
        """Return entries with `after` < seq < `before`, in log order, or newest first.

        `limit` counts entries. With `counter` each entry carries its stored count by that counter in
        `tokens`; with `uncounted`, too, only entries that have none are returned. Tombstones are included.
        """

    @abstractmethod
    async def fetch(
        self, key: SessionKey, seqs: Iterable[int] = (), ids: Iterable[str] = (), *, counter: str | None = None
    ) -> list[Entry]:
        """Return the entries of these seqs and ids in log order; those that do not exist are left out."""

    @abstractmethod
    async def commit(
        self, key: SessionKey, change: Change, *, expect_revision: int | None = None, expect_epoch: int | None = None
    ) -> Head:
        """Commit one change (cut, compaction, erasure, clear, pins, usage, prompt, attempts) and return the new head.

        A replacement adds its entries in the same step, linked by `palimpsest.log.resuming.committed`.
        All but usage, prompt and attempts leave a record. Erasing replaces entries by tombstones, in every branch that
        has them: each of those gets the change as a record of its own. What it names that is not there, is a tombstone
        already, or has another id, is left out: so it needs no expectation, and the record says what went. Of every
        summary, current or not, that stands for an erased entry the words go in the same step, and no record's state
        goes on counting on it; where it was current, the erasure's record has the state without it. Clearing removes
        entries, counts and records before it from this session alone. Raises Conflict unless revision and epoch are as
        expected, and the session is the one that the change is meant for.
        """

    @abstractmethod
    async def fork(self, key: SessionKey, into: str, head: Head, *, expect_epoch: int, created: int = 0) -> None:
        """Make the session `into` of the same tenant: a branch of `key` with the given head.

        It has the entries of `key` before `head.next_seq`, with ids, places and counts, and the records up to
        `head.revision`. What is added to one branch afterwards is in no other; deleting, clearing or replacing
        one leaves the others whole. Raises Conflict where `into` exists, or unless the epoch of `key` is as
        expected and it is the session that began at `created` (0: any); what is added meanwhile does not conflict.
        """

    @abstractmethod
    async def branches(self, key: SessionKey) -> list[str]:
        """Return the other sessions of the tenant that share entries with this one, tombstones included, by id."""

    @abstractmethod
    async def records(self, key: SessionKey, *, after: int = 0, before: int | None = None) -> list[Record]:
        """Return the records with `after` < revision < `before`, oldest first."""

    @abstractmethod
    async def count(self, key: SessionKey, counter: str, counts: Mapping[int, int]) -> None:
        """Store token counts by seq. Best effort in durability only: a lost count is counted again.

        Counts of entries that do not exist (any longer) are left out.
        """

    @abstractmethod
    async def tally(
        self, key: SessionKey, counter: str, *, after: int = 0, before: int | None = None
    ) -> tuple[int, int]:
        """Return how many entries with `after` < seq < `before` have a stored count by `counter`, and their sum."""

    @abstractmethod
    async def load(self, key: SessionKey, dump: Dump, *, replace: bool = False) -> None:
        """Write a whole session in one step. Raises Conflict where it exists, unless `replace` is set."""

    @abstractmethod
    async def delete(self, key: SessionKey, *, expect: int | None = None) -> bool:
        """Destroy the session with everything that belongs to it; return whether there was one.

        With `expect`, raises Conflict unless the session's revision is that number.
        """

    @abstractmethod
    async def sessions(self, tenant: str, *, after: str = "", limit: int = 1000) -> list[SessionInfo]:
        """Return the tenant's sessions whose id sorts after `after`, by id (Unicode code points)."""

    @abstractmethod
    async def get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        """Return the item, or None where there is none or it has expired."""

    @abstractmethod
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

        With `expect`, raises Conflict unless the present version is that number (0: no such item).
        """

    @abstractmethod
    async def delete_item(self, tenant: str, namespace: str, key: str) -> bool:
        """Remove the item; return whether there was one."""

    @abstractmethod
    async def list_items(self, tenant: str, namespace: str) -> list[Item]:
        """Return the namespace's items that have not expired, in the order in which their keys came first."""

    @abstractmethod
    async def clear_items(self, tenant: str, *, dry_run: bool = False) -> dict[str, int]:
        """Remove all items of the tenant, those that have expired, too, and return how many there were by namespace.

        Its leases end. With `dry_run` nothing is removed.
        """

    @abstractmethod
    async def lease(
        self, tenant: str, name: str, holder: str, seconds: float, *, fence: int | None = None
    ) -> int | None:
        """Take, or with `fence` renew, the lease `name` for `seconds`; return its fence, None if another holds it.

        A fence is greater than every fence given out before. A lease ends by itself. `seconds` of 0 gives it back. Who
        takes what is his already renews it: so one who never learned whether he has it may ask again, or give it back.
        """

    @abstractmethod
    async def due(self, now: int, *, tenant: str | None = None) -> list[tuple[SessionKey, tuple[int, ...]]]:
        """Return the entries that have expired at `now` (microseconds) and were not swept yet, by session.

        With `tenant` those of its sessions alone: nothing of another tenant's is looked at.
        """

    @abstractmethod
    async def sweep(self, now: int, *, tenant: str | None = None) -> int:
        """Erase what has expired at `now` (microseconds): entries become tombstones, items go. Return how many.

        With `tenant` what it owns alone.
        """

    async def scrub(self, *, whole: bool = True) -> tuple[str, ...]:
        """See that no byte of what was destroyed is left where the store keeps things: for whoever has destroyed it.

        Returns, in plain sentences, what could not be done now, and how it comes about. Without `whole` what would take
        long is left for another time. Stores that overwrite as they destroy have nothing to do.
        """
        return ()

    @abstractmethod
    async def close(self) -> None:
        """Let go of everything. Closing twice is fine."""


async def compaction_of(store: Store, key: SessionKey, revision: int) -> Compaction:
    """Return the state of compaction that the record of this revision holds; an empty one for 0, or none."""
    if not revision:
        return Compaction()
    records = await store.records(key, after=revision - 1, before=revision + 1)
    return (records[0].compaction if records else None) or Compaction()


async def keep_counts(store: Store, key: SessionKey, counter: str, counts: Mapping[int, int]) -> str | None:
    """Store counts that a read has made, where that can be done now; return why not, where it cannot.

    A full disk stops no read: what was not stored is counted again.
    """
    try:
        await store.count(key, counter, counts)
    except StoreUnavailable as fault:
        return str(fault)
    return None


# --- backends


STORES = Registry(
    "store",
    "palimpsest.stores",
    {
        "file": "palimpsest.stores.file:open_file",
        "memory": "palimpsest.stores.memory:open_memory",
        "sqlite": "palimpsest.stores.sqlite:open_sqlite",
    },
    form="{}:…",
)
"""Openers by the scheme of their addresses. `STORES.register("mine", open_mine)` adds one."""

MARK = ("\x01palimpsest", "store", "encryption")
"""Tenant, namespace and key of the item that says how a store is encrypted; no tenant of a user's has such a name."""
