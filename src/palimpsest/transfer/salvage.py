"""Making the head and the readable records of a damaged session consistent with each other. Pure."""

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
    """A consistent head and records, and the revisions of the records that were dropped for that."""

    head: Head
    records: list[Record]
    dropped: list[int]


def sound(head: Head, records: Sequence[Record], erased: Sequence[Span]) -> Sound:
    """Return a head and records that an import accepts, of a session some of whose records are lost.

    `erased` are the tombstones of the session. Compactions whose summaries are lost are dropped, and so are cuts that
    show them. The newest compaction that remains becomes the current one.
    """
    kept, dropped = list(records), list[int]()
    while True:
        states = {record.revision: record.compaction for record in kept if record.compaction is not None}
        bad = {revision for revision, _, _ in faults(states, head.first_seq, head.next_seq - 1, erased)}
        bad |= {record.revision for record in kept if record.cut is not None and not _stands(record.cut, states)}
        if not bad:
            break
        kept, dropped = [record for record in kept if record.revision not in bad], dropped + sorted(bad)
    compaction = head.compaction
    if compaction not in states:
        compaction = next((record.revision for record in reversed(standing(kept)) if record.revision in states), 0)
    views = {name: cut for name, cut in head.views.items() if _stands(cut, states)}
    records = [_without_lost_parents(record, states) for record in kept]
    return Sound(replace(head, compaction=compaction, views=views), records, sorted(dropped))


def _stands(cut: Cut, states: Mapping[int, Compaction]) -> bool:
    """Return whether the compaction and the summaries that a cut shows still exist."""
    shown = [states.get(summary.revision) for summary in cut.summaries]
    return (not cut.compaction or cut.compaction in states) and all(state and state.summary for state in shown)


def _without_lost_parents(record: Record, revisions: Collection[int]) -> Record:
    """Return the record with a summary that names only parents among these revisions."""
    summary = record.compaction.summary if record.compaction is not None else None
    if record.compaction is None or summary is None or all(parent in revisions for parent in summary.parents):
        return record
    summary = replace(summary, parents=tuple(parent for parent in summary.parents if parent in revisions))
    return replace(record, compaction=replace(record.compaction, summary=summary))
