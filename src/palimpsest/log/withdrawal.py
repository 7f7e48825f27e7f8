"""What an erasure leaves of entries and of what was made from them: records, summaries, compaction states. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from palimpsest.errors import InvalidEntry
from palimpsest.log import spans, summary
from palimpsest.log.change import Record
from palimpsest.log.checks import check
from palimpsest.log.entry import KEPT, Entry, Kind, Role, defaults
from palimpsest.log.head import Head
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, Summary


def forgotten(
    records: Iterable[Record],
    head: Head,
    seqs: Sequence[int],
    *,
    spare: bool = False,
    released: Sequence[Span] = (),
    evicted: Sequence[Span] = (),
    silence: Collection[int] = (),
) -> tuple[list[Record], Compaction | None]:
    """Return what an erasure of these entries changes in what was made from them. `records` come oldest first.

    The first result are the changed records: summaries of an erased entry lose their words, and no state, past or
    present, relies on them any more. The second is the compaction state after the erasure if a summary that contexts
    show has lost its words, else None. In that state an earlier version takes its place if it tells of flushed entries
    and of nothing erased. What contexts had left out is evicted, together with `evicted`.

    With `spare` the current summaries keep their words, and the current state lets go of `released`. The records of the
    revisions in `silence` lose their words, whatever they are.
    """
    records, summaries = list(records), dict[int, Summary]()
    current = standing(records, head).current
    erased, changed, withdrawn, state = spans.of(seqs), [], [], None
    for original in records:
        silenced = original.revision in silence
        record = _silenced(original) if silenced else original
        before = record.compaction
        made_summary = before.summary if before is not None else None
        if made_summary is not None and not made_summary.withdrawn:
            keeps_words = spare and record.revision in current
            if silenced or (not keeps_words and spans.common(made_summary.covers, erased)):
                withdrawn.append(made_summary)
                made_summary = summary.withdrawn(made_summary)
        if made_summary is not None:
            summaries[made_summary.revision] = made_summary
        is_released = bool(released) and record.revision == head.compaction
        if before is None or not (is_released or _concerns(before, withdrawn, erased)):
            changed += [record] if silenced else []
            continue
        after = summary.without(before, withdrawn, erased, summaries)
        if is_released:
            after = msgspec.structs.replace(after, released=spans.union(after.released, released))
        if record.kind == "replace":
            displaced = spans.union(before.displaced, spans.common(before.evicted, erased))
            after = msgspec.structs.replace(after, displaced=displaced)
        changed.append(msgspec.structs.replace(record, compaction=msgspec.structs.replace(after, summary=made_summary)))
        if record.revision == head.compaction and after.current != before.current:
            newly_evicted = spans.union(evicted, _passed_by_cuts(head))
            newly_evicted = spans.minus(newly_evicted, [*after.covered, *after.hidden, *erased])
            state = msgspec.structs.replace(after, evicted=spans.union(after.evicted, newly_evicted))
    return changed, state


def _passed_by_cuts(head: Head) -> tuple[Span, ...]:
    """Return what no context shows, since the newest cuts of all views have left it out after the last compaction."""
    cuts = [cut for cut in head.views.values() if cut.compaction == head.compaction]
    start = min((cut.start for cut in cuts), default=head.first_seq)
    if start == head.first_seq:
        return ()
    shown = {*head.pinned, *(seq for cut in cuts for seq in (*cut.pins, *cut.anchors))}
    return spans.minus([(head.first_seq, start - 1)], [*spans.of(shown), *head.rewound])


def _concerns(state: Compaction, lost: Sequence[Summary], erased: Sequence[Span]) -> bool:
    """Whether a state refers to an erased entry or a lost summary."""
    covers = state.summary.covers if state.summary is not None else ()
    lost_revisions = {lost_summary.revision for lost_summary in lost}
    made_lost = state.summary is not None and state.summary.revision in lost_revisions
    return (
        made_lost
        or not lost_revisions.isdisjoint(state.current)
        or bool(spans.common(spans.union(state.inactive, covers), erased))
    )


def standing(records: Iterable[Record], head: Head) -> Compaction:
    """Return the present compaction state of a session, from its records."""
    return next(
        (record.compaction for record in records if record.compaction and record.revision == head.compaction),
        Compaction(),
    )


def bare(head: Head) -> tuple[Span, ...]:
    """Return the ranges in which nothing is left that could be shown: rewound entries, and ranges of tombstones.

    Of the open interaction tombstones are not among them, because they tell whether a call of it was answered.
    """
    if not head.graves:
        return head.rewound
    before = ((head.first_seq, head.turn - 1),) if head.turn > head.first_seq else ()
    return spans.union(head.rewound, spans.common(head.graves, before))


def needed(state: Compaction, head: Head, seqs: Iterable[int]) -> tuple[Span, ...]:
    """Return which of these entries a session that shares them still needs: those that no flush of its own released."""
    let_go = spans.minus(spans.common(state.released, state.replaced), spans.of(head.pinned))
    return spans.minus(spans.of(seqs), let_go)


def _silenced(record: Record) -> Record:
    """Return the record without words. Of an erasure the session where it was asked for stays: stores need it."""
    detail = {name: value for name, value in record.detail.items() if name == "session" and record.kind == "erase"}
    cut = record.cut and msgspec.structs.replace(record.cut, conditions=())
    reason = "" if record.kind == "erase" else record.reason
    return msgspec.structs.replace(record, reason=reason, detail=detail, cut=cut)


def tombstone(entry: Entry) -> Entry:
    """Return what stays of an erased entry: its id, place, kind, time and links, without any content."""
    return msgspec.structs.replace(entry, **_EMPTIED)


_EMPTIED = defaults(*(name for name in Entry.__struct_fields__ if name not in KEPT)) | {"erased": True}


def flushed(entry: Entry) -> Entry:
    """Return what stays of an entry that a flush destroys while summaries tell of it: a tombstone with its speaker."""
    speaker = {"user_id": (entry.metadata or {}).get("user_id")}
    name = entry.name if entry.role == "user" else None
    metadata = speaker if speaker["user_id"] is not None else None
    return msgspec.structs.replace(tombstone(entry), name=name, metadata=metadata, flushed=True)


def buried(entry: Entry) -> Entry:
    """Return an entry from elsewhere as it may be stored: a tombstone keeps only what a tombstone may hold."""
    if not (entry.erased or entry.flushed):
        return entry
    return flushed(entry) if entry.flushed else tombstone(entry)


def arriving(entry: Entry, where: str) -> Entry:
    """Return an entry as it may be added. Raises InvalidEntry, naming the field, if no log may hold it.

    An erased entry becomes a tombstone that was not flushed, since no summary here tells of it. Token counts are
    dropped, because they may be another counter's.
    """
    check(entry, where)
    if entry.erased or entry.flushed:
        return tombstone(entry)
    roles = _ROLES.get(entry.kind)
    if roles is not None and entry.role not in roles:
        message = f"no provider accepts a {entry.kind} with the role {entry.role}: give {' or '.join(roles)}"
        hint = ', or kind="tool_result" for the result of a tool' if entry.role == "tool" else ""
        raise InvalidEntry(f"{where}.role", message + hint)
    return entry if entry.tokens is None else msgspec.structs.replace(entry, tokens=None)


_ROLES: dict[Kind, tuple[Role, ...]] = {"message": ("user", "assistant", "system"), "tool_call": ("assistant",)}
"""The roles allowed for each kind. Entries of other kinds are shown alike whatever their role."""
