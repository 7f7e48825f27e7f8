"""The flush: at the end of a turn, a session that keeps no archive destroys what compactions have replaced."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log import spans
from palimpsest.log.change import Change
from palimpsest.log.spans import Span
from palimpsest.log.withdrawal import bare, needed
from palimpsest.sessions.compacting.snapshot import SnapshotReader
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.states import pinned_groups
from palimpsest.stores import compaction_of


async def flush(scope: SessionScope) -> None:
    """Destroy the entries that compactions of a session have replaced. The summaries stay.

    Entries that a branch still needs are only marked as released, and destroyed when the last session releases them.
    """
    snapshots = SnapshotReader.of(scope)
    while True:
        head = await scope.head()
        state = await snapshots.state(head)
        where = spans.minus(state.replaced, bare(head))
        if not where:
            return
        entries = await snapshots.read(where)
        pinned = await pinned_groups(scope.store, scope.options, head, head.pinned)
        replaced = [entry.seq for entry in entries if not entry.erased and entry.seq not in pinned]
        shared = await _needed_elsewhere(scope, replaced)
        seqs = tuple(seq for seq in replaced if not spans.within(shared, seq))
        released = spans.minus(shared, state.released)
        if not (seqs or released):
            return
        change = Change(kind="erase", reason="flush", created=head.created, seqs=seqs, unpinned=True, spare=True)
        change = msgspec.structs.replace(change, released=released, unshared=True)
        try:
            async with scope.drop_derived(seqs):
                await scope.store.commit(scope.key, change, expect_epoch=head.epoch)
        except Conflict:
            continue
        if seqs:
            await scope.memory.scrub(scope.store)
        return


async def _needed_elsewhere(scope: SessionScope, seqs: Sequence[int]) -> tuple[Span, ...]:
    """Return which of these entries another session shares and has not released."""
    elsewhere: tuple[Span, ...] = ()
    for name, shared in (await scope.store.sharing(scope.key, seqs)).items():
        key = scope.key._replace(session=name)
        try:
            head = await scope.store.head(key)
            state = await compaction_of(scope.store, key, head.compaction) if head is not None else None
        except StoreCorrupt:  # what the damaged session needs is unknown, so all that it shares stays
            elsewhere = spans.union(elsewhere, spans.of(shared))
            continue
        if head is not None and state is not None:
            elsewhere = spans.union(elsewhere, needed(state, head, shared))
    return elsewhere
