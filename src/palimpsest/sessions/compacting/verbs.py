"""Compaction as a session offers it: by hand, by trigger, and the way back. A part of `AsyncSession`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from palimpsest.errors import ConfigError, Conflict, EntryNotFound, StoreUnavailable
from palimpsest.log import spans
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry
from palimpsest.log.head import Attempts, PromptSize
from palimpsest.log.summary import Compaction, Summary
from palimpsest.sessions.timeline import Timeline

if TYPE_CHECKING:
    from palimpsest.compaction import Strategy
    from palimpsest.context.result import Context
    from palimpsest.sessions.compacting.auto import AutoCompaction
    from palimpsest.sessions.compacting.compactor import Compactor
    from palimpsest.sessions.compacting.result import CompactionResult
    from palimpsest.sessions.compacting.snapshot import SnapshotReader
    from palimpsest.sessions.scope import SessionScope
    from palimpsest.sessions.verifying import Verification
    from palimpsest.stores import Appended


class Compacting(Timeline):
    """Compacts, by hand and by trigger, looks into the archive, and brings back what was covered."""

    def __init__(self, scope: SessionScope) -> None:
        super().__init__(scope)
        self._watched: AutoCompaction | None = None

    # --- by hand

    async def compact(
        self,
        strategy: Strategy | Mapping[str, Any] | str | None = None,
        *,
        dry_run: bool = False,
        threshold: float | None = None,
        force: bool = True,
    ) -> CompactionResult:
        """Compact now and return what came of it; where there is nothing to do, that is no error but a `reason`.

        `strategy` is an object, a mapping or a name such as "lru". Default is the session's first, else the ladder:
        superseded contexts, then old tool results, then a summary, then eviction. `dry_run` shows the plan and changes
        nothing. Without `force`, or with `threshold` (a share of the session's limits), it runs only if the strategy's
        triggers, or that threshold, say so. What is covered or evicted stays in the log: `expand`, `restore` and
        `entry` reach it; only the neuralyzer destroys.

        Raises ConfigError for an unknown strategy or a value that is not accepted; never for what a summarizer does.
        """
        from palimpsest.compaction import checking
        from palimpsest.sessions.compacting.result import below_threshold

        checking.switch("dry_run", dry_run)
        checking.switch("force", force)
        if not dry_run:
            self._scope.may_write()
        chosen, compactor, decision = self._options.chosen(strategy), self._compactor(), None
        self._gate.refuse([chosen.name], "strategy.name")
        loaded = await compactor.load(chosen, dry_run=dry_run)
        if threshold is not None or not force:
            decision = await self._watch.decision(chosen, loaded, threshold=threshold)
            if not decision.fired:
                return below_threshold(chosen, loaded, decision)
        result = await compactor.run(chosen, decision, loaded=loaded, dry_run=dry_run)
        if not dry_run:
            await self._watch.tell(compactor, result)
        return result

    @property
    def _snapshots(self) -> SnapshotReader:
        from palimpsest.sessions.compacting.snapshot import SnapshotReader

        return SnapshotReader(self._scope.store, self._options, room=self._scope.room)

    def _compactor(self) -> Compactor:
        from palimpsest.sessions.compacting.compactor import Compactor

        return Compactor.of(self._scope)

    # --- by trigger

    @property
    def _watch(self) -> AutoCompaction:
        if self._watched is None:
            from palimpsest.sessions.compacting.auto import AutoCompaction

            self._watched = AutoCompaction(self._scope)
        return self._watched

    async def _note_prompt(self, context: Context) -> None:
        """Keep with the session what a context came to, where a trigger asks for that: whoever looks next may be
        another object, or another process."""
        if not (self._scope.store.writable and any(one.triggers.heeds_calls for one in self._options.long_term)):
            return
        prompt = PromptSize(tokens=context.tokens, revision=context.revision)
        try:
            change = Change(kind="prompt", reason="prompt", prompt=prompt)
            self._watch.knows(await self._scope.store.commit(self._scope.key, change, expect_epoch=context.epoch))
        except Conflict:
            context.noted("its count was not kept: others began a new epoch meanwhile, of which it says nothing")
        except StoreUnavailable as fault:  # what can be read can be sent
            context.noted(f"its count was not kept: {fault}")

    async def _appended(self, done: Appended) -> None:
        if self._options.long_term and done.added:
            await self._watch.appended(done, in_turn=self._in_turn)

    # --- what is covered

    async def summaries(self, *, history: bool = False) -> list[Summary]:
        """Return the current summaries, oldest first; with `history` every version that was ever made, too.

        One whose text went with an erasure is in the history, `withdrawn` and without words.
        """
        if not isinstance(history, bool):
            raise ConfigError("history", history, "True or False")
        if not history:
            snapshots = self._snapshots
            return await snapshots.summaries(await snapshots.state(await self._reader.head()))
        records = await self._scope.store.records(self._scope.key)
        return [record.compaction.summary for record in records if record.compaction and record.compaction.summary]

    async def expand(self, summary: Summary | str | None = None) -> list[Entry]:
        """Return the entries that a summary covers, whole and oldest first: of the newest, or of the one given.

        What was erased since is there as a tombstone. Raises EntryNotFound for an id that is no summary's.
        """
        return await self._snapshots.read((await self._find(summary)).covers)

    async def restore(self, summary: Summary | str | None = None) -> int:
        """Bring the entries that a current summary covers back into the active set; return how many there are.

        The summary stands in no context from then on; `summaries(history=True)` keeps it. Where everything together is
        over the budget, the next context cuts as always. Raises ConfigError for a version that another has superseded.
        """
        self._scope.may_write()
        made = await self._find(summary)
        while True:
            head = await self._reader.head()
            state = await self._snapshots.state(head)
            if made.revision not in state.current:
                raise ConfigError("summary", made.id, "a summary that is current: `summaries()` lists them")
            back = spans.minus(spans.common(made.covers, state.covered), head.rewound)
            after = Compaction(
                current=tuple(revision for revision in state.current if revision != made.revision),
                covered=spans.minus(state.covered, made.covers),
                evicted=state.evicted,
                mask=state.mask,
            )
            before = head.attempts or Attempts()
            cursors = {strategy.name: head.next_seq for strategy in self._options.long_term}
            attempts = msgspec.structs.replace(before, cursors={**before.cursors, **cursors})
            detail = {"summary": made.id, "entries": spans.size(back)}
            change = Change(kind="compact", reason="restore", compaction=after, attempts=attempts, detail=detail)
            change = msgspec.structs.replace(change, created=head.created)
            try:
                await self._scope.store.commit(self._scope.key, change, expect_epoch=head.epoch)
            except Conflict:  # somebody was first: look again whether it is still current
                continue
            await self._scope.tell("restored", **detail)
            return spans.size(back)

    async def verify(self) -> Verification:
        """Walk the whole log and say what became of each entry: nothing may be lost, or be there twice.

        Every entry is active, covered, evicted, erased, rewound or expired, exactly once; `problems` names what does
        not hold together, and is empty for a session that is whole.
        """
        from palimpsest.sessions.verifying import verify

        return await verify(self._scope.store, self._options, self._scope.clock())

    async def _find(self, summary: Summary | str | None) -> Summary:
        id = summary.id if isinstance(summary, Summary) else summary
        if id is not None and not isinstance(id, str):
            raise ConfigError("summary", id, "a Summary, its id, or None for the newest")
        found = await self.summaries(history=id is not None)
        for made in reversed(found):
            if id is None or made.id == id:
                return made
        raise EntryNotFound(self.id, "summary" if id is None else id)
