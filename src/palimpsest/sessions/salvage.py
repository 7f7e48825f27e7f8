"""Reading as much as possible of a damaged session, for an export of all that can still be read. Reads only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from palimpsest.errors import StoreCorrupt
from palimpsest.log import spans
from palimpsest.log.change import Record
from palimpsest.log.entry import Entry, set_aside
from palimpsest.log.head import Head, SessionKey
from palimpsest.sessions.paging import BATCH
from palimpsest.stores import Store
from palimpsest.transfer.salvage import sound

BESIDE = 8
"""How many entries before and behind a missing one are used to guess its kind and links."""

T = TypeVar("T")


class SoundReader:
    """Reads one session, and collects in `lost` what cannot be read, one sentence for each thing."""

    def __init__(self, store: Store, key: SessionKey) -> None:
        self._store, self._key = store, key
        self.lost: list[str] = []

    async def session(self, head: Head) -> tuple[Head, list[Record]]:
        """Return the readable records that are consistent without the unreadable ones, and a head that fits them."""
        records, unreadable = await self.records(head)
        erased = spans.of([entry.seq async for entry in self.entries(head) if entry.erased])
        self.lost[:] = unreadable  # drops what `entries` noted just now: it notes it again when they are exported
        consistent = sound(head, records, erased)
        told = "the record of revision {} builds on records that cannot be read"
        self.lost += [told.format(each) for each in consistent.dropped]
        if consistent.head.compaction != head.compaction:
            replacement = f"that of revision {consistent.head.compaction}" if consistent.head.compaction else "none"
            compacted = f"the record of revision {head.compaction}, which says what is compacted or hidden"
            self.lost.append(f"{compacted}; {replacement} stands in its place")
        return consistent.head, consistent.records

    async def records(self, head: Head) -> tuple[list[Record], list[str]]:
        """Return the readable records up to a head, and a sentence for each unreadable one."""
        unreadable = list[str]()

        async def read(low: int, high: int) -> list[Record]:
            return await self._store.records(self._key, after=low - 1, before=high + 1)

        def lose(revision: int, fault: StoreCorrupt) -> list[Record]:
            named = f"revision {revision} " in fault.reason
            unreadable.append(fault.reason if named else f"revision {revision}: {fault.reason}")
            return []

        await self._store.records(self._key, after=head.revision)  # raises if the damage is not in single records
        return await _halved(read, 1, head.revision, lose), unreadable

    async def entries(self, head: Head) -> AsyncIterator[Entry]:
        """Yield every entry before a head, oldest first. A tombstone stands for one that is unreadable or missing."""
        before = list[Entry]()
        for low in range(head.first_seq, head.next_seq, BATCH):
            high = min(low + BATCH, head.next_seq) - 1
            readable = {entry.seq: entry for entry in await self._readable(low, high)}
            for seq in range(low, high + 1):
                entry = readable.get(seq)
                if entry is None:
                    behind = await self._readable(seq + 1, min(seq + BESIDE, head.next_seq - 1))
                    entry = set_aside(f"damaged-{seq}", seq, b"", before[::-1], behind)
                if entry.damaged:
                    self.lost.append(f"entry {seq} {'cannot be read' if seq in readable else 'is missing'}")
                yield entry
                before = [*before[1 - BESIDE :], entry]

    async def _readable(self, low: int, high: int) -> list[Entry]:
        """Return the readable entries of these places."""

        async def read(low: int, high: int) -> list[Entry]:
            return await self._store.read(self._key, after=low - 1, before=high + 1)

        return await _halved(read, low, high, lambda _, __: [])


async def _halved(
    read: Callable[[int, int], Awaitable[list[T]]],
    low: int,
    high: int,
    lose: Callable[[int, StoreCorrupt], list[T]],
) -> list[T]:
    """Read a range of numbers; if that raises, read each half. `lose` is called for a single number that raises."""
    if low > high:
        return []
    try:
        return await read(low, high)
    except StoreCorrupt as fault:
        if low == high:
            return lose(low, fault)
    middle = (low + high) // 2
    lower = await _halved(read, low, middle, lose)
    return lower + await _halved(read, middle + 1, high, lose)
