"""Compaction by hand, the way back, and the flush at a turn's end: what a session's verbs for them do."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from palimpsest.errors import ConfigError, Conflict, EntryNotFound
from palimpsest.log import spans, values
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry
from palimpsest.log.head import Attempts, Head
from palimpsest.log.summary import Compaction, Summary
from palimpsest.sessions.compacting.compactor import Compactor
from palimpsest.sessions.compacting.hiding import Hiding
from palimpsest.sessions.compacting.lazily import LazyAutoCompaction
from palimpsest.sessions.compacting.result import below_threshold
from palimpsest.sessions.compacting.snapshot import SnapshotReader
from palimpsest.sessions.parts import loaded as loaded_by
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.states import active_entries
from palimpsest.sessions.verifying import verify

if TYPE_CHECKING:
    from palimpsest.compaction import Strategy
    from palimpsest.sessions.compacting.result import CompactionResult
    from palimpsest.sessions.verifying import Verification


class Compacting:
    """Compacts by hand, looks into the archive, and brings back what was covered."""

    def __init__(self, scope: SessionScope, auto: LazyAutoCompaction) -> None:
        self._scope, self._options, self._auto = scope, scope.options, auto

    @property
    def hiding(self) -> Hiding:
        """What leaves entries out by hand."""
        return Hiding(self._scope)

    @property
    def _snapshots(self) -> SnapshotReader:
        return SnapshotReader.of(self._scope)

    async def active_entries(self) -> list[Entry]:
        """The active entries, oldest first."""
        return await self.entries(await self._scope.head(), self._scope.clock())

    async def entries(self, head: Head, now: int) -> list[Entry]:
        """The entries that are active by this head, at this time."""
        return await active_entries(self._scope.store, self._options, head, now)

    async def costs(self, head: Head, now: int) -> tuple[int, int]:
        """What the active set costs, and what of that the current summaries do."""
        return await self._snapshots.costs(head, now)

    async def compact(
        self,
        strategy: Strategy | Mapping[str, Any] | str | None,
        *,
        dry_run: bool,
        threshold: float | None,
        force: bool,
    ) -> CompactionResult:
        """Compact now."""
        values.switch("dry_run", dry_run)
        values.switch("force", force)
        if not dry_run:
            self._scope.may_write()
        chosen = await loaded_by(self._scope.runner, partial(self._options.chosen, strategy))  # whose module is read
        compactor = Compactor.of(self._scope)
        self._scope.gate.refuse([chosen.name], "strategy.name")
        asks = threshold is not None or not force
        work = self._compacted(compactor, chosen, dry_run=dry_run, threshold=threshold, asks=asks)
        return await compactor.released(work)

    async def _compacted(
        self, compactor: Compactor, chosen: Strategy, *, dry_run: bool, threshold: float | None, asks: bool
    ) -> CompactionResult:
        decision, loaded = None, await compactor.load(chosen, dry_run=dry_run)
        if asks:
            decision = await (await self._auto.loaded()).decision(chosen, loaded, threshold=threshold)
            if not decision.fired:
                return below_threshold(chosen, loaded, decision)
        result = await compactor.run(chosen, decision, loaded=loaded, dry_run=dry_run)
        if not dry_run:
            await (await self._auto.loaded()).tell(compactor, result)
        return result

    async def summaries(self, *, history: bool) -> list[Summary]:
        """The current summaries, or every version."""
        values.switch("history", history)
        if not history:
            snapshots = self._snapshots
            return await snapshots.summaries(await snapshots.state(await self._scope.head()))
        records = await self._scope.store.records(self._scope.key)
        return [record.compaction.summary for record in records if record.compaction and record.compaction.summary]

    async def expand(self, summary: Summary | str | None) -> list[Entry]:
        """The entries that a summary covers."""
        return await self._snapshots.read((await self._find(summary)).covers)

    async def restore(self, summary: Summary | str | None) -> int:
        """Bring the entries that a current summary covers back."""
        self._scope.may_write()
        made = await self._find(summary)
        while True:
            head = await self._scope.head()
            state = await self._snapshots.state(head)
            if made.revision not in state.current:
                raise ConfigError("summary", made.id, "a summary that is current: `summaries()` lists them")
            await self._check_there(made)
            passed = await self._snapshots.evicted(head, state)  # what cuts have left out stays out
            back = spans.minus(spans.common(made.covers, state.covered), head.rewound)
            after = Compaction(
                current=tuple(revision for revision in state.current if revision != made.revision),
                covered=spans.minus(state.covered, made.covers),
                evicted=spans.minus(spans.union(state.evicted, passed), made.covers),
                hidden=state.hidden,
                mask=state.mask,
                released=spans.minus(state.released, made.covers),
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

    async def _check_there(self, made: Summary) -> None:
        """Raise ConfigError where a flush has destroyed what the summary covers: it alone tells of that."""
        gone = spans.of(one.seq for one in await self._snapshots.read(made.covers) if one.erased and not one.damaged)
        if gone:
            told = f"entries {spans.told(gone)} of this one, and it alone tells of them"
            raise ConfigError("summary", made.id, f"a summary whose entries are there: a flush has destroyed {told}")

    async def verify(self) -> Verification:
        """What became of each entry."""
        return await verify(self._scope.store, self._options, self._scope.clock())

    async def _find(self, summary: Summary | str | None) -> Summary:
        id = summary.id if isinstance(summary, Summary) else summary
        if id is not None and not isinstance(id, str):
            raise ConfigError("summary", id, "a Summary, its id, or None for the newest")
        found = await self.summaries(history=id is not None)
        for made in reversed(found):
            if id is None or made.id == id:
                return made
        raise EntryNotFound(self._scope.key.session, id, "summary")
