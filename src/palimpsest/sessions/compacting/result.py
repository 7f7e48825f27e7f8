"""The result of a compaction, and the plan with its sources from which the result's numbers are computed. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from palimpsest.compaction import Plan, Reason, Step, Strategy, TriggerDecision
from palimpsest.compaction.mask import masked
from palimpsest.log import spans
from palimpsest.log.entry import digest
from palimpsest.log.summary import Spent, Summary
from palimpsest.sessions.compacting.snapshot import Loaded


class CompactionResult(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True):
    """What a compaction by this `strategy` (its name) did, or would do (`dry_run`).

    `summary` is the summary that it made. `reason` is why it did nothing (None: it did something); `why` says more, for
    people. `decision` is the trigger that fired, or None if it was called by hand. `covered`, `evicted` and `erased`
    are numbers of entries. Tool results with a `seq` below `masked_before` are replaced by notes. `tokens_before`,
    `tokens_after`, `messages_before` and `messages_after` are of the active set as a context shows it, summaries with
    their fences included. `steps` are the rungs of the budget ladder with the tokens that each saved, `spent` is what
    the summarizer cost.
    """

    strategy: str
    reason: Reason | None = None
    why: str = ""
    decision: TriggerDecision | None = None
    summary: Summary | None = None
    covered: int = 0
    evicted: int = 0
    erased: int = 0
    masked_before: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    messages_before: int = 0
    messages_after: int = 0
    steps: tuple[Step, ...] = ()
    spent: Spent = Spent()
    dry_run: bool = False

    @property
    def done(self) -> bool:
        """Whether it did something."""
        return self.reason is None

    @property
    def tokens_saved(self) -> int:
        """How many tokens smaller the active set is."""
        return self.tokens_before - self.tokens_after


class PlannedCompaction(msgspec.Struct, frozen=True):
    """A plan with what it was made from. `doomed` are the seqs of all entries that it destroys."""

    strategy: Strategy
    loaded: Loaded
    decision: TriggerDecision | None
    plan: Plan
    doomed: tuple[int, ...] = ()

    @property
    def folded(self) -> list[Summary]:
        """The current summaries that the plan supersedes, or of whose entries it erases some."""
        plan = self.plan
        current = self.loaded.snapshot.summaries
        return [one for one in current if one.revision in plan.fold or spans.common(one.covers, plan.erase)]


def below_threshold(strategy: Strategy, loaded: Loaded, decision: TriggerDecision) -> CompactionResult:
    """Return the result of a compaction whose trigger does not fire."""
    why = f"{decision.rule or 'no trigger'}: {decision.observed:g}, not {decision.op} {decision.threshold:g}"
    return nothing(PlannedCompaction(strategy, loaded, decision, Plan()), "below_threshold", why)


def fingerprint(job: PlannedCompaction) -> str:
    """Return a digest of what a plan summarises, by which a plan that failed before is recognised."""
    return digest(f"{job.strategy.name} {job.plan.cover} {job.plan.fold}")


def nothing(job: PlannedCompaction, reason: Reason, why: str, spent: Spent = Spent()) -> CompactionResult:  # noqa: B008
    """Return the result of a job that does nothing, with the reason."""
    idle = PlannedCompaction(job.strategy, job.loaded, job.decision, Plan(reason=reason))
    return msgspec.structs.replace(result_of(idle), why=why, spent=spent)


def result_of(job: PlannedCompaction, *, summary: Summary | None = None, dry_run: bool = False) -> CompactionResult:
    """Return the result of a plan. If no `summary` is given, it is assumed to have the planned length."""
    snapshot, plan, loaded = job.loaded.snapshot, job.plan, job.loaded
    removed = spans.union(plan.cover, plan.evict, plan.erase)
    keeps_cut = plan.does_nothing or (plan.erase and not job.folded)
    removed = removed if keeps_cut else spans.union(removed, loaded.questions)
    groups = [group for group in snapshot.groups if spans.within(removed, group.entries[0].seq)]
    summary_cost = plan.summary_tokens + snapshot.fence if plan.cover or plan.fold else 0
    if summary is not None:
        summary_cost = snapshot.standing([summary])
    notes = masked(snapshot, plan.mask) if plan.mask else {}
    saved = sum(tokens for seq, tokens in notes.items() if not spans.within(removed, seq))
    saved += sum(group.cost for group in groups) + snapshot.standing(job.folded)
    return CompactionResult(
        strategy=job.strategy.name,
        reason=plan.reason or "nothing_to_compact" if plan.does_nothing else None,
        decision=job.decision,
        summary=summary,
        covered=len(loaded.within(plan.cover)),
        evicted=len(loaded.within(plan.evict)),
        erased=len(job.doomed),
        masked_before=plan.mask,
        tokens_before=snapshot.tokens,
        tokens_after=snapshot.tokens - saved + summary_cost,
        messages_before=snapshot.messages,
        messages_after=snapshot.messages
        - sum(group.messages for group in groups)
        - len(job.folded)
        + bool(summary_cost),
        steps=plan.steps,
        spent=summary.spent if summary is not None else Spent(),
        dry_run=dry_run,
    )


def detail_of(result: CompactionResult) -> dict[str, Any]:
    """Return the `detail` of a compaction's record: numbers, the trigger, the steps."""
    detail: dict[str, Any] = {
        "strategy": result.strategy,
        "tokens_before": result.tokens_before,
        "tokens_after": result.tokens_after,
        "covered": result.covered,
        "evicted": result.evicted,
        "erased": result.erased,
    }
    if result.decision is not None:
        detail["trigger"] = msgspec.structs.asdict(result.decision)
    if result.steps:
        detail["steps"] = [msgspec.structs.asdict(step) for step in result.steps]
    return detail
