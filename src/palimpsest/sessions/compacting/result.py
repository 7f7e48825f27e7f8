"""What a compaction comes to: a strategy's plan with what it was made from, and the figures of it. Pure."""

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
    """What a compaction of this `strategy` (its name) did, or would do (`dry_run`).

    `summary` is the one that it made. `reason` says why it did nothing (None: it did), `why` tells a reader more.
    `decision` is the trigger that fired, None where it was asked for by hand. `covered`, `evicted` and `erased` count
    entries; results below the `seq` `masked_before` are notes. `tokens_before`, `tokens_after`, `messages_before` and
    `messages_after` are those of the active set, as a context shows it: summaries with their fences. `steps` are the
    rungs with what each saved, `spent` what the summarizer cost.
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
        """By how many tokens the active set is smaller."""
        return self.tokens_before - self.tokens_after


class PlannedCompaction(msgspec.Struct, frozen=True):
    """A plan with what it was made from. `doomed` are the entries that it destroys, with all that is older."""

    strategy: Strategy
    loaded: Loaded
    decision: TriggerDecision | None
    plan: Plan
    doomed: tuple[int, ...] = ()

    @property
    def folded(self) -> list[Summary]:
        """The current summaries that it supersedes or takes along."""
        plan = self.plan
        current = self.loaded.snapshot.summaries
        return [made for made in current if made.revision in plan.fold or spans.common(made.covers, plan.erase)]


def below_threshold(strategy: Strategy, loaded: Loaded, decision: TriggerDecision) -> CompactionResult:
    """What a compaction comes to whose trigger does not hold."""
    why = f"{decision.rule or 'no trigger'}: {decision.observed:g}, not {decision.op} {decision.threshold:g}"
    return nothing(PlannedCompaction(strategy, loaded, decision, Plan()), "below_threshold", why)


def fingerprint(job: PlannedCompaction) -> str:
    """Names what a plan is about, so that what has failed once is known again."""
    return digest(f"{job.strategy.name} {job.plan.cover} {job.plan.fold}")


def nothing(job: PlannedCompaction, reason: Reason, why: str, spent: Spent = Spent()) -> CompactionResult:  # noqa: B008
    """What a job comes to that does nothing, and why."""
    idle = PlannedCompaction(job.strategy, job.loaded, job.decision, Plan(reason=reason))
    return msgspec.structs.replace(result_of(idle), why=why, spent=spent)


def result_of(job: PlannedCompaction, *, summary: Summary | None = None, dry_run: bool = False) -> CompactionResult:
    """What the plan comes to. Without a summary that is there, one of its greatest length is reckoned with."""
    snapshot, plan, loaded = job.loaded.snapshot, job.plan, job.loaded
    gone = spans.union(plan.cover, plan.evict, plan.erase)
    stays = plan.does_nothing or (plan.erase and not job.folded)  # then the present cut goes on
    left = gone if stays else spans.union(gone, loaded.questions)
    groups = [group for group in snapshot.groups if spans.within(left, group.entries[0].seq)]
    made = plan.summary_tokens + snapshot.fence if plan.cover or plan.fold else 0
    if summary is not None:
        made = snapshot.standing([summary])
    notes = masked(snapshot, plan.mask) if plan.mask else {}
    saved = sum(tokens for seq, tokens in notes.items() if not spans.within(left, seq))
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
        tokens_after=snapshot.tokens - saved + made,
        messages_before=snapshot.messages,
        messages_after=snapshot.messages - sum(group.messages for group in groups) - len(job.folded) + bool(made),
        steps=plan.steps,
        spent=summary.spent if summary is not None else Spent(),
        dry_run=dry_run,
    )


def detail_of(result: CompactionResult) -> dict[str, Any]:
    """What the record tells beside the state: figures, the trigger, the rungs."""
    told: dict[str, Any] = {
        "strategy": result.strategy,
        "tokens_before": result.tokens_before,
        "tokens_after": result.tokens_after,
        "covered": result.covered,
        "evicted": result.evicted,
        "erased": result.erased,
    }
    if result.decision is not None:
        told["trigger"] = msgspec.structs.asdict(result.decision)
    if result.steps:
        told["steps"] = [msgspec.structs.asdict(step) for step in result.steps]
    return told
