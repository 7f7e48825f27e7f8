"""Withheld entries: what a policy forbids to store, but this process may use until the interaction ends.

Until then this process sees the session as a branch in memory. It has the stored entries in order, the withheld ones
between them, and a withheld result in the place of its stored stub. The branch follows what is appended, hidden,
pinned, compacted and reported of usage in the stored session. It is never stored. It is dropped when the interaction is
over, or when something in the log was rewound, erased, cleared, replaced or redacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from palimpsest.log import spans
from palimpsest.log.change import Change
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.ids import new_ids
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction
from palimpsest.privacy.gate import Admitted
from palimpsest.runtime.once import new_lock
from palimpsest.stores import Store
from palimpsest.stores.overlay import Overlay

if TYPE_CHECKING:
    from palimpsest.context.result import Context

Placed: TypeAlias = tuple[int, Entry]
"""An entry of the branch, and the seq of what is stored of it (0: nothing is)."""

MOST = 4096
"""The most interactions of a process of which withheld entries are kept. Many are never answered: a service, for
instance, in which programs only append, would keep each of them as long as it runs."""

_replace = msgspec.structs.replace


class _Places:
    """Maps the seqs of stored entries to those in the branch, which has further entries between them.

    Up to the seq `last` they are the same.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self._by_stored: dict[int, int] = {}
        self._groups: dict[int, int] = {}

    def add(self, stored: int, entry: Entry) -> None:
        """Note an entry that was added to the branch, and its seq in the store (0: it is not stored)."""
        self._groups[entry.seq] = entry.group
        if stored:
            self._by_stored[stored] = entry.seq

    def seqs(self, stored: Iterable[int]) -> tuple[int, ...]:
        """Return the seqs in the branch; those that it does not have are left out."""
        places = (seq if seq <= self._last else self._by_stored.get(seq) for seq in stored)
        return tuple(seq for seq in places if seq is not None)

    def spans(self, stored: Sequence[Span]) -> tuple[Span, ...]:
        """Return the spans in the branch, with everything that belongs to the same groups there.

        A group of the branch may hold entries of several stored groups, as where a withheld call has stored results.
        """
        shared = spans.common(stored, [(1, self._last)])
        own = {seq for place, seq in self._by_stored.items() if spans.within(stored, place)}
        groups = {self._groups[seq] for seq in own}
        members = [seq for seq, group in self._groups.items() if group in groups or spans.within(shared, group)]
        return spans.union(shared, spans.of(sorted({*own, *members})))

    def state(self, stored: Compaction, revisions: Mapping[int, int]) -> Compaction:
        """Return a state after a compaction as it is in the branch.

        `revisions` maps the revisions of compactions to those of the same ones in the branch, where they differ (0: the
        one to be committed). A summary still names the stored entries that it covers, as `expand` takes them.
        """
        summary = stored.summary
        return Compaction(
            summary=_replace(summary, revision=0) if summary is not None else None,
            current=tuple(revisions.get(revision, revision) for revision in stored.current),
            covered=self.spans(stored.covered),
            evicted=self.spans(stored.evicted),
            hidden=self.spans(stored.hidden),
            mask=self._branch_bound(stored.mask),
            released=self.spans(stored.released),
            displaced=self.spans(stored.displaced),
        )

    def _branch_bound(self, stored: int) -> int:
        """Return the seq in the branch before which the entries before this stored seq are."""
        if stored <= self._last + 1:
            return stored
        return max((self._last, *(seq for place, seq in self._by_stored.items() if place < stored))) + 1


class Withheld:
    """One session with the withheld entries of its open interaction. Make it with `begin`, before these are added."""

    def __init__(self, store: Store, key: SessionKey, clock: Callable[[], int], branch: Overlay, head: Head) -> None:
        self._store, self._key, self._clock, self._branch = store, key, clock, branch
        # A blocking store never suspends, but threads may share it. Otherwise tasks of one event loop share it.
        self._lock: AbstractContextManager[object] = new_lock() if store.blocking else nullcontext()
        self._turn: AbstractAsyncContextManager[object] = nullcontext() if store.blocking else _task_lock()
        self._seen = head.next_seq - 1
        self._places, self._revisions = _Places(self._seen), dict[int, int]()
        self._followed, self._created = head, head.created
        self._own: dict[str, Entry] = {}
        self._back: list[Entry] = []
        self._withheld_seqs: set[int] = set()
        self._shown: dict[int, Entry] = {}
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

    @property
    def entries(self) -> Sequence[Entry]:
        """The entries that were withheld, and as which text contexts have shown them where that was shortened."""
        return [*self._back, *self._shown.values()]

    def shown(self, context: Context) -> tuple[Entry, ...]:
        """Return the withheld entries that a context of the branch shows, as it shows them."""
        shown = tuple(entry for entry in context.entries if entry.seq in self._withheld_seqs)
        self._shown |= {entry.seq: entry for entry in shown}
        return shown

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
        waiting: list[Placed] = []
        self._back += [own for _, own in places if own is not None]
        for entry, own in places:
            self.holds |= own is not None
            if entry is None:
                waiting += [(0, entry) for entry in self._unless_added(own)]
            elif entry.seq > self._seen:
                if entry.seq > self._seen + 1:  # others have added entries in between
                    await self._take(waiting)
                    waiting = []
                    await self._catch_up(entry.seq)
                waiting.append((entry.seq, self._as_said(entry)))
                self._seen = entry.seq
        await self._take(waiting)
        last = max((i for i, (_, own) in enumerate(places) if own is not None), default=-1)
        kinds = [(entry.kind, entry.role) for entry, _ in places[last + 1 :] if entry is not None]
        answers = [i for i, kind in enumerate(kinds) if kind == _ANSWER]
        self._passed = bool(answers) and ("message", "user") in kinds[answers[0] :]

    async def replace(self, change: Change, slots: Sequence[Admitted], stored: Sequence[Entry], after: Head) -> None:
        """Apply a committed replacement to the branch: `stored` are the stored entries of `slots`, `after` is its head.

        Call it where `follow` is called, on a branch that was begun right before that commit.
        """
        async with self._turn:
            with self._lock:
                await self._catch_up(after.next_seq - len(stored))
                await self._follow_records(after.revision - 1)
                unused = iter(stored)
                said: list[Placed] = []
                for slot in slots:
                    entry = next(unused) if slot.kept is not None else None
                    said.append((0, slot.own or Entry()) if entry is None else (entry.seq, self._as_said(entry)))
                entries = tuple(_bare(entry) for _, entry in said)
                self._back += [slot.own for slot in slots if slot.own is not None]
                self.holds = True
                head = await self._branch.commit(self._key, _replace(change, entries=entries))
                added = await self._branch.read(self._key, after=head.next_seq - len(entries) - 1)
                self._note_places(said, added)
                self._seen, self._followed = after.next_seq - 1, after
                self._newest, self._waiting, self._passed = entries[-1], bool(head.calls), False

    async def session(self) -> tuple[Overlay | None, int]:
        """Return the branch, in which the session includes what is withheld, and the revision of the stored session.

        The branch is None if it is no longer valid, because the session was erased from, rewound, cleared, replaced or
        redacted. Call it where `follow` is called.
        """
        async with self._turn:
            with self._lock:  # the head is read here: a head of before the last `follow` would seem to be another one's
                head = await self._store.head(self._key) or Head()
                is_another = self._created and head.created != self._created
                if _state(head) != _state(self._followed) or head.next_seq <= self._seen or is_another:
                    return None, head.revision
                self._created = head.created
                await self._catch_up(head.next_seq)
                return self._branch if await self._follow_changes(head) else None, head.revision

    async def _follow_changes(self, head: Head) -> bool:
        """Apply what changed in the stored session, except for entries; return whether the branch can follow it."""
        followed = self._followed
        moved = (head.epoch, head.pinned) != (followed.epoch, followed.pinned)
        if moved and not await self._follow_records(head.revision):
            return False
        if head.usage is not None and head.usage != followed.usage:
            await self._branch.commit(self._key, Change(kind="usage", reason="usage", usage=head.usage))
        self._followed = head
        return True

    async def _follow_records(self, revision: int) -> bool:
        """Apply the changes of the stored session up to a revision; return whether the branch can follow all of them.

        Cuts are not applied, since the branch has its own.
        """
        for record in await self._store.records(self._key, after=self._followed.revision, before=revision + 1):
            change = Change(kind="pin", reason=record.reason, unpin=record.unpin)
            if record.kind == "pin":
                await self._branch.commit(self._key, _replace(change, seqs=self._places.seqs(record.seqs)))
            elif record.kind == "compact" and record.compaction is not None:
                state = self._places.state(record.compaction, {**self._revisions, record.revision: 0})
                change = _replace(change, kind="compact", compaction=state)
                self._revisions[record.revision] = (await self._branch.commit(self._key, change)).revision
            elif record.kind != "cut":
                return False
        return True

    def _unless_added(self, own: Entry | None) -> list[Entry]:
        """Return the withheld entry unless the branch has it: a batch may be added again under its key."""
        if own is None or own.id in self._ids:
            return []
        self._ids |= {own.id} - {""}
        return [own]

    async def _catch_up(self, before: int) -> None:
        """Add what others have appended before this seq."""
        if self._seen + 1 < before:
            entries = await self._store.read(self._key, after=self._seen, before=before)
            await self._take([(entry.seq, self._as_said(entry)) for entry in entries if not entry.erased])
            self._seen = before - 1

    async def _take(self, batch: Sequence[Placed]) -> None:
        if batch:
            appended = await self._branch.append(self._key, [entry for _, entry in batch])
            self._note_places(batch, appended.entries)
            self._newest, self._waiting = appended.entries[-1], bool(appended.head.calls)

    def _note_places(self, batch: Sequence[Placed], added: Sequence[Entry]) -> None:
        """Note where the entries of a batch are in the branch."""
        for (seq, given), entry in zip(batch, added, strict=True):
            self._places.add(seq, entry)
            if not seq or given.id in self._own:
                self._withheld_seqs.add(entry.seq)

    def _as_said(self, entry: Entry) -> Entry:
        """Return the entry, or the withheld one that belongs in the place of this stub."""
        own = self._own.get(entry.id)
        return entry if own is None else _replace(own, id=entry.id, at=entry.at)


_ANSWER = ("message", "assistant")


def _is_answer(entry: Entry) -> bool:
    return (entry.kind, entry.role) == _ANSWER


def _task_lock() -> AbstractAsyncContextManager[object]:
    import asyncio  # only under an event loop

    return asyncio.Lock()


def _with_id(entry: Entry, id: str) -> Entry:
    return entry if entry.id else _replace(entry, id=id)


def _bare(entry: Entry) -> Entry:
    """Return the entry without the links that hold only where it is stored, so that it can be added to the branch."""
    return _replace(entry, seq=0, answers=0)


def _state(head: Head) -> tuple[object, ...]:
    return head.first_seq, head.erased, head.rewound
