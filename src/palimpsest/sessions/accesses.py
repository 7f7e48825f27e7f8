"""When each entry was last fetched and how often, stored beside the log for the strategy `lru`.

Both numbers are figures of the entry. So they are removed in the same step in which the entry is erased or its session
is cleared, deleted or replaced. (Stored as an item under the session's name they would survive a kill between two
steps, and would be rewritten as a whole with every fetch.)

The access clock of a session counts appends and fetches. The time of a fetch packs two numbers into one figure, so that
they are written together: in the upper half the number of fetches before it, in the lower half (32 bits) the `next_seq`
at that moment. The number of all fetches is the sum of how often each entry was fetched.
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


async def note_accesses(store: Store, key: SessionKey, seqs: Sequence[int]) -> None:
    """Record that entries were fetched, in this order. Best effort, like counts of tokens: a failure is ignored."""
    fetches, when = figure_of(FETCHES, key.session), figure_of(ACCESSES, key.session)
    before = await store.noted(key, fetches)
    seen = store.seen(key)  # as the read just before has seen it
    next_seq, total = seen.head.next_seq if seen is not None else 1, sum(before.values())
    stamps = {seq: total + i << 32 | next_seq for i, seq in enumerate(seqs)}
    await best_effort(store.note(key, {fetches: {seq: before.get(seq, 0) + 1 for seq in seqs}, when: stamps}))


async def access_times(
    store: Store, key: SessionKey, head: Head, active: Sequence[Entry]
) -> tuple[dict[int, int], int]:
    """Return the time of the last access of each of these entries, by `seq`, and the present time of the access clock.

    An access is that the entry is appended, fetched, or named by its id in a later tool result.
    """
    stored = await store.noted(key, figure_of(ACCESSES, key.session), after=active[0].seq - 1) if active else {}
    return await store.apart(_times, head, active, stored)


def _times(head: Head, active: Sequence[Entry], stored: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Compute `access_times` from the stored stamps of fetches."""
    stamps = sorted((stamp >> 32, stamp & (2**32 - 1), seq) for seq, stamp in stored.items())
    accessed: dict[int, int] = {}
    fetches = 0
    by_id = {entry.id: entry.seq for entry in active}
    for entry in active:
        while fetches < len(stamps) and stamps[fetches][1] <= entry.seq:
            fetches += 1  # counts the fetches before this entry was appended
        accessed[entry.seq] = entry.seq + fetches
    for entry in active:
        if entry.kind == "tool_result":
            for seq in _mentioned(entry.text, by_id):
                accessed[seq] = max(accessed[seq], accessed[entry.seq])
    for i, (_, next_seq, seq) in enumerate(stamps):
        if seq in accessed:
            accessed[seq] = max(accessed[seq], next_seq + i)
    return accessed, head.next_seq - 1 + len(stamps)


def _mentioned(text: str, ids: Mapping[str, int]) -> list[int]:
    """Return the seqs of the entries whose ids occur in a text."""
    mentioned = re.findall(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", text)
    return [ids[id] for id in mentioned if id in ids]


async def inherited(store: Store, options: Options, branch: Options) -> None:
    """Copy to a new branch what is recorded of fetches in the session that it branches off."""
    for name in FIGURES:
        await _keep(store, branch.key, name, await store.noted(branch.key, figure_of(name, options.key.session)))


async def access_order(store: Store, key: SessionKey) -> list[Access]:
    """Return, for an export, which entries were fetched, when and how often; `restore_accesses` takes it back."""
    stamps, fetches = [await store.noted(key, figure_of(name, key.session)) for name in FIGURES]
    return [(seq, stamp, fetches.get(seq, 1)) for seq, stamp in sorted(stamps.items())]


async def restore_accesses(store: Store, key: SessionKey, accesses: Sequence[Access]) -> None:
    """Record the fetches that an export lists."""
    await _keep(store, key, FETCHES, {seq: fetches for seq, _, fetches in accesses})
    await _keep(store, key, ACCESSES, {seq: stamp for seq, stamp, _ in accesses})


async def _keep(store: Store, key: SessionKey, name: str, figures: dict[int, int]) -> None:
    if figures:
        await best_effort(store.note(key, {figure_of(name, key.session): figures}))
