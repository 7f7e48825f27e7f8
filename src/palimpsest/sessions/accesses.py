"""When an entry was fetched last, and how often: kept beside the log, like counts of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.sessions.options import Options
from palimpsest.stores import Store, keep_counts

if TYPE_CHECKING:
    from palimpsest.transfer.writing import Access

ACCESSES = "palimpsest:accesses"
"""The name under which a store keeps, like a count of tokens, when an entry was fetched last."""

FETCHES = "palimpsest:fetches"
"""The name under which it keeps how often an entry was fetched; their sum is what of the access clock is no append."""


async def accessed(store: Store, options: Options, entry: Entry) -> None:
    """Remember that an entry was fetched: best effort, as a count is."""
    head, fetches = await store.head(options.key) or Head(), named_of(FETCHES, options.key)
    _, before = await store.tally(options.key, fetches)
    (own,) = await store.fetch(options.key, [entry.seq], counter=fetches) or [entry]
    await keep_counts(store, options.key, fetches, {entry.seq: (own.tokens or 0) + 1})
    await keep_counts(store, options.key, named_of(ACCESSES, options.key), {entry.seq: before << 32 | head.next_seq})


async def inherited(store: Store, options: Options, branch: Options) -> None:
    """Let a new branch know of what was fetched in the session that it branches off."""
    for name in (FETCHES, ACCESSES):
        await _keep(store, branch.key, name, await _kept(store, branch.key, named_of(name, options.key)))


async def access_order(store: Store, key: SessionKey) -> list[Access]:
    """Return which entries were fetched, when and how often, for an export; `restore_accesses` takes it back."""
    stamps, fetches = [await _kept(store, key, named_of(name, key)) for name in (ACCESSES, FETCHES)]
    return [(seq, stamp, fetches.get(seq, 1)) for seq, stamp in sorted(stamps.items())]


async def restore_accesses(store: Store, key: SessionKey, accesses: Sequence[Access]) -> None:
    """Remember what an export says was fetched."""
    await _keep(store, key, FETCHES, {seq: fetches for seq, _, fetches in accesses})
    await _keep(store, key, ACCESSES, {seq: stamp for seq, stamp, _ in accesses})


async def _kept(store: Store, key: SessionKey, name: str) -> dict[int, int]:
    """The figures kept under a name, by seq; the log is read only where there are any."""
    if not (await store.tally(key, name))[0]:
        return {}
    return {one.seq: one.tokens for one in await store.read(key, counter=name) if one.tokens is not None}


async def _keep(store: Store, key: SessionKey, name: str, figures: dict[int, int]) -> None:
    if figures:
        await keep_counts(store, key, named_of(name, key), figures)


def named_of(name: str, key: SessionKey) -> str:
    """The name of a session's own figures: those of entries that branches share are shared by name."""
    return f"{name}:{key.session}"


def unpacked(stamp: int) -> tuple[int, int]:
    """Of an access how many fetches there were before it, and the `next_seq` of then."""
    return stamp >> 32, stamp & (2**32 - 1)
