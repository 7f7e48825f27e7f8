"""Withheld entries: what a policy forbids to store, but this process may use until the interaction ends.

Until then this process sees the session as a branch in memory. It has the stored entries in order, the withheld ones
between them, and a withheld result in the place of its stored stub. The branch is updated with each append and never
stored. It is dropped when the interaction is over, or when something in the log was rewound, erased or cleared.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext

import msgspec

from palimpsest.log.change import Change
from palimpsest.log.entry import Entry, Text, new_ids
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.replacing import says_the_same
from palimpsest.privacy.gate import Admitted
from palimpsest.stores import Store
from palimpsest.stores.overlay import Overlay


class Withheld:
    """One session with the withheld entries of its open interaction. Make it with `begin`, before these are added."""

    def __init__(self, store: Store, key: SessionKey, clock: Callable[[], int], branch: Overlay, head: Head) -> None:
        self._store, self._key, self._clock, self._branch = store, key, clock, branch
        # A blocking store never suspends, but threads may share it. Otherwise tasks of one event loop share it.
        self._lock: AbstractContextManager[object] = allocate_lock() if store.blocking else nullcontext()
        self._turn: AbstractAsyncContextManager[object] = nullcontext() if store.blocking else _task_lock()
        self._seen = head.next_seq - 1
        self._begun, self._created = _state(head), head.created
        self._own: dict[str, Entry] = {}
        self._back: list[Entry] = []
        self._ids: set[str] = set()
        self._newest: Entry | None = None
        self._waiting, self._passed = False, False
        self.holds = False
        """Whether anything is withheld."""

    @classmethod
    async def begin(cls, key: SessionKey, store: Store, clock: Callable[[], int]) -> Withheld:
        """Begin a branch from the session as it is now."""
        branch = Overlay(store, clock)
        return cls(store, key, clock, branch, await branch.head(key) or Head())

    @property
    def interaction_ended(self) -> bool:
        """Whether the newest entry is an assistant's message, or the last batch had one behind what is withheld, and
        then the next question; and no call is unanswered."""
        newest = self._newest
        return newest is not None and (_is_answer(newest) or self._passed) and not self._waiting

    def expecting(self, slots: Sequence[Admitted]) -> list[Admitted]:
        """Return the slots of the batch to be added next, with an id for each entry that is stored.

        The ids are remembered here. So a stub that is read before `follow` is called for its batch can be replaced by
        the withheld entry.
        """
        ids = new_ids(len(slots), self._clock() // 1000)
        identified = [
            Admitted(slot.kept and _with_id(slot.kept, id), slot.own) for slot, id in zip(slots, ids, strict=True)
        ]
        self._own |= {slot.kept.id: slot.own for slot in identified if slot.kept is not None and slot.own is not None}
        return identified

    def said_again(self, entries: Sequence[Entry]) -> list[Entry]:
        """The entries, those that say again what is held back with its metadata: by that they are held back, too."""
        return [self._marked(entry) for entry in entries]

    def _marked(self, entry: Entry) -> Entry:
        said = next((own.metadata for own in self._back if _repeats(entry, own)), None)
        return entry if not said else msgspec.structs.replace(entry, metadata={**(entry.metadata or {}), **said})

    async def follow(self, slots: Sequence[Admitted], stored: Sequence[Entry], revision: int) -> None:
        """Add a batch to the branch: its stored entries, which this `revision` added, and its withheld ones.

        Call it where the store's verbs run; over a blocking store it never suspends.
        """
        unused = iter(stored)
        places = [(next(unused) if slot.kept is not None else None, slot.own) for slot in slots]
        # A batch may be repeated under its key: what comes before an entry of an earlier revision is of that time.
        earlier = [i for i, (entry, _) in enumerate(places) if entry is not None and entry.revision != revision]
        async with self._turn:
            with self._lock:
                await self._add(places[earlier[-1] + 1 if earlier else 0 :])

    async def _add(self, places: Sequence[tuple[Entry | None, Entry | None]]) -> None:
        """Add entries in order. Each has what is stored of it and what was withheld, either of them possibly None."""
        waiting: list[Entry] = []
        self._back += [own for _, own in places if own is not None]
        for entry, own in places:
            self.holds |= own is not None
            if entry is None:
                waiting += self._once(own)
            elif entry.seq > self._seen:
                if entry.seq > self._seen + 1:  # others have added entries in between
                    await self._take(waiting)
                    waiting = []
                    await self._catch_up(entry.seq)
                waiting.append(self._as_said(entry))
                self._seen = entry.seq
        await self._take(waiting)
        last = max((i for i, (_, own) in enumerate(places) if own is not None), default=-1)
        kinds = [(entry.kind, entry.role) for entry, _ in places[last + 1 :] if entry is not None]
        answers = [i for i, kind in enumerate(kinds) if kind == _ANSWER]
        self._passed = bool(answers) and ("message", "user") in kinds[answers[0] :]

    async def replace(self, change: Change, slots: Sequence[Admitted], stored: Sequence[Entry], first: int) -> None:
        """Apply a committed replacement to the branch: `stored` are the stored entries of `slots`, from seq `first` on.

        Call it where `follow` is called, on a branch that was begun right before that commit.
        """
        async with self._turn:
            with self._lock:
                await self._catch_up(first)
                unused = iter(stored)
                said = [slot.own if slot.kept is None else self._as_said(next(unused)) for slot in slots]
                entries = tuple(_bare(entry) for entry in said if entry is not None)
                self._back += [slot.own for slot in slots if slot.own is not None]
                self.holds = True
                head = await self._branch.commit(self._key, msgspec.structs.replace(change, entries=entries))
                self._seen = max([self._seen, *(entry.seq for entry in stored)])
                self._newest, self._waiting, self._passed = entries[-1], bool(head.calls), False

    async def session(self, head: Head) -> Overlay | None:
        """Return the branch, in which the session includes what is withheld.

        None if the session was erased from, rewound, cleared or replaced, so that the branch is no longer valid. Call
        it where `follow` is called.
        """
        async with self._turn:
            with self._lock:
                is_another = self._created and head.created != self._created
                if _state(head) != self._begun or head.next_seq <= self._seen or is_another:
                    return None
                self._created = head.created
                await self._catch_up(head.next_seq)
                return self._branch

    def _once(self, own: Entry | None) -> list[Entry]:
        """Return the withheld entry unless the branch has it: a batch may be added again under its key."""
        if own is None or own.id in self._ids:
            return []
        self._ids |= {own.id} - {""}
        return [own]

    async def _catch_up(self, before: int) -> None:
        """Add what others have appended before this seq."""
        if self._seen + 1 < before:
            entries = await self._store.read(self._key, after=self._seen, before=before)
            await self._take([self._as_said(entry) for entry in entries if not entry.erased])
            self._seen = before - 1

    async def _take(self, batch: Sequence[Entry]) -> None:
        if batch:
            appended = await self._branch.append(self._key, batch)
            self._newest, self._waiting = appended.entries[-1], bool(appended.head.calls)

    def _as_said(self, entry: Entry) -> Entry:
        """Return the entry, or the withheld one that belongs in the place of this stub."""
        own = self._own.get(entry.id)
        return entry if own is None else msgspec.structs.replace(own, id=entry.id, at=entry.at)


_ANSWER = ("message", "assistant")


def _is_answer(entry: Entry) -> bool:
    return (entry.kind, entry.role) == _ANSWER


def _task_lock() -> AbstractAsyncContextManager[object]:
    import asyncio  # only under an event loop

    return asyncio.Lock()


def _repeats(entry: Entry, own: Entry) -> bool:
    """Whether an entry says what another one does, be it in one part of several, as where neighbours were merged."""
    if says_the_same(own, entry):
        return True
    parts = entry.content if isinstance(entry.content, tuple) and entry.role == own.role else ()
    texts = {own.text} if isinstance(own.content, str) else {one.text for one in own.content if isinstance(one, Text)}
    return any(isinstance(part, Text) and part.text in texts for part in parts)


def _with_id(entry: Entry, id: str) -> Entry:
    return entry if entry.id else msgspec.structs.replace(entry, id=id)


def _bare(entry: Entry) -> Entry:
    """Return the entry without the links that hold only where it is stored, so that it can be added to the branch."""
    return msgspec.structs.replace(entry, seq=0, answers=0)


def _state(head: Head) -> tuple[object, ...]:
    return head.first_seq, head.erased, head.rewound
