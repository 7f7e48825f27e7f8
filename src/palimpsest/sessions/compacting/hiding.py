"""Leaving entries out of contexts, and bringing them back: nothing is destroyed, and nothing stands for them."""

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
        """Leave the groups of these entries out of every context; how many entries were not left out before."""
        return await self._change(tuple(ids), "hidden")

    async def show(self, ids: Iterable[str | int | Entry]) -> int:
        """Bring the groups of these entries back; how many entries were left out."""
        return await self._change(tuple(ids), "shown")

    async def _change(self, ids: Sequence[str | int | Entry], reason: str) -> int:
        scope = self._scope
        scope.may_write()
        while ids:
            head = await self._log.head()
            meant = [await self._log.named(id) for id in ids]
            state = await self._snapshots.state(head)
            names, places = await self._groups(meant, head)
            groups = spans.minus(places, [*head.rewound, *(state.covered if reason == "hidden" else ())])
            if reason == "hidden":
                _check(meant, groups, head, state)
                moved = spans.minus(groups, state.hidden)
                hidden = spans.union(state.hidden, groups)
            else:
                moved = spans.common(groups, state.hidden)
                hidden = spans.minus(state.hidden, groups)
            if not moved:
                return 0
            evicted = spans.union(state.evicted, await self._snapshots.evicted(head, state))
            after = msgspec.structs.replace(
                state, summary=None, evicted=spans.minus(evicted, moved), hidden=spans.minus(hidden, state.covered)
            )
            detail = {"entries": spans.size(moved)}
            change = Change(kind="compact", reason=reason, compaction=after, created=head.created, detail=detail)
            newest = head.tail in names  # what comes next may belong to it
            try:
                await scope.store.commit(
                    scope.key, change, expect_epoch=head.epoch, expect_revision=head.revision if newest else None
                )
            except Conflict:  # somebody was first: look again
                continue
            await scope.tell("evicted" if reason == "hidden" else "restored", reason=reason, **detail)
            return spans.size(moved)
        return 0

    async def _groups(self, meant: Sequence[Entry], head: Head) -> tuple[set[int], tuple[Span, ...]]:
        """These entries' groups, with those in which results stand that came late to calls in them; and their places,
        whole."""
        wanted = {entry.group for entry in meant}
        while True:
            found, more = await self._members(wanted, max(entry.seq for entry in meant), head)
            if more <= wanted:
                return wanted, spans.of(sorted(found))
            wanted |= more

    async def _members(self, wanted: set[int], last: int, head: Head) -> tuple[set[int], set[int]]:
        """The places of these groups, and the groups of all that answers a call in them. All up to `last` is read."""
        found, answering, calls, last = set[int](), set[int](), set[int](), max(last, *wanted)
        async for batch in batches_of(self._scope.store, self._scope.key, [(min(wanted), head.next_seq - 1)]):
            for entry in batch:
                if entry.group in wanted:
                    found.add(entry.seq)
                    if entry.kind == "tool_call":
                        calls.add(entry.seq)
                if entry.answers and entry.answers in calls:
                    answering.add(entry.group)
            if not calls and batch[-1].seq > last and batch[-1].group not in wanted:
                break
        return found, answering


def _check(meant: Sequence[Entry], groups: Sequence[Span], head: Head, state: Compaction) -> None:
    """Raise ConfigError, naming it, for what cannot be left out as it is."""
    for seq in head.pinned:
        if spans.within(groups, seq):
            raise ConfigError("ids", seq, "an entry in whose group nothing is pinned: `unpin` that first")
    for call in head.calls:
        if spans.within(groups, call.seq):
            raise ConfigError("ids", call.seq, "an entry whose calls have been answered: `resolve` this one first")
    for entry in meant:
        if spans.within(state.covered, entry.seq):
            raise ConfigError("ids", entry.seq, "an entry that no summary stands for: `restore` that first")
        if (head.reasoning or head.pauses) and entry.group == head.tail:
            raise ConfigError("ids", entry.seq, "an entry of a message that is complete: the model goes on with this")
        if entry.erased or spans.within(head.rewound, entry.seq):
            raise ConfigError("ids", entry.seq, "an entry that is neither erased nor rewound")
