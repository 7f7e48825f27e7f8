"""Compacting a session: load a snapshot, plan, summarise with nothing locked, commit by compare-and-set.

A failure leaves the log and every context as they were. A lease keeps two processes from paying for the same summary;
correctness depends on the compare-and-set alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from palimpsest.compaction import Plan, Reason, Strategy, TriggerDecision
from palimpsest.compaction.guard import checked_plan
from palimpsest.compaction.triggers import TOOL_RULES
from palimpsest.errors import ConfigError, Conflict, PrivacyRefused, SummarizerFailed
from palimpsest.log import spans
from palimpsest.log.change import Change
from palimpsest.log.head import Attempts, Head
from palimpsest.log.summary import Compaction, Summary
from palimpsest.privacy.mentions import Mentions
from palimpsest.sessions.compacting.result import (
    CompactionResult,
    PlannedCompaction,
    detail_of,
    fingerprint,
    nothing,
    result_of,
)
from palimpsest.sessions.compacting.snapshot import Loaded, SnapshotReader
from palimpsest.sessions.compacting.summarise import SummaryMaker
from palimpsest.sessions.history import kinds_since
from palimpsest.sessions.knowledge import knowledge_of
from palimpsest.sessions.lease import Lease
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.states import pinned_groups
from palimpsest.summaries import Rejected

T = TypeVar("T")

REPLANS = 8
"""How many plans a compaction tries, each after losing a race against other writers, before it gives up."""

MAX_FAILURES = 3
"""After so many failures in a row, automatic compaction of the session pauses."""

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60, 3600
"""The first pause, which doubles with every further failure, and the longest pause."""


class Compactor:
    """Carries out one compaction of one session."""

    def __init__(self, scope: SessionScope, snapshots: SnapshotReader, maker: SummaryMaker) -> None:
        self._scope, self._store, self._options, self._clock = scope, scope.store, scope.options, scope.clock
        self._snapshots, self._maker = snapshots, maker
        seconds = scope.memory.compactions.seconds
        self._lease = Lease(scope.store, scope.runner, scope.key, "compaction", seconds, scope.clock)
        self.committed: PlannedCompaction | None = None
        """The plan that was committed."""
        self._loaded: list[Loaded] = []

    @classmethod
    def of(cls, scope: SessionScope, without: Mentions | None = None) -> Compactor:
        """Return a compactor of a session. With `without`, no summary that it makes contains what that looks for."""
        snapshots = SnapshotReader.of(scope)
        summarizer = scope.memory.summarizer(scope.options.summarizer)
        maker = SummaryMaker(snapshots, scope.options, scope.clock, summarizer, scope.gate, without)
        return cls(scope, snapshots, maker)

    async def load(self, strategy: Strategy, *, dry_run: bool = False) -> Loaded:
        """Return the session as the strategy sees it. A `dry_run` stores nothing, not even counts."""
        head = await self._store.head(self._options.key) or Head()
        archive, passed = strategy.summarizes or strategy.erases, strategy.triggers.counts_interactions
        stores = not dry_run and not self._options.readonly
        loaded = await self._snapshots.load(
            head, self._clock(), archive=archive, passed=passed, strategy=strategy.name, stores=stores
        )
        self._loaded.append(loaded)
        return loaded

    async def free_after(self, work: Awaitable[T]) -> T:
        """Await work with this compactor, then free in a thread what was loaded for it, and return the work's result.

        Freeing megabytes of objects takes tens of milliseconds, which would block an event loop. The work must keep no
        reference to these objects.
        """
        result = await work
        self.committed = None
        await self._scope.runner.read(self._free_loaded)
        return result

    def _free_loaded(self) -> None:
        self._loaded.clear()
        self._maker.held.clear()

    async def run(
        self,
        strategy: Strategy,
        decision: TriggerDecision | None = None,
        *,
        loaded: Loaded | None = None,
        dry_run: bool = False,
        automatic: bool = False,
    ) -> CompactionResult:
        """Compact and return the result. A failing summarizer raises nothing.

        An `automatic` compaction does nothing while the session is paused, or if the same plan brought nothing before.
        Raises ConfigError for a strategy whose plan is not allowed; an `automatic` compaction counts that as a failure.
        """
        loaded = loaded or await self.load(strategy, dry_run=dry_run)
        try:
            for _ in range(REPLANS):
                if automatic and (why := self._why_paused(loaded)):
                    return nothing(PlannedCompaction(strategy, loaded, decision, Plan()), "paused", why)
                try:
                    job = await self._job(strategy, loaded, decision)
                except ConfigError as fault:
                    if not automatic:
                        raise
                    return await self._note_failure(
                        PlannedCompaction(strategy, loaded, decision, Plan()), "failed", str(fault)
                    )
                if dry_run or job.plan.does_nothing:
                    if automatic and decision is not None and decision.rule in TOOL_RULES:
                        await self._note_run(job)
                    return result_of(job, dry_run=dry_run)
                result = await self._attempt(job, automatic=automatic)
                if result is not None:
                    return result
                loaded = await self.load(strategy)
            why = f"other writers changed the session during each of {REPLANS} attempts; compact again later"
            return nothing(PlannedCompaction(strategy, loaded, decision, Plan()), "conflict", why)
        finally:
            await self._lease.give_back()

    async def _job(self, strategy: Strategy, loaded: Loaded, decision: TriggerDecision | None) -> PlannedCompaction:
        plan = await self._store.apart(checked_plan, strategy, loaded.snapshot)
        doomed = await self._doomed(loaded, plan) if plan.erase else ()
        job = PlannedCompaction(strategy, loaded, decision, plan, doomed)
        if plan.erase and not (doomed or job.folded):
            return PlannedCompaction(strategy, loaded, decision, Plan(reason="nothing_to_compact"))
        return job

    def _why_paused(self, loaded: Loaded) -> str | None:
        """Return why automatic compaction of the session pauses now, or None if it does not."""
        attempts = loaded.head.attempts
        seconds = (attempts.paused_until - self._clock()) / 1e6 if attempts is not None else 0
        if attempts is None or not 0 < seconds <= LONGEST_PAUSE_SECONDS:  # longer: the clock was ahead when it paused
            return None
        return f"{attempts.failures} failures in a row; the next try is in {seconds:.0f} seconds"

    async def _attempt(self, job: PlannedCompaction, *, automatic: bool) -> CompactionResult | None:
        """Carry out a plan; None if the session has changed so that a new plan is needed."""
        attempts, summary = job.loaded.head.attempts, None
        if automatic and attempts is not None and attempts.fingerprint == fingerprint(job):
            return nothing(job, "paused", "the last attempt on the same entries gained nothing")
        if job.plan.cover or job.plan.fold:
            outcome = await self._summarise(job)
            if outcome is None or isinstance(outcome, CompactionResult):
                return outcome
            summary = outcome
            if self._options.knowledge:
                await knowledge_of(self._scope).announce()
        result = await self._store.apart(partial(result_of, job, summary=summary))
        async with self._scope.drop_derived(job.doomed):
            after = await self._scope.store.together(lambda: self._commit(job, summary, result))
        if after is None:
            return None
        if job.doomed:
            await self._scope.memory.scrub(self._store)
        self.committed = job
        if summary is not None:
            result = msgspec.structs.replace(
                result, summary=msgspec.structs.replace(summary, revision=after.compaction)
            )
        return result

    async def _summarise(self, job: PlannedCompaction) -> Summary | CompactionResult | None:
        """Return the summary that the plan asks for, or a result that says why there is none; None to plan anew."""
        if self._maker.pays:
            if not await self._lease.take_at_once(self._scope.memory.compactions):
                return nothing(job, "pending", "another compaction of this session is under way")
            head = await self._store.head(self._options.key)
            if head is None or head.compaction != job.loaded.head.compaction:
                return None  # another compaction was committed just before, and has paid for the same summary
        try:
            summary = await self._maker.fold(job.strategy, job.loaded, job.plan, self._lease.renew)
        except Rejected as fault:
            return await self._note_failure(job, fault.reason, self._maker.gate.redact(fault.why))
        except (SummarizerFailed, PrivacyRefused) as fault:
            return await self._note_failure(job, "failed", self._maker.gate.redact(str(fault)))
        if self._maker.pays and not await self._lease.renew():
            return None  # the lease ran out: its new holder may have made the same summary
        return summary

    async def _commit(self, job: PlannedCompaction, summary: Summary | None, result: CompactionResult) -> Head | None:
        """Commit by compare-and-set of the epoch; None if the session has changed so that the plan does not hold.

        Appends and cuts do not affect the plan; after these the commit is tried again at once. A pin that comes just
        before the commit saves its entry from being erased. Two compactions that write `attempts` at once are kept
        apart by the lease if they call a model.
        """
        while True:
            head = await self._store.head(self._options.key)
            if head is None or not await self._still_holds(job, head):
                return None
            before = head.attempts or Attempts()
            cursors = {**before.cursors, job.strategy.name: job.loaded.head.next_seq}
            attempts = Attempts(cursors=cursors, spent=before.spent + result.spent)
            if job.plan.erase:
                out = await self._snapshots.evicted(head, job.loaded.state)
                change = Change(
                    kind="erase", reason=job.strategy.name, seqs=job.doomed, also=job.plan.erase, evicted=out
                )
            else:
                change = Change(
                    kind="compact", reason="compaction", compaction=await self._state_after(job, head, summary)
                )
            change = msgspec.structs.replace(
                change, created=head.created, unpinned=True, attempts=attempts, detail=detail_of(result)
            )
            try:
                return await self._store.commit(self._options.key, change, expect_epoch=head.epoch)
            except Conflict:
                continue

    async def _still_holds(self, job: PlannedCompaction, head: Head) -> bool:
        """Whether the plan may be committed to this head: since it was made there were only appends, cuts and pins.

        After a pin an erasing plan does not hold. A covering one does: contexts show a pinned entry beside the summary.
        """
        before = job.loaded.head
        if head.compaction != before.compaction:
            return False
        kinds = await kinds_since(self._store, self._options.key, before, head)
        return kinds is not None and kinds <= ({"cut"} if job.plan.erase else {"cut", "pin"})

    async def _state_after(self, job: PlannedCompaction, head: Head, summary: Summary | None) -> Compaction:
        """Return the compaction state that the plan leads to from this head."""
        state, plan = job.loaded.state, job.plan
        current = [revision for revision in state.current if revision not in plan.fold]
        if summary is not None:  # inserted in log order; 0 stands for the revision of this commit
            begins = {existing.revision: existing.covers[0][0] for existing in job.loaded.snapshot.summaries}
            later = (i for i, revision in enumerate(current) if begins.get(revision, 0) > summary.covers[0][0])
            current.insert(next(later, len(current)), 0)
        archived = await self._snapshots.evicted(head, state)
        return Compaction(
            summary=summary,
            current=tuple(current),
            covered=spans.union(state.covered, plan.cover),
            evicted=spans.minus(spans.union(state.evicted, archived, plan.evict), plan.cover),
            hidden=state.hidden,
            mask=max(state.mask, plan.mask),
            released=state.released,
        )

    async def _doomed(self, loaded: Loaded, plan: Plan) -> tuple[int, ...]:
        """Return the seqs that an erasing plan destroys: the groups that it names and all older ones, archived or not.

        Entries that are pinned, and the groups that the plan keeps, stay. Tombstones are passed over, except where a
        flush may have left the speaker: a summary covers these.
        """
        head, last = loaded.head, plan.erase[-1][1]
        staying = [group for group in loaded.snapshot.groups if not spans.within(plan.erase, group.entries[0].seq)]
        kept = [entry.seq for group in staying for entry in group.entries]
        pinned = await pinned_groups(self._store, self._options, head, head.pinned)
        graves = spans.minus(head.graves, loaded.state.covered)
        older = spans.minus([(head.first_seq, last)], [*spans.of([*kept, *pinned]), *graves])
        return tuple(entry.seq for entry in await self._snapshots.read(older) if entry.is_there)

    async def _note_run(self, job: PlannedCompaction) -> None:
        """Record that a strategy ran but found nothing to do, so that the same tool results do not fire it again."""
        cursor = {job.strategy.name: job.loaded.head.next_seq}

        def after(_: Head, before: Attempts) -> Attempts:
            return msgspec.structs.replace(before, cursors={**before.cursors, **cursor})

        await self._note(job.plan.reason or "nothing_to_compact", after)

    async def _note(self, reason: str, after: Callable[[Head, Attempts], Attempts]) -> None:
        """Commit new `attempts`, computed by `after` from the head and its present attempts."""
        while (head := await self._store.head(self._options.key)) is not None:  # None: the session was deleted
            attempts = after(head, head.attempts or Attempts())
            change = Change(kind="attempt", reason=reason, created=head.created, attempts=attempts)
            try:
                await self._store.commit(self._options.key, change, expect_epoch=head.epoch)
                return
            except Conflict:
                continue

    async def _note_failure(self, job: PlannedCompaction, reason: Reason, why: str) -> CompactionResult:
        """Record a failure, so that the same is not tried again before something is added, and pauses grow longer."""
        spent = self._maker.spent

        def after(head: Head, before: Attempts) -> Attempts:
            failures = before.failures + 1
            pause = 0
            if failures >= MAX_FAILURES:
                pause = min(PAUSE_SECONDS * 2 ** (failures - MAX_FAILURES), LONGEST_PAUSE_SECONDS)
            return msgspec.structs.replace(
                before,
                spent=before.spent + spent,
                failures=failures,
                tried=head.next_seq,
                paused_until=self._clock() + pause * 1_000_000 if pause else 0,
                fingerprint="" if reason == "failed" else fingerprint(job),
            )

        await self._note(reason, after)
        return nothing(job, reason, why, spent)
