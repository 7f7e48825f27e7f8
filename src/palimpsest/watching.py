"""When a session compacts by itself: its triggers are looked at, and what came of it is told. Never raises.

An append has succeeded before anything here begins. A look reads the active set; between looks an append costs a
few additions, for as long as they leave no trigger within reach.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from palimpsest.compaction import Strategy, TriggerDecision
from palimpsest.compaction.triggers import Activity, Margin, Triggers, decide, margin
from palimpsest.entries import Entry
from palimpsest.formats import find_format
from palimpsest.log import Head
from palimpsest.options import Options
from palimpsest.window import Meter

if TYPE_CHECKING:
    from palimpsest.compactor import CompactionResult, Compactor
    from palimpsest.memory import AsyncMemory
    from palimpsest.stores import Appended
    from palimpsest.survey import Survey


class Watch:
    """Watches one session, as one session object sees it."""

    def __init__(
        self,
        memory: AsyncMemory,
        options: Options,
        compactor: Callable[[], Compactor],
        prompt_tokens: Callable[[Head], int | None],
    ) -> None:
        self._memory, self._options, self._compactor = memory, options, compactor
        self._prompt_tokens = prompt_tokens
        self._margins: dict[str, Margin] = {}
        self._margins_at = 0
        self._new_results = True
        self._skipped: tuple[str, str] | None = None

    # --- when to look

    async def appended(self, done: Appended, *, in_turn: bool) -> None:
        """Look at the triggers after an append, where one may hold."""
        completed = not in_turn and completes(done.head, done.entries)
        if self._options.auto_compact != "off" and not self._is_quiet(done, completed):
            await self._when_due(completed)

    async def turn_ended(self) -> tuple[CompactionResult, ...]:
        """Look at all triggers at the end of a run of the model, and return what that led to."""
        return await self._when_due(completed=True) if self._options.auto_compact != "off" else ()

    async def overflowed(self, tokens: int, room: int) -> None:
        """Have what a context would have to evict summarised: so many tokens are more than the room for them."""
        strategy = next((one for one in self._options.long_term if one.summarizes), None)
        if strategy is None:
            return
        decision = TriggerDecision(fired=True, rule="high_water", observed=tokens, threshold=room, op=">")

        async def work() -> list[CompactionResult]:
            return [await self._run(strategy, decision)]

        await self._guarded(work)

    def _is_quiet(self, done: Appended, completed: bool) -> bool:
        """Whether no trigger can hold after this append, by what is known since the last look."""
        if not self._margins or done.head.revision != self._margins_at + 1:
            return False
        meter, entries = self._meter(), done.entries
        human = sum(entry.is_human for entry in entries)
        used = (sum(map(meter.cost, entries)), len(entries), len(entries), human + completed)
        self._margins = {name: one.spent(*used) for name, one in self._margins.items()}
        self._margins_at = done.head.revision
        self._new_results |= any(entry.kind == "tool_result" for entry in entries)
        for strategy in self._options.long_term:
            triggers = strategy.triggers
            if not self._margins[strategy.name].open or (completed and self._new_results and triggers.watches_tools):
                return False
            if triggers.idle_seconds or triggers.heeds(self._input_tokens(done.head)):
                return False
        return True

    def _meter(self) -> Meter:
        return Meter(self._options.counter, find_format(self._options.format), self._options.model)

    # --- looking, and acting on it

    async def _when_due(self, completed: bool) -> tuple[CompactionResult, ...]:
        return await self._guarded(lambda: self._look(completed))

    async def _guarded(self, work: Callable[[], Awaitable[list[CompactionResult]]]) -> tuple[CompactionResult, ...]:
        """Do it, here or in the background. Whatever goes wrong is told, and reaches nobody who added something."""
        import logging

        found: list[CompactionResult] = []

        async def job() -> None:
            try:
                found.extend(await work())
            except Exception as fault:  # the boundary: what was appended is appended
                logging.getLogger("palimpsest").exception("compacting session %s failed", self._options.key.session)
                facts = {"strategy": None, "reason": "failed", "why": str(fault)}
                await self._emit("compaction:failed", facts)

        if self._options.auto_compact == "background":
            self._memory.runner.background(job)
            return ()
        await job()
        return tuple(found)

    async def _look(self, completed: bool) -> list[CompactionResult]:
        results: list[CompactionResult] = []
        margins = {}
        if completed:
            self._new_results = False
        for strategy in self._options.long_term:
            survey = await self._compactor().survey(strategy)
            decision = await self.decision(strategy, survey, completed=completed)
            if decision.fired:
                results.append(await self._run(strategy, decision, survey))
                if results[-1].done and not self._options.runs_all:
                    break
            else:
                margins[strategy.name] = margin(strategy.triggers, survey.snapshot)
                at = survey.head.revision
        if len(margins) == len(self._options.long_term):
            self._margins, self._margins_at = margins, at
        else:
            self._margins = {}
        return results

    async def _run(
        self, strategy: Strategy, decision: TriggerDecision, survey: Survey | None = None
    ) -> CompactionResult:
        compactor = self._compactor()
        result = await compactor.run(strategy, decision, survey=survey, automatic=True)
        await self.tell(compactor, result)
        return result

    async def decision(
        self, strategy: Strategy, survey: Survey, *, threshold: float | None = None, completed: bool = True
    ) -> TriggerDecision:
        """Return whether the strategy's triggers hold; with `threshold`, whether that share of the limits is reached.
        Return whether the strategy's triggers hold; with `threshold`, whether that share of the limits is reached."""
        head, failures = survey.head, dict[str, str]()
        triggers = strategy.triggers
        if threshold is not None:
            tokens, messages = triggers.max_tokens, triggers.max_messages
            triggers = Triggers(threshold=threshold, max_tokens=tokens, max_messages=messages)
        meter = self._meter()
        meter.exact = True
        # A trigger that has fired is quiet until something is new, whatever came of it.
        tried = head.attempts.tried if head.attempts is not None and threshold is None else 0
        activity = Activity(
            snapshot=msgspec.structs.replace(survey.snapshot, seen=max(survey.snapshot.seen, tried)),
            meter=meter,
            session=self._options.key.session,
            entries=head.entries,
            turns=head.turns,
            input_tokens=self._input_tokens(head),
            idle=max(self._memory.clock() - head.updated, 0) / 1e6,
            completed=completed,
        )
        found = decide(triggers, activity, failures)
        for text, failure in failures.items():
            if self._memory.first_failure(self._options.key.session, text):
                await self._emit("condition:error", {"condition": text, "error": failure})
        return found

    def _input_tokens(self, head: Head) -> int | None:
        """The provider's figure for the last call, else what was counted for it; None where it was before a
        compaction."""
        if head.usage is not None:
            return None if head.usage.stale else head.usage.input_tokens
        return self._prompt_tokens(head)

    # --- telling

    async def tell(self, compactor: Compactor, result: CompactionResult) -> None:
        """Tell observers what a compaction did, or why it did nothing: the same reason in a row only once."""
        self._margins = {}
        facts: dict[str, Any] = {"strategy": result.strategy, "result": result}
        if result.reason is not None:
            failed = result.reason in ("failed", "empty", "no_gain")
            if failed or self._skipped != (result.strategy, result.reason):
                event = "compaction:failed" if failed else "compaction:skipped"
                await self._emit(event, {**facts, "reason": result.reason, "why": result.why})
            self._skipped = (result.strategy, result.reason)
            return
        self._skipped = None
        assert compactor.committed is not None, "what is done was committed"
        plan, survey = compactor.committed
        facts |= {"tokens_saved": result.tokens_saved}
        if result.summary is not None:
            covered = [entry.id for entry in survey.within(plan.cover)]
            made = {"summary": result.summary, "summary_id": result.summary.id, "covered": covered}
            await self._emit("compressed", {**facts, **made, "method": result.summary.method})
        for event, where in (("evicted", plan.evict), ("erased", plan.erase)):
            if where:
                seqs = tuple(entry.seq for entry in survey.within(where))
                await self._emit(event, {**facts, "seqs": seqs, "reason": result.strategy})

    async def _emit(self, event: Any, facts: dict[str, Any]) -> None:
        await self._memory.observers.emit(event, self._options.key.session, facts, self._memory.runner.wait)


def completes(head: Head, entries: Sequence[Entry]) -> bool:
    """Whether an append has completed an interaction: its last entry is an answer, and nothing is still open."""
    last = entries[-1]
    return last.kind == "message" and last.role == "assistant" and not (head.calls or head.reasoning)
