"""Making a summary anew of what is left of the entries that one covered before an erasure took it along. Pure."""

from __future__ import annotations

from palimpsest.compaction import Plan, Snapshot, Step
from palimpsest.compaction.base import Summarizing
from palimpsest.compaction.selecting import archived, cost, count, spans_of
from palimpsest.log import spans
from palimpsest.log.spans import Span
from palimpsest.log.summary import REBUILD


class Rebuild(Summarizing, frozen=True, kw_only=True):
    """Cover what lies in `where` and is in the archive, in about `summary_tokens`.

    A summary that stands again in place of the one that was lost is folded in: it tells of what is not there any more.
    """

    where: tuple[Span, ...]
    summary_tokens: int
    name: str = REBUILD

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return what the new summary covers."""
        groups = [group for group in archived(snapshot) if spans.within(self.where, group.entries[0].seq)]
        again = [made for made in snapshot.summaries if not spans.minus(made.covers, self.where)]
        size = min(self.summary_tokens, cost(groups) + snapshot.standing(again) - 1 - snapshot.fence)
        if not groups:
            return Plan(reason="nothing_to_compact")
        if size < 1:
            return Plan(reason="no_gain")
        step = Step("summarize", count(groups), 0, "what an erasure has left of it")
        fold = tuple(made.revision for made in again)
        return Plan(cover=spans_of(groups), fold=fold, summary_tokens=size, steps=(step,))
