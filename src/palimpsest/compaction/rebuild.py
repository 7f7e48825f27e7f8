"""Make a summary anew from what is left of its entries after an erasure withdrew it. Pure."""

from __future__ import annotations

from palimpsest.compaction import Plan, Snapshot, Step
from palimpsest.compaction.base import Summarizing
from palimpsest.compaction.selecting import archived, cost, count, spans_of
from palimpsest.log import spans
from palimpsest.log.spans import Span
from palimpsest.log.summary import REBUILD


class Rebuild(Summarizing, frozen=True, kw_only=True):
    """Cover the archived entries in `where` by a summary of about `summary_tokens`.

    An earlier version that took the place of the lost summary is folded in: it tells of flushed entries.
    """

    where: tuple[Span, ...]
    summary_tokens: int
    name: str = REBUILD

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return what of the `snapshot` the new summary covers."""
        groups = [group for group in archived(snapshot) if spans.within(self.where, group.entries[0].seq)]
        restored = [summary for summary in snapshot.summaries if not spans.minus(summary.covers, self.where)]
        size = min(self.summary_tokens, cost(groups) + snapshot.standing(restored) - 1 - snapshot.fence)
        if not groups:
            return Plan(reason="nothing_to_compact")
        if size < 1:
            return Plan(reason="no_gain")
        step = Step("summarize", count(groups), 0, "what an erasure left of the summary")
        fold = tuple(summary.revision for summary in restored)
        return Plan(cover=spans_of(groups), fold=fold, summary_tokens=size, steps=(step,))
