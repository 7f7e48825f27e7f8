"""Going through a long log, or through many sessions: some at a time, so that memory holds no more than that."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from itertools import islice

from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.spans import Span
from palimpsest.stores import SessionInfo, Store, compaction_of

BATCH = 512
"""Entries read at once."""

PAGE = 1000
"""Sessions listed at once."""


async def batches_of(
    store: Store,
    key: SessionKey,
    where: Iterable[Span],
    *,
    counter: str | None = None,
) -> AsyncIterator[list[Entry]]:
    """Yield the entries that lie in these spans, tombstones included, in their order, a batch at a time.

    A batch is emptied when the next one is asked for. `counter` is that of `Store.read`. Of a span
    that ends behind the log, what others add meanwhile may come, too; it ends all the same, however much they add.
    """
    for low, high in where:
        after = low - 1
        while after < high:
            batch = await store.read(key, after=after, before=high + 1, limit=BATCH, counter=counter)
            if not batch:
                break
            after = batch[-1].seq if len(batch) == BATCH else high
            yield batch
            await store.apart(batch.clear)  # a thread lets go of megabytes: it would hold up an event loop


async def entries_of(
    store: Store, key: SessionKey, where: Iterable[Span], *, counter: str | None = None
) -> AsyncGenerator[Entry, None]:
    """Yield the same entry by entry."""
    async for batch in batches_of(store, key, where, counter=counter):
        for entry in batch:
            yield entry


async def sessions_of(store: Store, tenant: str, user: str | None = None) -> AsyncIterator[SessionInfo]:
    """Yield the tenant's sessions, or a user's, by id. One that is made meanwhile comes if its id is behind those."""
    after = ""
    while page := await store.sessions(tenant, after=after, limit=PAGE, user=user):
        for one in page:
            yield one
        after = page[-1].session


async def newest_active(store: Store, key: SessionKey, now: int, many: int) -> list[Entry]:
    """Return so many of the newest entries that were not taken back; none where one of them is in no context by now."""
    head = await store.head(key) or Head()
    seen = spans.visible(head.rewound, head.first_seq - 1, head.next_seq)
    seqs = list(islice((seq for low, high in reversed(seen) for seq in range(high, low - 1, -1)), many))
    left = (await compaction_of(store, key, head.compaction)).inactive
    if any(spans.within(left, seq) for seq in seqs):
        return []
    found = await store.fetch(key, seqs) if seqs else []
    return [] if any(entry.expired(now) for entry in found) else found
