"""How a log continues after a replacement: what was left out is not open, pinned or known any more. Pure.

A replacement is one step that adds entries and archives others. What follows, its own entries first, is linked as if
the archived entries had never existed: results find no calls there, and messages no interaction. Code that walks a log
again, to reconstruct an earlier state or to verify it, walks it here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from palimpsest.log import spans
from palimpsest.log.change import Change, Record, apply
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.log.linking import follow, link
from palimpsest.log.spans import Span

_replace = msgspec.structs.replace


def committed(head: Head, change: Change, at: int) -> tuple[Head, Record | None, list[Entry]]:
    """Return the head after a change, its record (None if it leaves none), and the entries that it adds, linked."""
    if change.kind != "replace":
        return *apply(head, change, at), []
    assert change.compaction is not None, "a replacement knows what it leaves out"
    opened = parted(head, change.compaction.evicted, change.turn)
    after, linked = link(opened, change.entries, at)
    seqs = tuple(entry.seq for entry in linked)
    after, record = apply(_replace(after, revision=head.revision), _replace(change, seqs=seqs), at)
    return after, record, linked


def parted(head: Head, places: Sequence[Span], turn: int) -> Head:
    """Return the head of a log without these places.

    `turn` is the newest human message that stays.
    """
    if not places:
        return head
    ended = spans.within(places, head.tail)
    return _replace(
        head,
        turn=turn if spans.within(places, head.turn) else head.turn,
        group=0 if ended else head.group,
        tail=0 if ended else head.tail,
        reasoning=head.reasoning and not ended,
        pauses=head.pauses and not ended,
        calls=tuple(call for call in head.calls if not spans.within(places, call.seq)),
        pinned=tuple(seq for seq in head.pinned if not spans.within(places, seq)),
        contexts={name: version for name, version in head.contexts.items() if not spans.within(places, version[0])},
    )


def newest_of(humans: Sequence[int], places: Sequence[Span]) -> int:
    """Return the last of these human messages, ascending, that is not among `places`; 0 if there is none."""
    return next((seq for seq in reversed(humans) if not spans.within(places, seq)), 0)


# --- a log walked again


class Displaced(msgspec.Struct, frozen=True):
    """The places that the replacement of a revision left out."""

    revision: int
    places: tuple[Span, ...]


def standing(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records still in force at the end: a rewind undoes the records after the revision that it went to."""
    for i in reversed(range(len(records))):
        if records[i].kind == "rewind":
            kept = [record for record in records[:i] if record.revision <= records[i].to]
            return [*standing(kept), *records[i:]]
    return records


def left_out(records: Sequence[Record]) -> list[Displaced]:
    """Return what the replacements among these records have left out, oldest first, except for undone ones."""
    return [
        Displaced(record.revision, spans.union(record.compaction.evicted, record.compaction.displaced))
        for record in standing(records)
        if record.kind == "replace" and record.compaction is not None
    ]


class Walk:
    """Follows the entries of a log that have their links, oldest first, and the replacements in between."""

    def __init__(self, first_seq: int, displaced: Sequence[Displaced] = ()) -> None:
        self.head = Head(first_seq=first_seq, next_seq=first_seq)
        self.newest = 0  # the group of the newest entry, unless it was left out
        self._pending, self._humans = list(displaced), list[int]()

    def follow(self, entries: Sequence[Entry]) -> None:
        """Continue over these entries, none of which is rewound."""
        for run in self._runs(entries):
            self.head = follow(self.head, run)
            self.newest = run[-1].group if run else self.newest
            self._humans += [entry.seq for entry in run if entry.is_human]

    def reach(self, revision: int) -> None:
        """Continue to what was added at this revision: replacements up to it leave their places out."""
        while self._pending and self._pending[0].revision <= revision:
            places = self._pending.pop(0).places
            self.head = parted(self.head, places, newest_of(self._humans, places))
            self.newest = 0 if spans.within(places, self.newest) else self.newest

    def end(self) -> Head:
        """Continue to the end, and return the head."""
        self.reach(self._pending[-1].revision if self._pending else 0)
        return self.head

    def _runs(self, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        """Yield the entries, split where a replacement left something out."""
        first = 0
        for i in range(len(entries) if self._pending else 0):
            if self._pending and entries[i].revision >= self._pending[0].revision:
                yield entries[first:i]
                first = i
                self.reach(entries[i].revision)
        yield entries[first:]
