"""Compacting a session: survey it, plan, summarise with nothing locked, commit by compare-and-set.

What fails leaves the log and every context as they were. A lease keeps two processes from paying for one summary;
that nothing is lost rests on the compare-and-set alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from palimpsest.compaction import Plan, Reason, Strategy, TriggerDecision
from palimpsest.compaction.guard import planned
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
"""How often a compaction that lost a race is planned anew before it gives up."""

MAX_FAILURES = 3
"""Failures in a row after which a session is not compacted by itself for a while."""

PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 60, 3600
"""The first pause, which doubles with every further failure, and the longest."""


class Compactor:
    """Compacts one session, once."""

    def __init__(self, scope: SessionScope, snapshots: SnapshotReader, maker: SummaryMaker) -> None:
        self._scope, self._store, self._options, self._clock = scope, scope.store, scope.options, scope.clock
        self._snapshots, self._maker = snapshots, maker
        seconds = scope.memory.compactions.seconds
        self._lease = Lease(scope.store, scope.runner, scope.key, "compaction", seconds, scope.clock)
        self.committed: PlannedCompaction | None = None
        """What was committed."""
        self._loaded: list[Loaded] = []

    @classmethod
    def of(cls, scope: SessionScope, without: Mentions | None = None) -> Compactor:
        """The compactor of a session, none of whose summaries holds what `without` looks for."""
        snapshots = SnapshotReader.of(scope)
        summarizer = scope.memory.summarizer(scope.options.summarizer)
        maker = SummaryMaker(snapshots, scope.options, scope.clock, summarizer, scope.gate, without)
        return cls(scope, snapshots, maker)

    async def load(self, strategy: Strategy, *, dry_run: bool = False) -> Loaded:
        """Return the session as the strategy is to see it. A `dry_run` stores not even counts."""
        head = await self._store.head(self._options.key) or Head()
        archive, passed = strategy.summarizes or strategy.erases, strategy.triggers.counts_interactions
        stores = not dry_run and not self._options.readonly
        loaded = await self._snapshots.load(
            head, self._clock(), archive=archive, passed=passed, strategy=strategy.name, stores=stores
        )
        self._loaded.append(loaded)
        return loaded

    async def released(self, work: Awaitable[T]) -> T:
        """Return what comes of work with this compactor, and let go of what was loaded for it in a thread.

        The work must hold nothing of that when it is done. To let go of megabytes of objects takes tens of
        milliseconds, in which an event loop would do nothing else.
        """
        result = await work
        self.committed = None
        await self._scope.runner.read(self._let_go)
        return result

    def _let_go(self) -> None:
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
        """Compact and return what came of it. Never raises for what a summarizer does.

        One that is `automatic` keeps quiet while the session is paused, and where the same has brought nothing before.
        Raises ConfigError for a strategy that plans what may not be done; an `automatic` one takes that for a failure.
        """
        loaded = loaded or await self.load(strategy, dry_run=dry_run)
        try:
            for _ in range(REPLANS):
                if automatic and (why := self._paused(loaded)):
                    return nothing(PlannedCompaction(strategy, loaded, decision, Plan()), "paused", why)
                try:
                    job = await self._job(strategy, loaded, decision)
                except ConfigError as fault:
                    if not automatic:
                        raise
                    return await self._failed(
                        PlannedCompaction(strategy, loaded, decision, Plan()), "failed", str(fault)
                    )
                if dry_run or job.plan.does_nothing:
                    if automatic and decision is not None and decision.rule in TOOL_RULES:
                        await self._ran(job)
                    return result_of(job, dry_run=dry_run)
                done = await self._once(job, automatic=automatic)
                if done is not None:
                    return done
                loaded = await self.load(strategy)
            why = f"other writers were first {REPLANS} times"
            return nothing(PlannedCompaction(strategy, loaded, decision, Plan()), "conflict", why)
        finally:
            await self._lease.give_back()

    async def _job(self, strategy: Strategy, loaded: Loaded, decision: TriggerDecision | None) -> PlannedCompaction:
        plan = await self._store.apart(planned, strategy, loaded.snapshot)
        doomed = await self._doomed(loaded, plan) if plan.erase else ()
        job = PlannedCompaction(strategy, loaded, decision, plan, doomed)
        if plan.erase and not (doomed or job.folded):
            return PlannedCompaction(strategy, loaded, decision, Plan(reason="nothing_to_compact"))
        return job

    def _paused(self, loaded: Loaded) -> str | None:
        """Why nothing is to be tried by itself now."""
        attempts = loaded.head.attempts
        left = (attempts.paused_until - self._clock()) / 1e6 if attempts is not None else 0
        if attempts is None or not 0 < left <= LONGEST_PAUSE_SECONDS:  # longer: the clock was ahead when it was paused
            return None
        return f"{attempts.failures} failures in a row; the next try is in {left:.0f} seconds"

    async def _once(self, job: PlannedCompaction, *, automatic: bool) -> CompactionResult | None:
        """Carry out a plan; None where the session has changed so that it must be made anew."""
        attempts, summary = job.loaded.head.attempts, None
        if automatic and attempts is not None and attempts.fingerprint == fingerprint(job):
            return nothing(job, "paused", "the same has brought nothing before")
        if job.plan.cover or job.plan.fold:
            made = await self._summarised(job)
            if made is None or isinstance(made, CompactionResult):
                return made
            summary = made
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

    async def _summarised(self, job: PlannedCompaction) -> Summary | CompactionResult | None:
        """Return the summary that the plan asks for, or why there is none; None where the plan must be made anew."""
        if self._maker.pays:
            if not await self._lease.take_at_once(self._scope.memory.compactions):
                return nothing(job, "pending", "another compaction of this session is under way")
            head = await self._store.head(self._options.key)
            if head is None or head.compaction != job.loaded.head.compaction:
                return None  # somebody was done just before, and has paid for the same
        try:
            summary = await self._maker.fold(job.strategy, job.loaded, job.plan, self._lease.renew)
        except Rejected as fault:
            return await self._failed(job, fault.reason, self._maker.gate.redact(fault.why))
        except (SummarizerFailed, PrivacyRefused) as fault:
            return await self._failed(job, "failed", self._maker.gate.redact(str(fault)))
        if self._maker.pays and not await self._lease.renew():
            return None  # it ran out: whoever has it now may have done the same
        return summary

    async def _commit(self, job: PlannedCompaction, summary: Summary | None, result: CompactionResult) -> Head | None:
        """Commit by compare-and-set of the epoch; None where the session is not any more what was planned for.

        An append changes nothing about the plan, nor does a cut: after that it is tried again at once. A pin that comes
        last saves an entry from being erased. Two that note attempts at once are kept apart by the lease, where they
        pay.
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
                change = Change(kind="compact", reason="compaction", compaction=await self._after(job, head, summary))
            change = msgspec.structs.replace(
                change, created=head.created, unpinned=True, attempts=attempts, detail=detail_of(result)
            )
            try:
                return await self._store.commit(self._options.key, change, expect_epoch=head.epoch)
            except Conflict:
                continue

    async def _still_holds(self, job: PlannedCompaction, now: Head) -> bool:
        """Whether a plan of then may be committed now: the same session and state, and nothing but cuts and pins since.

        A pin saves an entry from being erased, not from being covered: contexts show it beside the summary.
        """
        before = job.loaded.head
        if now.compaction != before.compaction:
            return False
        kinds = await kinds_since(self._store, self._options.key, before, now)
        return kinds is not None and kinds <= ({"cut"} if job.plan.erase else {"cut", "pin"})

    async def _after(self, job: PlannedCompaction, head: Head, summary: Summary | None) -> Compaction:
        """The state that a plan leads to, from the head as it is now."""
        state, plan = job.loaded.state, job.plan
        current = [revision for revision in state.current if revision not in plan.fold]
        if summary is not None:
            begins = {one.revision: one.covers[0][0] for one in job.loaded.snapshot.summaries}
            later = (i for i, one in enumerate(current) if begins.get(one, 0) > summary.covers[0][0])
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
        """The entries that an erasing plan destroys: with what it names all that is older, the archive included."""
        head, last = loaded.head, plan.erase[-1][1]
        staying = [group for group in loaded.snapshot.groups if not spans.within(plan.erase, group.entries[0].seq)]
        kept = [entry.seq for group in staying for entry in group.entries]
        pinned = await pinned_groups(self._store, self._options, head, head.pinned)
        older = spans.minus([(head.first_seq, last)], spans.of([*kept, *pinned]))
        return tuple(entry.seq for entry in await self._snapshots.read(older) if entry.is_there)

    async def _ran(self, job: PlannedCompaction) -> None:
        """Remember that a strategy ran, though it found nothing to do: the results that it ran for are not new now."""
        cursor = {job.strategy.name: job.loaded.head.next_seq}

        def after(_: Head, before: Attempts) -> Attempts:
            return msgspec.structs.replace(before, cursors={**before.cursors, **cursor})

        await self._note(job.plan.reason or "nothing_to_compact", after)

    async def _note(self, reason: str, after: Callable[[Head, Attempts], Attempts]) -> None:
        """Commit what is remembered of compactions from now on."""
        while (head := await self._store.head(self._options.key)) is not None:  # None: it was deleted, and stays so
            attempts = after(head, head.attempts or Attempts())
            change = Change(kind="attempt", reason=reason, created=head.created, attempts=attempts)
            try:
                await self._store.commit(self._options.key, change, expect_epoch=head.epoch)
                return
            except Conflict:
                continue

    async def _failed(self, job: PlannedCompaction, reason: Reason, why: str) -> CompactionResult:
        """Remember a failure: the same is not tried again before something is new, nor often in a row."""
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
