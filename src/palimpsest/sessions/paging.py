"""Going through a long log, or through many sessions, in batches, so that only one batch is held in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from itertools import islice

from palimpsest.log import spans
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.spans import Span
from palimpsest.stores import SessionInfo, Store, compaction_of

BATCH = 512
"""How many entries are read at once."""

PAGE = 1000
"""How many sessions are listed at once."""


async def batches_of(
    store: Store,
    key: SessionKey,
    where: Iterable[Span],
    *,
    counter: str | None = None,
) -> AsyncIterator[list[Entry]]:
    """Yield the entries in these spans, tombstones included, in batches, in the order of the spans.

    A batch is emptied when the next one is requested. `counter` is as in `Store.read`. If a span ends after the end of
    the log, entries that others add in the meantime may be included; the iteration ends however much they add.
    """
    for low, high in where:
        after = low - 1
        while after < high:
            batch = await store.read(key, after=after, before=high + 1, limit=BATCH, counter=counter)
            if not batch:
                break
            after = batch[-1].seq if len(batch) == BATCH else high
            yield batch
            await store.apart(batch.clear)  # freed in a thread: freeing megabytes would block an event loop


async def entries_of(
    store: Store, key: SessionKey, where: Iterable[Span], *, counter: str | None = None
) -> AsyncGenerator[Entry, None]:
    """Yield the entries of `batches_of` one by one."""
    async for batch in batches_of(store, key, where, counter=counter):
        for entry in batch:
            yield entry


async def sessions_of(store: Store, tenant: str, user: str | None = None) -> AsyncIterator[SessionInfo]:
    """Yield the tenant's sessions, or those of a user, sorted by id.

    A session that is created meanwhile is included if its id sorts after those yielded so far.
    """
    after = ""
    while page := await store.sessions(tenant, after=after, limit=PAGE, user=user):
        for info in page:
            yield info
        after = page[-1].session


async def newest_active(store: Store, key: SessionKey, now: int, count: int) -> list[Entry]:
    """Return the newest `count` entries that were not rewound, oldest first.

    The list is empty if one of them is not active any more: covered, evicted or expired.
    """
    head = await store.head(key) or Head()
    visible = spans.visible(head.rewound, head.first_seq - 1, head.next_seq)
    seqs = list(islice((seq for low, high in reversed(visible) for seq in range(high, low - 1, -1)), count))
    inactive = (await compaction_of(store, key, head.compaction)).inactive
    if any(spans.within(inactive, seq) for seq in seqs):
        return []
    entries = await store.fetch(key, seqs) if seqs else []
    return [] if any(entry.expired(now) for entry in entries) else entries
