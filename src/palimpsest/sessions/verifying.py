"""Verifying a session: each entry is in one state, and summaries account for all that they cover. Reads only."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

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

ERASE_ONE = "erase one of them by its number"
"""What to do about two entries with one id: as a tombstone, one of them is in nobody's way."""


class Verification(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """The number of a session's entries in each state, and what is inconsistent in it.

    Each entry is counted once, as `active`, `covered`, `evicted`, `erased`, `rewound` or `expired`. `total` is the sum:
    all entries of the log, tombstones included. `summaries` is the number of current ones, `versions` of all that were
    ever made. `problems` is empty for a sound session.
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
    """Walk the whole log and every record of compaction, and report the state of each entry.

    A walk that finds problems is repeated if the session `moved` meanwhile. Raises Conflict if that happens `TRIES`
    times. Once an EPHEMERAL session has lost entries of the stored session, it is not checked for what is missing.
    """
    for _ in range(TRIES):
        head = await store.head(options.key) or Head()
        has_lost = store.has_lost(options.key)
        verification = await _walked(store, options, head, now, has_lost=has_lost)
        if verification.ok:
            return verification
        after = await store.head(options.key) or Head()
        if not moved(head, after) and store.has_lost(options.key) == has_lost:
            return verification
    raise Conflict(f"session {options.key.session!r}", "changes faster than it can be verified: try again later")


async def _walked(store: Store, options: Options, head: Head, now: int, *, has_lost: bool) -> Verification:
    states = await states_of(store, options, head)
    state = states.compaction
    records = await store.records(options.key, before=head.revision + 1)
    problems, missing = _of_state(state, head), list[str]()
    walk, last_seq = Walk(states, now), head.first_seq - 1
    covered_groups: dict[int, set[bool]] = {}
    links, ids = _Links(left_out(records)), _Ids()

    def follow(batch: Sequence[Entry]) -> None:
        nonlocal covered_groups, last_seq
        for entry in batch:
            ids.follow(entry)
            if entry.seq != last_seq + 1:
                missing.append(f"entries {last_seq + 1} to {entry.seq - 1} are missing")
            last_seq = entry.seq
            if entry.damaged:
                problems.append(f"entry {entry.seq} is damaged and cannot be read")
            if head.graves and not entry.erased and spans.within(head.graves, entry.seq):
                problems.append(f"entry {entry.seq} is not erased, but the head says that it is")
            entry_state = walk.follow(entry)
            if not spans.within(head.rewound, entry.seq):  # not by its state: a rewound tombstone counts as erased
                links.follow(entry)
            is_gone = entry_state in ("erased", "rewound") or (entry_state != "covered" and entry.expired(now))
            if not is_gone:  # a compaction covers only those entries of a group that still exist
                covered_groups.setdefault(entry.group, set()).add(entry_state == "covered")
        covered_groups = _split(covered_groups, batch[-1].group, problems)

    async for batch in batches_of(store, options.key, [(head.first_seq, head.next_seq - 1)]):
        await store.apart(follow, batch)
    if last_seq < head.next_seq - 1:
        missing.append(f"entries {last_seq + 1} to {head.next_seq - 1} are missing")
    _split(covered_groups, None, problems)
    for first, second in await ids.repeated(store, options, head):
        problems.append(f"entries {first} and {second} have the same id; {ERASE_ONE}")
    counts = walk.counts
    if not has_lost:
        problems += [*_of_records(records, head, state), *missing, *links.broken(head), *_of_counts(counts, head)]
    versions = [record.compaction.summary for record in records if record.compaction and record.compaction.summary]
    return Verification(
        total=sum(counts.values()),
        summaries=len(state.current),
        versions=len(versions),
        problems=tuple(problems),
        **counts,
    )


class _Ids:
    """Finds entries with the same id. Call `follow` with each entry. Tombstones may repeat an id.

    Eight bytes are kept of an id, so that a long log needs little memory. Only if some are equal is the log read again.
    """

    PARTS = 64
    """In how many parts the hashes are sorted, one after the other."""

    def __init__(self) -> None:
        self._hashes = [array("q") for _ in range(self.PARTS)]

    def follow(self, entry: Entry) -> None:
        """Note the id of the next entry."""
        if not entry.erased:
            hashed = hash(entry.id)
            self._hashes[hashed % self.PARTS].append(hashed)

    async def repeated(self, store: Store, options: Options, head: Head) -> list[tuple[int, int]]:
        """Return the places of entries with the same id: of the first one, and of each further one."""
        equal, places, pairs = await store.apart(self._equal), dict[str, int](), list[tuple[int, int]]()
        async for batch in batches_of(store, options.key, [(head.first_seq, head.next_seq - 1)] if equal else ()):
            for entry in batch:
                if hash(entry.id) in equal and not entry.erased:
                    first = places.setdefault(entry.id, entry.seq)
                    pairs += [(first, entry.seq)] if first != entry.seq else []
        return sorted(pairs)

    def _equal(self) -> set[int]:
        return {one for hashes in self._hashes for one, following in pairwise(sorted(hashes)) if one == following}


class _Links:
    """Checks the links of a log. Call `follow` with each entry that is not rewound, oldest first.

    Tombstones keep their links. A call that was erased, or that a replacement left out, waits for no result, and a
    result that came after that answers nothing.
    """

    def __init__(self, displaced: Sequence[Displaced] = ()) -> None:
        self._problems: list[str] = []
        self._displaced = list(displaced)
        self._unanswered: dict[int, Entry] = {}
        self._group = 0

    def follow(self, entry: Entry) -> None:
        """Check the links of the next entry."""
        self._reach(entry.revision)
        if entry.group not in (entry.seq, self._group):
            self._problems.append(f"entry {entry.seq} is of the group of entry {entry.group}, but does not follow it")
        self._group = entry.group
        if entry.kind == "tool_call":
            self._unanswered[entry.seq] = entry
        elif entry.kind == "tool_result" and entry.answers:
            self._answered(entry)
        elif entry.kind == "tool_result" and (call := self._matching_call(entry)) is not None:
            reason = f"is linked to no call, though that of entry {call.seq} waits for it"
            self._problems.append(f"entry {entry.seq}, a result, {reason}")

    def _reach(self, revision: int) -> None:
        """Advance to a revision: calls that replacements had left out by then do not wait for a result any more."""
        while self._displaced and self._displaced[0].revision <= revision:
            places = self._displaced.pop(0).places
            self._unanswered = {seq: call for seq, call in self._unanswered.items() if not spans.within(places, seq)}

    def _answered(self, result: Entry) -> None:
        subject = f"entry {result.seq} answers entry {result.answers}, which"
        call = self._unanswered.pop(result.answers, None)
        if call is None:
            self._problems.append(f"{subject} is no earlier call, or has a result already")
        elif not result.late and result.group != call.group:
            self._problems.append(f"{subject} belongs to another group")

    def _matching_call(self, result: Entry) -> Entry | None:
        """Return the waiting call that a result without a link matches by id or name; None for a tombstone."""
        field = "name" if result.call_id is None else "call_id"
        value = getattr(result, field)
        waiting = (call for call in self._unanswered.values() if not call.erased and getattr(call, field) == value)
        return None if value is None or result.erased else next(waiting, None)

    def broken(self, head: Head) -> list[str]:
        """Return all problems, including open calls that differ between the log and the head."""
        self._reach(head.revision)
        in_head = {call.seq for call in head.calls}
        waiting = {seq: call.group for seq, call in self._unanswered.items() if not call.erased}
        only_head = [f"the head expects a result for entry {seq}, which needs none" for seq in in_head - waiting.keys()]
        of_group = {seq for seq, group in waiting.items() if group == head.group}
        only_log = [f"entry {seq} needs a result, but the head does not expect one" for seq in of_group - in_head]
        return [*self._problems, *sorted(only_head), *sorted(only_log)]


def _split(groups: dict[int, set[bool]], still: int | None, problems: list[str]) -> dict[int, set[bool]]:
    """Report groups that are covered in part. Return only the group `still`, whose entries may not all be walked yet.

    `groups` has for each group whether entries of it are covered: {True}, {False} or both.
    """
    for group, covered in groups.items():
        if len(covered) > 1 and group != still:
            problems.append(f"the group of entry {group} is covered in part")
    return {group: covered for group, covered in groups.items() if group == still}


def _of_counts(counts: dict[str, int], head: Head) -> list[str]:
    """Return how the numbers of erased and rewound entries differ between the log and the head."""
    known = {"erased": head.erased, "rewound": head.hidden}
    return [
        f"number of {state} entries: {counts[state]} in the log, but {number} in the head"
        for state, number in known.items()
        if counts[state] != number
    ]


def _of_state(state: Compaction, head: Head) -> list[str]:
    """Return problems of the ranges that are covered or evicted."""
    problems = []
    both = spans.common(state.covered, spans.union(state.evicted, state.hidden))
    if both:
        problems.append(f"entries {spans.in_words(both)} are both covered and evicted")
    beyond = spans.minus(state.inactive, [(1, head.next_seq - 1)])
    if beyond:
        problems.append(f"entries {spans.in_words(beyond)} are covered or evicted, but do not exist")
    return problems


def _of_records(records: Sequence[Record], head: Head, state: Compaction) -> list[str]:
    """Return problems of the current summaries and their history."""
    by_revision = {record.revision: record.compaction for record in records if record.compaction is not None}
    problems: list[str] = []
    covers: list[tuple[Span, ...]] = []
    if head.compaction and head.compaction not in by_revision:
        problems.append(f"the head names the compaction of revision {head.compaction}, which has no record")
    for revision in state.current:
        compaction = by_revision.get(revision)
        summary = compaction.summary if compaction is not None else None
        if summary is None or summary.withdrawn or not summary.text:
            problems.append(f"the summary of revision {revision} is current, but has no text")
            continue
        twice = spans.common(spans.union(*covers), summary.covers)
        if twice:
            problems.append(f"entries {spans.in_words(twice)} are covered by two summaries")
        covers.append(summary.covers)
        problems += _of_lineage(summary, by_revision)
    loose = spans.minus(state.covered, spans.union(*covers))
    if loose:
        problems.append(f"entries {spans.in_words(loose)} are covered by no current summary")
    return problems


def _of_lineage(summary: Summary, by_revision: dict[int, Compaction]) -> list[str]:
    """Return problems of a summary's ancestry: a summary must cover everything that its parents covered."""
    problems = []
    for parent in summary.parents:
        compaction = by_revision.get(parent)
        parent_summary = compaction.summary if compaction is not None else None
        if parent_summary is None:
            problems.append(f"summary {summary.id} supersedes that of revision {parent}, which has no record")
        elif spans.minus(parent_summary.covers, summary.covers):
            not_covered = spans.minus(parent_summary.covers, summary.covers)
            problems.append(
                f"summary {summary.id} does not cover entries {spans.in_words(not_covered)}, as its parent did"
            )
    return problems
