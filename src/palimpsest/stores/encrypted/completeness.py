"""Whether what a store gives is all that was asked for, and no more: entries by their head, records by each other."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from palimpsest.log.change import Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.stores.encrypted.sealing import Unsealed
from palimpsest.stores.encrypted.seen import Seen


class Wanted(NamedTuple):
    """Which entries are read: those between two places, so many of them, from the end; or those at `seqs`."""

    after: int = 0
    before: int | None = None
    limit: int | None = None
    newest_first: bool = False
    some: bool = False
    seqs: Collection[int] = ()

    def check(self, head: Head, found: Sequence[Entry]) -> None:
        """Raise Unsealed where entries are missing that a session of this head has, or there are others."""
        seqs = [entry.seq for entry in found]
        for seq in seqs:
            if not head.first_seq <= seq < head.next_seq:
                raise Unsealed("is there, and its session's head knows of none").about(f"entry {seq}")
        if self.some:
            missing = {seq for seq in self.seqs if head.first_seq <= seq < head.next_seq}.difference(seqs)
        else:
            first = max(self.after + 1, head.first_seq)
            end = head.next_seq if self.before is None else min(self.before, head.next_seq)
            number = max(end - first, 0) if self.limit is None else min(max(end - first, 0), self.limit)
            wanted = range(end - 1, end - 1 - number, -1) if self.newest_first else range(first, first + number)
            if list(wanted) == seqs:
                return
            missing = set(wanted).difference(seqs)
            if not missing:
                raise Unsealed("are not in their order").about("entries")
        if missing:
            raise Unsealed("is missing, though its session's head knows of it").about(f"entry {min(missing)}")


def check_chain(seen: Seen, found: Sequence[Record], later: Sequence[Record], after: int, *, whole: bool) -> None:
    """Raise Unsealed where a record is missing between two revisions, by what each says of the one before it."""
    last, first = max(after, 0), True
    for one in (*found, *later[:1]):
        if one.before > last:
            missing = f"the record of revision {one.before}"
            raise Unsealed("is missing, though the one after it tells of it").about(missing)
        if one.revision > seen.seal.last or (one.before < last and not first):
            raise Unsealed("is there, and nothing tells of it").about(f"a record before revision {one.revision + 1}")
        last, first = one.revision, False
    if whole and not later and last < seen.seal.last:
        missing = f"the record of revision {seen.seal.last}"
        raise Unsealed("is missing, though its session's head knows of it").about(missing)
