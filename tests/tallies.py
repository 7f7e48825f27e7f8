"""Counts of tokens, as a store has them, in two figures."""

from __future__ import annotations

from palimpsest.log.head import SessionKey
from palimpsest.stores import Store


async def summed(
    store: Store, key: SessionKey, counter: str, *, after: int = 0, before: int | None = None
) -> tuple[int, int]:
    """How many entries with `after` < seq < `before` have a stored count by this counter, and their sum."""
    found = await store.counts(key, counter, after=after, before=before)
    return len(found), sum(found.values())
