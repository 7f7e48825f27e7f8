"""Compacting a session: survey it, plan, summarise with nothing locked, commit by compare-and-set of the epoch.

What fails leaves the log and every context as they were. A lease keeps two processes from paying for one summary;
that nothing is lost rests on the compare-and-set alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from palimpsest import spans
from palimpsest.compaction import Plan, Reason, Step, Strategy, TriggerDecision
from palimpsest.errors import Conflict, SummarizerFailed
from palimpsest.folding import Folder
from palimpsest.lease import Lease
from palimpsest.log import Attempts, Change, Head, digest
from palimpsest.options import Options
from palimpsest.runners import Runner
from palimpsest.stores import Store
from palimpsest.summarizing import Rejected
from palimpsest.summary import Compaction, Spent, Summary
from palimpsest.survey import Survey, Surveyor

LEASE_SECONDS = 300.0
"""How long a compaction's lease lasts unless it is renewed, which every call of the summarizer does."""

REPLANS = 8
"""How often a compaction that lost a race is planned anew before it gives up."""

MAX_FAILURES = 3
"""Failures in a row after which a session is not compacted by itself for a while."""

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60, 3600
"""The first pause, which doubles with every further failure, and the longest."""


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction did, or would do (`dry_run`).

    `reason` says why it did nothing (None: it did), `why` tells a reader more. `decision` is the trigger that fired,
    None where it was asked for by hand. `covered`, `evicted` and `erased` count entries; tokens and messages are
    those of the active set. `steps` are the rungs with what each saved, `spent` what the summarizer cost.
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


class Compactor:
    """Compacts one session, once."""

    def __init__(
        self,
        store: Store,
        runner: Runner,
        options: Options,
        clock: Callable[[], int],
        surveyor: Surveyor,
        folder: Folder,
    ) -> None:
        self._store, self._runner, self._options, self._clock = store, runner, options, clock
        self._surveyor, self._folder = surveyor, folder
        self._lease = Lease(store, runner, options.key, "compaction", LEASE_SECONDS)
        self.committed: tuple[Plan, Survey] | None = None
        """The plan that was committed, and what it was made from."""

    async def survey(self, strategy: Strategy) -> Survey:
        """Return the session as the strategy is to see it."""
        head = await self._store.head(self._options.key) or Head()
        archive = strategy.summarizes or strategy.erases
        return await self._surveyor.survey(head, self._clock(), archive=archive, strategy=strategy.name)

    async def run(
        self,
        strategy: Strategy,
        decision: TriggerDecision | None = None,
        *,
        survey: Survey | None = None,
        dry_run: bool = False,
        automatic: bool = False,
    ) -> CompactionResult:
        """Compact and return what came of it. Never raises for what a summarizer does.

        One that is `automatic` keeps quiet while the session is paused, and where the same has brought nothing before.
        """
        survey = survey or await self.survey(strategy)
        plan = strategy.plan(survey.snapshot)
        if dry_run or plan.does_nothing:
            return _result(strategy, survey, plan, decision, dry_run=dry_run)
        if automatic and (why := self._paused(strategy, survey, plan)):
            return _nothing(strategy, survey, decision, "paused", why)
        try:
            if plan.cover and self._folder.pays and not await self._lease.try_to_take():
                return _nothing(
                    strategy, survey, decision, "pending", "another compaction of this session is under way"
                )
            for _ in range(REPLANS):
                done = await self._once(strategy, survey, plan, decision)
                if done is not None:
                    return done
                survey = await self.survey(strategy)
                plan = strategy.plan(survey.snapshot)
                if plan.does_nothing:
                    return _result(strategy, survey, plan, decision)
            return _nothing(strategy, survey, decision, "conflict", f"other writers were first {REPLANS} times")
        finally:
            await self._lease.give_back()

    def _paused(self, strategy: Strategy, survey: Survey, plan: Plan) -> str | None:
        """Why nothing is to be tried by itself now."""
        attempts = survey.head.attempts
        if attempts is None:
            return None
        left = (attempts.paused_until - self._clock()) / 1e6
        if left > 0:
            return f"{attempts.failures} failures in a row; the next try is in {left:.0f} seconds"
        if attempts.fingerprint and attempts.fingerprint == fingerprint(strategy, plan):
            return "the same has brought nothing before"
        return None

    async def _once(
        self, strategy: Strategy, survey: Survey, plan: Plan, decision: TriggerDecision | None
    ) -> CompactionResult | None:
        """Carry out a plan; None where the session has changed so that it must be made anew."""
        summary = None
        if plan.cover or plan.fold:
            try:
                summary = await self._folder.fold(strategy, survey, plan, self._lease.renew)
            except Rejected as fault:
                return await self._failed(strategy, survey, plan, decision, fault.reason, fault.why)
            except SummarizerFailed as fault:
                return await self._failed(strategy, survey, plan, decision, "failed", str(fault))
        if self._lease.held and not await self._lease.renew():
            await self._lease.try_to_take()  # it ran out: whoever has it now may have done the same
            return None
        head, result = survey.head, _result(strategy, survey, plan, decision, summary=summary)
        doomed = await self._doomed(survey, plan) if plan.erase else ()
        while True:
            attempts = self._attempts(strategy, head, result.spent)
            if doomed:
                change = Change(kind="erase", reason=strategy.name, seqs=doomed)
            else:
                change = Change(
                    kind="compact", reason="compaction", compaction=self._after(survey, plan, head, summary)
                )
            change = msgspec.structs.replace(change, attempts=attempts, detail=_detail(result))
            try:
                after = await self._store.compact(self._options.key, change, expect_epoch=head.epoch)
            except Conflict:
                now = await self._store.head(self._options.key) or Head()
                if not await self._still_holds(head, now):
                    return None
                head = now
                continue
            self.committed = plan, survey
            if summary is None:
                return result
            return msgspec.structs.replace(result, summary=msgspec.structs.replace(summary, revision=after.compaction))

    async def _still_holds(self, before: Head, now: Head) -> bool:
        """Whether a plan of then may be committed now: the same state, and nothing but cuts and pins since."""
        if now.compaction != before.compaction:
            return False
        records = await self._store.records(self._options.key, after=before.revision)
        return all(record.kind in ("cut", "pin") for record in records)

    def _after(self, survey: Survey, plan: Plan, head: Head, summary: Summary | None) -> Compaction:
        """The state that a plan leads to, from the head as it is now."""
        state = survey.state
        current = [revision for revision in state.current if revision not in plan.fold]
        if summary is not None:
            place = state.current.index(plan.fold[0]) if plan.fold and not plan.cover else len(current)
            current.insert(place, 0)
        archived = self._surveyor.evicted(head, state)
        return Compaction(
            summary=summary,
            current=tuple(current),
            covered=spans.union(state.covered, plan.cover),
            evicted=spans.minus(spans.union(state.evicted, archived, plan.evict), plan.cover),
            mask=max(state.mask, plan.mask),
        )

    async def _doomed(self, survey: Survey, plan: Plan) -> tuple[int, ...]:
        """The entries that an erasing plan destroys: with what it names all that is older, the archive included."""
        head, last = survey.head, plan.erase[-1][1]
        kept = [seq for seq in survey.entries if not spans.within(plan.erase, seq)]
        older = spans.minus([(head.first_seq, last)], spans.of([*kept, *head.pinned]))
        loose = set(spans.members(survey.archived)) | set(spans.members(survey.state.evicted))
        entries = await self._surveyor.read(spans.union(older, spans.of(loose - set(head.pinned))))
        return tuple(entry.seq for entry in entries if not entry.erased and entry.seq <= last)

    def _attempts(self, strategy: Strategy, head: Head, spent: Spent) -> Attempts:
        before = head.attempts or Attempts()
        cursors = {**before.cursors, strategy.name: head.next_seq}
        return Attempts(cursors=cursors, spent=before.spent + spent)

    async def _failed(
        self,
        strategy: Strategy,
        survey: Survey,
        plan: Plan,
        decision: TriggerDecision | None,
        reason: Reason,
        why: str,
    ) -> CompactionResult:
        """Remember a failure: the same is not tried again before something is new, nor often in a row."""
        head = await self._store.head(self._options.key) or Head()
        spent = self._folder.spent
        before = head.attempts or Attempts()
        failures = before.failures + 1
        pause = 0
        if failures >= MAX_FAILURES:
            pause = min(PAUSE_SECONDS * 2 ** (failures - MAX_FAILURES), LONGEST_PAUSE_SECONDS)
        attempts = msgspec.structs.replace(
            before,
            spent=before.spent + spent,
            failures=failures,
            tried=head.next_seq,
            paused_until=self._clock() + pause * 1_000_000 if pause else 0,
            fingerprint="" if reason == "failed" else fingerprint(strategy, plan),
        )
        await self._store.compact(self._options.key, Change(kind="attempt", reason=reason, attempts=attempts))
        return _nothing(strategy, survey, decision, reason, why, spent)


def below_threshold(strategy: Strategy, survey: Survey, decision: TriggerDecision) -> CompactionResult:
    """What a compaction comes to whose trigger does not hold."""
    why = f"{decision.rule or 'no trigger'}: {decision.observed:g}, not {decision.op} {decision.threshold:g}"
    return _nothing(strategy, survey, decision, "below_threshold", why)


def fingerprint(strategy: Strategy, plan: Plan) -> str:
    """Names what a plan is about, so that what has failed once is known again."""
    return digest(f"{strategy.name} {plan.cover} {plan.fold}")


def _nothing(
    strategy: Strategy,
    survey: Survey,
    decision: TriggerDecision | None,
    reason: Reason,
    why: str,
    spent: Spent = Spent(),  # noqa: B008
) -> CompactionResult:
    plan = Plan(reason=reason)
    return msgspec.structs.replace(_result(strategy, survey, plan, decision), why=why, spent=spent)


def _result(
    strategy: Strategy,
    survey: Survey,
    plan: Plan,
    decision: TriggerDecision | None,
    *,
    summary: Summary | None = None,
    dry_run: bool = False,
) -> CompactionResult:
    """What the plan comes to. Without a summary that is there, one of its greatest length is reckoned with."""
    snapshot = survey.snapshot
    gone = spans.union(plan.cover, plan.evict, plan.erase)
    groups = [group for group in snapshot.groups if spans.within(gone, group.entries[0].seq)]
    folded = [made for made in snapshot.summaries if made.revision in plan.fold]
    made = summary.tokens if summary is not None else plan.summary_tokens if plan.cover or plan.fold else 0
    masked = sum(step.tokens for step in plan.steps if plan.mask and step.name == "mask_results")
    tokens, messages = snapshot.tokens, snapshot.messages
    return CompactionResult(
        strategy=strategy.name,
        reason=plan.reason if plan.does_nothing else None,
        decision=decision,
        summary=summary,
        covered=len(survey.within(plan.cover)),
        evicted=len(survey.within(plan.evict)),
        erased=len(survey.within(plan.erase)),
        masked_before=plan.mask,
        tokens_before=tokens,
        tokens_after=tokens
        - sum(group.cost for group in groups)
        - sum(summary.tokens for summary in folded)
        - masked
        + made,
        messages_before=messages,
        messages_after=messages - sum(group.messages for group in groups) - len(folded) + bool(made),
        steps=plan.steps,
        spent=summary.spent if summary is not None else Spent(),
        dry_run=dry_run,
    )


def _detail(result: CompactionResult) -> dict[str, Any]:
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
