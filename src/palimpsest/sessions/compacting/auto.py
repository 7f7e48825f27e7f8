"""When a session compacts by itself: its triggers are looked at, and what came of it is told. Never raises.

An append has succeeded before anything here begins. A look reads the active set; between looks an append costs a
few additions, for as long as they leave no trigger within reach.
"""

from __future__ import annotations

from _thread import allocate_lock
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
from palimpsest.sessions.compacting.compactor import Compactor
from palimpsest.sessions.compacting.dues import completes, high_water, idle_before, input_tokens_of, overtaken
from palimpsest.sessions.compacting.flushing import flush
from palimpsest.sessions.compacting.snapshot import Loaded
from palimpsest.sessions.knowledge import knowledge_of
from palimpsest.sessions.scope import SessionScope

if TYPE_CHECKING:
    from palimpsest.sessions.compacting.result import CompactionResult
    from palimpsest.stores import Appended


class _Known(NamedTuple):
    """What the last look left: how far every rule of these strategies is from firing, at a revision that was written at
    `updated`."""

    revision: int
    updated: int
    margins: dict[str, Margin]
    strategies: Sequence[Strategy]


class _Due:
    """A look that waits in the background: one is enough for all that asked for it before it began."""

    def __init__(self) -> None:
        self.completed, self.since = False, 0
        self.then: Callable[[], Awaitable[object]] | None = None

    def add(self, completed: bool, since: int, then: Callable[[], Awaitable[object]] | None) -> None:
        """Ask for what one more caller wants looked at."""
        self.completed |= completed
        self.since, self.then = self.since or since, self.then or then


class AutoCompaction:
    """Watches one session, as one session object sees it, from whatever thread or task that is used."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope, self._options = scope, scope.options
        self._known: _Known | None = None
        self._new_results = True
        self._skipped: tuple[str, str] | None = None
        self._waiting: _Due | None = None
        self._lock = allocate_lock()

    # --- when to look

    async def appended(self, done: Appended, *, in_turn: bool) -> None:
        """Look at the triggers after an append, where one may hold."""
        completed = not in_turn and completes(done.head, done.entries)
        asked = not in_turn and any(entry.is_human for entry in done.entries)
        if self._options.auto_compact == "off":
            return
        try:
            quiet = self._is_quiet(done, completed, asked)
        except Exception:  # noqa: BLE001 (a counter of the program's: who looks asks it again, and what it raises is told)
            quiet = False
        if not quiet:
            first = next(entry.seq for entry in done.entries if entry.revision == done.head.revision)
            await self._when_due(completed, first)

    def knows(self, head: Head) -> None:
        """Take note of a write that moves no trigger but those that look at the head: what is known stays known."""
        if self._known is not None and head.revision == self._known.revision + 1:
            self._known = self._known._replace(revision=head.revision)

    async def turn_ended(self, then: Callable[[], Awaitable[object]] | None = None) -> tuple[CompactionResult, ...]:
        """Look at all triggers at the end of a run of the model, and return what that led to; `then` comes after."""
        watches = self._options.long_term and self._options.auto_compact != "off"
        if watches and self._options.auto_compact == "background":
            return await self._when_due(completed=True, then=then)
        done = await self._when_due(completed=True) if watches else ()
        if then is not None:
            await then()
        return done

    async def overflowed(self, tokens: int, room: int, *, cold: bool) -> None:
        """Have what a context would evict summarised: so many tokens are more than the room for them, or more than is
        worth paying for anew while the provider's cache is cold."""
        strategy = next((one for one in self._options.long_term if one.summarizes), None)
        if strategy is None:
            return
        decision = TriggerDecision(
            fired=True, rule="cold_cache" if cold else "high_water", observed=tokens, threshold=room, op=">"
        )

        async def work() -> list[CompactionResult]:
            return [await self._run(strategy, decision)]

        await self._guarded(work)

    async def due(self) -> list[CompactionResult]:
        """Do what is due, whatever `auto_compact` says, and return what came of it: for a worker, who looks at sessions
        that may not be touched again. What goes wrong with the store is raised.

        What has failed before is tried again, unless the session is paused. Where no trigger holds, what a cut has
        evicted is summarised, as a context would have it.
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
        if self._options.persistence == "flush" and not self._options.archive:
            await self.flush()
        return results

    def _is_quiet(self, done: Appended, completed: bool, asked: bool) -> bool:
        """Whether no trigger can hold after this append, by what is known since the last look.

        It has `completed` an interaction; or a human message was `asked`, which may have left one without an answer.
        """
        known = self._known
        self._new_results |= any(entry.kind == "tool_result" for entry in done.entries)
        if known is None or done.head.revision != known.revision + 1:
            return False
        meter, entries = self._meter(), done.entries
        human = sum(entry.is_human for entry in entries)
        messages = sum(map(most_messages, entries))
        tokens = sum(most(entry, meter) for entry in entries)
        used = (tokens, len(entries), messages, human + completed)
        margins = {name: one.spent(*used) for name, one in known.margins.items()}
        self._known = known._replace(revision=done.head.revision, updated=done.head.updated, margins=margins)
        idle = (done.head.updated - known.updated) / 1e6
        input_tokens = input_tokens_of(done.head)
        for strategy in known.strategies:
            triggers = strategy.triggers
            if not margins[strategy.name].open or 0 < (triggers.idle_seconds or 0) <= idle:
                return False
            if (completed or asked) and (
                (self._new_results and triggers.watches_tools) or triggers.heeds(input_tokens)
            ):
                return False
        return True

    async def flush(self) -> None:
        """Destroy what compactions have replaced, which keeps no archive."""
        await flush(self._scope)

    def _meter(self) -> Meter:
        return Meter(self._options.counter, find_format(self._options.format), self._options.model)

    # --- looking, and acting on it

    async def _when_due(
        self, completed: bool, since: int = 0, then: Callable[[], Awaitable[object]] | None = None
    ) -> tuple[CompactionResult, ...]:
        """Look now, or in the background, because of an append at `since` (a `seq`; 0: of none); then do `then`."""
        with self._lock:
            due, waits = self._waiting or _Due(), self._waiting is not None
            due.add(completed, since, then)
            if self._options.auto_compact == "background":
                self._waiting = due
        if waits:
            return ()

        async def work() -> list[CompactionResult]:
            with self._lock:
                self._waiting = None
            results = await self._look(due.completed, due.since)
            if due.then is not None:
                await due.then()
            return results

        return await self._guarded(work)

    async def _guarded(self, work: Callable[[], Awaitable[list[CompactionResult]]]) -> tuple[CompactionResult, ...]:
        """Do it, here or in the background. Whatever goes wrong is told, and reaches nobody who added something. What a
        close leaves undone has not gone wrong: whoever opens the store again does it."""
        found: list[CompactionResult] = []

        async def job() -> None:
            try:
                with suppress(Closed):
                    found.extend(await work())
            except Exception as fault:  # noqa: BLE001 (the boundary: what was appended is appended)
                log_failure(self._scope.runner.redact, fault, "compacting session %s failed", self._scope.key.session)
                why = self._scope.gate.redact(str(fault))
                await self._scope.tell("compaction:failed", strategy=None, reason="failed", why=why)

        if self._options.auto_compact != "background":
            await job()
            return tuple(found)
        with suppress(Closed):
            self._scope.runner.background(job)
        return ()

    async def _is_held(self, completed: bool, since: int) -> bool:
        """Whether the session is under another definition, by which nothing is to be done yet."""
        definitions = self._scope.definitions
        if definitions is None:
            return False
        head, margins = await self._scope.head(), dict[str, Margin]()
        if (held := await definitions.held_now(head)) is None:
            return False
        for strategy in held.long_term:
            loaded = await Compactor.of(self._scope).load(strategy)
            done = completed or overtaken(loaded, since)
            if (await self.decision(strategy, loaded, completed=done, since=since)).fired:
                return False
            margins[strategy.name], head = margin(strategy.triggers, loaded.snapshot), loaded.head
        self._known = _Known(head.revision, head.updated, margins, held.long_term)
        return True

    async def _look(self, completed: bool, since: int) -> list[CompactionResult]:
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
        whole = len(margins) == len(self._options.long_term)
        self._known = _Known(head.revision, head.updated, margins, self._options.long_term) if whole else None
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
        """Return whether the strategy's triggers hold; with `threshold`, whether that share of the limits is reached.

        Time since the last activity is counted up to now, or up to the append at `since` (a `seq`).
        """
        head, failures = loaded.head, dict[str, str]()
        snapshot, triggers = loaded.snapshot, strategy.triggers
        if threshold is not None:
            tokens, messages = triggers.max_tokens, triggers.max_messages
            triggers = Triggers(threshold=threshold, max_tokens=tokens, max_messages=messages)
            snapshot = msgspec.structs.replace(snapshot, tried=0)  # who asks for it is not to be kept waiting
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
        found = decide(triggers, activity, failures)
        for text, failure in failures.items():
            if self._scope.observers.first_failure(self._scope.key.session, text):
                told = self._scope.gate.redact
                await self._scope.tell("condition:error", condition=told(text), error=told(failure))
        return found

    # --- telling

    async def tell(self, compactor: Compactor, result: CompactionResult) -> None:
        """Tell observers what a compaction did, or why it did nothing: the same reason in a row only once."""
        self._known = None
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
            made = {"summary": result.summary, "summary_id": result.summary.id, "covered": covered}
            if result.summary.fallback is not None:
                self._log_unheard("summarizer:failed", result.summary.fallback)
                await self._scope.tell("summarizer:failed", **facts, **made, why=result.summary.fallback)
            await self._scope.tell("compressed", **facts, **made, method=result.summary.method)
        evicted = tuple(entry.seq for entry in job.loaded.within(job.plan.evict))
        if evicted:
            await self._scope.tell("evicted", **facts, seqs=evicted, reason=result.strategy)
        if job.doomed:
            await self._scope.tell("erased", **facts, seqs=job.doomed, reason=result.strategy)
        if self._options.knowledge:
            await knowledge_of(self._scope).keep()

    def _log_unheard(self, event: EventName, why: str) -> None:
        """Log what went wrong where nobody listens: a summarizer without its key fails for ever otherwise, unseen."""
        if not self._scope.observers.wants(event):
            warn("%s (session %s): %s", event, self._scope.key.session, why)
