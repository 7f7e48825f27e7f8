"""What an erasure leaves of entries, and of what was made from them: records, summaries, states of compaction. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from palimpsest.errors import InvalidEntry
from palimpsest.log import spans, summary
from palimpsest.log.change import Record
from palimpsest.log.checks import check
from palimpsest.log.entry import Entry, Kind, Role
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
    """Return what an erasure of these entries does to what was made from them; `records` come oldest first.

    That are the records that change, as they are from then on: summaries of an erased entry lose their words, and no
    state, of whatever time, goes on counting on them. And it is the state after the erasure, where a summary that
    contexts show is among them (None: they show what they did): an earlier version, that tells of what a flush has
    destroyed and of nothing that was erased, stands there again, and what contexts had left out is evicted, with what
    the erasure says is `evicted`. With `spare` those keep their words, and `released` is let go of by the state that
    holds. The records of the revisions in `silence` lose theirs, whatever they are of.
    """
    records, known = list(records), dict[int, Summary]()
    current = standing(records, head).current
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
        if made is not None:
            known[made.revision] = made
        lets_go = bool(released) and record.revision == head.compaction
        if held is None or not (lets_go or _concerns(held, lost, erased)):
            changed += [record] if quiet else []
            continue
        after = summary.without(held, lost, erased, known)
        if lets_go:
            after = msgspec.structs.replace(after, released=spans.union(after.released, released))
        changed.append(msgspec.structs.replace(record, compaction=msgspec.structs.replace(after, summary=made)))
        if record.revision == head.compaction and after.current != held.current:
            out = spans.union(evicted, _passed(head))
            out = spans.minus(out, [*after.covered, *after.hidden, *erased])
            state = msgspec.structs.replace(after, evicted=spans.union(after.evicted, out))
    return changed, state


def _passed(head: Head) -> tuple[Span, ...]:
    """What the newest cuts of all views have left out since the last compaction, so that no context shows it."""
    cuts = [cut for cut in head.views.values() if cut.compaction == head.compaction]
    start = min((cut.start for cut in cuts), default=head.first_seq)
    if start == head.first_seq:
        return ()
    shown = {*head.pinned, *(seq for cut in cuts for seq in (*cut.pins, *cut.anchors))}
    return spans.minus([(head.first_seq, start - 1)], [*spans.of(shown), *head.rewound])


def _concerns(held: Compaction, lost: Sequence[Summary], erased: Sequence[Span]) -> bool:
    """Whether a state knows of what was erased, or of a summary that was lost."""
    made = held.summary.covers if held.summary is not None else ()
    gone = {one.revision for one in lost}
    known = held.summary is not None and held.summary.revision in gone
    return known or not gone.isdisjoint(held.current) or bool(spans.common(spans.union(held.inactive, made), erased))


def standing(records: Iterable[Record], head: Head) -> Compaction:
    """Return the state of compaction of a session, by its records."""
    return next((one.compaction for one in records if one.compaction and one.revision == head.compaction), Compaction())


def needed(state: Compaction, head: Head, seqs: Iterable[int]) -> tuple[Span, ...]:
    """Return which of these entries a session that shares them has not let go of by a flush of its own."""
    let_go = spans.minus(spans.common(state.released, state.replaced), spans.of(head.pinned))
    return spans.minus(spans.of(seqs), let_go)


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
        flushed=False,
        lone=False,
    )


def flushed(entry: Entry) -> Entry:
    """Return what stays of an entry that a flush destroys, while summaries tell of it: a tombstone, and who spoke."""
    said = {"user_id": (entry.metadata or {}).get("user_id")}
    name = entry.name if entry.role == "user" else None
    metadata = said if said["user_id"] is not None else None
    return msgspec.structs.replace(tombstone(entry), name=name, metadata=metadata, flushed=True)


def buried(entry: Entry) -> Entry:
    """Return an entry as it may be stored that comes from elsewhere: of one that is a tombstone no more than stays."""
    if not (entry.erased or entry.flushed):
        return entry
    return flushed(entry) if entry.flushed else tombstone(entry)


def arriving(entry: Entry, where: str) -> Entry:
    """Return an entry as it may be added. Raises InvalidEntry, naming the field, for one that no log may have.

    Of one that is erased a tombstone comes in, as in any log: no summary here tells of it. What its tokens were by
    another's counter is made anew.
    """
    check(entry, where)
    if entry.erased or entry.flushed:
        return tombstone(entry)
    roles = _ROLES.get(entry.kind)
    if roles is not None and entry.role not in roles:
        told = f"{entry.role} is no role of a {entry.kind}, which no provider would take: give {' or '.join(roles)}"
        more = ', or kind="tool_result" for what a tool has answered' if entry.role == "tool" else ""
        raise InvalidEntry(f"{where}.role", told + more)
    return entry if entry.tokens is None else msgspec.structs.replace(entry, tokens=None)


_ROLES: dict[Kind, tuple[Role, ...]] = {"message": ("user", "assistant", "system"), "tool_call": ("assistant",)}
"""Who may be the one of what kind; what is of other kinds is shown in the same way, whoever it is from."""
