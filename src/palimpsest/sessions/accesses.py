"""When an entry was fetched last, and how often: kept beside the log.

Both are figures of an entry, and so they go when the entry is erased and when its session is cleared, deleted or
replaced, in that step. An item of the session would outlive a kill between two steps, under the session's name, and
would be written whole with every fetch. "When" takes two figures, packed into one that is written at once: the upper
half is how many fetches there were before it, the lower one the `next_seq` of then. The sum of how often entries were
fetched is what of the access clock is no append.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.sessions.options import Options
from palimpsest.stores import Store, best_effort
from palimpsest.stores.values import ACCESSES, FETCHES, FIGURES, figure_of

if TYPE_CHECKING:
    from palimpsest.transfer.writing import Access


async def accessed(store: Store, key: SessionKey, seqs: Sequence[int]) -> None:
    """Remember that entries were fetched, in this order: best effort, as counts of tokens are."""
    fetches, when = figure_of(FETCHES, key.session), figure_of(ACCESSES, key.session)
    before = await store.noted(key, fetches)
    seen = store.seen(key)  # which that look has seen
    next_seq, done = seen.head.next_seq if seen is not None else 1, sum(before.values())
    stamps = {seq: done + i << 32 | next_seq for i, seq in enumerate(seqs)}
    await best_effort(store.note(key, {fetches: {seq: before.get(seq, 0) + 1 for seq in seqs}, when: stamps}))


async def access_times(
    store: Store, key: SessionKey, head: Head, active: Sequence[Entry]
) -> tuple[dict[int, int], int]:
    """Return when these entries were accessed, and the clock: appended, fetched, or named by a later result."""
    kept = await store.noted(key, figure_of(ACCESSES, key.session), after=active[0].seq - 1) if active else {}
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
    for name in FIGURES:
        await _keep(store, branch.key, name, await store.noted(branch.key, figure_of(name, options.key.session)))


async def access_order(store: Store, key: SessionKey) -> list[Access]:
    """Return which entries were fetched, when and how often, for an export; `restore_accesses` takes it back."""
    stamps, fetches = [await store.noted(key, figure_of(name, key.session)) for name in FIGURES]
    return [(seq, stamp, fetches.get(seq, 1)) for seq, stamp in sorted(stamps.items())]


async def restore_accesses(store: Store, key: SessionKey, accesses: Sequence[Access]) -> None:
    """Remember what an export says was fetched."""
    await _keep(store, key, FETCHES, {seq: fetches for seq, _, fetches in accesses})
    await _keep(store, key, ACCESSES, {seq: stamp for seq, stamp, _ in accesses})


async def _keep(store: Store, key: SessionKey, name: str, figures: dict[int, int]) -> None:
    if figures:
        await best_effort(store.note(key, {figure_of(name, key.session): figures}))
