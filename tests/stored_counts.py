"""Token counts in a store, and their sums."""

from __future__ import annotations

from palimpsest.log.head import SessionKey
from palimpsest.stores import Store
from palimpsest.stores.backend import LAST_KEY, Ask, Place, Range


async def tallied(
    store: Store, key: SessionKey, counter: str, *, after: int = 0, before: int | None = None
) -> dict[int, int]:
    """Return the stored counts by this counter of entries with `after` < seq < `before`, by seq."""
    entries = await store.read(key, after=after, before=before, counter=counter)
    return {entry.seq: entry.tokens for entry in entries if entry.tokens is not None}


async def summed(
    store: Store, key: SessionKey, counter: str, *, after: int = 0, before: int | None = None
) -> tuple[int, int]:
    """Return the number of entries with `after` < seq < `before` that have a stored count, and the sum of the
    counts."""
    found = await tallied(store, key, counter, after=after, before=before)
    return len(found), sum(found.values())


async def rows_kept(store: Store, key: SessionKey, counter: str) -> int:
    """Return how many rows of counts the session's logs have, including those of missing entries."""
    wanted = Range(f"tokens/{counter}", [(0, LAST_KEY)])
    (seen,) = await store.backend.look([Ask(Place(*key, "log", ""), [wanted], head=False)])
    return len(list(seen.rows[0]))
