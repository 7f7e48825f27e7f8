"""What an erasure leaves of what was made from entries: records, summaries, states of compaction. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from palimpsest.log import spans, summary
from palimpsest.log.change import Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, Summary


def forgotten(
    records: Iterable[Record],
    head: Head,
    seqs: Sequence[int],
    *,
    spare: bool = False,
    silence: Collection[int] = (),
) -> tuple[list[Record], Compaction | None]:
    """Return what an erasure of these entries does to what was made from them; `records` come oldest first.

    That are the records that change, as they are from then on: summaries of an erased entry lose their words, and no
    state, of whatever time, goes on counting on them. And it is the state after the erasure, where a summary that
    contexts show is among them (None: they show what they did). With `spare` those keep their words. The records of the
    revisions in `silence` lose theirs, whatever they are of.
    """
    records = list(records)
    current = next(
        (one.compaction.current for one in records if one.compaction and one.revision == head.compaction), ()
    )
    erased, changed, lost, state = spans.of(seqs), [], [], None
    for was in records:
        quiet = was.revision in silence
        record = _silent(was) if quiet else was
        held = record.compaction
        made = held.summary if held is not None else None
        if made is not None and not made.withdrawn:
            spared = spare and record.revision in current
            if quiet or (not spared and spans.common(made.covers, erased)):
                lost.append(made)
                made = summary.withdrawn(made)
        if held is None or not _concerns(held, lost, erased):
            changed += [record] if quiet else []
            continue
        after = summary.without(held, lost, erased)
        changed.append(msgspec.structs.replace(record, compaction=msgspec.structs.replace(after, summary=made)))
        if record.revision == head.compaction and after.current != held.current:
            state = after
    return changed, state


def _concerns(held: Compaction, lost: Sequence[Summary], erased: Sequence[Span]) -> bool:
    """Whether a state knows of what was erased, or of a summary that was lost."""
    made = held.summary.covers if held.summary is not None else ()
    gone = {one.revision for one in lost}
    known = held.summary is not None and held.summary.revision in gone
    return known or not gone.isdisjoint(held.current) or bool(spans.common(spans.union(held.inactive, made), erased))


def _silent(record: Record) -> Record:
    """The record without a word: of an erasure the session where it was asked for stays, for stores go by it."""
    detail = {name: value for name, value in record.detail.items() if name == "session" and record.kind == "erase"}
    cut = record.cut and msgspec.structs.replace(record.cut, conditions=())
    reason = "" if record.kind == "erase" else record.reason
    return msgspec.structs.replace(record, reason=reason, detail=detail, cut=cut)


def tombstone(entry: Entry) -> Entry:
    """Return what stays of an erased entry: its id, place, kind, time and links, and nothing of its content."""
    return msgspec.structs.replace(
        entry,
        content="",
        name=None,
        call_id=None,
        metadata=None,
        native=None,
        status=None,
        tokens=None,
        erased=True,
        damaged=False,
        lone=False,
    )
