"""Automatic compaction: checks a session's triggers, runs the strategies that fire, and tells observers. Never raises.

An append has succeeded before any of this begins. A check (a "look") reads the active set and records by how much each
trigger is missed. Until appends have used up that margin, an append costs only a few additions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from palimpsest.compaction import Strategy, TriggerDecision
from palimpsest.compaction.decisions import Margin, decide, margin
from palimpsest.compaction.rules import Activity
from palimpsest.compaction.triggers import Triggers
from palimpsest.context.groups import Meter, most, most_messages
from palimpsest.errors import Closed
from palimpsest.formats import find_format
from palimpsest.log.head import Head
from palimpsest.runtime.events import EventName
from palimpsest.runtime.logs import log_failure, warn
from palimpsest.runtime.once import new_lock
from palimpsest.sessions.compacting.compactor import Compactor
from palimpsest.sessions.compacting.dues import (
    PendingLook,
    completes,
    high_water,
    idle_before,
    input_tokens_of,
    overtaken,
)
from palimpsest.sessions.compacting.flushing import flush
from palimpsest.sessions.compacting.snapshot import Loaded
from palimpsest.sessions.knowledge import knowledge_of
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.sessions.compacting.result import CompactionResult
    from palimpsest.stores import Appended


class _LastLook(NamedTuple):
    """By how much the triggers of these strategies were missed at a revision, which was written at `updated`."""

    revision: int
    updated: int
    margins: dict[str, Margin]
    strategies: Sequence[Strategy]


class AutoCompaction:
    """Automatic compaction of one session object, which several threads and tasks may use."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope, self._options = scope, scope.options
        self._last: _LastLook | None = None
        self._new_results = True  # whether tool results came since the triggers that heed them were looked at
        self._skipped: tuple[str, str] | None = None  # strategy and reason of the last compaction that did nothing
        self._pending: PendingLook | None = None
        self._lock = new_lock()

    # --- when to look

    async def appended(self, append: Appended, *, in_turn: bool) -> None:
        """Look at the triggers after an append, unless the margins of the last look show that none can fire.

        Outside of a turn this, or the end of the interaction, makes a session without an archive flush.
        """
        completed = not in_turn and completes(append.head, append.entries)
        has_human = not in_turn and any(entry.is_human for entry in append.entries)
        then = self.flush if self._options.flushes and not in_turn else None
        quiet = self._options.auto_compact == "off" or not self._options.long_term
        try:
            quiet = quiet or self._is_quiet(append, completed, has_human)
        except Exception:  # noqa: BLE001 (a user's counter: the look calls it again, and reports what it raises)
            quiet = False
        if not quiet:
            first = next(entry.seq for entry in append.entries if entry.revision == append.head.revision)
            await self._when_due(completed, first, then)
        elif completed and then is not None:
            await self._guarded(then)

    def knows(self, head: Head) -> None:
        """Keep the margins of the last look valid after a write that added no entries."""
        if self._last is not None and head.revision == self._last.revision + 1:
            self._last = self._last._replace(revision=head.revision)

    async def turn_ended(self, then: Callable[[], Awaitable[object]] | None = None) -> tuple[CompactionResult, ...]:
        """Look at all triggers at the end of a turn, then call `then`; return the results, or () in background mode."""
        watches = self._options.long_term and self._options.auto_compact != "off"
        if watches and self._options.auto_compact == "background":
            return await self._when_due(completed=True, then=then)
        results = await self._when_due(completed=True) if watches else ()
        if then is not None:
            await then()
        return results

    async def overflowed(self, tokens: int, room: int, *, cold: bool) -> None:
        """Summarise what a context would otherwise evict, because the log's `tokens` exceed the `room`.

        If `cold`, the room is what is worth sending anew while the provider's cache is cold.
        """
        strategy = next((strategy for strategy in self._options.long_term if strategy.summarizes), None)
        if strategy is None:
            return
        decision = TriggerDecision(
            fired=True, rule="cold_cache" if cold else "high_water", observed=tokens, threshold=room, op=">"
        )

        async def work() -> list[CompactionResult]:
            return [await self._run(strategy, decision)]

        await self._guarded(work)

    async def due(self) -> list[CompactionResult]:
        """Run what is due, whatever `auto_compact` says, and return the results: for workers. Errors of the store
        raise.

        A worker looks at sessions that may never be used again. So what failed before is tried again, unless the
        session is paused; and if no trigger fires, what a cut has evicted is summarised, as the next context would have
        it.
        """
        results: list[CompactionResult] = []
        for strategy in self._options.long_term:
            loaded = await Compactor.of(self._scope).load(strategy)
            loaded = msgspec.structs.replace(loaded, snapshot=msgspec.structs.replace(loaded.snapshot, tried=0))
            decision = await self.decision(strategy, loaded)
            if not decision.fired and strategy.summarizes:
                decision = high_water(loaded)
            if decision.fired:
                results.append(await self._run(strategy, decision, loaded))
                if results[-1].done and not self._options.runs_all:
                    break
        if self._options.flushes:
            await self.flush()
        return results

    def _is_quiet(self, append: Appended, completed: bool, has_human: bool) -> bool:
        """Whether no trigger can fire after this append, by the margins of the last look, which it reduces. A human
        message in it (`has_human`) may have ended an interaction without an answer."""
        last = self._last
        self._new_results |= any(entry.kind == "tool_result" for entry in append.entries)
        if last is None or append.head.revision != last.revision + 1:
            return False
        meter, entries = self._meter(), append.entries
        human = sum(entry.is_human for entry in entries)
        messages = sum(map(most_messages, entries))
        tokens = sum(most(entry, meter) for entry in entries)
        used = (tokens, len(entries), messages, human + completed)
        margins = {name: old_margin.spent(*used) for name, old_margin in last.margins.items()}
        self._last = last._replace(revision=append.head.revision, updated=append.head.updated, margins=margins)
        idle = (append.head.updated - last.updated) / 1e6
        input_tokens = input_tokens_of(append.head)
        for strategy in last.strategies:
            triggers = strategy.triggers
            if not margins[strategy.name].open or 0 < (triggers.idle_seconds or 0) <= idle:
                return False
            if (completed or has_human) and (
                (self._new_results and triggers.watches_tools) or triggers.heeds(input_tokens)
            ):
                return False
        return True

    async def flush(self) -> list[CompactionResult]:
        """Destroy what compactions have replaced, in a session that keeps no archive; return no results."""
        await flush(self._scope)
        return []

    def _meter(self) -> Meter:
        return Meter(self._options.counter, find_format(self._options.format), self._options.model)

    # --- looking, and running what fires

    async def _when_due(
        self, completed: bool, since: int = 0, then: Callable[[], Awaitable[object]] | None = None
    ) -> tuple[CompactionResult, ...]:
        """Look, now or in the background, then call `then`. `since` is the first seq of the append that led here."""
        with self._lock:
            pending, is_waiting = self._pending or PendingLook(), self._pending is not None
            pending.add(completed, since, then)
            if self._options.auto_compact == "background":
                self._pending = pending
        if is_waiting:
            return ()

        async def work() -> list[CompactionResult]:
            with self._lock:
                self._pending = None
            results = await self._look(pending.completed, pending.since)
            if pending.then is not None:
                await pending.then()
            return results

        return await self._guarded(work)

    async def _guarded(self, work: Callable[[], Awaitable[list[CompactionResult]]]) -> tuple[CompactionResult, ...]:
        """Do the work here, or in the background and return ().

        Errors are logged and told to observers; they never reach the caller that added something. Closed is no error:
        the next program that opens the store does the work.
        """
        results: list[CompactionResult] = []

        async def job() -> None:
            try:
                with suppress(Closed):
                    results.extend(await work())
            except Exception as fault:  # noqa: BLE001 (the boundary: the append that led here has succeeded)
                log_failure(self._scope.runner.redact, fault, "compacting session %s failed", self._scope.key.session)
                why = self._scope.gate.redact(str(fault))
                await self._scope.tell("compaction:failed", strategy=None, reason="failed", why=why)

        if self._options.auto_compact != "background":
            await job()
            return tuple(results)
        with suppress(Closed):
            self._scope.runner.background(job)
        return ()

    async def _is_held(self, completed: bool, since: int) -> bool:
        """Whether the session still is under an earlier definition, and no trigger of that fires."""
        definitions = self._scope.definitions
        if definitions is None:
            return False
        head, margins = await self._scope.head(), dict[str, Margin]()
        if (held := await definitions.held_now(head)) is None:
            return False
        for strategy in held.long_term:
            loaded = await Compactor.of(self._scope).load(strategy)
            is_completed = completed or overtaken(loaded, since)
            if (await self.decision(strategy, loaded, completed=is_completed, since=since)).fired:
                return False
            margins[strategy.name], head = margin(strategy.triggers, loaded.snapshot), loaded.head
        self._last = _LastLook(head.revision, head.updated, margins, held.long_term)
        return True

    async def _look(self, completed: bool, since: int) -> list[CompactionResult]:
        """Check the triggers of all strategies, and run the first that fires, or all (`long_term_run`)."""
        if await self._is_held(completed, since):
            return []
        results: list[CompactionResult] = []
        margins: dict[str, Margin] = {}
        head = Head()
        if completed:
            self._new_results = False
        for strategy in self._options.long_term:
            loaded = await Compactor.of(self._scope).load(strategy)
            if not completed and overtaken(loaded, since):
                completed, self._new_results = True, False
            decision = await self.decision(strategy, loaded, completed=completed, since=since)
            if decision.fired:
                results.append(await self._run(strategy, decision, loaded))
                if results[-1].done and not self._options.runs_all:
                    break
            else:
                margins[strategy.name] = margin(strategy.triggers, loaded.snapshot)
                head = loaded.head
        self._new_results |= any(not result.done for result in results)  # what fired in vain is looked at again
        is_quiet = len(margins) == len(self._options.long_term)
        self._last = _LastLook(head.revision, head.updated, margins, self._options.long_term) if is_quiet else None
        return results

    async def _run(
        self, strategy: Strategy, decision: TriggerDecision, loaded: Loaded | None = None
    ) -> CompactionResult:
        compactor = Compactor.of(self._scope)
        result = await compactor.run(strategy, decision, loaded=loaded, automatic=True)
        await self.tell(compactor, result)
        return result

    async def decision(
        self,
        strategy: Strategy,
        loaded: Loaded,
        *,
        threshold: float | None = None,
        completed: bool = True,
        since: int = 0,
    ) -> TriggerDecision:
        """Return whether a trigger of the strategy fires, or with `threshold`, whether that share of limits is reached.

        Idle time is counted from the last activity up to now, or up to the append at `since` (a `seq`).
        """
        head, failures = loaded.head, dict[str, str]()
        snapshot, triggers = loaded.snapshot, strategy.triggers
        if threshold is not None:
            tokens, messages = triggers.max_tokens, triggers.max_messages
            triggers = Triggers(threshold=threshold, max_tokens=tokens, max_messages=messages)
            snapshot = msgspec.structs.replace(snapshot, tried=0)  # asked for by hand: earlier failures do not matter
        meter = self._meter()
        meter.exact = True
        activity = Activity(
            snapshot=snapshot,
            meter=meter,
            session=self._scope.key.session,
            metadata=head.metadata,
            entries=head.entries,
            turns=head.turns,
            input_tokens=input_tokens_of(head),
            idle=idle_before(loaded, since) if since else max(self._scope.clock() - head.updated, 0) / 1e6,
            completed=completed,
        )
        decision = decide(triggers, activity, failures)
        for text, failure in failures.items():
            if self._scope.observers.first_failure(self._scope.key.session, text):
                redact = self._scope.gate.redact
                await self._scope.tell("condition:error", condition=redact(text), error=redact(failure))
        return decision

    # --- telling

    async def tell(self, compactor: Compactor, result: CompactionResult) -> None:
        """Tell observers what a compaction did, or why it did nothing. The same reason is told only once in a row."""
        self._last = None
        facts: dict[str, Any] = {"strategy": result.strategy, "result": result}
        if result.reason is not None:
            failed = result.reason in ("failed", "empty", "no_gain")
            if failed or self._skipped != (result.strategy, result.reason):
                event: EventName = "compaction:failed" if failed else "compaction:skipped"
                if result.reason == "failed":
                    self._log_unheard(event, result.why)
                await self._scope.tell(event, **facts, reason=result.reason, why=result.why)
            self._skipped = (result.strategy, result.reason)
            return
        self._skipped = None
        assert compactor.committed is not None, "what is done was committed"
        job = compactor.committed
        facts |= {"tokens_saved": result.tokens_saved}
        if result.summary is not None:
            covered = [entry.id for entry in job.loaded.within(job.plan.cover)]
            about = {"summary": result.summary, "summary_id": result.summary.id, "covered": covered}
            if result.summary.fallback is not None:
                self._log_unheard("summarizer:failed", result.summary.fallback)
                await self._scope.tell("summarizer:failed", **facts, **about, why=result.summary.fallback)
            await self._scope.tell("compressed", **facts, **about, method=result.summary.method)
        evicted = tuple(entry.seq for entry in job.loaded.within(job.plan.evict))
        if evicted:
            await self._scope.tell("evicted", **facts, seqs=evicted, reason=result.strategy)
        if job.doomed:
            await self._scope.tell("erased", **facts, seqs=job.doomed, reason=result.strategy)
        if self._options.knowledge:
            await knowledge_of(self._scope).keep()

    def _log_unheard(self, event: EventName, why: str) -> None:
        """Log a failure that no observer listens for. A summarizer without an API key would fail for ever unnoticed."""
        if not self._scope.observers.wants(event):
            warn("%s (session %s): %s", event, self._scope.key.session, why)
