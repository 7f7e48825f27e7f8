"""What can be read of a session of which something cannot: for an export of all that is left. Reads only."""

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
from palimpsest.transfer.sound import sound

BESIDE = 8
"""Entries beside a missing one that tell what it was."""

T = TypeVar("T")


class SoundReader:
    """Reads one session, and notes in `lost` what of it cannot be read, a sentence each."""

    def __init__(self, store: Store, key: SessionKey) -> None:
        self._store, self._key = store, key
        self.lost: list[str] = []

    async def session(self, head: Head) -> tuple[Head, list[Record]]:
        """The records that can be read, and hold together without the others, with the head as that is by them."""
        records, gone = await self.records(head)
        erased = spans.of([entry.seq async for entry in self.entries(head) if entry.erased])
        self.lost[:] = gone  # that of the entries is told where they are read to be kept
        left = sound(head, records, erased)
        self.lost += [f"the record of revision {one} is built on what cannot be read" for one in left.dropped]
        if left.head.compaction != head.compaction:
            now = f"revision {left.head.compaction}" if left.head.compaction else "nothing"
            told = f"what revision {head.compaction} says is compacted, or hidden by hand"
            self.lost.append(f"{told}; {now} stands in its place")
        return left.head, left.records

    async def records(self, head: Head) -> tuple[list[Record], list[str]]:
        """The records up to a head that can be read, and what is wrong with the others."""
        gone = list[str]()

        async def read(low: int, high: int) -> list[Record]:
            return await self._store.records(self._key, after=low - 1, before=high + 1)

        def lose(revision: int, fault: StoreCorrupt) -> list[Record]:
            told = fault.reason if f"revision {revision} " in fault.reason else f"revision {revision}: {fault.reason}"
            gone.append(told)
            return []

        await self._store.records(self._key, after=head.revision)  # raises where it is no single one of them
        return await _halved(read, 1, head.revision, lose), gone

    async def entries(self, head: Head) -> AsyncIterator[Entry]:
        """Every entry before a head, oldest first; a tombstone stands for one that cannot be read, or is missing."""
        before = list[Entry]()
        for low in range(head.first_seq, head.next_seq, BATCH):
            high = min(low + BATCH, head.next_seq) - 1
            found = {entry.seq: entry for entry in await self._there(low, high)}
            for seq in range(low, high + 1):
                entry = found.get(seq)
                if entry is None:
                    behind = await self._there(seq + 1, min(seq + BESIDE, head.next_seq - 1))
                    entry = set_aside(f"damaged-{seq}", seq, b"", before[::-1], behind)
                if entry.damaged:
                    self.lost.append(f"entry {seq} {'cannot be read' if seq in found else 'is missing'}")
                yield entry
                before = [*before[1 - BESIDE :], entry]

    async def _there(self, low: int, high: int) -> list[Entry]:
        """The entries of these places that are there."""

        async def read(low: int, high: int) -> list[Entry]:
            return await self._store.read(self._key, after=low - 1, before=high + 1)

        return await _halved(read, low, high, lambda _, __: [])


async def _halved(
    read: Callable[[int, int], Awaitable[list[T]]],
    low: int,
    high: int,
    lose: Callable[[int, StoreCorrupt], list[T]],
) -> list[T]:
    """What is read from one number to another: where that raises of each half, and what is lost of a single one."""
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
