"""What a session that keeps no archive destroys at the end of a turn."""

from __future__ import annotations

from palimpsest.errors import Conflict
from palimpsest.log import spans
from palimpsest.log.change import Change
from palimpsest.sessions.compacting.snapshot import SnapshotReader
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.states import pinned_groups


async def flush(scope: SessionScope) -> None:
    """Destroy what compactions of a session have replaced, which keeps no archive. The summaries stay."""
    snapshots = SnapshotReader.of(scope)
    while True:
        head = await scope.head()
        replaced = spans.minus((await snapshots.state(head)).replaced, head.rewound)
        entries = await snapshots.read(replaced)
        pinned = await pinned_groups(scope.store, scope.options, head, head.pinned)
        seqs = tuple(entry.seq for entry in entries if not entry.erased and entry.seq not in pinned)
        if not seqs:
            return
        change = Change(kind="erase", reason="flush", created=head.created, seqs=seqs, unpinned=True, spare=True)
        try:
            async with scope.drop_derived(seqs):
                await scope.store.commit(scope.key, change, expect_epoch=head.epoch)
        except Conflict:
            continue
        await scope.memory.scrub(scope.store)
        return
