"""The strategy ladder: from what costs nothing to what loses most, each rung only if the previous ones did not suffice.

Old versions of contexts are evicted, old tool results become notes, the oldest interactions are summarised or else
evicted to the archive. Pure. What a view needs beyond that to fit its budget is in `palimpsest.context.cut`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

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
    """Reduce the active set to low water in the gentlest way that suffices.

    The newest completed interactions stay, and everything open. If the active set is below low water and something is
    new since the last run, what cuts have evicted is summarised, as far as there is room. If cuts have evicted nothing,
    or there is no limit, low water is half of the present tokens. Summaries count towards it.

    Args:
        interaction_keep: how many of the newest completed interactions stay; 2 by default.
        recent_tokens: the most tokens of what stays, which shrinks in whole groups; None: any number.
        summarize: whether anything is summarised; if False, eviction follows masking.
        low_water: the share of the limits to go down to, over 0 and under 1; 0.6 by default.
        max_tokens: the limit of the active set in tokens; None: the session's limit.
        max_messages: the limit of the active set in messages; None: the session's limit.
        triggers: when the strategy runs by itself; by default no rule is on.
        name: its name in results and events; its last run is remembered by it, so each strategy of a session needs its
            own.
        cod_max_loops: the most passes of Chain of Density; 3 by default, 0: one plain summary.
        instructions: a focus to add to the summary's prompt; None: none.
        prompt_template: a prompt to use instead, with `{content}` in it; None: the prompt of Palimpsest.
        on_failure: what to do if a summarizer gives no acceptable summary: use the "heuristic" one (default), or "keep"
            everything as it is.
        rebuild_every: after how many folds the summary is made anew from the entries; 5 by default, 0: never.
        bare_heuristic: whether a summary without a model holds only counts, tools, sources of contexts, first and last
            message; False (default): also what it finds worth keeping.
        knowledge_base: a `KnowledgeBase` that its summaries are stored in and contexts are served from, or a mapping
            with its fields; None: none.
        text_splitter: how summaries are split for the knowledge base: a `TextSplitter`, or a mapping with its fields;
            None: its defaults.
        target_ratio: a summary's tokens as a share of those that it stands for, over 0 and up to 1; 0.3 by default.
        summary_floor: the least tokens that a summary aims at; 120 by default.
        max_summary_tokens: the most tokens that a summary aims at; None: a quarter of the session's limit.
    """

    interaction_keep: int = KEEP
    recent_tokens: int | None = None
    summarize: bool = True
    low_water: float = 0.6  # with less, long talks keep less than plain truncation keeps (`bench/retention.py`)
    max_tokens: int | None = None
    max_messages: int | None = None
    name: str = "ladder"

    # Earlier runs waste room: a context that would evict asks for one first.
    usual_rules: ClassVar[dict[str, Any]] = {"threshold": 1.0}

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
        """Return what each rung does to the `snapshot`."""
        target = low(self, snapshot)
        if target.holds(snapshot.tokens, snapshot.messages):
            if not has_news(snapshot):
                return Plan(reason="nothing_to_compact")
            if self.summarize and (plan := self._of_archive(snapshot, target)):
                return plan
            target = Room(snapshot.tokens // 2, None)
        return _Climb(self, snapshot, target).plan()

    def _of_archive(self, snapshot: Snapshot, target: Room) -> Plan | None:
        """Cover only what cuts have evicted already, if a summary of it fits below low water."""
        archive, folded = archived(snapshot), snapshot.summaries
        size = self.anchored(snapshot, cost(archive))
        tokens = snapshot.tokens - snapshot.standing(folded) + size + snapshot.fence
        messages = snapshot.messages - len(folded) + 1
        if target.tokens is None or not archive or size < 1 or not target.holds(tokens, messages):
            return None
        why, most = "entries that cuts have evicted are summarised", self.max_summary_tokens or 0
        return covering(snapshot, (), archive, folded, size, why, most=most)


class _Climb:
    """One run up the rungs: what has left so far, and what remains."""

    def __init__(self, ladder: Ladder, snapshot: Snapshot, target: Room) -> None:
        self.ladder, self.snapshot, self.target = ladder, snapshot, target
        self.tokens, self.messages = snapshot.tokens, snapshot.messages
        self.notes: dict[int, int] = {}
        self.steps: list[Step] = []

    def plan(self) -> Plan:
        """Take one rung after another until low water is reached."""
        snapshot = self.snapshot
        window = recent(snapshot, keep=self.ladder.interaction_keep, tokens=self.ladder.recent_tokens)
        evicted = superseded(snapshot)
        if evicted:
            self.take_out(evicted)
            self.steps.append(superseded_step(evicted))
        evicted_seqs = {group.seq for group in evicted}
        blocks = by_interaction(group for group in older(snapshot, window) if group.seq not in evicted_seqs)
        mask = watermark(snapshot, window)
        if self.target.tokens is not None and self.tokens > self.target.tokens:  # masking saves tokens, but no messages
            self.notes = masked(snapshot, mask)
            self.tokens -= sum(self.notes.values())
        summary = self.cover(blocks) if self.ladder.summarize and not self.is_enough() else Plan()
        if not self.is_enough() and not summary.cover:
            evicted = [*evicted, *self.evict(blocks, evicted_seqs)]
        if self.notes:
            self.steps.insert(bool(evicted_seqs), mask_step(self.notes))
        if not self.steps:
            return Plan(reason="nothing_to_compact")
        return msgspec.structs.replace(
            summary, evict=spans_of(evicted), mask=mask if self.notes else 0, steps=tuple(self.steps)
        )

    def is_enough(self) -> bool:
        """Whether low water is reached."""
        return self.target.holds(self.tokens, self.messages)

    def take_out(self, groups: Sequence[Group]) -> None:
        """Take these groups out of the active set. Their results are not masked any more."""
        self.tokens -= self.shown_cost(groups)
        self.messages -= sum(group.messages for group in groups)
        for group in groups:
            for entry in group.entries:
                self.notes.pop(entry.seq, None)

    def shown_cost(self, groups: Sequence[Group]) -> int:
        """Return what these groups cost with their old results masked."""
        if not self.notes:
            return cost(groups)
        return cost(groups) - sum(self.notes.get(entry.seq, 0) for group in groups for entry in group.entries)

    def cover(self, blocks: Sequence[list[Group]]) -> Plan:
        """Cover whole interactions, oldest first, until low water is reached; none if that would save nothing."""
        archive, folded, fence = archived(self.snapshot), self.snapshot.summaries, self.snapshot.fence
        tokens, messages = self.tokens - self.snapshot.standing(folded) + fence, self.messages - len(folded) + 1
        taken: list[Group] = []
        source, size = cost(archive), 0
        for block in blocks:
            taken += block
            source += cost(block)
            tokens -= self.shown_cost(block)
            messages -= sum(group.messages for group in block)
            size = self.ladder.anchored(self.snapshot, source)
            if size > 0 and self.target.holds(tokens + size, messages):
                break
        if not taken or size < 1 or tokens + size >= self.tokens:
            return Plan()
        self.take_out(taken)
        self.tokens, self.messages = tokens + size, messages
        why, most = self.reason("summarised"), self.ladder.max_summary_tokens or 0
        plan = covering(self.snapshot, taken, [*archive, *taken], folded, size, why, most=most)
        self.steps += plan.steps
        return plan

    def evict(self, blocks: Sequence[list[Group]], evicted_seqs: set[int]) -> list[Group]:
        """Evict whole interactions, oldest first, until low water is reached. The last remaining group stays."""
        remaining_groups = [group for group in self.snapshot.groups if group.seq not in evicted_seqs]
        remaining = sum(not is_fixed(group, self.snapshot) for group in remaining_groups)
        taken: list[Group] = []
        for block in blocks:
            if self.is_enough():
                break
            evicted = block[: max(remaining - 1, 0)]
            self.take_out(evicted)
            taken += evicted
            remaining -= len(evicted)
        if taken:
            self.steps.append(Step("evict", count(taken), cost(taken), self.reason("evicted")))
        return taken

    def reason(self, done: str) -> str:
        """Return what a rung did, as words."""
        return f"the oldest interactions are {done}, down to {described(self.target)}"
