"""The seam of compaction: what a strategy is given and what it answers. Pure; one file per family of rungs.

A strategy is a pure function of a `Snapshot` and answers with a `Plan`. It never performs I/O. The rungs that
need no summarizer are in `palimpsest.compaction.ladder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from palimpsest.log import Cut
from palimpsest.window import Group, Meter

Oversize = Literal["clamp", "drop", "error", "keep_newest"]
OVERSIZE: tuple[Oversize, ...] = ("clamp", "drop", "error", "keep_newest")


class Room(msgspec.Struct, frozen=True):
    """How much of the log may be shown, in tokens and in provider messages (None: no limit)."""

    tokens: int | None
    messages: int | None

    def holds(self, tokens: int, messages: int) -> bool:
        """Whether so many tokens in so many messages fit; exactly equal fits."""
        if self.tokens is not None and tokens > self.tokens:
            return False
        return self.messages is None or messages <= self.messages


class Snapshot(msgspec.Struct, frozen=True):
    """What a strategy may look at.

    `groups` are shown as if every old result were whole, oldest first; `partial` says that the first of
    them belongs to an interaction (or preamble) that began before what was read. `head` are pinned groups
    and open human messages from before. `room` is high water, `target` low water.
    """

    groups: Sequence[Group]
    head: Sequence[Group]
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


class Plan(msgspec.Struct, frozen=True):
    """What to do: the next cut, the groups it shows (after its head), what it saves, and why.

    `over` says that the plan exceeds the room on purpose (`oversize: keep_newest`).
    """

    cut: Cut
    evicted: int
    masked: int
    clamped: int
    tokens_before: int
    tokens_after: int
    messages_after: int
    over: bool
    rungs: tuple[str, ...]


class Strategy(Protocol):
    """A pure function from a snapshot to a plan. Raises BudgetImpossible where nothing fits."""

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return the plan."""
        ...
