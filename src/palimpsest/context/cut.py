"""Plan a cut: the rungs of the budget ladder that need no summarizer: mask, evict, clamp, give up. Pure.

Whole interactions are kept, newest first, down to low water, so that the next cut is many turns away. Tool results
before the newest group are masked. If the newest interaction alone does not fit, oversized items are clamped, its
oldest groups evicted (not its human message), and its newest group clamped. Raises BudgetImpossible if nothing fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NoReturn

import msgspec

from palimpsest.context.clamping import level, may_clamp, shortened
from palimpsest.context.groups import NEWEST, Group, Meter, by_interaction, fill
from palimpsest.context.window import opening
from palimpsest.errors import BudgetImpossible
from palimpsest.log import spans
from palimpsest.log.head import RENDERER, Cut

Oversize = Literal["clamp", "drop", "error", "keep_newest"]
"""What happens to an interaction that alone exceeds the budget: it is clamped, left out, refused, or kept over
budget."""
OVERSIZE: tuple[Oversize, ...] = ("clamp", "drop", "error", "keep_newest")


class Room(msgspec.Struct, frozen=True):
    """How much of the log may be shown, in tokens and in provider messages (None: no limit)."""

    tokens: int | None
    messages: int | None

    def holds(self, tokens: int, messages: int) -> bool:
        """Whether so many tokens and messages fit; exactly equal fits."""
        return (self.tokens is None or tokens <= self.tokens) and (self.messages is None or messages <= self.messages)

    def less(self, messages: int) -> Room:
        """Return this room with so many messages fewer."""
        return Room(self.tokens, None if self.messages is None else self.messages - messages)

    def within(self, other: Room) -> Room:
        """Return this room with no more messages than `other` has."""
        limits = [room.messages for room in (self, other) if room.messages is not None]
        return Room(self.tokens, min(limits) if limits else None)


class Sight(msgspec.Struct, frozen=True):
    """What a cut is planned from.

    `groups` are shown as if every old result were whole, oldest first. `partial` says that the first of them belongs to
    an interaction (or preamble) that began before what was read. `ahead` are pinned groups and open human messages from
    before the window. The clamps of `cut` stay. `room` is high water, `target` low water.
    """

    groups: Sequence[Group]
    ahead: Sequence[Group]
    ends: int
    """Where the window ends: one past the last group, or where the part of it begins that waits for a result. If
    nothing is shown, where the window begins: at the first group whose beginning was read."""
    partial: bool
    more: bool
    """Whether older entries were not read, because the room was already full."""
    pinned: frozenset[int]
    cut: Cut
    room: Room
    target: Room
    meter: Meter
    masks: bool
    """Whether old tool results may be replaced by a note."""
    gap: bool
    """Whether older interactions that fit are still taken after one that does not."""
    oversize: Oversize


class CutPlan(msgspec.Struct, frozen=True):
    """A planned cut: the next cut, what it leaves out and shortens, its size before and after, and the rungs it took.

    `opening` counts the messages that the format puts before the first group shown. `over`: the plan exceeds the room
    on purpose (`oversize: keep_newest`).
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
"""An item of the newest interaction that costs more than this fraction (a quarter) of low water is oversized. It is
clamped before other groups are evicted. Items of the newest group are exempt."""


def plan(sight: Sight) -> CutPlan:
    """Return the next cut for a window that does not fit its room. Raises BudgetImpossible if no cut fits."""
    planned = _Ladder(sight).climb()
    if planned.over or sight.room.holds(planned.tokens_after, planned.messages_after + planned.opening):
        return planned
    room = sight.room.less(planned.opening)
    return _Ladder(msgspec.structs.replace(sight, room=room, target=sight.target.within(room))).climb()


def plan_nothing(sight: Sight) -> CutPlan:
    """Return the cut that shows no interaction at all, only system and pinned entries."""
    ladder = _Ladder(sight)
    ladder.sight = msgspec.structs.replace(sight, target=Room(-1, None))
    ladder.rungs.append("evict")
    planned = ladder.finish(over=False)
    if not sight.room.holds(planned.tokens_after, planned.messages_after + planned.opening):
        ladder.impossible(0, planned.opening)
    return planned


class _Ladder:
    """The state of one planning run: the groups kept so far and what they cost."""

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.meter = sight.meter
        shown = [*sight.ahead, *sight.groups]
        self.tokens_before = sum(group.cost for group in shown)
        self.mask = sight.groups[-1].seq if sight.groups and sight.masks else sight.cut.mask
        self.clamps = {clamp.seq: clamp for clamp in sight.cut.clamps}
        for group in shown:
            group.pinned = bool(sight.pinned) and any(entry.seq in sight.pinned for entry in group.entries)
            if not _is_whole_message(group):  # a whole message is shown the same under any cut
                fill(group, self.mask, self.clamps, self.meter, thoughts=sight.cut.thoughts)
        self.pins = [group for group in shown if group.pinned]
        self.ahead_seqs = {group.seq for group in sight.ahead}
        self.groups = [group for group in shown if not group.pinned or group.seq not in self.ahead_seqs]
        self.interactions = by_interaction(self.groups)
        self.tokens = sum(group.cost for group in self.pins)
        self.messages = self.count(self.pins)
        self.kept: dict[int, Group] = {}
        self.anchors: list[int] = []
        self.start = sight.ends
        self.rungs: list[str] = ["mask"] if any(map(_masked, shown)) else []

    # --- taking groups

    def take(self, groups: Iterable[Group]) -> None:
        """Keep these groups. Pinned groups are counted already. Those from before the window stay ahead of it."""
        for group in groups:
            if not group.pinned:
                self.tokens += group.cost
                self.messages += self.count([group])
            self.kept[group.seq] = group
            if group.seq in self.ahead_seqs:
                self.anchors.extend(entry.seq for entry in group.entries)

    def take_from(self, groups: Sequence[Group]) -> None:
        """Keep these groups and let the window begin with them."""
        self.take(groups)
        in_place = [group.seq for group in groups if group.seq not in self.ahead_seqs]
        if in_place:
            self.start = in_place[0]

    def fits(self, groups: Sequence[Group], room: Room) -> bool:
        """Whether these groups fit beside the groups kept so far."""
        tokens = sum(group.cost for group in groups if not group.pinned)
        messages = self.count([group for group in groups if not group.pinned])
        return room.holds(self.tokens + tokens, self.messages + messages)

    def count(self, groups: Iterable[Group]) -> int:
        """Return the number of messages of these groups, but 0 if messages are not limited, since counting renders."""
        limited = self.sight.room.messages is not None or self.sight.target.messages is not None
        return sum(group.messages for group in groups) if limited else 0

    # --- the rungs

    def climb(self) -> CutPlan:
        """Take interactions, newest first, while they fit low water; a newest one that does not fit is cut down."""
        sight = self.sight
        if not sight.room.holds(self.tokens, self.messages):
            self.impossible(0, 0)
        over = False
        for age, interaction in enumerate(reversed(self.interactions)):
            whole = not sight.partial or not _holds_first(interaction, sight.groups)
            if whole and self.fits(interaction, sight.target):
                self.take_from(interaction)
            elif age == 0:
                over = self.take_newest(interaction, whole)
                if not sight.gap:
                    break
            elif not sight.gap:
                break
        return self.finish(over)

    def take_newest(self, interaction: list[Group], whole: bool) -> bool:
        """Keep what can be kept of a newest interaction over low water. Return whether the plan exceeds the room."""
        sight = self.sight
        if whole and self.fits(interaction, sight.room):
            self.take_from(interaction)
            return False
        if sight.oversize == "keep_newest":
            self.take_from(interaction)
            return True
        if sight.oversize == "error":
            unpinned = [group for group in interaction if not group.pinned]
            self.impossible(sum(group.cost for group in unpinned), self.count(unpinned))
        if sight.oversize == "drop":
            self.rungs.append("drop")
            return False
        self.shrink(interaction)
        return False

    def shrink(self, interaction: list[Group]) -> None:
        """Clamp oversized items, evict the oldest groups, and clamp the newest group. The human message stays whole."""
        sight = self.sight
        human = [group for group in interaction if group.seq == group.turn]
        if human and not self.fits(human, sight.room):
            self.impossible(human[0].cost, self.count(human[:1]))
        following = [group for group in interaction if group not in human and group.entries[0].seq == group.seq]
        self.take(human)
        target = sight.target if self.fits((), sight.target) else sight.room
        if target.tokens is not None:
            for group in following[:-1]:
                self.clamp(group, max(target.tokens // CLAMP_SHARE, 1))
        kept: list[Group] = []
        for group in reversed(following):
            if not self.fits([group], target) and (kept or not self.squeeze(group, target)):
                break
            self.take([group])
            kept.append(group)
        if following and not kept:
            self.rungs.append(NEWEST)
        in_place = [group for group in (*human, *following) if group.seq not in self.ahead_seqs]
        if len(kept) == len(following) and in_place:
            self.start = in_place[0].seq
        elif kept:
            self.start = kept[-1].seq
        self.anchors.extend(group.seq for group in human if group.seq < self.start and group.seq not in self.ahead_seqs)

    def squeeze(self, group: Group, target: Room) -> bool:
        """Clamp the items of the newest group until it fits the room. Return False if it does not fit even then."""
        if not self.fits([group], self.sight.room) and target.tokens is not None:
            self.clamp(group, level([item.cost for item in group.items], target.tokens - self.tokens))
        return self.fits([group], self.sight.room)

    def clamp(self, group: Group, limit: int) -> None:
        """Clamp each item of the group that costs more than `limit`, except human and system messages."""
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
            fill(group, self.mask, self.clamps, self.meter, thoughts=self.sight.cut.thoughts)

    # --- the end

    def finish(self, over: bool) -> CutPlan:
        """Add the open human messages that still fit low water, and build the plan with its cut."""
        sight, cut = self.sight, self.sight.cut
        for group in self.open_humans():
            if group.seq not in self.kept and group.seq < self.start and self.fits([group], sight.target):
                self.take([group])
                if group.seq not in self.ahead_seqs:
                    self.anchors.append(group.seq)
        evicted = [group for group in self.groups if group.seq not in self.kept and not group.pinned]
        if not evicted and not sight.more:
            self.start = min(cut.start, self.start)
        if not over and not sight.room.holds(self.tokens, self.messages):
            self.impossible(0, 0)
        newly_gone = [(group.seq, min(group.last, sight.ends - 1)) for group in evicted if group.seq >= self.start]
        shown = {entry.seq for group in (*self.pins, *self.kept.values()) for entry in group.entries}
        clamps = tuple(self.clamps[seq] for seq in sorted(self.clamps) if seq in shown)
        taken = (rung for affected, rung in ((evicted, "evict"), (clamps, "clamp")) if affected)
        self.rungs.extend(rung for rung in taken if rung not in self.rungs)
        next_cut = msgspec.structs.replace(
            cut,
            start=self.start,
            mask=self.mask,
            # Also pins that show nothing or are left out: otherwise they would seem new, and make another cut due.
            pins=tuple(sorted({*sight.pinned, *(entry.seq for group in self.pins for entry in group.entries)})),
            anchors=tuple(sorted(seq for seq in self.anchors if seq < self.start)),
            clamps=clamps,
            gone=spans.union(cut.still_gone(self.start, sight.pinned), newly_gone),
            skipped=spans.since(cut.skipped, self.start),
            renderer=RENDERER,
        )
        return CutPlan(
            cut=next_cut,
            evicted=sum(len(group.entries) for group in evicted),
            masked=sum(map(_masked, self.kept.values())),
            clamped=len(clamps),
            tokens_before=self.tokens_before,
            tokens_after=self.tokens,
            messages_after=self.messages,
            opening=self.opening(next_cut),
            over=over,
            rungs=tuple(self.rungs),
        )

    def opening(self, cut: Cut) -> int:
        """Return how many messages the format puts before the first group that this cut shows."""
        if self.sight.room.messages is None:
            return 0
        shown = sorted({group.seq: group for group in (*self.pins, *self.kept.values())}.values(), key=lambda g: g.seq)
        ahead = [group for group in shown if cut.passed([group.seq])]
        pinned = [group for group in ahead if group.pinned]
        if not pinned and cut.summaries:
            return 0
        return sum(opening(group, self.meter.format) for group in (pinned or ahead or shown)[:1])

    def open_humans(self) -> list[Group]:
        """Return the human messages of the trailing interactions without a final answer, newest first."""
        humans: list[Group] = []
        for interaction in reversed(self.interactions):
            items = interaction[-1].items
            final = items[-1].entry if items else None
            if final is not None and final.kind == "message" and final.role == "assistant":
                break
            humans.extend(group for group in interaction if group.seq == group.turn)
        return humans

    def impossible(self, tokens: int, messages: int) -> NoReturn:
        """Raise BudgetImpossible: `tokens` and `messages` are needed on top of what is kept."""
        room = self.sight.room
        pinned = sum(group.cost for group in self.pins)
        if room.tokens is not None and self.tokens + tokens > room.tokens:
            parts = {"pinned and system entries": pinned, "newest interaction": self.tokens - pinned + tokens}
            raise BudgetImpossible(self.tokens + tokens, room.tokens, parts)
        needed = self.messages + messages
        parts = {"pinned and system entries": self.count(self.pins), "all": needed}
        raise BudgetImpossible(needed, room.messages or 0, parts, "messages")


def _holds_first(interaction: Sequence[Group], groups: Sequence[Group]) -> bool:
    return bool(groups) and any(group is groups[0] for group in interaction)


def _is_whole_message(group: Group) -> bool:
    items = group.items
    return len(items) == 1 and items[0].entry.kind == "message" and items[0].form == "whole" and not group.bounded


def _masked(group: Group) -> int:
    return sum([item.form == "masked" for item in group.items])
