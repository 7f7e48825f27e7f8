"""Planning a cut: the rungs of the budget ladder that need no summarizer: mask, evict, clamp, give up. Pure.

Whole interactions are kept, newest first, down to low water, so that the next cut is many turns away.
Results before the newest group are masked. Where the newest interaction alone does not fit, its oversized
items are clamped, then its oldest groups are evicted (its human message stays), then its newest group is
clamped to what is left. What then still does not fit raises BudgetImpossible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NoReturn

import msgspec

from palimpsest.context.clamping import level, may_clamp, shortened
from palimpsest.context.groups import NEWEST, Group, Meter, by_interaction, fill, opening
from palimpsest.errors import BudgetImpossible
from palimpsest.log import spans
from palimpsest.log.head import RENDERER, Clamp, Cut

Oversize = Literal["clamp", "drop", "error", "keep_newest"]
"""What becomes of what is over the budget by itself: it is cut short, left out or refused, or exceeds the budget."""
OVERSIZE: tuple[Oversize, ...] = ("clamp", "drop", "error", "keep_newest")


class Room(msgspec.Struct, frozen=True):
    """How much of the log may be shown, in tokens and in provider messages (None: no limit)."""

    tokens: int | None
    messages: int | None

    def holds(self, tokens: int, messages: int) -> bool:
        """Whether so many tokens in so many messages fit; exactly equal fits."""
        return (self.tokens is None or tokens <= self.tokens) and (self.messages is None or messages <= self.messages)

    def less(self, messages: int) -> Room:
        """The room for so many messages fewer."""
        return Room(self.tokens, None if self.messages is None else self.messages - messages)

    def within(self, other: Room) -> Room:
        """This room with no more messages than the other."""
        known = [room.messages for room in (self, other) if room.messages is not None]
        return Room(self.tokens, min(known) if known else None)


class Sight(msgspec.Struct, frozen=True):
    """What a cut is planned from.

    `groups` are shown as if every old result were whole, oldest first; `partial` says that the first of
    them belongs to an interaction (or preamble) that began before what was read. `head` are pinned groups
    and open human messages from before. `room` is high water, `target` low water.
    """

    groups: Sequence[Group]
    head: Sequence[Group]
    ends: int
    """Behind the last group, whole, but before what of it waits for more; where nothing is shown, where the first group
    begins that was read from its beginning: the window does, too."""
    partial: bool
    more: bool
    """Whether older entries were not read, because the room was full before."""
    pinned: frozenset[int]
    cut: Cut
    room: Room
    target: Room
    meter: Meter
    masks: bool
    """Whether old tool results may be replaced by a note."""
    gap: bool
    """Whether older interactions that still fit are taken after one that does not."""
    oversize: Oversize


class CutPlan(msgspec.Struct, frozen=True):
    """What to do: the next cut, the groups it shows (after its head), what it saves, and why.

    `opening` is how many messages the format puts before the first of them. `over` says that the plan exceeds the
    room on purpose (`oversize: keep_newest`).
    """

    cut: Cut
    evicted: int
    masked: int
    clamped: int
    tokens_before: int
    tokens_after: int
    messages_after: int
    opening: int
    over: bool
    rungs: tuple[str, ...]


CLAMP_SHARE = 4
"""An item of the newest interaction, its newest group apart, over a quarter of low water is oversized: it is
clamped before others are evicted."""


def plan(sight: Sight) -> CutPlan:
    """Return the next cut for a window that does not fit its room. Raises BudgetImpossible where nothing does."""
    found = _Ladder(sight).climb()
    if found.over or sight.room.holds(found.tokens_after, found.messages_after + found.opening):
        return found
    room = sight.room.less(found.opening)
    return _Ladder(msgspec.structs.replace(sight, room=room, target=sight.target.within(room))).climb()


def nothing(sight: Sight) -> CutPlan:
    """Return the cut that shows no interaction at all: only system and pinned entries."""
    empty = _Ladder(sight)
    empty.given = msgspec.structs.replace(sight, target=Room(-1, None))
    empty.rungs.append("evict")
    found = empty.finish(over=False)
    if not sight.room.holds(found.tokens_after, found.messages_after + found.opening):
        empty.impossible(0, found.opening)
    return found


class _Ladder:
    """The state of one planning run: what is kept so far and what it costs."""

    def __init__(self, sight: Sight) -> None:
        self.given = sight
        self.meter = sight.meter
        shown = [*sight.head, *sight.groups]
        self.before = sum(group.cost for group in shown)
        self.mask = sight.groups[-1].seq if sight.groups and sight.masks else sight.cut.mask
        self.clamps: dict[int, Clamp] = {}
        for group in shown:
            group.pinned = bool(sight.pinned) and any(entry.seq in sight.pinned for entry in group.entries)
            if not _is_whole_message(group):  # it is shown as it is, whatever else is
                fill(group, self.mask, self.clamps, self.meter)
        self.pins = [group for group in shown if group.pinned]
        self.moved = {group.seq for group in sight.head}
        self.groups = [group for group in shown if not group.pinned or group.seq not in self.moved]
        self.interactions = by_interaction(self.groups)
        self.tokens = sum(group.cost for group in self.pins)
        self.messages = self.count(self.pins)
        self.kept: dict[int, Group] = {}
        self.anchors: list[int] = []
        self.start = sight.ends
        self.rungs: list[str] = ["mask"] if any(_form(group, "masked") for group in shown) else []

    # --- taking groups

    def take(self, groups: Iterable[Group]) -> None:
        """Keep these groups. Pinned ones are counted already; those from before the window stay ahead of it."""
        for group in groups:
            if not group.pinned:
                self.tokens += group.cost
                self.messages += self.count([group])
            self.kept[group.seq] = group
            if group.seq in self.moved:
                self.anchors.extend(entry.seq for entry in group.entries)

    def take_from(self, groups: Sequence[Group]) -> None:
        """Keep these groups as the beginning of the window."""
        self.take(groups)
        in_place = [group.seq for group in groups if group.seq not in self.moved]
        if in_place:
            self.start = in_place[0]

    def fits(self, groups: Sequence[Group], room: Room) -> bool:
        """Whether these groups fit beside what is kept."""
        tokens = sum(group.cost for group in groups if not group.pinned)
        messages = self.count([group for group in groups if not group.pinned])
        return room.holds(self.tokens + tokens, self.messages + messages)

    def count(self, groups: Iterable[Group]) -> int:
        """How many messages they are, where their number is limited: to make it out takes rendering them."""
        limited = self.given.room.messages is not None or self.given.target.messages is not None
        return sum(group.messages for group in groups) if limited else 0

    # --- the rungs

    def climb(self) -> CutPlan:
        """Take interactions from the newest while they fit low water; treat the newest one specially."""
        given = self.given
        if not given.room.holds(self.tokens, self.messages):
            self.impossible(0, 0)
        over = False
        for age, interaction in enumerate(reversed(self.interactions)):
            whole = not given.partial or not _is_first(interaction, given.groups)
            if whole and self.fits(interaction, given.target):
                self.take_from(interaction)
            elif age == 0:
                over = self.newest(interaction, whole)
                if not given.gap:
                    break
            elif not given.gap:
                break
        return self.finish(over)

    def newest(self, interaction: list[Group], whole: bool) -> bool:
        """Keep what can be kept of a newest interaction over low water; return whether the room is exceeded."""
        given = self.given
        if whole and self.fits(interaction, given.room):
            self.take_from(interaction)
            return False
        if given.oversize == "keep_newest":
            self.take_from(interaction)
            return True
        if given.oversize == "error":
            more = [group for group in interaction if not group.pinned]
            self.impossible(sum(group.cost for group in more), self.count(more))
        if given.oversize == "drop":
            self.rungs.append("drop")
            return False
        self.shrink(interaction)
        return False

    def shrink(self, interaction: list[Group]) -> None:
        """Clamp the oversized, evict the oldest groups, clamp the newest group: the human message stays whole."""
        given = self.given
        human = [group for group in interaction if group.seq == group.turn]
        if human and not self.fits(human, given.room):
            self.impossible(human[0].cost, self.count(human[:1]))
        rest = [group for group in interaction if group not in human and group.entries[0].seq == group.seq]
        self.take(human)
        target = given.target if self.fits((), given.target) else given.room
        if target.tokens is not None:
            for group in rest[:-1]:
                self.clamp(group, max(target.tokens // CLAMP_SHARE, 1))
        kept: list[Group] = []
        for group in reversed(rest):
            if not self.fits([group], target) and (kept or not self.squeeze(group, target)):
                break
            self.take([group])
            kept.append(group)
        if rest and not kept:
            self.rungs.append(NEWEST)
        in_place = [group for group in (*human, *rest) if group.seq not in self.moved]
        if len(kept) == len(rest) and in_place:
            self.start = in_place[0].seq
        elif kept:
            self.start = kept[-1].seq
        self.anchors.extend(group.seq for group in human if group.seq < self.start and group.seq not in self.moved)

    def squeeze(self, group: Group, target: Room) -> bool:
        """Make the newest group fit the room, clamping its items; False where even that is too much."""
        if not self.fits([group], self.given.room) and target.tokens is not None:
            self.clamp(group, level([item.cost for item in group.items], target.tokens - self.tokens))
        return self.fits([group], self.given.room)

    def clamp(self, group: Group, limit: int) -> None:
        """Shorten every item of the group that costs more than `limit`, but never a human or system message."""
        changed = False
        for item in group.items:
            entry = item.entry
            if group.pinned or item.cost <= limit or item.form in ("placeholder", "masked") or not may_clamp(entry):
                continue
            clamp = shortened(entry, limit, self.meter)
            if clamp is not None:
                self.clamps[entry.seq] = clamp
                changed = True
        if changed:
            fill(group, self.mask, self.clamps, self.meter)

    # --- the end

    def finish(self, over: bool) -> CutPlan:
        """Add the open human messages that still fit low water, and write the cut."""
        given, cut = self.given, self.given.cut
        for group in self.open_humans():
            if group.seq not in self.kept and group.seq < self.start and self.fits([group], given.target):
                self.take([group])
                if group.seq not in self.moved:
                    self.anchors.append(group.seq)
        evicted = [group for group in self.groups if group.seq not in self.kept and not group.pinned]
        if not evicted and not given.more:
            self.start = min(cut.start, self.start)
        if not over and not given.room.holds(self.tokens, self.messages):
            self.impossible(0, 0)
        gone = cut.still_gone(self.start, given.pinned)
        gone.extend((group.seq, min(group.last, given.ends - 1)) for group in evicted if group.seq >= self.start)
        shown = {entry.seq for group in (*self.pins, *self.kept.values()) for entry in group.entries}
        clamps = tuple(self.clamps[seq] for seq in sorted(self.clamps) if seq in shown)
        for happened, rung in ((evicted, "evict"), (clamps, "clamp")):
            if happened and rung not in self.rungs:
                self.rungs.append(rung)
        new = msgspec.structs.replace(
            cut,
            start=self.start,
            mask=self.mask,
            # Even where they say nothing, or are left out: then this cut knows of it.
            pins=tuple(sorted({*given.pinned, *(entry.seq for group in self.pins for entry in group.entries)})),
            anchors=tuple(sorted(seq for seq in self.anchors if seq < self.start)),
            clamps=clamps,
            gone=tuple(sorted(gone)),
            skipped=spans.since(cut.skipped, self.start),
            renderer=RENDERER,
        )
        return CutPlan(
            cut=new,
            evicted=sum(len(group.entries) for group in evicted),
            masked=sum(_form(group, "masked") for group in self.kept.values()),
            clamped=len(clamps),
            tokens_before=self.before,
            tokens_after=self.tokens,
            messages_after=self.messages,
            opening=self.opening(new),
            over=over,
            rungs=tuple(self.rungs),
        )

    def opening(self, cut: Cut) -> int:
        """How many messages the format puts before the first group that this cut shows."""
        if self.given.room.messages is None:
            return 0
        shown = sorted({group.seq: group for group in (*self.pins, *self.kept.values())}.values(), key=lambda g: g.seq)
        ahead = [group for group in shown if cut.passed([group.seq])]
        pinned = [group for group in ahead if group.pinned]
        if not pinned and cut.summaries:
            return 0
        return sum(opening(group, self.meter.format) for group in (pinned or ahead or shown)[:1])

    def open_humans(self) -> list[Group]:
        """Human messages of the trailing interactions without a final answer, newest first."""
        found: list[Group] = []
        for interaction in reversed(self.interactions):
            items = interaction[-1].items
            final = items[-1].entry if items else None
            if final is not None and final.kind == "message" and final.role == "assistant":
                break
            found.extend(group for group in interaction if group.seq == group.turn)
        return found

    def impossible(self, tokens: int, messages: int) -> NoReturn:
        """Raise BudgetImpossible: so much more than what is kept would be needed."""
        room = self.given.room
        pinned = sum(group.cost for group in self.pins)
        if room.tokens is not None and self.tokens + tokens > room.tokens:
            parts = {"pinned and system entries": pinned, "newest interaction": self.tokens - pinned + tokens}
            raise BudgetImpossible(self.tokens + tokens, room.tokens, parts)
        needed = self.messages + messages
        parts = {"pinned and system entries": self.count(self.pins), "all": needed}
        raise BudgetImpossible(needed, room.messages or 0, parts, "messages")


def _is_first(interaction: Sequence[Group], groups: Sequence[Group]) -> bool:
    return bool(groups) and any(group is groups[0] for group in interaction)


def _is_whole_message(group: Group) -> bool:
    items = group.items
    return len(items) == 1 and items[0].entry.kind == "message" and items[0].form == "whole" and not group.bounded


def _form(group: Group, form: str) -> int:
    return sum([item.form == form for item in group.items])
