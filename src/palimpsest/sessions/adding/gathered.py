"""What an atomic turn gathers until it is committed."""

from __future__ import annotations

from _thread import allocate_lock  # `threading` costs a cold start a millisecond
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

from palimpsest.log.entry import Entry, pack, unpack
from palimpsest.privacy.gate import Admitted

Told: TypeAlias = Callable[[int], Awaitable[None]]
"""Notes what a batch cost whose entries from this place in it on are new."""


class Committed(NamedTuple):
    """A batch that was committed: its entries, in place, and the place of the first that is new (None: none is)."""

    entries: tuple[Entry, ...]
    new_from: int | None


class _Report(NamedTuple):
    """A batch that was taken: where its entries are among all, whether a key named them, what notes its cost."""

    first: int
    end: int
    keyed: bool
    told: Told


class TurnBuffer:
    """What an atomic turn has gathered: entries with their ids, whether a caller's key gave any of those, and reports
    of what answers cost. Threads may share it: what is taken is in it when it is `closed`, or is not taken."""

    def __init__(self) -> None:
        self.slots: list[Admitted] = []
        self.given_ids = False
        self.contexts: dict[str | None, Entry] = {}
        self._reports: list[_Report] = []
        self._closed = False
        self._lock = allocate_lock()

    def take(
        self, slots: Sequence[Admitted], *, given_ids: bool, keyed: bool = False, told: Told | None = None
    ) -> bool:
        """Gather entries as they are now, unless the turn is over; of contexts the newest of each name is at hand."""
        slots = [Admitted(_own(slot.kept), _own(slot.own)) for slot in slots]
        with self._lock:
            if self._closed:
                return False
            first = len(self.slots)
            self.slots.extend(slots)
            self.given_ids |= given_ids
            self.contexts |= {
                one.kept.name: one.kept for one in slots if one.kept is not None and one.kept.kind == "context"
            }
            if told is not None:
                self._reports.append(_Report(first, len(self.slots), keyed, told))
            return True

    def close(self) -> bool:
        """Take nothing more; return whether it was open until now: then who asks commits what was gathered."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            return was_open

    def newest(self, many: int) -> list[Entry]:
        """The newest so many entries, or fewer, oldest first."""
        kept = (slot.kept for slot in reversed(self.slots) if slot.kept is not None)
        return [*islice(kept, many)][::-1]

    async def report(self, done: Committed) -> None:
        """Have what answers cost noted. Under a key that is from the first entry on that is new: of the newest
        revision, and here for the first time."""
        places = {entry.id: i for i, entry in reversed([*enumerate(done.entries)])}
        newest = done.entries[done.new_from].revision if done.new_from is not None else None
        for first, end, keyed, told in self._reports:
            fresh = (i for i in range(first, end) if done.entries[i].revision == newest)
            place = next((i for i in fresh if places[done.entries[i].id] == i), None) if keyed else first
            if place is not None:
                await told(place - first)


def _own(entry: Entry | None) -> Entry | None:
    """The entry with values of its own: the caller may change those that it was made of before it is stored."""
    if entry is None or (entry.metadata is None and entry.native is None and isinstance(entry.content, str)):
        return entry
    return unpack(pack(entry))
