"""Reading what a cut shows: newest first until the room is full, pins included. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from palimpsest.entries import Entry
from palimpsest.log import Cut, Head, SessionKey, visible
from palimpsest.notes import is_maskable
from palimpsest.stores import Store
from palimpsest.window import Meter, Window, look

CHUNK = 256
"""Entries read at once: most windows are one read."""


class Gatherer:
    """Reads one session's entries for a context. `masks` says that old results may yet become notes."""

    def __init__(self, store: Store, key: SessionKey, meter: Meter, *, masks: bool) -> None:
        self._store, self._key, self._meter, self._masks = store, key, meter, masks

    async def window(self, head: Head, cut: Cut, room: int | None) -> tuple[list[Entry], bool]:
        """Return the entries from the cut's start on, oldest first, and whether some were left unread.

        Reading stops when what was read costs more than `room` tokens (None: read all).
        """
        entries: list[Entry] = []
        spans, total = visible(head.rewound, cut.start - 1, head.next_seq), 0
        for first, last in reversed(spans):
            before = last + 1
            while before > first:
                chunk = await self._store.read(
                    self._key,
                    after=first - 1,
                    before=before,
                    limit=CHUNK,
                    newest_first=True,
                    counter=self._meter.counter.name,
                )
                if not chunk:
                    break
                before = chunk[-1].seq
                chunk.reverse()
                entries = chunk + entries if entries else chunk
                if room is None or before <= spans[0][0]:
                    continue
                total += sum(self._least(entry, cut) for entry in chunk if not entry.erased)
                if total > max(room, 0):
                    return entries, True
        return entries, False

    def _least(self, entry: Entry, cut: Cut) -> int:
        """What the entry costs at least: it may be clamped by this cut, and an old result become a note in the next."""
        if cut.clamps and any(clamp.seq == entry.seq for clamp in cut.clamps):
            return self._meter.overhead(entry)
        may_mask = self._meter.exact and self._masks and entry.kind == "tool_result"
        if may_mask and is_maskable(entry):
            return self._meter.overhead(entry)
        return self._meter.cost(entry)

    async def ahead(
        self, head: Head, seqs: Iterable[int], cut: Cut, known: Sequence[Entry], now: int, newest: dict[str, int]
    ) -> Window:
        """Show pinned entries and open human messages from before the window; `newest` as in `look`."""
        seqs = set(seqs)
        if not seqs:
            return Window([], [], [], [])
        found = {entry.seq: entry for entry in known if entry.seq in seqs}
        missing = seqs - found.keys()
        if missing:
            fetched = await self._store.fetch(self._key, missing, counter=self._meter.counter.name)
            for entry in fetched:
                found[entry.seq] = entry
                if entry.seq not in cut.pins and not entry.is_human and entry.role != "system":
                    found.update({other.seq: other for other in await self._whole_group(head, entry)})
        members = [found[seq] for seq in sorted(found)]
        return look(members, cut, self._meter, now=now, newest=newest)

    async def _whole_group(self, head: Head, entry: Entry) -> list[Entry]:
        members: list[Entry] = []
        for first, last in visible(head.rewound, entry.group - 1, head.next_seq):
            near = await self._store.read(
                self._key, after=first - 1, before=last + 1, limit=CHUNK, counter=self._meter.counter.name
            )
            members += [other for other in near if other.group == entry.group]
            if near and near[-1].group != entry.group:
                break
        return members
