"""A session as an overlay has it: what was written there, over what is read in the store below."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Self

import msgspec

from palimpsest.log.change import Change, Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores import Store
from palimpsest.stores.memory_log import NOWHERE, MemoryLog, shares
from palimpsest.stores.paging import entries_of
from palimpsest.stores.witness import NOBODY, Witness


class Meant(msgspec.Struct, frozen=True):
    """What an erasure means of a session below: entries, with all records, and the places of all tombstones where what
    is counted is to be counted anew."""

    entries: Sequence[Entry] = ()
    records: Sequence[Record] = ()
    graves: Collection[int] | None = None

    def only(self, ids: Mapping[int, str]) -> Meant:
        """The same of these entries alone, ids by `seq`: a branch may have others at their places."""
        return Meant([entry for entry in self.entries if ids.get(entry.seq) == entry.id], self.records, self.graves)


class Below(msgspec.Struct, frozen=True):
    """What of a session is read in the store below: `key`'s entries before `next_seq`, its records up to `revision`."""

    key: SessionKey
    next_seq: int = 1
    revision: int = 0

    async def fetch(
        self, store: Store, seqs: Iterable[int], ids: Iterable[str], counter: str | None = None
    ) -> list[Entry]:
        """The entries at these places and of these ids, as they are there."""
        seqs, ids = [seq for seq in seqs if seq < self.next_seq], list(ids)
        if self.next_seq == 1 or not (seqs or ids):
            return []
        found = await store.fetch(self.key, seqs, ids, counter=counter)
        return [entry for entry in found if entry.seq < self.next_seq]

    async def meant(self, store: Store, seqs: Iterable[int]) -> Meant:
        """What an erasure of the entries at these places means."""
        entries = await self.fetch(store, seqs, ())
        records = await store.records(self.key, before=self.revision + 1) if self.revision else []
        graves = await self.graves(store) if any(entry.damaged for entry in entries) else None
        return Meant(entries, records, graves)

    async def graves(self, store: Store) -> set[int]:
        """The places of the session's tombstones that can be read."""
        entries = entries_of(store, self.key, [(1, self.next_seq - 1)])
        return {entry.seq async for entry in entries if entry.erased and not entry.damaged}


class Layer(MemoryLog):
    """A session as the overlay has it: what was written here, over what is `below` (None: nothing is).

    Its rows are the entries appended here, and tombstones of those below that were erased here; its records those made
    here, and those below as an erasure here has left them. `there` says that the session exists.
    """

    def __init__(self, family: object = None) -> None:
        super().__init__(family)
        self.there, self.below = False, Below(SessionKey("", ""))

    def branch(self, head: Head) -> Self:
        branch, below = super().branch(head), self.below
        branch.there = True
        branch.below = Below(below.key, min(below.next_seq, head.next_seq), min(below.revision, head.revision))
        return branch

    def change(
        self,
        change: Change,
        at: int,
        records: Sequence[Record] = (),
        key: SessionKey = NOWHERE,
        witness: Witness = NOBODY,
        graves: Collection[int] | None = None,
    ) -> Head:
        mine = {record.revision for record in self.records}
        above = [one for one in records if one.revision <= self.below.revision and one.revision not in mine]
        if change.kind == "clear":
            self.below = Below(self.below.key)
        self.there = True
        return super().change(change, at, above, key, witness, graves)

    def take(self, entries: Iterable[Entry]) -> None:
        """Take over entries from below, which are about to be erased here, and so what stands for those damaged."""
        self.rows = list(self.written)
        meant = (e for e in entries if e.seq < self.below.next_seq and self.by_seq(e.seq) is None)
        self._put(msgspec.structs.replace(e, erased=False, damaged=False) if e.damaged else e for e in meant)

    def shares(self, other: Layer) -> bool:
        """Whether another session has entries, here or below, from the same addition."""
        if other is self or other.family is not self.family:
            return False
        first = max(self.head.first_seq, other.head.first_seq)
        return first < min(self.below.next_seq, other.below.next_seq) or shares(self, other)

    def tombstones(self, below: Iterable[int]) -> set[int]:
        """The places of all tombstones, of which these are there below."""
        mine = {entry.seq for entry in map(self.entry, self.written) if entry.erased}
        return mine.union(seq for seq in below if seq < self.below.next_seq)

    def graves(self, after: int, before: int | None) -> set[int]:
        """The places below, between these two, whose entries were erased here."""
        end = self.below.next_seq if before is None else min(before, self.below.next_seq)
        return {row[0] for row in self.rows[self.index(after + 1) : self.index(end)]}


def counted(entries: Iterable[Entry], counts: Mapping[int, int]) -> Iterable[Entry]:
    """The entries with the counts that were stored here, where there are any."""
    for entry in entries:
        yield msgspec.structs.replace(entry, tokens=counts[entry.seq]) if entry.seq in counts else entry
