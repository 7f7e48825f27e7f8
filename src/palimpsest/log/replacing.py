"""Which entries of a session a list of messages is, and which of its messages are new. Pure.

A log has one order. So what stays is a beginning of the list that the active entries hold in this order; what follows
the first new message is new, too, since nothing can come before what is in the log already. Groups stay whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

import msgspec

from palimpsest.log import spans
from palimpsest.log.entry import Entry, same
from palimpsest.log.head import OPEN_CALLS, Head
from palimpsest.log.linking import link
from palimpsest.log.spans import Span

Group = list[Entry]

_replace = msgspec.structs.replace


class Replacement(NamedTuple):
    """What becomes of a list: the entries that it begins with and that stay, and what is to be added, in order."""

    kept: list[Entry]
    fresh: list[Entry]


def replacement(head: Head, active: Sequence[Entry], given: Sequence[Entry], most: int) -> Replacement:
    """Return what of a list is there; what follows its first `most` entries is new in any case.

    What is said again at another place keeps what its first entry was given beside its words: importance, pin, expiry,
    status and metadata.
    """
    whole = [group for group in _grouped(active) if not any(entry.erased for entry in group)]
    wanted = _grouped(link(Head(), given[:most], 1, bounded=False)[1])
    there = _matched(whole, wanted)
    if whole and whole[-1] not in there[-1:] and whole[-1][0].group == head.tail and len(there) < len(wanted):
        there += _begun(whole[-1], wanted[len(there)])
    if there and _goes_on(there[-1]) and there[-1][0].group != head.tail and len(given) > _size(there):
        there.pop()  # what comes next may be of its group, and would be apart from it
    kept = [entry for group in _as_waiting(there, head) for entry in group]
    seqs = {entry.seq for entry in kept}
    left = [entry for entry in active if entry.seq not in seqs and not entry.erased]
    return Replacement(kept, _moved(given[len(kept) :], left, head.pinned))


def staying(head: Head, active: Sequence[Entry], seen: int) -> tuple[Span, ...]:
    """Return the places that stay active because nobody had seen them: all from `seen` on, and their groups."""
    later = {entry.group for entry in active if entry.seq >= seen}
    parts = spans.of(entry.seq for entry in active if entry.group in later)
    return spans.union(parts, [(seen, head.next_seq - 1)] if seen < head.next_seq else ())


def says_the_same(stored: Entry, given: Entry) -> bool:
    """Whether an entry of the log says what one that was given does; one that was erased may have."""
    return stored.erased or same(_said(stored, given), _said(given, given))


def _said(entry: Entry, given: Entry) -> Entry:
    """The entry without what a message of a provider does not say, or need not."""
    status = given.status if given.status in (None, "unknown") else entry.status
    bare = {"id": "", "metadata": None, "importance": None, "pinned": False, "expires_at": None, "continues": False}
    return _replace(entry, status=status, revision=0, **bare)


def _grouped(entries: Iterable[Entry]) -> list[Group]:
    return [list(members) for _, members in groupby(entries, attrgetter("group"))]


def _size(groups: Iterable[Group]) -> int:
    return sum(map(len, groups))


def _alike(there: Group, given: Group) -> bool:
    return len(there) == len(given) and all(map(says_the_same, there, given)) and _links(there) == _links(given)


def _links(group: Group) -> list[int]:
    """Which entry of the group each one answers: its distance, 0 for what is not in the group."""
    return [entry.seq - entry.answers if entry.answers >= group[0].seq else 0 for entry in group]


def _matched(there: Sequence[Group], given: Sequence[Group]) -> list[Group]:
    """Return the groups that the list begins with, as many as there are in its order; of several the newest."""
    found = 0
    for group in there:
        if found < len(given) and _alike(group, given[found]):
            found += 1
    matched: list[Group] = []
    for group in reversed(there):
        if len(matched) < found and _alike(group, given[found - len(matched) - 1]):
            matched.append(group)
    return _answering(matched[::-1], given)


def _begun(newest: Group, wanted: Group) -> list[Group]:
    """The log's newest group, where a group of the list goes on with it."""
    goes_on = len(newest) < len(wanted) and _goes_on(newest) and _alike(newest, wanted[: len(newest)])
    return [newest] if goes_on else []


def _answering(matched: list[Group], given: Sequence[Group]) -> list[Group]:
    """The groups up to the first with a result that answers another call here than in the list."""
    places = {0: 0}
    for i, (group, wanted) in enumerate(zip(matched, given, strict=False)):
        places |= {one.seq: entry.seq for entry, one in zip(group, wanted, strict=True)}
        if any(places.get(one.answers) != entry.answers for entry, one in zip(group, wanted, strict=True)):
            return matched[:i]
    return matched


def _as_waiting(there: list[Group], head: Head) -> list[Group]:
    """The groups up to the first with a call that waits in the list and not in the log, where what goes answered it.

    Of very many calls that wait a head names the newest: an older one is taken to wait.
    """
    waiting = {call.seq for call in head.calls}
    since = min(waiting) if len(waiting) >= OPEN_CALLS else 0
    while True:
        answered = waiting.union(entry.answers for group in there for entry in group)
        lost = (
            i
            for i, group in enumerate(there)
            if any(one.kind == "tool_call" and one.seq >= since and one.seq not in answered for one in group)
        )
        end = next(lost, len(there))
        if end == len(there):
            return there
        there = there[:end]


def _goes_on(group: Group) -> bool:
    """Whether what comes next may belong to the group: a call of it waits, or the model has not spoken yet."""
    calls = {entry.seq for entry in group if entry.kind == "tool_call"}
    last = group[-1]
    waits = calls - {entry.answers for entry in group}
    return bool(waits) or last.pauses or (last.kind == "message" and last.role == "assistant" and last.is_reasoning)


def _moved(fresh: Sequence[Entry], left: Sequence[Entry], pinned: Sequence[int]) -> list[Entry]:
    """The entries to be added; one that is left out and said again gives what it had beside its words."""
    by_words: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in left:
        by_words.setdefault((entry.kind, entry.role, entry.text), []).append(entry)
    found: list[Entry] = []
    for entry in fresh:
        same_words = by_words.get((entry.kind, entry.role, entry.text), [])
        was = next((one for one in same_words if says_the_same(one, entry)), None)
        if was is None:
            found.append(entry)
            continue
        same_words.remove(was)
        status = entry.status if entry.status not in (None, "unknown") else was.status
        metadata = was.metadata if entry.metadata is None else entry.metadata
        pin = was.seq in pinned and was.role != "system"  # which is kept by itself
        beside = {"importance": was.importance, "pinned": pin, "expires_at": was.expires_at}
        found.append(_replace(entry, status=status, metadata=metadata, **beside))
    return found
