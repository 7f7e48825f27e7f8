"""Verifying a session: every entry in exactly one state, and every entry that a summary covers accounted for. Reads
only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log import spans
from palimpsest.log.change import Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.log.resuming import Displaced, left_out
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction, Summary
from palimpsest.sessions.options import Options
from palimpsest.sessions.paging import batches_of
from palimpsest.sessions.reading import TRIES, moved
from palimpsest.sessions.states import Walk, states_of
from palimpsest.stores import Store


class Verification(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What became of every entry of a session, each counted once, and what does not hold together.

    An entry is `active`, `covered`, `evicted`, `erased`, `rewound` or `expired`. `total` is their sum: all entries of
    the log, tombstones included. `summaries` are the current ones, `versions`
    all that were ever made. `problems` is empty for a session that is whole.
    """

    total: int = 0
    active: int = 0
    covered: int = 0
    evicted: int = 0
    erased: int = 0
    rewound: int = 0
    expired: int = 0
    summaries: int = 0
    versions: int = 0
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems


async def verify(store: Store, options: Options, now: int) -> Verification:
    """Walk the whole log and every record of compaction, and say what became of each entry.

    A walk into which somebody wrote, and that found something wrong, is begun anew. Raises Conflict where that happens
    again and again.
    """
    for _ in range(TRIES):
        head = await store.head(options.key) or Head()
        found = await _walked(store, options, head, now)
        if found.ok or not moved(head, await store.head(options.key) or Head()):
            return found
    raise Conflict(f"session {options.key.session!r}", "is changed faster than it can be verified: try again, or later")


async def _walked(store: Store, options: Options, head: Head, now: int) -> Verification:
    states = await states_of(store, options, head)
    state = states.compaction
    records = await store.records(options.key, before=head.revision + 1)
    problems = [*_of_records(records, head, state), *_of_state(state, head)]
    walk, seen = Walk(states, now), head.first_seq - 1
    covered_groups: dict[int, set[bool]] = {}
    links = _Links(left_out(records))

    def follow(batch: Sequence[Entry]) -> None:
        nonlocal covered_groups, seen
        for entry in batch:
            if entry.seq != seen + 1:
                problems.append(f"entries {seen + 1} to {entry.seq - 1} are missing")
            seen = entry.seq
            if entry.damaged:
                problems.append(f"entry {entry.seq} is damaged and cannot be read")
            what = walk.follow(entry)
            if not spans.within(head.rewound, entry.seq):  # a tombstone may lie there, too
                links.follow(entry)
            gone = what in ("erased", "rewound") or (what != "covered" and entry.expired(now))
            if not gone:  # a plan covers what of a group is still there
                covered_groups.setdefault(entry.group, set()).add(what == "covered")
        covered_groups = _split(covered_groups, batch[-1].group, problems)

    async for batch in batches_of(store, options.key, [(head.first_seq, head.next_seq - 1)]):
        await store.apart(follow, batch)
    if seen < head.next_seq - 1:
        problems.append(f"entries {seen + 1} to {head.next_seq - 1} are missing")
    _split(covered_groups, None, problems)
    problems, counts = [*problems, *links.broken(head)], walk.counts
    if counts["erased"] != head.erased:
        problems.append(f"{counts['erased']} entries are erased where the head knows of {head.erased}")
    if counts["rewound"] != head.hidden:
        problems.append(f"{counts['rewound']} entries are rewound where the head knows of {head.hidden}")
    versions = [record.compaction.summary for record in records if record.compaction and record.compaction.summary]
    return Verification(
        total=sum(counts.values()),
        summaries=len(state.current),
        versions=len(versions),
        problems=tuple(problems),
        **counts,
    )


class _Links:
    """What the links of a log say, followed entry by entry, oldest first; what was rewound is left out.

    Links stay with a tombstone. A call that was erased, or that a replacement left out, waits for no result: one that
    came after that answers nothing.
    """

    def __init__(self, left: Sequence[Displaced] = ()) -> None:
        self._problems: list[str] = []
        self._left = list(left)
        self._unanswered: dict[int, Entry] = {}
        self._group = 0

    def follow(self, entry: Entry) -> None:
        """Go on to the next entry."""
        self._reach(entry.revision)
        if entry.group not in (entry.seq, self._group):
            self._problems.append(f"entry {entry.seq} is of the group of entry {entry.group}, and apart from it")
        self._group = entry.group
        if entry.kind == "tool_call":
            self._unanswered[entry.seq] = entry
        elif entry.kind == "tool_result" and entry.answers:
            self._answered(entry)
        elif entry.kind == "tool_result" and (call := self._meant(entry)) is not None:
            reason = f"is linked to no call, though that of entry {call.seq} waits for it"
            self._problems.append(f"entry {entry.seq}, a result, {reason}")

    def _reach(self, revision: int) -> None:
        """Go on to what was added with this revision: no call that was left out by then waits for a result."""
        while self._left and self._left[0].revision <= revision:
            places = self._left.pop(0).places
            self._unanswered = {seq: one for seq, one in self._unanswered.items() if not spans.within(places, seq)}

    def _answered(self, result: Entry) -> None:
        what = f"entry {result.seq} answers entry {result.answers}, which"
        call = self._unanswered.pop(result.answers, None)
        if call is None:
            self._problems.append(f"{what} is no call before it, or has a result already")
        elif not result.late and result.group != call.group:
            self._problems.append(f"{what} is of another group")

    def _meant(self, result: Entry) -> Entry | None:
        """The call that a result without one is meant for; a tombstone does not say."""
        field = "name" if result.call_id is None else "call_id"
        asked = getattr(result, field)
        waiting = (call for call in self._unanswered.values() if not call.erased and getattr(call, field) == asked)
        return None if asked is None or result.erased else next(waiting, None)

    def broken(self, head: Head) -> list[str]:
        """Return what does not hold together, the open calls of the head included."""
        self._reach(head.revision)
        told = {call.seq for call in head.calls}
        waiting = {seq: call.group for seq, call in self._unanswered.items() if not call.erased}
        known = [f"the head waits for a result of entry {seq}, which waits for none" for seq in told - waiting.keys()]
        of_group = {seq for seq, group in waiting.items() if group == head.group}
        unknown = [f"entry {seq} waits for a result, and the head knows nothing of it" for seq in of_group - told]
        return [*self._problems, *sorted(known), *sorted(unknown)]


def _split(groups: dict[int, set[bool]], still: int | None, problems: list[str]) -> dict[int, set[bool]]:
    """Tell of groups that are covered in part, and forget all but the one that may go on."""
    for group, found in groups.items():
        if len(found) > 1 and group != still:
            problems.append(f"the group of entry {group} is covered in part")
    return {group: found for group, found in groups.items() if group == still}


def _of_state(state: Compaction, head: Head) -> list[str]:
    """What is wrong with the ranges that are covered or evicted."""
    problems = []
    both = spans.common(state.covered, spans.union(state.evicted, state.hidden))
    if both:
        problems.append(f"entries {spans.told(both)} are covered and evicted at once")
    beyond = spans.minus(state.inactive, [(1, head.next_seq - 1)])
    if beyond:
        problems.append(f"entries {spans.told(beyond)} are covered or evicted and do not exist")
    return problems


def _of_records(records: Sequence[Record], head: Head, state: Compaction) -> list[str]:
    """What is wrong with the current summaries and their history."""
    by_revision = {record.revision: record.compaction for record in records if record.compaction is not None}
    problems: list[str] = []
    covers: list[tuple[Span, ...]] = []
    if head.compaction and head.compaction not in by_revision:
        problems.append(f"the head names the compaction of revision {head.compaction}, which has no record")
    for revision in state.current:
        held = by_revision.get(revision)
        made = held.summary if held is not None else None
        if made is None or made.withdrawn or not made.text:
            problems.append(f"the summary of revision {revision} is current and has no text")
            continue
        twice = spans.common(spans.union(*covers), made.covers)
        if twice:
            problems.append(f"entries {spans.told(twice)} are covered by two summaries")
        covers.append(made.covers)
        problems += _of_lineage(made, by_revision)
    loose = spans.minus(state.covered, spans.union(*covers))
    if loose:
        problems.append(f"entries {spans.told(loose)} are covered by no current summary")
    return problems


def _of_lineage(made: Summary, by_revision: dict[int, Compaction]) -> list[str]:
    """What is wrong with how a summary came from those before it: each must cover all that its parents did."""
    problems = []
    for parent in made.parents:
        held = by_revision.get(parent)
        before = held.summary if held is not None else None
        if before is None:
            problems.append(f"summary {made.id} supersedes that of revision {parent}, which has no record")
        elif spans.minus(before.covers, made.covers):
            lost = spans.minus(before.covers, made.covers)
            problems.append(f"summary {made.id} does not cover entries {spans.told(lost)}, as its parent did")
    return problems
