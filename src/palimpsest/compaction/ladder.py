"""The strategy ladder: from what costs nothing to what loses most, each rung only where the one before was not enough.

Old versions of contexts go, old tool results become notes, the oldest interactions are summarised, or else evicted to
the archive. Pure. What a view needs beyond that to fit its budget is in `palimpsest.context.cut`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from palimpsest.compaction import Plan, Snapshot, Step
from palimpsest.compaction.base import KEEP, check_keep, check_limits, low
from palimpsest.compaction.evict import described
from palimpsest.compaction.mask import mask_step, masked, superseded, superseded_step, watermark
from palimpsest.compaction.selecting import (
    archived,
    cost,
    count,
    has_news,
    is_fixed,
    older,
    recent,
    spans_of,
)
from palimpsest.compaction.summarize import Proportional, covering
from palimpsest.context.cut import Room
from palimpsest.context.groups import Group, by_interaction
from palimpsest.log import values


class Ladder(Proportional, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Make the active set smaller, down to low water, in the gentlest way that does it.

    The newest completed interactions stay, and what is open. Below low water, where anything is new since the last
    run, what cuts have evicted is summarised, as far as there is room; where that is nothing, or there is no limit,
    low water is half of the present tokens. A summary counts.

    Args:
        interaction_keep: how many of the newest completed interactions stay; 2 by default.
        recent_tokens: tokens that what stays shrinks to, in whole groups; None: it does not.
        summarize: whether anything is summarised; False: after masking comes eviction.
        low_water: the share of the limits that it goes down to, over 0 and under 1; 0.6 by default.
        max_tokens: tokens of the active set in the place of the session's limit; None: that one.
        max_messages: messages of the active set in the place of the session's limit; None: that one.
        triggers: when it runs by itself; by default no rule is on.
        name: how results and events call it, and by what its last run is remembered: two of one session need two names.
        cod_max_loops: passes of Chain of Density, 3 by default; 0: one plain summary.
        instructions: a focus that is added to the summary's prompt; None: none.
        prompt_template: what replaces the prompt, with `{content}` in it; None: the prompt of Palimpsest.
        on_failure: what becomes of it where a summarizer gave no acceptable summary: take the "heuristic" (default), or
            "keep" everything as it is.
        rebuild_every: after how many folds the summary is made anew from the entries, 5 by default; 0: never.
        bare_heuristic: whether a summary without a model tells counts, tools, sources of contexts, first and last
            message alone; False by default: what it finds worth keeping, too.
        knowledge_base: a `KnowledgeBase` that its summaries go into and contexts are given from, or a mapping with its
            fields; None: none.
        text_splitter: how the summaries are split for it, a `TextSplitter`, or a mapping with its fields; None: as this
            does by default.
        target_ratio: a summary's tokens as a share of what it stands for, over 0 and up to 1; 0.3 by default.
        summary_floor: tokens that a summary aims at, at least; 120 by default.
        max_summary_tokens: tokens that a summary aims at, at most; None: a quarter of the session's limit.
    """

    interaction_keep: int = KEEP
    recent_tokens: int | None = None
    summarize: bool = True
    low_water: float = 0.6  # with less, long talks keep less than plain truncation keeps (`bench/retention.py`)
    max_tokens: int | None = None
    max_messages: int | None = None
    name: str = "ladder"

    def __post_init__(self) -> None:
        Proportional.__post_init__(self)
        check_limits(self)
        check_keep(self.interaction_keep, self.triggers)
        values.whole("recent_tokens", self.recent_tokens, none=True)
        values.switch("summarize", self.summarize)

    @property
    def summarizes(self) -> bool:
        """Whether its plans may cover entries."""
        return self.summarize

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return what each rung does, of `snapshot`."""
        target = low(self, snapshot)
        if target.holds(snapshot.tokens, snapshot.messages):
            if not has_news(snapshot):
                return Plan(reason="nothing_to_compact")
            if self.summarize and (plan := self._of_archive(snapshot, target)):
                return plan
            target = Room(snapshot.tokens // 2, None)
        return _Climb(self, snapshot, target).plan()

    def _of_archive(self, snapshot: Snapshot, target: Room) -> Plan | None:
        """Cover what cuts have evicted already, where a summary of it fits below low water, and take nothing else."""
        before, folded = archived(snapshot), snapshot.summaries
        size = self.anchored(snapshot, cost(before))
        tokens = snapshot.tokens - snapshot.standing(folded) + size + snapshot.fence
        messages = snapshot.messages - len(folded) + 1
        if target.tokens is None or not before or size < 1 or not target.holds(tokens, messages):
            return None
        why, most = "what cuts have evicted is summarised", self.max_summary_tokens or 0
        return covering(snapshot, (), before, folded, size, why, most=most)


class _Climb:
    """One run up the rungs: what has left so far, and what remains."""

    def __init__(self, ladder: Ladder, snapshot: Snapshot, target: Room) -> None:
        self.ladder, self.snapshot, self.target = ladder, snapshot, target
        self.tokens, self.messages = snapshot.tokens, snapshot.messages
        self.notes: dict[int, int] = {}
        self.steps: list[Step] = []

    def plan(self) -> Plan:
        """Take one rung after the other until low water is reached."""
        snapshot = self.snapshot
        window = recent(snapshot, keep=self.ladder.interaction_keep, tokens=self.ladder.recent_tokens)
        gone = superseded(snapshot)
        if gone:
            self.leave(gone)
            self.steps.append(superseded_step(gone))
        left = {group.seq for group in gone}
        blocks = by_interaction(group for group in older(snapshot, window) if group.seq not in left)
        mask = watermark(snapshot, window)
        if self.target.tokens is not None and self.tokens > self.target.tokens:  # a note is a message, too
            self.notes = masked(snapshot, mask)
            self.tokens -= sum(self.notes.values())
        summary = self.cover(blocks) if self.ladder.summarize and not self.is_enough() else Plan()
        if not self.is_enough() and not summary.cover:
            gone = [*gone, *self.evict(blocks, left)]
        if self.notes:
            self.steps.insert(bool(left), mask_step(self.notes))
        if not self.steps:
            return Plan(reason="nothing_to_compact")
        return msgspec.structs.replace(
            summary, evict=spans_of(gone), mask=mask if self.notes else 0, steps=tuple(self.steps)
        )

    def is_enough(self) -> bool:
        """Whether low water is reached."""
        return self.target.holds(self.tokens, self.messages)

    def leave(self, groups: Sequence[Group]) -> None:
        """Take these groups out; of what leaves nothing is masked."""
        self.tokens -= self.shown(groups)
        self.messages -= sum(group.messages for group in groups)
        for group in groups:
            for entry in group.entries:
                self.notes.pop(entry.seq, None)

    def shown(self, groups: Sequence[Group]) -> int:
        """What these groups cost with their old results masked."""
        if not self.notes:
            return cost(groups)
        return cost(groups) - sum(self.notes.get(entry.seq, 0) for group in groups for entry in group.entries)

    def cover(self, blocks: Sequence[list[Group]]) -> Plan:
        """Cover whole interactions, oldest first, until that is enough; none where it would save nothing."""
        before, folded, fence = archived(self.snapshot), self.snapshot.summaries, self.snapshot.fence
        tokens, messages = self.tokens - self.snapshot.standing(folded) + fence, self.messages - len(folded) + 1
        taken: list[Group] = []
        source, size = cost(before), 0
        for block in blocks:
            taken += block
            source += cost(block)
            tokens -= self.shown(block)
            messages -= sum(group.messages for group in block)
            size = self.ladder.anchored(self.snapshot, source)
            if size > 0 and self.target.holds(tokens + size, messages):
                break
        if not taken or size < 1 or tokens + size >= self.tokens:
            return Plan()
        self.leave(taken)
        self.tokens, self.messages = tokens + size, messages
        why, most = self.why("summarised"), self.ladder.max_summary_tokens or 0
        plan = covering(self.snapshot, taken, [*before, *taken], folded, size, why, most=most)
        self.steps += plan.steps
        return plan

    def evict(self, blocks: Sequence[list[Group]], left: set[int]) -> list[Group]:
        """Evict whole interactions, oldest first, until that is enough; the last group that is left stays."""
        staying = [group for group in self.snapshot.groups if group.seq not in left]
        remaining = sum(not is_fixed(group, self.snapshot) for group in staying)
        taken: list[Group] = []
        for block in blocks:
            if self.is_enough():
                break
            going = block[: max(remaining - 1, 0)]
            self.leave(going)
            taken += going
            remaining -= len(going)
        if taken:
            self.steps.append(Step("evict", count(taken), cost(taken), self.why("evicted")))
        return taken

    def why(self, done: str) -> str:
        """What a rung did, in words."""
        return f"the oldest interactions are {done}, down to {described(self.target)}"
