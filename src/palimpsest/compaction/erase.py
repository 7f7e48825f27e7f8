"""The strategy neuralyzer, which erases for good. Pure."""

from __future__ import annotations

from typing import Any, ClassVar

from palimpsest.compaction import Plan, Snapshot, Step
from palimpsest.compaction.base import KEEP, Triggered, check_keep
from palimpsest.compaction.selecting import archived, completed, cost, loose, spans_of
from palimpsest.log import spans


class Neuralyzer(Triggered, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Erase every interaction older than the newest `interaction_keep` completed ones, without a trace of its text.

    Archived originals and summaries are erased with them, and so is everything before the first interaction. Pinned
    and system entries, kept and open interactions stay. No model is called.

    Args:
        interaction_keep: how many of the newest completed interactions stay; 2 by default.
        triggers: when the strategy runs by itself; by default no rule is on.
        name: its name in results and events; its last run is remembered by it, so each strategy of a session needs its
            own.
    """

    interaction_keep: int = KEEP
    name: str = "neuralyzer"

    usual_rules: ClassVar[dict[str, Any]] = {}  # what erases never runs unasked

    def __post_init__(self) -> None:
        Triggered.__post_init__(self)
        check_keep(self.interaction_keep, self.triggers)

    @property
    def erases(self) -> bool:
        """Whether its plans may erase entries."""
        return True

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return what of the `snapshot` to erase."""
        boundary = self._boundary(snapshot)
        if boundary <= 1:
            return Plan(reason="nothing_to_compact")
        leaving = [group for group in loose(snapshot) if group.turn < boundary]
        old_archived = [group for group in archived(snapshot) if group.turn < boundary]
        covered = spans.common(spans.union(*(summary.covers for summary in snapshot.summaries)), [(1, boundary - 1)])
        leaving_seqs = {group.seq for group in leaving}
        kept = [
            *spans_of(group for group in snapshot.groups if group.seq not in leaving_seqs),
            *spans.of(snapshot.pinned),
        ]
        erase = spans.minus(spans.union(spans_of(leaving), spans_of(old_archived), covered), kept)
        if not erase:
            return Plan(reason="nothing_to_compact")
        summaries = [summary for summary in snapshot.summaries if spans.common(summary.covers, erase)]
        saved = cost(leaving) + snapshot.standing(summaries)
        why = f"older than the newest {self.interaction_keep} completed interactions"
        return Plan(erase=erase, steps=(Step("erase", spans.size(erase), saved, why),))

    def _boundary(self, snapshot: Snapshot) -> int:
        """Return the `seq` before which everything is erased (1: nothing is).

        It is the beginning of the kept interactions, or of the open one if none are kept. Interactions of the archive
        count as kept, too. If fewer are known than are to be kept, nothing is erased, since the others may be covered
        by a summary.
        """
        still_open = [interaction.turn for interaction in snapshot.interactions if interaction.open]
        turns = {i.turn for i in (*completed(snapshot), *snapshot.archived)}.difference(still_open, [0])
        if self.interaction_keep:
            kept = sorted(turns)[-self.interaction_keep :]
            return kept[0] if len(kept) == self.interaction_keep else 1
        if still_open:
            return still_open[0]
        everything = [*snapshot.archived, *snapshot.interactions]
        ends = [i.groups[-1].entries[-1].seq for i in everything]
        ends += [summary.covers[-1][1] for summary in snapshot.summaries]
        return max(ends, default=0) + 1
