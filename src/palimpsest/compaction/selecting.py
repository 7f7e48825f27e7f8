"""What strategies may take and what not, shared by all of them. Pure.

System and pinned entries and calls that may still be answered always stay. So does the open interaction, unless a
strategy counts in entries (`recent_entries`): then only its human message stays, beside the recent window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from palimpsest.compaction import InteractionGroups, Snapshot
from palimpsest.context.groups import Group
from palimpsest.log import spans
from palimpsest.log.spans import Span


def spans_of(groups: Iterable[Group]) -> tuple[Span, ...]:
    """Return the spans of the entries of these groups."""
    return spans.of(entry.seq for group in groups for entry in group.entries)


def cost(groups: Iterable[Group]) -> int:
    """Return the cost of these groups in tokens."""
    return sum(group.cost for group in groups)


def count(groups: Iterable[Group]) -> int:
    """Return how many entries these groups hold."""
    return sum(len(group.entries) for group in groups)


def is_fixed(group: Group, snapshot: Snapshot) -> bool:
    """Whether the group is in every context, because it is pinned or holds a system message."""
    return group.pinned or any(
        entry.seq in snapshot.pinned or (entry.kind == "message" and entry.role == "system") for entry in group.entries
    )


def is_free(group: Group, snapshot: Snapshot) -> bool:
    """Whether the group may leave: it is not fixed, and no call in it waits for its result."""
    return not group.pending and not is_fixed(group, snapshot)


def completed(snapshot: Snapshot) -> list[InteractionGroups]:
    """Return the completed active interactions of which something may leave, oldest first."""
    return _completed(snapshot.interactions, snapshot)


def _completed(interactions: Iterable[InteractionGroups], snapshot: Snapshot) -> list[InteractionGroups]:
    return [
        interaction
        for interaction in interactions
        if interaction.turn and not interaction.open and any(is_free(group, snapshot) for group in interaction.groups)
    ]


def uncovered(snapshot: Snapshot) -> list[InteractionGroups]:
    """Return the interactions that no summary covers, oldest first, from the active set and the archive.

    An interaction of which a cut has evicted a part is returned once, whole.
    """
    if not snapshot.archived:
        return list(snapshot.interactions)
    by_turn: dict[int, InteractionGroups] = {}
    for part in (*snapshot.archived, *snapshot.interactions):
        earlier = by_turn.get(part.turn)
        groups = part.groups if earlier is None else tuple(sorted((*earlier.groups, *part.groups), key=_seq))
        by_turn[part.turn] = InteractionGroups(part.turn, groups, part.open)
    return [by_turn[turn] for turn in sorted(by_turn)]


def _seq(group: Group) -> int:
    return group.seq


def countable(snapshot: Snapshot) -> list[InteractionGroups]:
    """Return the completed interactions that triggers count, oldest first: those that no summary covers.

    Interactions evicted by a context's cuts count, too. Otherwise cuts could keep the number below a threshold for
    ever.
    """
    return _completed(uncovered(snapshot), snapshot)


def loose(snapshot: Snapshot, *, with_open: bool = False) -> list[Group]:
    """Return the active groups that may leave, oldest first; `with_open` includes those of open interactions."""
    return [
        group
        for interaction in snapshot.interactions
        if with_open or not interaction.open
        for group in interaction.groups
        if is_free(group, snapshot)
    ]


def archived(snapshot: Snapshot) -> list[Group]:
    """Return the groups of the archive that no summary covers and that may leave, oldest first."""
    return [group for interaction in snapshot.archived for group in interaction.groups if is_free(group, snapshot)]


def outside(snapshot: Snapshot, keep: int, tokens: int | None) -> list[Group]:
    """Return the active groups that may leave, except for the newest `keep` interactions, reduced to `tokens`."""
    return older(snapshot, recent(snapshot, keep=keep, tokens=tokens)) if keep else loose(snapshot)


def has_news(snapshot: Snapshot) -> bool:
    """Whether anything was appended since the strategy last ran."""
    return any(group.entries[-1].seq >= snapshot.seen for group in snapshot.groups)


class Recent(msgspec.Struct, frozen=True):
    """The recent window: everything from `start` (a `seq`) on, and the human message at `human` (0: none) before it.

    That is the message of the interaction in the middle of which the window begins.
    """

    start: int
    human: int = 0

    def holds(self, group: Group) -> bool:
        """Whether the window holds this group."""
        return group.seq >= self.start or group.seq == self.human


def recent(
    snapshot: Snapshot, *, keep: int = 0, entries: int | None = None, tokens: int | None = None, minimum: int = 0
) -> Recent:
    """Return the recent window.

    It holds the newest `keep` completed interactions and everything open; or the last `entries` (None: not counted),
    extended back to the start of the interaction of the oldest of them. It shrinks, in whole groups, to `tokens`, but
    never below the newest group. If the extension leaves fewer than `minimum` entries that may leave, it is dropped.
    """
    groups = snapshot.groups
    starts = [_kept_from(snapshot, groups, keep)] if entries is None else _counted_from(groups, entries)
    if entries is not None and keep:
        keep_start = _kept_from(snapshot, groups, keep)
        starts = [min(start, keep_start) for start in starts]
    window = Recent(0)
    for start in starts:
        window = _window_from(snapshot, groups, _shrunk(groups, start, tokens))
        if count(older(snapshot, window, with_open=entries is not None)) >= minimum:
            break
    return window


def older(snapshot: Snapshot, window: Recent, *, with_open: bool = False) -> list[Group]:
    """Return the active groups before the window that may leave, oldest first."""
    return [group for group in loose(snapshot, with_open=with_open) if not window.holds(group)]


def _kept_from(snapshot: Snapshot, groups: Sequence[Group], keep: int) -> int:
    """Return the index of the first kept group. Everything is kept if there are not more interactions than `keep`."""
    completed_interactions = completed(snapshot)
    if len(completed_interactions) <= keep:
        return 0
    if keep:
        return groups.index(completed_interactions[-keep].groups[0])
    still_open = [interaction for interaction in snapshot.interactions if interaction.open]
    return groups.index(still_open[0].groups[0]) if still_open else len(groups)


def _counted_from(groups: Sequence[Group], entries: int) -> list[int]:
    """Return the index of the first group of the interaction, and of the group, in which the last `entries` begin."""
    start, missing = len(groups), entries
    while start and missing > 0:
        start -= 1
        missing -= len(groups[start].entries)
    extended = start
    while 0 < extended < len(groups) and groups[extended - 1].turn == groups[start].turn:
        extended -= 1
    return [extended, start]


def _shrunk(groups: Sequence[Group], start: int, tokens: int | None) -> int:
    """Move the start of a window on, group by group, until it has at most so many tokens."""
    if tokens is None:
        return start
    tokens_held = cost(groups[start:])
    while tokens_held > tokens and start < len(groups) - 1:
        tokens_held -= groups[start].cost
        start += 1
    return start


def _window_from(snapshot: Snapshot, groups: Sequence[Group], start: int) -> Recent:
    """Return the window that begins with the group at this index."""
    if start < len(groups):
        first = groups[start]
        return Recent(first.seq, first.turn if first.turn != first.seq else 0)
    last = snapshot.interactions[-1] if snapshot.interactions else None
    return Recent(groups[-1].seq + 1 if groups else 1, last.turn if last is not None and last.open else 0)
