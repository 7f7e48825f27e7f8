"""The buffer in which an atomic turn collects entries until it is committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TypeAlias

import msgspec

from palimpsest.log.entry import Entry, pack, unpack
from palimpsest.privacy.gate import Admitted
from palimpsest.runtime.once import new_lock

NoteUsage: TypeAlias = Callable[[int], Awaitable[None]]
"""Records the usage that responses in a batch report. Its argument is the index of the first entry that is new."""


class Committed(msgspec.Struct, frozen=True):
    """A committed batch: its entries in the given order, and the index of the first new one (None: none is new)."""

    entries: tuple[Entry, ...]
    new_from: int | None


class _Report(msgspec.Struct, frozen=True):
    """A batch in the buffer whose usage is to be noted: its range of slots, and whether a key gave it its ids."""

    first: int
    end: int
    keyed: bool
    note_usage: NoteUsage


class TurnBuffer:
    """What an atomic turn has collected: entries with their ids, and the usage to note once they are stored.

    `given_ids` says that a caller's key or entry gave any of the ids. Threads may share the buffer: once `close` has
    returned, a batch is either in it or was refused by `take`.
    """

    def __init__(self) -> None:
        self.slots: list[Admitted] = []
        self.given_ids = False
        self.contexts: dict[str | None, Entry] = {}  # by name, the newest context entry
        self._reports: list[_Report] = []
        self._closed = False
        self._lock = new_lock()

    def take(
        self, slots: Sequence[Admitted], *, given_ids: bool, keyed: bool = False, note_usage: NoteUsage | None = None
    ) -> bool:
        """Collect entries as they are now; return False, and collect nothing, if the turn is over."""
        slots = [Admitted(_own(slot.kept), _own(slot.own)) for slot in slots]
        with self._lock:
            if self._closed:
                return False
            first = len(self.slots)
            self.slots.extend(slots)
            self.given_ids |= given_ids
            self.contexts |= {
                slot.kept.name: slot.kept for slot in slots if slot.kept is not None and slot.kept.kind == "context"
            }
            if note_usage is not None:
                self._reports.append(_Report(first, len(self.slots), keyed, note_usage))
            return True

    def close(self) -> bool:
        """Refuse further entries; return whether the buffer was open, in which case the caller must commit it."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            return was_open

    def newest(self, count: int) -> list[Entry]:
        """Return the newest `count` entries, or fewer if there are no more, oldest first."""
        kept = (slot.kept for slot in reversed(self.slots) if slot.kept is not None)
        return [*islice(kept, count)][::-1]

    async def report(self, committed: Committed) -> None:
        """Note the usage of all batches, now that they are committed.

        Of a batch with a key, only usage from its first new entry on is noted: one that has the revision of this
        commit, and whose id did not occur earlier in the turn.
        """
        first_index = {entry.id: i for i, entry in reversed([*enumerate(committed.entries)])}
        newest = committed.entries[committed.new_from].revision if committed.new_from is not None else None
        for report in self._reports:
            first, end, new = report.first, report.end, report.first
            if report.keyed:
                fresh = (i for i in range(first, end) if committed.entries[i].revision == newest)
                new = next((i for i in fresh if first_index[committed.entries[i].id] == i), -1)
            if new >= 0:
                await report.note_usage(new - first)


def _own(entry: Entry | None) -> Entry | None:
    """Copy an entry with mutable values, since the caller may change these before the entry is stored."""
    if entry is None or (entry.metadata is None and entry.native is None and isinstance(entry.content, str)):
        return entry
    return unpack(pack(entry))
