"""The verbs of a session for compaction by hand: compacting, summaries, restoring, hiding, verifying."""

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
from palimpsest.sessions.compacting.result import below_threshold
from palimpsest.sessions.compacting.snapshot import SnapshotReader
from palimpsest.sessions.lazy_parts import Part
from palimpsest.sessions.lazy_parts import loaded as loaded_by
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.states import active_entries
from palimpsest.sessions.verifying import verify

if TYPE_CHECKING:
    from palimpsest.compaction import Strategy
    from palimpsest.sessions.compacting.auto import AutoCompaction
    from palimpsest.sessions.compacting.result import CompactionResult
    from palimpsest.sessions.verifying import Verification


class Compacting:
    """Implements the verbs that compact by hand, read the archive, and bring back what was covered."""

    def __init__(self, scope: SessionScope, auto: Part[AutoCompaction]) -> None:
        self._scope, self._options, self._auto = scope, scope.options, auto

    @property
    def hiding(self) -> Hiding:
        """Hides and shows entries."""
        return Hiding(self._scope)

    @property
    def _snapshots(self) -> SnapshotReader:
        return SnapshotReader.of(self._scope)

    async def active_entries(self) -> list[Entry]:
        """Return the active entries, oldest first."""
        return await self.entries(await self._scope.head(), self._scope.clock())

    async def entries(self, head: Head, now: int) -> list[Entry]:
        """Return the entries that are active by this head, at this time."""
        return await active_entries(self._scope.store, self._options, head, now)

    async def costs(self, head: Head, now: int) -> tuple[int, int]:
        """Return the tokens of the active set, and how many of these are in the current summaries."""
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
        chosen = await loaded_by(self._scope.runner, partial(self._options.chosen, strategy))  # may import its module
        compactor = Compactor.of(self._scope)
        self._scope.gate.refuse([chosen.name], "strategy.name")
        decides = threshold is not None or not force
        work = self._compacted(compactor, chosen, dry_run=dry_run, threshold=threshold, decides=decides)
        return await compactor.free_after(work)

    async def _compacted(
        self, compactor: Compactor, chosen: Strategy, *, dry_run: bool, threshold: float | None, decides: bool
    ) -> CompactionResult:
        """Compact. If it `decides`, it does so only if the triggers fire, or the threshold is reached."""
        decision, loaded = None, await compactor.load(chosen, dry_run=dry_run)
        if decides:
            decision = await (await self._auto()).decision(chosen, loaded, threshold=threshold)
            if not decision.fired:
                return below_threshold(chosen, loaded, decision)
        result = await compactor.run(chosen, decision, loaded=loaded, dry_run=dry_run)
        if not dry_run:
            await (await self._auto()).tell(compactor, result)
        return result

    async def summaries(self, *, history: bool) -> list[Summary]:
        """Return the current summaries, or every version that was ever made."""
        values.switch("history", history)
        if not history:
            snapshots = self._snapshots
            return await snapshots.summaries(await snapshots.state(await self._scope.head()))
        records = await self._scope.store.records(self._scope.key)
        return [record.compaction.summary for record in records if record.compaction and record.compaction.summary]

    async def expand(self, summary: Summary | str | None) -> list[Entry]:
        """Return the entries that a summary covers."""
        return await self._snapshots.read((await self._find(summary)).covers)

    async def restore(self, summary: Summary | str | None) -> int:
        """Make the entries that a current summary covers active again; return how many there are."""
        self._scope.may_write()
        restored = await self._find(summary)
        while True:
            head = await self._scope.head()
            state = await self._snapshots.state(head)
            if restored.revision not in state.current:
                raise ConfigError("summary", restored.id, "a current summary: `summaries()` lists them")
            await self._check_not_destroyed(restored)
            evicted = await self._snapshots.evicted(head, state)  # what cuts have evicted stays evicted
            back = spans.minus(spans.common(restored.covers, state.covered), head.rewound)
            after = Compaction(
                current=tuple(revision for revision in state.current if revision != restored.revision),
                covered=spans.minus(state.covered, restored.covers),
                evicted=spans.minus(spans.union(state.evicted, evicted), restored.covers),
                hidden=state.hidden,
                mask=state.mask,
                released=spans.minus(state.released, restored.covers),
            )
            before = head.attempts or Attempts()
            cursors = {strategy.name: head.next_seq for strategy in self._options.long_term}
            attempts = msgspec.structs.replace(before, cursors={**before.cursors, **cursors})
            detail = {"summary": restored.id, "entries": spans.size(back)}
            change = Change(kind="compact", reason="restore", compaction=after, attempts=attempts, detail=detail)
            change = msgspec.structs.replace(change, created=head.created)
            try:
                await self._scope.store.commit(self._scope.key, change, expect_epoch=head.epoch)
            except Conflict:  # another writer was first: check again whether the summary is current
                continue
            await self._scope.tell("restored", **detail)
            return spans.size(back)

    async def _check_not_destroyed(self, summary: Summary) -> None:
        """Raise ConfigError if a flush has destroyed entries of the summary, which alone still tells of them."""
        entries = await self._snapshots.read(summary.covers)
        destroyed = spans.of(entry.seq for entry in entries if entry.erased and not entry.damaged)
        if destroyed:
            lost = f"entries {spans.in_words(destroyed)} of this one, and only the summary still tells of them"
            raise ConfigError("summary", summary.id, f"a summary whose entries exist: a flush has destroyed {lost}")

    async def verify(self) -> Verification:
        """Check the whole log, and return how many entries are in each state, and the problems."""
        return await verify(self._scope.store, self._options, self._scope.clock())

    async def _find(self, summary: Summary | str | None) -> Summary:
        """Return the summary of this id in any version, or the newest current one for None. Raises EntryNotFound."""
        id = summary.id if isinstance(summary, Summary) else summary
        if id is not None and not isinstance(id, str):
            raise ConfigError("summary", id, "a Summary, its id, or None for the newest")
        summaries = await self.summaries(history=id is not None)
        for candidate in reversed(summaries):
            if id is None or candidate.id == id:
                return candidate
        raise EntryNotFound(self._scope.key.session, id, "summary")
