"""Compare a list of messages with a session's log: which active entries it repeats, and which messages are new. Pure.

A log has one order. So the entries that stay are a beginning of the list that the active entries hold in this order.
Everything after the first new message is new, too, because nothing can be inserted before entries of the log. Groups
stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec

from palimpsest.log import spans
from palimpsest.log.entry import BESIDE, Entry, defaults, same
from palimpsest.log.head import OPEN_CALLS, Head
from palimpsest.log.linking import link
from palimpsest.log.spans import Span

Group = list[Entry]

_replace = msgspec.structs.replace


class Replacement(NamedTuple):
    """How a list replaces a log: the entries that it begins with and that stay, and the entries to add, in order."""

    kept: list[Entry]
    fresh: list[Entry]


def replacement(head: Head, active: Sequence[Entry], given: Sequence[Entry], most: int) -> Replacement:
    """Return which entries the list repeats. Everything after its first `most` entries is new in any case.

    A message that is repeated at another place gets the importance, pin, expiry, status and metadata of its first
    entry.
    """
    intact = [group for group in _grouped(active) if not any(entry.erased for entry in group)]
    wanted = _grouped(link(Head(), given[:most], 1, bounded=False)[1])
    kept_groups = _matched(intact, wanted)
    if (
        intact
        and intact[-1] not in kept_groups[-1:]
        and intact[-1][0].group == head.tail
        and len(kept_groups) < len(wanted)
    ):
        kept_groups += _continued_newest(intact[-1], wanted[len(kept_groups)])
    if (
        kept_groups
        and _may_continue(kept_groups[-1])
        and kept_groups[-1][0].group != head.tail
        and len(given) > _count(kept_groups)
    ):
        kept_groups.pop()  # the next message may belong to this group, and would be linked elsewhere
    kept = [entry for group in _before_lost_result(kept_groups, head) for entry in group]
    seqs = {entry.seq for entry in kept}
    dropped = [entry for entry in active if entry.seq not in seqs and not entry.erased]
    return Replacement(kept, _with_earlier_fields(given[len(kept) :], dropped, head.pinned))


def staying(head: Head, active: Sequence[Entry], seen: int) -> tuple[Span, ...]:
    """Return the places that stay active since the caller had not seen them: all from `seen` on, with their groups."""
    unseen_groups = {entry.group for entry in active if entry.seq >= seen}
    their_entries = spans.of(entry.seq for entry in active if entry.group in unseen_groups)
    return spans.union(their_entries, [(seen, head.next_seq - 1)] if seen < head.next_seq else ())


def says_the_same(stored: Entry, given: Entry) -> bool:
    """Whether an entry of the log says the same as a given one. An erased entry may have."""
    return stored.erased or same(_comparable(stored, given), _comparable(given, given))


def _comparable(entry: Entry, given: Entry) -> Entry:
    """Return the entry without what a provider's message does not say, or need not say."""
    status = given.status if given.status in (None, "unknown") else entry.status
    return _replace(entry, status=status, **_UNSAID)


_UNSAID = defaults("id", "continues", "revision", *BESIDE)


def _grouped(entries: Iterable[Entry]) -> list[Group]:
    return [list(members) for _, members in groupby(entries, attrgetter("group"))]


def _count(groups: Iterable[Group]) -> int:
    return sum(map(len, groups))


def _alike(group: Group, wanted: Group) -> bool:
    return len(group) == len(wanted) and all(map(says_the_same, group, wanted)) and _links(group) == _links(wanted)


def _links(group: Group) -> list[int]:
    """Return for each entry of the group the distance to the entry that it answers (0: none in the group)."""
    return [entry.seq - entry.answers if entry.answers >= group[0].seq else 0 for entry in group]


def _matched(groups: Sequence[Group], wanted: Sequence[Group]) -> list[Group]:
    """Return as many groups as possible that match the beginning of the list in its order.

    If several groups match a place, the newest is taken.
    """
    count = 0
    for group in groups:
        if count < len(wanted) and _alike(group, wanted[count]):
            count += 1
    matched: list[Group] = []
    for group in reversed(groups):
        if len(matched) < count and _alike(group, wanted[count - len(matched) - 1]):
            matched.append(group)
    return _with_equal_answers(matched[::-1], wanted)


def _continued_newest(newest: Group, wanted: Group) -> list[Group]:
    """Return the log's newest group if a group of the list continues it, as a list of at most one group."""
    goes_on = len(newest) < len(wanted) and _may_continue(newest) and _alike(newest, wanted[: len(newest)])
    return [newest] if goes_on else []


def _with_equal_answers(matched: list[Group], wanted_groups: Sequence[Group]) -> list[Group]:
    """Return the groups before the first one with a result that answers another call in the log than in the list."""
    place_of = {0: 0}
    for i, (group, wanted) in enumerate(zip(matched, wanted_groups, strict=False)):
        place_of |= {listed.seq: entry.seq for entry, listed in zip(group, wanted, strict=True)}
        if any(place_of.get(listed.answers) != entry.answers for entry, listed in zip(group, wanted, strict=True)):
            return matched[:i]
    return matched


def _before_lost_result(groups: list[Group], head: Head) -> list[Group]:
    """Return the groups before the first one with a call whose result would be dropped.

    Such a call waits in the list, but not in the log. A head names only the newest of very many waiting calls, so older
    ones are assumed to wait.
    """
    waiting = {call.seq for call in head.calls}
    since = min(waiting) if len(waiting) >= OPEN_CALLS else 0
    while True:
        answered = waiting.union(entry.answers for group in groups for entry in group)
        unanswered_groups = (
            i
            for i, group in enumerate(groups)
            if any(entry.kind == "tool_call" and entry.seq >= since and entry.seq not in answered for entry in group)
        )
        end = next(unanswered_groups, len(groups))
        if end == len(groups):
            return groups
        groups = groups[:end]


def _may_continue(group: Group) -> bool:
    """Whether the next message may belong to this group: a call of it waits, or the model has not answered yet."""
    calls = {entry.seq for entry in group if entry.kind == "tool_call"}
    last = group[-1]
    waiting = calls - {entry.answers for entry in group}
    return bool(waiting) or last.pauses or (last.kind == "message" and last.role == "assistant" and last.is_reasoning)


def _with_earlier_fields(fresh: Sequence[Entry], dropped: Sequence[Entry], pinned: Sequence[int]) -> list[Entry]:
    """Return the entries to add. One that repeats a dropped entry takes over that entry's fields."""
    by_words: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in dropped:
        by_words.setdefault((entry.kind, entry.role, entry.text), []).append(entry)
    added: list[Entry] = []
    for entry in fresh:
        same_words = by_words.get((entry.kind, entry.role, entry.text), [])
        earlier = next((candidate for candidate in same_words if says_the_same(candidate, entry)), None)
        if earlier is None:
            added.append(entry)
            continue
        same_words.remove(earlier)
        status = entry.status if entry.status not in (None, "unknown") else earlier.status
        metadata = earlier.metadata if entry.metadata is None else entry.metadata
        pin = earlier.seq in pinned and earlier.role != "system"  # system messages are pinned anyway
        beside = {name: getattr(earlier, name) for name in BESIDE} | {"metadata": metadata, "pinned": pin}
        added.append(_replace(entry, status=status, **beside))
    return added
