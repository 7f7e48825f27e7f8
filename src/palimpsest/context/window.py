"""From entries and a cut to what is shown, group by group. Pure.

A view is a function of the entries from the cut's start on and of the cut, and of nothing else: not of the
time, not of counts, not of what is in memory. That is what keeps the prefix of a context stable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Protocol

import msgspec

from palimpsest.context.groups import Group, Meter, by_pause, fill, is_plain, shown_whole
from palimpsest.formats.wording import is_empty
from palimpsest.log.entry import Entry, microseconds_of
from palimpsest.log.head import Cut

LAST = 2**63
"""Behind every group."""

BY_CUT, BY_CONDITION = "left out by the cut", "a condition"
"""Why a window leaves out what might be shown."""

NEWER_VERSION = "a newer version of a file context"
"""Why an older one is shown no longer."""


class Rule(Protocol):
    """What an entry must meet to be shown."""

    def holds(self, values: Mapping[str, Mapping[str, object]]) -> bool:
        """Whether it does, given what a condition may see of it."""
        ...


class End(msgspec.Struct, frozen=True):
    """The last group of a window, to which more may come; all before it is shown as it is whatever comes.

    `entries` are its own. Before it came so many groups, so many entries that are left out, and the `newest` named
    contexts. Where it is not `apart`, what comes may change what is before it, too.
    """

    entries: list[Entry] = []
    groups: int = 0
    left_out: int = 0
    newest: dict[str, int] = {}
    apart: bool = True


class Window(msgspec.Struct, frozen=True):
    """What a cut shows of the entries given: groups oldest first, and what it does not show, with the reason."""

    groups: list[Group]
    pending: list[Group]
    left_out: list[tuple[Entry, str]]
    stale: list[tuple[int, str]]
    """Entries that are shown no longer from the next cut on, which must be made now: (seq, reason)."""
    expires: float = inf
    """When the first of the others expires, in microseconds since 1970."""
    end: End = End()


def look(
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

    `newest` are the named contexts shown before these entries, by `seq`; those of the entries are added to it.
    `open_group` is the one that may wait for results (0: none; default: that of the last entry).
    """
    shows = _Looking(cut, meter, now, conditions, {} if newest is None else newest)
    shows.last = open_group if open_group is not None else entries[-1].group if entries else 0
    groups, special = shows.groups, shows.pins.union(shows.gone, shows.clamps)
    i, count, end, before = 0, len(entries), End(), 0
    while i < count:
        entry = entries[i]
        seq = entry.group
        members = [entry]
        i += 1
        while i < count and entries[i].group == seq:
            members.append(entries[i])
            i += 1
        if i == count:
            apart = before < seq and not (shows.pending or shows.stale)
            end = End(members, len(groups), len(shows.left_out), dict(shows.newest), apart)
        elif before < seq:
            before = seq
        else:  # no log is so that was written here
            before = LAST
        if len(members) == 1 and is_plain(entry) and entry.seq not in special and not conditions:
            groups.append(shown_whole(Group(seq, entry.turn, members), meter))
        else:
            shows.show(members)
    return Window(groups, shows.pending, shows.left_out, shows.stale, shows.expires, end)


def look_on(
    window: Window, entries: Sequence[Entry], cut: Cut, meter: Meter, *, now: float, conditions: Sequence[Rule] = ()
) -> Window | None:
    """Show what `look` would of the entries of a window and of these behind them; None where it has to look at all.

    The window itself is as it was. Nothing of it may have expired by `now`.
    """
    end = window.end
    if not end.apart or now >= window.expires or window.stale:
        return None
    if not entries:
        return window
    if end.entries and any(entry.group < end.entries[0].group for entry in entries):
        return None
    newest = dict(end.newest)
    more = look([*end.entries, *entries], cut, meter, now=now, conditions=conditions, newest=newest)
    last = more.end
    return Window(
        [*window.groups[: end.groups], *more.groups],
        more.pending,
        [*window.left_out[: end.left_out], *more.left_out],
        more.stale,
        min(window.expires, more.expires),
        End(last.entries, end.groups + last.groups, end.left_out + last.left_out, last.newest, last.apart),
    )


class _Looking:
    """What a window comes to so far."""

    def __init__(self, cut: Cut, meter: Meter, now: float, conditions: Sequence[Rule], newest: dict[str, int]) -> None:
        self._mask, self._meter, self._now, self._conditions, self.newest = cut.mask, meter, now, conditions, newest
        self.gone, self.pins = _members(cut.gone), frozenset(cut.pins)
        self.clamps = {clamp.seq: clamp for clamp in cut.clamps}
        self._leaves_out = bool(self.gone or conditions)
        self.last = 0
        self.groups: list[Group] = []
        self.pending: list[Group] = []
        self.left_out: list[tuple[Entry, str]] = []
        self.stale: list[tuple[int, str]] = []
        self.expires = inf

    def show(self, members: list[Entry]) -> None:
        """Show one group: of what of it waits for nothing, what the cut and the conditions leave.

        Whether it waits is asked of the whole group: what leaves out a call does not answer it.
        """
        living, held = [member for member in members if not member.erased], list[Entry]()
        exempt = any(member.pinned or member.seq in self.pins for member in living) if self._conditions else True
        if members[0].group == self.last and _is_open(living):
            living, held = _parted(living)
            self.pending.append(Group(held[0].seq, members[0].turn, held))
            self.pending[-1].pending = True
        kept = self._kept(living, exempt) if self._leaves_out else living
        if not kept:
            return
        self._outdate(kept)
        group = Group(members[0].group, members[0].turn, kept)
        group.last = members[-1].seq
        group.pinned = bool(self.pins) and any(member.seq in self.pins for member in (*kept, *held))
        fill(group, self._mask, self.clamps, self._meter, self.left_out)
        if group.items:
            self.groups.append(group)

    def _kept(self, kept: list[Entry], exempt: bool) -> list[Entry]:
        """What the cut and, unless the group is `exempt`, the conditions leave."""
        gone = self.gone
        if gone and not gone.isdisjoint(member.seq for member in kept):
            kept = without(kept, gone & {member.seq for member in kept}, self.left_out, BY_CUT)
        return kept if exempt else _meeting(kept, self._conditions, self._meter, self.left_out)

    def _outdate(self, members: list[Entry]) -> None:
        """Note which of these have expired, when the others do, and which earlier contexts they supersede."""
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


def _members(ranges: Sequence[tuple[int, int]]) -> set[int]:
    return {seq for first, last in ranges for seq in range(first, last + 1)}


def _is_open(members: Sequence[Entry]) -> bool:
    calls = {entry.seq for entry in members if entry.kind == "tool_call"}
    if calls:
        return bool(calls - {entry.answers for entry in members if entry.kind == "tool_result"})
    return bool(members) and members[-1].is_reasoning and members[-1].kind == "message"


def _parted(members: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """What of an open group was said before a pause, and what is open."""
    runs = by_pause(members)
    done = next(i for i, run in enumerate(runs) if _is_open(run))
    return [entry for run in runs[:done] for entry in run], [entry for run in runs[done:] for entry in run]


# --- conditions that depend on one message alone (the others act at cuts)


def _meeting(
    members: list[Entry],
    conditions: Sequence[Rule],
    meter: Meter,
    left_out: list[tuple[Entry, str]],
) -> list[Entry]:
    """Drop entries that fail a condition, and what cannot stand without them."""
    failed = set()
    for i, entry in enumerate(members):
        if entry.kind == "message" and entry.role in ("system", "user"):
            continue  # a human message may still be open: it is judged at cuts
        calls = entry.kind == "tool_call" or (i + 1 < len(members) and members[i + 1].continues)
        values = {"message": message_values(entry, meter, calls)}
        if not all(condition.holds(values) for condition in conditions):
            failed.add(entry.seq)
    return without(members, failed, left_out) if failed else members


def without(
    members: list[Entry], failed: set[int], left_out: list[tuple[Entry, str]], reason: str = BY_CONDITION
) -> list[Entry]:
    """Return the group without `failed`: dropping a result drops its call, dropping a call its results.

    A late result is of another group than its call: neither takes the other along.
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
    """What a condition may see of one message. `calls` says whether it asks for tool calls."""
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
