"""How a log goes on behind a replacement: what that has left out is not open, not pinned and not known any more. Pure.

A replacement is one step that adds entries and archives others. What comes behind it, its own entries first, is linked
as if what it left out had never been: a result finds no call there, and a message no interaction. Whoever walks a log
again, to find out how it was or whether it holds together, walks it here.
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
    """Return the head after a change, the record of it (None: it leaves none), and the entries that it adds, linked."""
    if change.kind != "replace":
        return *apply(head, change, at), []
    assert change.compaction is not None, "a replacement knows what it leaves out"
    opened = parted(head, change.compaction.evicted, change.turn)
    after, linked = link(opened, change.entries, at)
    seqs = tuple(entry.seq for entry in linked)
    after, record = apply(_replace(after, revision=head.revision), _replace(change, seqs=seqs), at)
    return after, record, linked


def parted(head: Head, left: Sequence[Span], turn: int) -> Head:
    """Return the head of a log in which these places were left out; `turn` is the newest human message beside them."""
    if not left:
        return head
    ended = spans.within(left, head.tail)
    return _replace(
        head,
        turn=turn if spans.within(left, head.turn) else head.turn,
        group=0 if ended else head.group,
        tail=0 if ended else head.tail,
        reasoning=head.reasoning and not ended,
        pauses=head.pauses and not ended,
        calls=tuple(call for call in head.calls if not spans.within(left, call.seq)),
        pinned=tuple(seq for seq in head.pinned if not spans.within(left, seq)),
        contexts={name: known for name, known in head.contexts.items() if not spans.within(left, known[0])},
    )


def newest_of(humans: Sequence[int], left: Sequence[Span]) -> int:
    """Return the last of these places, ascending, that was not left out; 0 for none."""
    return next((seq for seq in reversed(humans) if not spans.within(left, seq)), 0)


# --- a log walked again


class Displaced(msgspec.Struct, frozen=True):
    """What the replacement of a revision left out."""

    revision: int
    places: tuple[Span, ...]


def standing(records: Sequence[Record]) -> Sequence[Record]:
    """The records that stand at their end: a rewind takes back those after the revision that it went to."""
    for i in reversed(range(len(records))):
        if records[i].kind == "rewind":
            before = [record for record in records[:i] if record.revision <= records[i].to]
            return [*standing(before), *records[i:]]
    return records


def left_out(records: Sequence[Record]) -> list[Displaced]:
    """Return what the replacements among these records have left out, oldest first; those taken back are not there."""
    return [
        Displaced(record.revision, record.compaction.evicted)
        for record in standing(records)
        if record.kind == "replace" and record.compaction is not None
    ]


class Walk:
    """Follows the entries of a log that have their links, oldest first, and what was left out in between."""

    def __init__(self, first_seq: int, left: Sequence[Displaced] = ()) -> None:
        self.head = Head(first_seq=first_seq, next_seq=first_seq)
        self._due, self._humans = list(left), list[int]()

    def follow(self, entries: Sequence[Entry]) -> None:
        """Go on over these entries, of which no rewind hides one."""
        for run in self._runs(entries):
            self.head = follow(self.head, run)
            self._humans += [entry.seq for entry in run if entry.is_human]

    def reach(self, revision: int) -> None:
        """Go on to what was added with this revision: what was left out by then is left behind."""
        while self._due and self._due[0].revision <= revision:
            places = self._due.pop(0).places
            self.head = parted(self.head, places, newest_of(self._humans, places))

    def end(self) -> Head:
        """Go on to the end, and return the head."""
        self.reach(self._due[-1].revision if self._due else 0)
        return self.head

    def _runs(self, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
        """The entries, parted where something was left out."""
        first = 0
        for i in range(len(entries) if self._due else 0):
            if self._due and entries[i].revision >= self._due[0].revision:
                yield entries[first:i]
                first = i
                self.reach(entries[i].revision)
        yield entries[first:]
