"""What strategies may take and what they may not: shared by all of them. Pure.

System and pinned entries and calls that may still be answered always stay. So does the open interaction, except where a
strategy counts in entries (`recent_entries`): then only its human message does, beside the recent window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from palimpsest.compaction import InteractionGroups, Snapshot
from palimpsest.context.groups import Group
from palimpsest.log import spans
from palimpsest.log.spans import Span


def spans_of(groups: Iterable[Group]) -> tuple[Span, ...]:
    """Return where the entries of these groups lie."""
    return spans.of(entry.seq for group in groups for entry in group.entries)


def cost(groups: Iterable[Group]) -> int:
    """What these groups cost, in tokens."""
    return sum(group.cost for group in groups)


def count(groups: Iterable[Group]) -> int:
    """How many entries these groups hold."""
    return sum(len(group.entries) for group in groups)


def is_fixed(group: Group, snapshot: Snapshot) -> bool:
    """Whether the group is pinned or of the system, and so in every context."""
    return group.pinned or any(
        entry.seq in snapshot.pinned or (entry.kind == "message" and entry.role == "system") for entry in group.entries
    )


def is_free(group: Group, snapshot: Snapshot) -> bool:
    """Whether the group itself may leave: it is not fixed, and no call in it may still be answered."""
    return not group.pending and not is_fixed(group, snapshot)


def completed(snapshot: Snapshot) -> list[InteractionGroups]:
    """Return the completed active interactions, oldest first: those of which something may leave."""
    return _completed(snapshot.interactions, snapshot)


def _completed(interactions: Iterable[InteractionGroups], snapshot: Snapshot) -> list[InteractionGroups]:
    return [
        interaction
        for interaction in interactions
        if interaction.turn and not interaction.open and any(is_free(group, snapshot) for group in interaction.groups)
    ]


def uncovered(snapshot: Snapshot) -> list[InteractionGroups]:
    """Return the interactions that no summary covers, oldest first: those that are active, and those of the archive.

    One of which a cut has evicted a part is there once, whole.
    """
    if not snapshot.archived:
        return list(snapshot.interactions)
    found: dict[int, InteractionGroups] = {}
    for part in (*snapshot.archived, *snapshot.interactions):
        before = found.get(part.turn)
        groups = part.groups if before is None else tuple(sorted((*before.groups, *part.groups), key=_seq))
        found[part.turn] = InteractionGroups(part.turn, groups, part.open)
    return [found[turn] for turn in sorted(found)]


def _seq(group: Group) -> int:
    return group.seq


def countable(snapshot: Snapshot) -> list[InteractionGroups]:
    """Return the completed interactions that triggers count, oldest first: those that no summary covers.

    What a context's cuts have evicted counts like the rest, or a budget would keep them from ever being enough.
    """
    return _completed(uncovered(snapshot), snapshot)


def loose(snapshot: Snapshot, *, with_open: bool = False) -> list[Group]:
    """Return the active groups that may leave, oldest first; `with_open` takes those of open interactions, too."""
    return [
        group
        for interaction in snapshot.interactions
        if with_open or not interaction.open
        for group in interaction.groups
        if is_free(group, snapshot)
    ]


def archived(snapshot: Snapshot) -> list[Group]:
    """Return the groups of the archive that no summary covers, oldest first."""
    return [group for interaction in snapshot.archived for group in interaction.groups if is_free(group, snapshot)]


def outside(snapshot: Snapshot, keep: int, tokens: int | None) -> list[Group]:
    """Return the active groups that may leave, but for the newest `keep` interactions, shrunk to `tokens`."""
    return older(snapshot, recent(snapshot, keep=keep, tokens=tokens)) if keep else loose(snapshot)


def has_news(snapshot: Snapshot) -> bool:
    """Whether anything was appended since the strategy ran last."""
    return any(group.entries[-1].seq >= snapshot.seen for group in snapshot.groups)


class Recent(msgspec.Struct, frozen=True):
    """The recent window: all from `start` (a `seq`) on, and the human message at `human` (0: none) before it.

    That is the one of the interaction which the window begins in the middle of.
    """

    start: int
    human: int = 0

    def holds(self, group: Group) -> bool:
        """Whether the group is in it."""
        return group.seq >= self.start or group.seq == self.human


def recent(
    snapshot: Snapshot, *, keep: int = 0, entries: int | None = None, tokens: int | None = None, minimum: int = 0
) -> Recent:
    """Return the recent window.

    It holds the newest `keep` completed interactions and all that is open; or the last `entries` (None: not counted),
    extended back to the start of the interaction that the oldest of them is in. It shrinks, in whole groups, to
    `tokens`, but never to less than the newest group. Where the extension leaves fewer than `minimum` entries that may
    leave, it does without.
    """
    groups = snapshot.groups
    starts = [_kept_from(snapshot, groups, keep)] if entries is None else _counted_from(groups, entries)
    if entries is not None and keep:
        kept = _kept_from(snapshot, groups, keep)
        starts = [min(start, kept) for start in starts]
    window = Recent(0)
    for start in starts:
        window = _from(snapshot, groups, _shrunk(groups, start, tokens))
        if count(older(snapshot, window, with_open=entries is not None)) >= minimum:
            break
    return window


def older(snapshot: Snapshot, window: Recent, *, with_open: bool = False) -> list[Group]:
    """Return the active groups before the window that may leave, oldest first."""
    return [group for group in loose(snapshot, with_open=with_open) if not window.holds(group)]


def _kept_from(snapshot: Snapshot, groups: Sequence[Group], keep: int) -> int:
    """The place of the first group of the kept interactions. Where there are no more than these, all is kept."""
    done = completed(snapshot)
    if len(done) <= keep:
        return 0
    if keep:
        return groups.index(done[-keep].groups[0])
    still_open = [interaction for interaction in snapshot.interactions if interaction.open]
    return groups.index(still_open[0].groups[0]) if still_open else len(groups)


def _counted_from(groups: Sequence[Group], entries: int) -> list[int]:
    """The place of the first group of the interaction, and of the group, in which the last `entries` begin."""
    start, missing = len(groups), entries
    while start and missing > 0:
        start -= 1
        missing -= len(groups[start].entries)
    extended = start
    while 0 < extended < len(groups) and groups[extended - 1].turn == groups[start].turn:
        extended -= 1
    return [extended, start]


def _shrunk(groups: Sequence[Group], start: int, tokens: int | None) -> int:
    if tokens is None:
        return start
    held = cost(groups[start:])
    while held > tokens and start < len(groups) - 1:
        held -= groups[start].cost
        start += 1
    return start


def _from(snapshot: Snapshot, groups: Sequence[Group], start: int) -> Recent:
    if start < len(groups):
        first = groups[start]
        return Recent(first.seq, first.turn if first.turn != first.seq else 0)
    last = snapshot.interactions[-1] if snapshot.interactions else None
    return Recent(groups[-1].seq + 1 if groups else 1, last.turn if last is not None and last.open else 0)
