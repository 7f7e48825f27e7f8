"""Strategies that cover what leaves by a summary: summarizer and hybrid_summary. Pure.

What the archive holds uncovered is covered first. An anchored summary takes in the current summaries and supersedes
them, so that there is only one. A chain adds one summary at a time, until the chain itself is long and its oldest
summaries are rolled up into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor
from typing import Any, ClassVar, Literal

import msgspec

from palimpsest.compaction import Plan, Snapshot, Step
from palimpsest.compaction.base import KEEP, Summarizing, check_keep, check_limits, low
from palimpsest.compaction.selecting import (
    archived,
    cost,
    count,
    has_news,
    loose,
    older,
    outside,
    recent,
    spans_of,
)
from palimpsest.context.cut import Room
from palimpsest.context.groups import Group, by_interaction
from palimpsest.log import values
from palimpsest.log.summary import Summary

SHARE = 0.25
"""Share of the session's tokens that summaries take at most."""


class Proportional(Summarizing, frozen=True, kw_only=True):
    """A strategy whose summaries take a share of what they stand for.

    They aim at `target_ratio` of it, at least `summary_floor` tokens, at most `max_summary_tokens` or a quarter of the
    session's limit, and always at less than what they replace.
    """

    target_ratio: float = 0.3
    summary_floor: int = 120
    max_summary_tokens: int | None = None

    def __post_init__(self) -> None:
        Summarizing.__post_init__(self)
        values.share("target_ratio", self.target_ratio)
        values.whole("summary_floor", self.summary_floor)
        values.whole("max_summary_tokens", self.max_summary_tokens, 1, none=True)

    def size(self, snapshot: Snapshot, source: int, replaced: int) -> int:
        """Return the tokens to aim at for a summary of `source` tokens of the `snapshot`, in place of `replaced`."""
        target = max(ceil(values.part(self.target_ratio, source)), self.summary_floor)
        if self.max_summary_tokens is not None:
            target = min(target, self.max_summary_tokens)
        if snapshot.max_tokens:
            target = min(target, floor(values.part(SHARE, snapshot.max_tokens)))
        return min(target, replaced - 1 - snapshot.fence)

    def anchored(self, snapshot: Snapshot, new: int) -> int:
        """Return the tokens to aim at for the next anchored summary of the `snapshot`, with `new` tokens of entries."""
        source = new + sum(summary.source_tokens for summary in snapshot.summaries)
        return self.size(snapshot, source, new + snapshot.standing(snapshot.summaries))


class Summarize(Proportional, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Cover everything older than what is kept by a summary.

    With `recent_entries`, of an older part of an open interaction only the newest human message stays.

    Args:
        interaction_keep: how many of the newest completed interactions stay, beside what is open; None: 2, or 0 with
            `recent_entries`.
        recent_entries: how many of the last entries stay, extended back to the start of their interaction; None: whole
            interactions are counted instead.
        recent_tokens: the most tokens of what stays, which shrinks in whole groups; None: any number.
        min_entries: the least entries worth a summary; 1 by default.
        summaries: "anchored" (default), one summary that grows by versions, or "chain", one for each compaction.
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

    interaction_keep: int | None = None
    recent_entries: int | None = None
    recent_tokens: int | None = None
    min_entries: int = 1
    summaries: Literal["anchored", "chain"] = "anchored"
    name: str = "summarizer"

    usual_rules: ClassVar[dict[str, Any]] = {"interaction_threshold_qty": 20, "interaction_threshold_tokens": 20_000}

    def __post_init__(self) -> None:
        Proportional.__post_init__(self)
        if self.interaction_keep is None:  # safe, since nobody else has seen the new strategy
            msgspec.structs.force_setattr(self, "interaction_keep", KEEP if self.recent_entries is None else 0)
        values.whole("interaction_keep", self.interaction_keep)
        check_keep(self.interaction_keep or 0, self.triggers)
        values.whole("recent_entries", self.recent_entries, none=True)
        values.whole("recent_tokens", self.recent_tokens, none=True)
        values.whole("min_entries", self.min_entries, 1)
        values.choice("summaries", self.summaries, ("anchored", "chain"))

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return what of the `snapshot` the next summary covers."""
        if self.summaries == "chain" and (rolled := self._rolled_up(snapshot)):
            return rolled
        window = recent(
            snapshot,
            keep=self.interaction_keep or 0,
            entries=self.recent_entries,
            tokens=self.recent_tokens,
            minimum=self.min_entries
            if has_news(snapshot)
            else 0,  # without news nothing that the last run left is cut closer
        )
        leaving = older(snapshot, window, with_open=self.recent_entries is not None)
        covered = [*archived(snapshot), *leaving]
        if count(covered) < self.min_entries:
            return Plan(reason="too_few_entries" if covered else "nothing_to_compact")
        folded = snapshot.summaries if self.summaries == "anchored" else ()
        size = self.anchored(snapshot, cost(covered)) if folded else self.size(snapshot, cost(covered), cost(covered))
        why, most = "older than what is kept", self.max_summary_tokens or 0
        return covering(snapshot, leaving, covered, folded, size, why, most=most)

    def _rolled_up(self, snapshot: Snapshot) -> Plan | None:
        """Roll up the oldest summaries of a chain over a quarter of the session's tokens, down to half of that."""
        chain = snapshot.summaries
        if not snapshot.max_tokens or len(chain) < 2:
            return None
        limit, tokens = values.part(SHARE, snapshot.max_tokens), snapshot.standing(chain)
        if tokens <= limit:
            return None
        for length in range(2, len(chain) + 1):
            folded = chain[:length]
            replaced = snapshot.standing(folded)
            size = self.size(snapshot, replaced, replaced)
            if tokens - replaced + size + snapshot.fence <= limit / 2:
                break
        return covering(snapshot, (), (), folded, size, "the chain of summaries is long")


class HybridSummary(Summarizing, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Cover the oldest interactions by a summary of at most `summary_tokens`, and keep the newest one as it is.

    At least one interaction is covered. If nothing is new since the last run, only low water counts.

    Args:
        summary_tokens: the most tokens of the summary.
        summarize_oldest_percent: the share to summarise of the entries that may leave, over 0 and up to 1; 0.5 by
            default.
        interaction_keep: how many of the newest completed interactions stay; 2 by default.
        recent_tokens: the most tokens of what stays, which shrinks in whole groups; None: any number.
        low_water: the share of the limits to go down to, over 0 and under 1; 0.5 by default.
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
    """

    summary_tokens: int
    summarize_oldest_percent: float = 0.5
    interaction_keep: int = KEEP
    recent_tokens: int | None = None
    low_water: float = 0.5
    max_tokens: int | None = None
    max_messages: int | None = None
    name: str = "hybrid_summary"

    def __post_init__(self) -> None:
        Summarizing.__post_init__(self)
        check_limits(self)
        values.whole("summary_tokens", self.summary_tokens, 1)
        values.share("summarize_oldest_percent", self.summarize_oldest_percent)
        check_keep(self.interaction_keep, self.triggers)
        values.whole("recent_tokens", self.recent_tokens, none=True)

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return what of the `snapshot` the next summary covers."""
        target, is_new = low(self, snapshot), has_news(snapshot)
        quota = floor(values.part(self.summarize_oldest_percent, count(loose(snapshot)))) if is_new else 0
        archive, leaving = archived(snapshot), list[Group]()
        run = _Run(self, snapshot, cost(archive))
        for block in self._blocks(snapshot):
            is_due = (is_new and not run.interactions) or run.entries + count(block) <= quota
            if not is_due and run.holds(target):
                break
            run.take(block)
            leaving += block
        covered = [*archive, *leaving]
        if not covered:
            return Plan(reason="nothing_to_compact")
        why = "the oldest interactions"
        return covering(snapshot, leaving, covered, snapshot.summaries, run.size, why, most=self.summary_tokens)

    def _blocks(self, snapshot: Snapshot) -> list[list[Group]]:
        """Return what may leave, by interaction: all but the newest. A preamble leaves only before an interaction."""
        newest = snapshot.interactions[-1].turn if snapshot.interactions else 0
        groups = outside(snapshot, self.interaction_keep, self.recent_tokens)
        blocks = [block for block in by_interaction(groups) if block[0].turn != newest]
        return blocks if any(block[0].turn for block in blocks) else []


class _Run:
    """What has left so far, and what remains beside a summary of it."""

    def __init__(self, strategy: HybridSummary, snapshot: Snapshot, source: int) -> None:
        self.most, self.source, self.fence = strategy.summary_tokens, source, snapshot.fence
        self.folded = snapshot.standing(snapshot.summaries)
        self.tokens, self.messages = snapshot.tokens, snapshot.messages
        self.others = len(snapshot.summaries)
        self.entries = self.interactions = 0

    def take(self, block: Sequence[Group]) -> None:
        """Let the groups of one interaction leave."""
        self.source += cost(block)
        self.tokens -= cost(block)
        self.messages -= sum(group.messages for group in block)
        self.entries += count(block)
        self.interactions += block[0].turn > 0

    @property
    def size(self) -> int:
        """Tokens of the summary: those that it may take, or fewer if it would save nothing."""
        return min(self.most, self.source + self.folded - 1 - self.fence)

    def holds(self, target: Room) -> bool:
        """Whether low water is reached."""
        if not self.source:
            return target.holds(self.tokens, self.messages)
        tokens = self.tokens - self.folded + self.size + self.fence
        return target.holds(tokens, self.messages - self.others + 1)


def covering(
    snapshot: Snapshot,
    leaving: Sequence[Group],
    covered: Sequence[Group],
    folded: Sequence[Summary],
    size: int,
    why: str,
    *,
    most: int = 0,
) -> Plan:
    """Return the plan for a summary of `size` tokens that covers these groups; those in `leaving` are active."""
    if size < 1:
        return Plan(reason="no_gain")
    entries = count(covered) or sum(summary.entries for summary in folded)
    step = Step("summarize", entries, cost(leaving) + snapshot.standing(folded) - size - snapshot.fence, why)
    return Plan(
        cover=spans_of(covered),
        fold=tuple(summary.revision for summary in folded),
        summary_tokens=size,
        summary_most=most,
        steps=(step,),
    )
