"""From entries and a cut to the groups that are shown. Pure.

A view is a function of the cut and the entries from its start on, and of nothing else: not of the time, of counts, or
of anything kept in memory. This keeps the prefix of a context stable.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import Protocol

import msgspec

from palimpsest.context.groups import Group, Meter, fill, is_plain, shown_whole
from palimpsest.formats import Format
from palimpsest.formats.wording import is_empty
from palimpsest.log.entry import Entry, microseconds_of
from palimpsest.log.head import Cut

LAST = 2**63
"""Greater than the `seq` of any group."""

BY_CUT, BY_CONDITION = "left out by the cut", "a condition"
"""Why a window leaves out an entry that could be shown."""

NEWER_VERSION = "a newer version of a file context"
"""Why an older version is not shown any more."""


class Rule(Protocol):
    """A condition that an entry must meet to be shown."""

    def holds(self, values: Mapping[str, Mapping[str, object]]) -> bool:
        """Whether the entry with these values meets the condition."""
        ...


class End(msgspec.Struct, frozen=True):
    """The last group of a window, to which entries may still be added. What is before it is final.

    `entries` are those of the group. The other fields describe the window before it: the number of `groups`, the number
    of entries `left_out`, and the `newest` version of each named context. If `apart` is False, new entries may also
    change what is before the group.
    """

    entries: list[Entry] = []
    groups: int = 0
    left_out: int = 0
    newest: dict[str, int] = {}
    apart: bool = True


class Window(msgspec.Struct, frozen=True):
    """What a cut shows of the given entries: groups, oldest first; and what it does not show, with the reason."""

    groups: list[Group]
    pending: list[Group]
    left_out: list[tuple[Entry, str]]
    stale: list[tuple[int, str]]
    """Entries that the next cut does not show, so that it has to be made now: (seq, reason)."""
    expires: float = inf
    """When the first of the other entries expires, in microseconds since 1970."""
    end: End = End()


def show_entries(
    entries: Sequence[Entry],
    cut: Cut,
    meter: Meter,
    *,
    now: float,
    conditions: Sequence[Rule] = (),
    newest: dict[str, int] | None = None,
    open_group: int | None = None,
) -> Window:
    """Show `entries` (ascending) under `cut`. `now` is in microseconds since 1970.

    `newest` maps each named context shown before these entries to its `seq`; named contexts among the entries are added
    to it. `open_group` is the group that may wait for results (0: none; default: the group of the last entry).
    """
    builder = _WindowBuilder(cut, meter, now, conditions, {} if newest is None else newest)
    builder.last = open_group if open_group is not None else entries[-1].group if entries else 0
    groups, affected = builder.groups, builder.pins.union(builder.gone, builder.clamps)
    i, count, end, last_group = 0, len(entries), End(), 0
    while i < count:
        entry = entries[i]
        seq = entry.group
        members = [entry]
        i += 1
        while i < count and entries[i].group == seq:
            members.append(entries[i])
            i += 1
        if i == count:
            can_extend = last_group < seq and not (builder.pending or builder.stale)
            end = End(members, len(groups), len(builder.left_out), dict(builder.newest), can_extend)
        elif last_group < seq:
            last_group = seq
        else:  # groups out of order, in a log that this library has not written
            last_group = LAST
        if len(members) == 1 and is_plain(entry) and entry.seq not in affected and not conditions:
            groups.append(shown_whole(Group(seq, entry.turn, members), meter))
        else:
            builder.show(members)
    return Window(groups, builder.pending, builder.left_out, builder.stale, builder.expires, end)


def extend_window(
    window: Window, entries: Sequence[Entry], cut: Cut, meter: Meter, *, now: float, conditions: Sequence[Rule] = ()
) -> Window | None:
    """Extend a window by `entries`, with the result that `show_entries` has for all of them. None if it must be called.

    The window itself is not changed. It cannot be extended if anything in it has expired by `now`.
    """
    end = window.end
    if not end.apart or now >= window.expires or window.stale:
        return None
    if not entries:
        return window
    if end.entries and any(entry.group < end.entries[0].group for entry in entries):
        return None
    newest = dict(end.newest)
    continued = show_entries([*end.entries, *entries], cut, meter, now=now, conditions=conditions, newest=newest)
    new_end = continued.end
    return Window(
        [*window.groups[: end.groups], *continued.groups],
        continued.pending,
        [*window.left_out[: end.left_out], *continued.left_out],
        continued.stale,
        min(window.expires, continued.expires),
        End(
            new_end.entries, end.groups + new_end.groups, end.left_out + new_end.left_out, new_end.newest, new_end.apart
        ),
    )


class _WindowBuilder:
    """The state of a window while its groups are added."""

    def __init__(self, cut: Cut, meter: Meter, now: float, conditions: Sequence[Rule], newest: dict[str, int]) -> None:
        self._mask, self._meter, self._now, self._conditions, self.newest = cut.mask, meter, now, conditions, newest
        self._thoughts = cut.thoughts
        self.gone, self.pins = _seqs_of(cut.gone), frozenset(cut.pins)
        self.clamps = {clamp.seq: clamp for clamp in cut.clamps}
        self._leaves_out = bool(self.gone or conditions)
        self.last = 0
        self.groups: list[Group] = []
        self.pending: list[Group] = []
        self.left_out: list[tuple[Entry, str]] = []
        self.stale: list[tuple[int, str]] = []
        self.expires = inf

    def show(self, members: list[Entry]) -> None:
        """Show one group: the part that waits for nothing, without what the cut and the conditions drop.

        Whether the group waits is decided before anything is dropped: dropping a call does not answer it.
        """
        live, waiting = [member for member in members if not member.erased], list[Entry]()
        exempt = any(member.pinned or member.seq in self.pins for member in live) if self._conditions else True
        if members[0].group == self.last and _is_open(live, answered := _answered(members)):
            live, waiting = _split_at_open(live, answered)
            self.pending.append(Group(waiting[0].seq, members[0].turn, waiting))
            self.pending[-1].pending = True
        shown_members = self._without_dropped(live, exempt) if self._leaves_out else live
        if not shown_members:
            return
        self._note_stale(shown_members)
        group = Group(members[0].group, members[0].turn, shown_members)
        group.last = members[-1].seq
        group.pinned = bool(self.pins) and any(member.seq in self.pins for member in (*shown_members, *waiting))
        fill(group, self._mask, self.clamps, self._meter, self.left_out, thoughts=self._thoughts)
        if group.items:
            self.groups.append(group)

    def _without_dropped(self, kept: list[Entry], exempt: bool) -> list[Entry]:
        """Return the entries that the cut leaves and, unless the group is `exempt`, the conditions."""
        gone = self.gone
        if gone and not gone.isdisjoint(member.seq for member in kept):
            kept = without(kept, gone & {member.seq for member in kept}, self.left_out, BY_CUT)
        return kept if exempt else _passing(kept, self._conditions, self._meter, self.left_out)

    def _note_stale(self, members: list[Entry]) -> None:
        """Note which entries have expired, when the others expire, and which earlier contexts are superseded."""
        newest = self.newest
        for member in members:
            if member.expires_at is not None:
                at = microseconds_of(member.expires_at)
                if at <= self._now:
                    self.stale.append((member.seq, "expiry"))
                else:
                    self.expires = min(self.expires, at)
            if member.kind == "context" and member.name:
                if member.name in newest:
                    self.stale.append((newest[member.name], NEWER_VERSION))
                newest[member.name] = member.seq


def opening(group: Group, fmt: Format) -> int:
    """Return how many messages the format puts before this group if the group comes first."""
    messages = fmt.render(group.items) if group.items else []
    return max(len(fmt.join(None, messages).messages) - len(messages), 0)


def by_pause(members: Sequence[Entry]) -> list[list[Entry]]:
    """Split a group's entries at the model's pauses. Results stay with their calls.

    Each run is rendered by itself, so that what was sent before a pause does not change once the model has gone on.
    """
    runs: list[list[Entry]] = [[]]
    run_of_call: dict[int, int] = {}
    paused = False
    for entry in members:
        if entry.kind == "tool_result":
            runs[run_of_call.get(entry.answers, -1)].append(entry)
            continue
        if paused and not entry.continues:
            runs.append([])
        if entry.kind == "tool_call":
            run_of_call[entry.seq] = len(runs) - 1
        runs[-1].append(entry)
        paused = entry.pauses
    return runs


def _seqs_of(ranges: Sequence[tuple[int, int]]) -> set[int]:
    return {seq for first, last in ranges for seq in range(first, last + 1)}


def _answered(members: Sequence[Entry]) -> set[int]:
    """Return the seqs of the calls that these results answer. An erased result has answered its call, too."""
    return {entry.answers for entry in members if entry.kind == "tool_result"}


def _is_open(members: Sequence[Entry], answered: Collection[int]) -> bool:
    calls = {entry.seq for entry in members if entry.kind == "tool_call"}
    if calls:
        return not calls.issubset(answered)
    return bool(members) and members[-1].is_reasoning and members[-1].kind == "message"


def _split_at_open(members: Sequence[Entry], answered: Collection[int]) -> tuple[list[Entry], list[Entry]]:
    """Split an open group at its first open run: the entries before it, and the rest, which is held back."""
    runs = by_pause(members)
    first_open = next(i for i, run in enumerate(runs) if _is_open(run, answered))
    return [entry for run in runs[:first_open] for entry in run], [entry for run in runs[first_open:] for entry in run]


# --- conditions that depend on one message alone (the others act at cuts)


def _passing(
    members: list[Entry],
    conditions: Sequence[Rule],
    meter: Meter,
    left_out: list[tuple[Entry, str]],
) -> list[Entry]:
    """Drop entries that fail a condition, and those that cannot be shown without them."""
    failed_seqs = set()
    for i, entry in enumerate(members):
        if entry.kind == "message" and entry.role in ("system", "user"):
            continue  # its interaction may still be open, so conditions on it apply at cuts
        has_calls = entry.kind == "tool_call" or (i + 1 < len(members) and members[i + 1].continues)
        values = {"message": message_values(entry, meter, has_calls)}
        if not all(condition.holds(values) for condition in conditions):
            failed_seqs.add(entry.seq)
    return without(members, failed_seqs, left_out) if failed_seqs else members


def without(
    members: list[Entry], failed: set[int], left_out: list[tuple[Entry, str]], reason: str = BY_CONDITION
) -> list[Entry]:
    """Return the group without `failed`. Dropping a result drops its call, and dropping a call drops its results.

    A late result belongs to another group than its call, so neither drops the other.
    """
    for entry in members:
        if entry.kind == "tool_result" and not entry.late and (entry.seq in failed or entry.answers in failed):
            failed |= {entry.seq, entry.answers}
    for entry in members:
        if entry.kind == "tool_result" and not entry.late and entry.answers in failed:
            failed.add(entry.seq)
    for run in by_pause(members):
        calls = [entry for entry in run if entry.kind == "tool_call"]
        if calls and all(entry.seq in failed for entry in calls):
            failed |= {entry.seq for entry in run if entry.kind == "message" and is_empty(entry)}
    left_out.extend((entry, reason) for entry in members if entry.seq in failed)
    return [entry for entry in members if entry.seq not in failed]


def message_values(
    entry: Entry, meter: Meter, calls: bool, index: int | None = None, age: int | None = None
) -> dict[str, object]:
    """Return what a condition may see of one message. `calls` says whether the message has tool calls."""
    text = entry.text
    metadata = entry.metadata or {}
    return {
        "role": entry.role,
        "name": entry.name,
        "content": text,
        "content_length": len(text),
        "tokens": meter.whole(entry),
        "index": index,
        "age": age,
        "timestamp": entry.at / 1_000_000,
        "tool_name": entry.name if entry.kind in ("tool_call", "tool_result") else None,
        "tool_status": (entry.status or "unknown") if entry.kind == "tool_result" else None,
        "has_tool_calls": calls,
        "tags": metadata.get("tags") or [],
        "metadata": metadata,
        "kind": entry.kind,
        "pinned": entry.pinned,
        "is_summary": entry.kind == "summary",
    }
