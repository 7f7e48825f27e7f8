"""When an entry was fetched last, and how often: kept beside the log, like counts of tokens.

Both are figures of an entry, and so they go when the entry is erased and when its session is cleared, deleted or
replaced, in that step. An item of the session would outlive a kill between two steps, under the session's name, and
would be written whole with every fetch. "When" takes two figures, packed into one that is written at once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.sessions.options import Options
from palimpsest.stores import Store, keep_counts

if TYPE_CHECKING:
    from palimpsest.transfer.writing import Access

ACCESSES = "palimpsest:accesses"
"""The name under which a store keeps, like a count of tokens, when an entry was fetched last.

The upper half of the figure is how many fetches there were before it, the lower one the `next_seq` of then.
"""

FETCHES = "palimpsest:fetches"
"""The name under which it keeps how often an entry was fetched; their sum is what of the access clock is no append."""


async def accessed(store: Store, key: SessionKey, seqs: Sequence[int]) -> None:
    """Remember that entries were fetched, in this order: best effort, as a count is."""
    fetches = _own(FETCHES, key)
    before = await store.counts(key, fetches)
    seen = store.seen(key)  # which that look has seen
    next_seq, done = seen.head.next_seq if seen is not None else 1, sum(before.values())
    when = {_own(ACCESSES, key): {seq: done + i << 32 | next_seq for i, seq in enumerate(seqs)}}
    await keep_counts(store, key, fetches, {seq: before.get(seq, 0) + 1 for seq in seqs}, **when)


async def access_times(
    store: Store, key: SessionKey, head: Head, active: Sequence[Entry]
) -> tuple[dict[int, int], int]:
    """Return when these entries were accessed, and the clock: appended, fetched, or named by a later result."""
    kept = await store.counts(key, _own(ACCESSES, key), after=active[0].seq - 1) if active else {}
    return await store.apart(_times, head, active, kept)


def _times(head: Head, active: Sequence[Entry], kept: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """As `access_times`, of what was `kept`."""
    stamps = sorted((stamp >> 32, stamp & (2**32 - 1), seq) for seq, stamp in kept.items())
    accessed: dict[int, int] = {}
    done = 0
    by_id = {entry.id: entry.seq for entry in active}
    for entry in active:
        while done < len(stamps) and stamps[done][1] <= entry.seq:
            done += 1  # so many fetches came before this entry was appended
        accessed[entry.seq] = entry.seq + done
    for entry in active:
        if entry.kind == "tool_result":
            for seq in _mentioned(entry.text, by_id):
                accessed[seq] = max(accessed[seq], accessed[entry.seq])
    for i, (_, next_seq, seq) in enumerate(stamps):
        if seq in accessed:
            accessed[seq] = max(accessed[seq], next_seq + i)
    return accessed, head.next_seq - 1 + len(stamps)


def _mentioned(text: str, ids: Mapping[str, int]) -> list[int]:
    """The entries whose ids stand in a text."""
    found = re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", text)
    return [ids[id] for id in found if id in ids]


async def inherited(store: Store, options: Options, branch: Options) -> None:
    """Let a new branch know of what was fetched in the session that it branches off."""
    for name in (FETCHES, ACCESSES):
        await _keep(store, branch.key, name, await store.counts(branch.key, _own(name, options.key)))


async def access_order(store: Store, key: SessionKey) -> list[Access]:
    """Return which entries were fetched, when and how often, for an export; `restore_accesses` takes it back."""
    stamps, fetches = [await store.counts(key, _own(name, key)) for name in (ACCESSES, FETCHES)]
    return [(seq, stamp, fetches.get(seq, 1)) for seq, stamp in sorted(stamps.items())]


async def restore_accesses(store: Store, key: SessionKey, accesses: Sequence[Access]) -> None:
    """Remember what an export says was fetched."""
    await _keep(store, key, FETCHES, {seq: fetches for seq, _, fetches in accesses})
    await _keep(store, key, ACCESSES, {seq: stamp for seq, stamp, _ in accesses})


async def _keep(store: Store, key: SessionKey, name: str, figures: dict[int, int]) -> None:
    if figures:
        await keep_counts(store, key, _own(name, key), figures)


def _own(name: str, key: SessionKey) -> str:
    """The name of a session's own figures: those of entries that branches share are shared by name."""
    return f"{name}:{key.session}"
