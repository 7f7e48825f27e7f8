"""What is left of a session's changes without those records that cannot be read, so that it holds together. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from palimpsest.log.change import Record
from palimpsest.log.head import Cut, Head
from palimpsest.log.resuming import standing
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, faults


class Sound(NamedTuple):
    """A head and records that hold together, and the revisions of those that were left out for that."""

    head: Head
    records: list[Record]
    dropped: list[int]


def sound(head: Head, records: Sequence[Record], erased: Sequence[Span]) -> Sound:
    """Return what an import takes of a session some of whose records are gone; `erased` are its tombstones.

    A compaction whose summaries are not there tells of nothing any more, nor does a cut that shows them. What is
    compacted then is what the newest one says that is left.
    """
    left, dropped = list(records), list[int]()
    while True:
        states = {one.revision: one.compaction for one in left if one.compaction is not None}
        bad = {revision for revision, _, _ in faults(states, head.first_seq, head.next_seq - 1, erased)}
        bad |= {one.revision for one in left if one.cut is not None and not _stands(one.cut, states)}
        if not bad:
            break
        left, dropped = [one for one in left if one.revision not in bad], dropped + sorted(bad)
    compaction = head.compaction
    if compaction not in states:
        compaction = next((one.revision for one in reversed(standing(left)) if one.revision in states), 0)
    views = {name: cut for name, cut in head.views.items() if _stands(cut, states)}
    records = [_without_parents(one, states) for one in left]
    return Sound(replace(head, compaction=compaction, views=views), records, sorted(dropped))


def _stands(cut: Cut, states: Mapping[int, Compaction]) -> bool:
    """Whether the compaction and the summaries are there that a cut shows."""
    shown = [states.get(one.revision) for one in cut.summaries]
    return (not cut.compaction or cut.compaction in states) and all(one and one.summary for one in shown)


def _without_parents(record: Record, there: Collection[int]) -> Record:
    """The record of a summary that names none before it which is gone."""
    made = record.compaction.summary if record.compaction is not None else None
    if record.compaction is None or made is None or all(parent in there for parent in made.parents):
        return record
    made = replace(made, parents=tuple(parent for parent in made.parents if parent in there))
    return replace(record, compaction=replace(record.compaction, summary=made))
