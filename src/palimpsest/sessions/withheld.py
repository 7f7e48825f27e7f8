"""What may not be kept, and is usable in this process until its interaction ends.

The session as this process sees it meanwhile is a branch in memory: the stored entries, in order, with what is withheld
between them, and with a withheld result in the place of its stub. It is followed, never stored, and dropped when the
interaction is over, or when something of the log was taken back, erased or cleared.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext

import msgspec

from palimpsest.log.change import Change
from palimpsest.log.entry import Entry, new_ids
from palimpsest.log.head import Head, SessionKey
from palimpsest.privacy.gate import Admitted
from palimpsest.stores import Store
from palimpsest.stores.overlay import Overlay


class Withheld:
    """One session with what is withheld of its open interaction. Made by `begin`, before that is added."""

    def __init__(self, store: Store, key: SessionKey, clock: Callable[[], int], branch: Overlay, head: Head) -> None:
        self._store, self._key, self._clock, self._branch = store, key, clock, branch
        # Threads may share a memory, where nothing suspends; where something does, tasks of one loop share it.
        self._lock: AbstractContextManager[object] = allocate_lock() if store.blocking else nullcontext()
        self._turn: AbstractAsyncContextManager[object] = nullcontext() if store.blocking else _task_lock()
        self._seen = head.next_seq - 1
        self._begun, self._created = _state(head), head.created
        self._own: dict[str, Entry] = {}
        self._ids: set[str] = set()
        self._newest: Entry | None = None
        self._waiting = False
        self.holds = False
        """Whether anything is held back."""

    @classmethod
    async def begin(cls, key: SessionKey, store: Store, clock: Callable[[], int]) -> Withheld:
        """Begin to hold something back, from how the session is now."""
        branch = Overlay(store, clock)
        return cls(store, key, clock, branch, await branch.head(key) or Head())

    @property
    def interaction_ended(self) -> bool:
        """Whether the newest entry is an assistant's message and no call is unanswered."""
        newest = self._newest
        return newest is not None and (newest.kind, newest.role) == ("message", "assistant") and not self._waiting

    def expecting(self, slots: Sequence[Admitted]) -> list[Admitted]:
        """Return the slots of a batch that comes next, with an id for each entry that is stored.

        By that whoever sees a stub before the batch is followed knows what was said in its place.
        """
        ids = new_ids(len(slots), self._clock() // 1000)
        found = [Admitted(slot.kept and _with_id(slot.kept, id), slot.own) for slot, id in zip(slots, ids, strict=True)]
        self._own |= {slot.kept.id: slot.own for slot in found if slot.kept is not None and slot.own is not None}
        return found

    async def follow(self, slots: Sequence[Admitted], stored: Sequence[Entry], revision: int) -> None:
        """Take over a batch that was added with this revision: what was stored of it, and what was not.

        It never suspends where its store does not, and is called there.
        """
        rest = iter(stored)
        places = [(next(rest) if slot.kept is not None else None, slot.own) for slot in slots]
        # What stands before something that was there already is of an interaction of then.
        there = [i for i, (entry, _) in enumerate(places) if entry is not None and entry.revision != revision]
        async with self._turn:
            with self._lock:
                await self._add(places[there[-1] + 1 if there else 0 :])

    async def _add(self, places: Sequence[tuple[Entry | None, Entry | None]]) -> None:
        """Take over what was added, in its order: what of each is stored, and what it is here where that is more."""
        waiting: list[Entry] = []
        for entry, own in places:
            self.holds |= own is not None
            if entry is None:
                waiting += self._once(own)
            elif entry.seq > self._seen:
                if entry.seq > self._seen + 1:  # others came between
                    await self._take(waiting)
                    waiting = []
                    await self._catch_up(entry.seq)
                waiting.append(self._as_said(entry))
                self._seen = entry.seq
        await self._take(waiting)

    async def replace(self, change: Change, slots: Sequence[Admitted], stored: Sequence[Entry], first: int) -> None:
        """Take over a replacement that was committed: what was to be added, what of it is stored, from the place
        `first` on.

        It is called where `follow` is, on what was begun right before that commit.
        """
        async with self._turn:
            with self._lock:
                await self._catch_up(first)
                rest = iter(stored)
                said = [slot.own if slot.kept is None else self._as_said(next(rest)) for slot in slots]
                entries = tuple(_bare(entry) for entry in said if entry is not None)
                self.holds = True
                head = await self._branch.commit(self._key, msgspec.structs.replace(change, entries=entries))
                self._seen = max([self._seen, *(entry.seq for entry in stored)])
                self._newest, self._waiting = entries[-1], bool(head.calls)

    async def session(self, head: Head) -> Overlay | None:
        """Return the store in which the session is whole; None where some of its log is gone, and this with it.

        It is called where `follow` is.
        """
        async with self._turn:
            with self._lock:
                another = self._created and head.created != self._created
                if _state(head) != self._begun or head.next_seq <= self._seen or another:
                    return None
                self._created = head.created
                await self._catch_up(head.next_seq)
                return self._branch

    def _once(self, own: Entry | None) -> list[Entry]:
        """The entry, unless it was taken over before: a batch may be added again under its key."""
        if own is None or own.id in self._ids:
            return []
        self._ids |= {own.id} - {""}
        return [own]

    async def _catch_up(self, before: int) -> None:
        """Take over what others have added."""
        if self._seen + 1 < before:
            there = await self._store.read(self._key, after=self._seen, before=before)
            await self._take([self._as_said(entry) for entry in there if not entry.erased])
            self._seen = before - 1

    async def _take(self, batch: Sequence[Entry]) -> None:
        if batch:
            done = await self._branch.append(self._key, batch)
            self._newest, self._waiting = done.entries[-1], bool(done.head.calls)

    def _as_said(self, entry: Entry) -> Entry:
        """The entry, or what was said where a stub stands."""
        own = self._own.get(entry.id)
        return entry if own is None else msgspec.structs.replace(own, id=entry.id, at=entry.at)


def _task_lock() -> AbstractAsyncContextManager[object]:
    import asyncio  # only under an event loop

    return asyncio.Lock()


def _with_id(entry: Entry, id: str) -> Entry:
    return entry if entry.id else msgspec.structs.replace(entry, id=id)


def _bare(entry: Entry) -> Entry:
    """The entry to be added anew: its links are of where it was stored."""
    return msgspec.structs.replace(entry, seq=0, answers=0)


def _state(head: Head) -> tuple[object, ...]:
    return head.first_seq, head.erased, head.rewound
