"""A session's log in memory: what `memory://` and overlays keep of it. Knows no locks and no other session.

Entries are kept in their stored form, so that nothing handed out is what is kept. A writer takes a copy, changes that,
and puts it in the log's place when all is done, in one step: what an exception ends half-way has changed nothing.
Copies share their lists. Only appends grow those, behind the end that the head of the log in place tells; whatever else
changes makes them anew.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from palimpsest.log.change import Change, Record, recounted
from palimpsest.log.entry import Entry, pack, unpack
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.linking import link
from palimpsest.log.resuming import committed
from palimpsest.stores import Appended, Dump
from palimpsest.stores.common import unknown_only
from palimpsest.stores.records import erasing
from palimpsest.stores.witness import NOBODY, Witness

if TYPE_CHECKING:
    from palimpsest.stores.rewriting import Rewrite

NOWHERE = SessionKey("", "")
"""The key of a log that nobody is asked about."""

Row = tuple[int, str, bytes]
"""An entry as it is kept: its seq, its id, its stored form."""


class MemoryLog:
    """One session: rows in order of seq, records in order of revision. Branches are of one family."""

    def __init__(self, family: object = None) -> None:
        self.family = family or object()
        self.head = Head()
        self.rows: list[Row] = []
        self.places: dict[str, int] = {}
        self.records: list[Record] = []
        self.counts: dict[str, dict[int, int]] = {}

    def copy(self) -> Self:
        """The same log, to be changed."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    @classmethod
    def of(cls, dump: Dump, head: Head) -> Self:
        """The log that an import makes."""
        log = cls()
        log._put(dump.entries)
        log.head, log.records = head, list(dump.records)
        return log

    # --- reading

    def index(self, seq: int) -> int:
        """The index of the first row from this place on."""
        return bisect_left(self.rows, (seq,))

    @property
    def written(self) -> list[Row]:
        """The rows of the log, without what an append that was not completed has left behind them."""
        end = self.index(self.head.next_seq)
        return self.rows if end == len(self.rows) else self.rows[:end]

    def entry(self, row: Row, counter: str | None = None) -> Entry:
        """The entry of a row, with its count."""
        seq, id, body = row
        return unpack(body, id, seq, self.counts.get(counter, {}).get(seq) if counter else None)

    def by_seq(self, seq: int) -> Row | None:
        """The row at this place, if there is one."""
        i = self.index(seq) if seq < self.head.next_seq else len(self.rows)
        return self.rows[i] if i < len(self.rows) and self.rows[i][0] == seq else None

    def at(self, seqs: Iterable[int], counter: str | None = None) -> list[Entry]:
        """The entries at these places, in order; those that are not there are left out."""
        return [self.entry(row, counter) for seq in sorted(set(seqs)) if (row := self.by_seq(seq)) is not None]

    def seqs(self, ids: Iterable[str]) -> list[int]:
        """The places of the entries of these ids that are there."""
        rows = ((id, self.by_seq(self.places.get(id, 0))) for id in ids)
        return [row[0] for id, row in rows if row is not None and row[1] == id]

    def named(self, ids: Iterable[str]) -> dict[str, Entry]:
        """The entries of these ids that are there."""
        return {entry.id: entry for entry in self.at(self.seqs(ids))}

    def read(
        self,
        after: int,
        before: int | None,
        limit: int | None,
        newest_first: bool,
        counter: str | None,
        uncounted: bool,
    ) -> list[Entry]:
        """The entries between two places, as `Store.read` has it."""
        low = self.index(after + 1)
        end = self.head.next_seq
        high = self.index(end if before is None else min(before, end))
        counts = self.counts.get(counter or "", {})
        found: list[Entry] = []
        for i in range(high - 1, low - 1, -1) if newest_first else range(low, high):
            if limit is not None and len(found) >= limit:
                break
            row = self.rows[i]
            if not uncounted or row[0] not in counts:
                found.append(self.entry(row, counter))
        return found

    def tally(self, counter: str, after: int, before: int | None) -> tuple[int, int]:
        """How many counts there are between two places, and their sum."""
        counts = self.counts.get(counter, {})
        found = [tokens for seq, tokens in counts.items() if seq > after and (before is None or seq < before)]
        return len(found), sum(found)

    def ids(self, seqs: Iterable[int]) -> dict[int, str]:
        """The ids of the entries at these places that are not tombstones."""
        return {entry.seq: entry.id for entry in self.at(seqs) if not entry.erased}

    def due(self, now: int) -> tuple[int, ...]:
        """The places of the entries that have expired at `now` (microseconds)."""
        found = (self.entry(row) for row in self.written if b'"expires_at":' in row[2])
        return tuple(entry.seq for entry in found if not entry.erased and entry.expired(now))

    # --- writing, to a copy

    def _put(self, entries: Iterable[Entry]) -> None:
        """Keep entries at their places, which are free."""
        for entry in entries:
            row = (entry.seq, entry.id, pack(entry))
            if self.rows and self.rows[-1] > row:
                insort(self.rows, row)
            else:
                self.rows.append(row)
            self.places[entry.id] = entry.seq

    def _end_at(self, next_seq: int) -> None:
        """Remove what an append that was not completed has left behind the end."""
        del self.rows[self.index(next_seq) :]

    def append(
        self,
        entries: Sequence[Entry],
        known: Mapping[str, Entry] | None,
        at: int,
        key: SessionKey = NOWHERE,
        witness: Witness = NOBODY,
    ) -> Appended:
        """Link and keep the entries that are not known by their ids (None: nobody has looked)."""
        fresh = list(entries) if known is None else unknown_only(entries, known)
        known = known or {}
        linked: list[Entry] = []
        if fresh:
            self._end_at(self.head.next_seq)
            head, linked = link(self.head, fresh, at)
            self.head = witness.head(key, self.head, head)
            self._put(linked)
        if len(linked) == len(entries):
            return Appended(self.head, tuple(linked), len(linked))
        new = {entry.id: entry for entry in linked}
        return Appended(self.head, tuple(new.get(e.id) or known[e.id] for e in entries), len(linked))

    def count(self, counter: str, counts: Mapping[int, int], there: Iterable[Entry]) -> None:
        """Keep the counts of the entries that are there and no tombstones."""
        alive = {entry.seq: counts[entry.seq] for entry in there if not entry.erased}
        self.counts.setdefault(counter, {}).update(alive)

    def change(
        self,
        change: Change,
        at: int,
        records: Sequence[Record] = (),
        key: SessionKey = NOWHERE,
        witness: Witness = NOBODY,
        graves: Collection[int] | None = None,
    ) -> Head:
        """Apply a change to head, entries and records; `records` are further ones that an erasure may change.

        `graves` are the places of all tombstones there are, where they are to be counted anew.
        """
        there: list[Record] = []
        made: list[Record] = []
        if change.kind == "erase":
            there = [*records, *self.records]
            change, made = erasing(change, there, self.head)
        head, record, linked = committed(self.head, change, at)
        if graves is not None:
            head = recounted(head, {*graves, *change.seqs})
        if record is not None:
            made.append(record)
        head, made = witness.changed(key, self.head, head, change, there, made)
        if linked:
            self._end_at(self.head.next_seq)
            self._put(linked)
        self.head = witness.head(key, self.head, head)
        if change.kind == "clear":
            self.rows, self.places, self.counts, self.records = [], {}, {}, []
        elif change.kind == "erase":
            self._bury(change.seqs, witness)
        now = {record.revision: record for record in (*self.records, *made)}
        self.records = [now[revision] for revision in sorted(now)]
        return self.head

    def _bury(self, seqs: Iterable[int], witness: Witness) -> None:
        self.rows = list(self.written)
        for seq in seqs:
            row = self.by_seq(seq)
            if row is not None:
                self.rows[self.index(seq)] = (seq, row[1], pack(witness.grave(self.entry(row))))
        self._uncount(seqs)

    def _uncount(self, seqs: Iterable[int]) -> None:
        gone = set(seqs)
        self.counts = {
            counter: {seq: n for seq, n in counts.items() if seq not in gone} for counter, counts in self.counts.items()
        }

    def rewritten(self, how: Rewrite) -> list[int]:
        """The places whose entries a rewrite would make others."""
        return [entry.seq for entry in map(self.entry, self.written) if how.entry(entry) is not entry]

    def rewrite(self, how: Rewrite, key: SessionKey, witness: Witness) -> int:
        """Rewrite all of it; return how many entries and records are others."""
        head, records = how.head(self.head), [how.record(record) for record in self.records]
        head = witness.head(key, self.head, head)
        rows = self.written
        new = [entry for was in map(self.entry, rows) if (entry := how.entry(was)) is not was]
        changed = sum(one is not was for one, was in zip(records, self.records, strict=True)) + len(new)
        self.rows = list(rows)
        for entry in new:
            self.rows[self.index(entry.seq)] = (entry.seq, entry.id, pack(entry))
        if not how.keeps_texts:
            self._uncount(entry.seq for entry in new)
        self.head, self.records = head, records
        return changed

    def branch(self, head: Head) -> Self:
        """A branch of the log, up to what its head says."""
        branch = type(self)(self.family)
        branch.head = head
        branch.rows = self.written[: self.index(head.next_seq)]
        branch.places = {id: seq for seq, id, _ in branch.rows}
        branch.records = [record for record in self.records if record.revision <= head.revision]
        for counter, counts in self.counts.items():
            branch.counts[counter] = {seq: n for seq, n in counts.items() if seq < head.next_seq}
        return branch


def shared(log: MemoryLog, other: MemoryLog, seqs: Iterable[int]) -> tuple[int, ...]:
    """The places among these whose entries, which are no tombstones, a log has from the same addition as another."""
    if other is log or other.family is not log.family:
        return ()
    mine = log.ids(seqs)
    return tuple(seq for seq, id in other.ids(mine).items() if mine[seq] == id)


def shares(log: MemoryLog, other: MemoryLog) -> bool:
    """Whether another log has entries, or tombstones, from the same addition."""
    if other is log or other.family is not log.family or not (log.written and other.written):
        return False
    first = max(log.rows[0][0], other.rows[0][0])  # branches share all before the point where they parted
    mine, theirs = log.by_seq(first), other.by_seq(first)
    return mine is not None and theirs is not None and mine[1] == theirs[1]
