"""Hiding entries from contexts, and showing them again. Nothing is destroyed, and no note takes their place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from palimpsest.errors import ConfigError, Conflict
from palimpsest.log import spans
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction
from palimpsest.sessions.compacting.snapshot import SnapshotReader
from palimpsest.sessions.paging import batches_of
from palimpsest.sessions.reading import LogReader
from palimpsest.sessions.scope import SessionScope


class Hiding:
    """Hides and shows whole groups of one session."""

    def __init__(self, scope: SessionScope) -> None:
        self._scope = scope
        self._log = LogReader(scope.store, scope.options)
        self._snapshots = SnapshotReader.of(scope)

    async def hide(self, ids: Iterable[str | int | Entry]) -> int:
        """Hide the groups of these entries; return how many entries were not hidden before."""
        return await self._change(tuple(ids), "hidden")

    async def show(self, ids: Iterable[str | int | Entry]) -> int:
        """Show the groups of these entries again; return how many entries were hidden."""
        return await self._change(tuple(ids), "shown")

    async def _change(self, ids: Sequence[str | int | Entry], reason: str) -> int:
        scope = self._scope
        scope.may_write()
        while ids:
            head = await self._log.head()
            named = [await self._log.named(id) for id in ids]
            state = await self._snapshots.state(head)
            groups, places = await self._groups(named, head)
            movable = spans.minus(places, [*head.rewound, *(state.covered if reason == "hidden" else ())])
            if reason == "hidden":
                _check(named, movable, head, state)
                moved = spans.minus(movable, state.hidden)
                hidden = spans.union(state.hidden, movable)
            else:
                moved = spans.common(movable, state.hidden)
                hidden = spans.minus(state.hidden, movable)
            if not moved:
                return 0
            evicted = spans.union(state.evicted, await self._snapshots.evicted(head, state))
            after = msgspec.structs.replace(
                state, summary=None, evicted=spans.minus(evicted, moved), hidden=spans.minus(hidden, state.covered)
            )
            detail = {"entries": spans.size(moved)}
            change = Change(kind="compact", reason=reason, compaction=after, created=head.created, detail=detail)
            is_newest = head.tail in groups  # then an append may join the group, so no append may come between
            try:
                await scope.store.commit(
                    scope.key, change, expect_epoch=head.epoch, expect_revision=head.revision if is_newest else None
                )
            except Conflict:  # another writer was first: read the session again
                continue
            await scope.tell("evicted" if reason == "hidden" else "restored", reason=reason, **detail)
            return spans.size(moved)
        return 0

    async def _groups(self, named: Sequence[Entry], head: Head) -> tuple[set[int], tuple[Span, ...]]:
        """Return the groups to change, and the seqs of all their entries.

        These are the groups of the named entries, and repeatedly the groups that hold a late result of a call in them.
        """
        wanted = {entry.group for entry in named}
        while True:
            seqs, answering = await self._members(wanted, max(entry.seq for entry in named), head)
            if answering <= wanted:
                return wanted, spans.of(sorted(seqs))
            wanted |= answering

    async def _members(self, wanted: set[int], last: int, head: Head) -> tuple[set[int], set[int]]:
        """Return the seqs of these groups' entries, and the groups of all results that answer a call in them.

        Reads up to `last`, and on until the groups are complete; to the end of the log if there are calls in them.
        """
        seqs, answering, calls, last = set[int](), set[int](), set[int](), max(last, *wanted)
        async for batch in batches_of(self._scope.store, self._scope.key, [(min(wanted), head.next_seq - 1)]):
            for entry in batch:
                if entry.group in wanted:
                    seqs.add(entry.seq)
                    if entry.kind == "tool_call":
                        calls.add(entry.seq)
                if entry.answers and entry.answers in calls:
                    answering.add(entry.group)
            if not calls and batch[-1].seq > last and batch[-1].group not in wanted:
                break
        return seqs, answering


def _check(named: Sequence[Entry], groups: Sequence[Span], head: Head, state: Compaction) -> None:
    """Raise ConfigError, which names the entry, if one of the groups cannot be hidden in its present state."""
    for seq in head.pinned:
        if spans.within(groups, seq):
            raise ConfigError("ids", seq, "an entry whose group has no pinned entry: `unpin` this one first")
    for call in head.calls:
        if spans.within(groups, call.seq):
            raise ConfigError("ids", call.seq, "a tool call that has its result: `resolve` this call first")
    for entry in named:
        if spans.within(state.covered, entry.seq):
            raise ConfigError("ids", entry.seq, "an entry that no summary covers: `restore` the summary first")
        if (head.reasoning or head.pauses) and entry.group == head.tail:
            raise ConfigError("ids", entry.seq, "an entry of a complete message: the model will continue this one")
        if entry.erased or spans.within(head.rewound, entry.seq):
            raise ConfigError("ids", entry.seq, "an entry that is neither erased nor rewound")
