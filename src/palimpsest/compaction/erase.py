"""The strategy neuralyzer: forget for good. Pure."""

from __future__ import annotations

from palimpsest.compaction import Plan, Snapshot, Step
from palimpsest.compaction.base import KEEP, Triggered, check_keep
from palimpsest.compaction.selecting import archived, completed, cost, loose, spans_of
from palimpsest.log import spans


class Neuralyzer(Triggered, repr_omit_defaults=True, frozen=True, kw_only=True):
    """Erase every interaction older than the newest `interaction_keep` completed ones, without a trace of its text.

    Archived originals and summaries go with them, and so does what came before the first interaction. Pinned and
    system entries, kept and open interactions stay. No model is called.

    Args:
        interaction_keep: how many of the newest completed interactions stay; 2 by default.
        triggers: when it runs by itself; by default no rule is on.
        name: how results and events call it, and by what its last run is remembered: two of one session need two names.
    """

    interaction_keep: int = KEEP
    name: str = "neuralyzer"

    def __post_init__(self) -> None:
        Triggered.__post_init__(self)
        check_keep(self.interaction_keep, self.triggers)

    @property
    def erases(self) -> bool:
        """Whether its plans may erase entries."""
        return True

    def plan(self, snapshot: Snapshot) -> Plan:
        """Return what is erased, of `snapshot`."""
        before = self._boundary(snapshot)
        if before <= 1:
            return Plan(reason="nothing_to_compact")
        leaving = [group for group in loose(snapshot) if group.turn < before]
        old = [group for group in archived(snapshot) if group.turn < before]
        covered = spans.common(spans.union(*(summary.covers for summary in snapshot.summaries)), [(1, before - 1)])
        gone = {group.seq for group in leaving}
        staying = [*spans_of(group for group in snapshot.groups if group.seq not in gone), *spans.of(snapshot.pinned)]
        erase = spans.minus(spans.union(spans_of(leaving), spans_of(old), covered), staying)
        if not erase:
            return Plan(reason="nothing_to_compact")
        summaries = [summary for summary in snapshot.summaries if spans.common(summary.covers, erase)]
        saved = cost(leaving) + snapshot.standing(summaries)
        why = f"older than the newest {self.interaction_keep} completed interactions"
        return Plan(erase=erase, steps=(Step("erase", spans.size(erase), saved, why),))

    def _boundary(self, snapshot: Snapshot) -> int:
        """The `seq` before which all goes: where the kept interactions begin, or else what is open; 1: nothing goes.

        Interactions of the archive count as kept, too. Where fewer are known than are to be kept, those that a
        summary covers may be among them.
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
