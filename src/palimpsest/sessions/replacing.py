"""Replacing what a session keeps active by a list of messages, and pinning entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from palimpsest.errors import ConfigError, Conflict, EntryNotFound
from palimpsest.log import spans
from palimpsest.log.change import Change, Record
from palimpsest.log.checks import check_names
from palimpsest.log.codec import ready
from palimpsest.log.entry import Entry, Status
from palimpsest.log.head import Head
from palimpsest.log.replacing import replacement, says_the_same, staying
from palimpsest.log.resuming import standing
from palimpsest.log.spans import Span
from palimpsest.log.summary import Compaction
from palimpsest.privacy.gate import Admitted
from palimpsest.sessions.adding.appender import Appender
from palimpsest.sessions.adding.verbs import Adding, checked_key
from palimpsest.sessions.compacting.snapshot import SnapshotReader
from palimpsest.sessions.history import History, revision_of
from palimpsest.sessions.reading import LogReader
from palimpsest.sessions.repeated import repeated
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.withheld import Withheld
from palimpsest.stores import Appended

if TYPE_CHECKING:
    from palimpsest.context.result import Context


PATIENCE = 8
"""How often to plan a replacement anew because others add to the open group. Then that group stays, with what they
add."""


class _Once(msgspec.Struct, frozen=True):
    """What the record of a replacement under a key holds: the key as a number, and the places that stayed active."""

    key: int
    kept: tuple[Span, ...]


ready(_Once)


class _Plan(NamedTuple):
    """A planned replacement: the entries that stay, those to be added, and the change (None: nothing to change)."""

    kept: list[Entry]
    fresh: list[Admitted]
    change: Change | None


class Replacing:
    """Replaces what is active, and pins entries."""

    def __init__(self, scope: SessionScope, adding: Adding, appender: Appender) -> None:
        self._scope, self._adding, self._appender = scope, adding, appender

    async def replace(
        self,
        messages: object,
        format: str | None,
        key: str | None,
        statuses: Mapping[str, Status] | None,
        metadata: dict[str, Any] | None,
        seen: Context | int | None,
    ) -> tuple[Entry, ...]:
        """Make these messages the active ones. Return their entries, in order.

        Raises Conflict if the key was used for other messages.
        """
        self._scope.may_write()
        if self._appender.turn.buffer is not None:
            raise ConfigError("replace", "inside an atomic turn", "a call after the turn, or in one that is not atomic")
        entries, key = self._adding.decoded(messages, format, statuses, metadata), checked_key(key)
        for entry in entries:
            check_names(entry, "messages")
        slots, mark = await self._admitted(entries, seen), _mark(key) if key is not None else 0
        first = await self._scope.head()
        since = first.next_seq if seen is None else await self._seen_upto(first, revision_of(seen))
        tries = 0
        while True:
            head = await self._scope.head()
            if mark and (earlier_entries := await self._done_before(head, mark, slots)) is not None:
                return earlier_entries
            seen_upto = _seen_at(first, head, since)
            if tries >= PATIENCE:  # others keep adding to the open group: it stays, with what they add
                seen_upto = min(seen_upto, head.tail or seen_upto)
            plan = await self._planned(head, slots, seen_upto, mark)
            if plan.change is None:
                return tuple(plan.kept)
            try:
                return await self._replace(head, plan, plan.change, alone=tries < PATIENCE and _is_open(head))
            except Conflict:  # another writer was first: plan again from the new state
                tries += 1

    async def _seen_upto(self, head: Head, revision: int) -> int:
        """Return the seq before which the caller has seen everything at this revision.

        Raises Conflict if the session was cleared since, and ConfigError for a revision that never was.
        """
        try:
            return (await History(self._scope.store, self._scope.key).point(head, revision, "seen")).next_seq
        except ConfigError:
            if not 0 <= revision <= head.revision:
                raise
            reason = f"was cleared since revision {revision}, from which the list was made; make a new list"
            raise Conflict(f"session {self._scope.key.session!r}", reason) from None

    async def _admitted(self, entries: Sequence[Entry], seen: Context | int | None) -> Sequence[Admitted]:
        """Apply the privacy policy to the entries. Those that repeat withheld ones are withheld, too.

        Such ones are of the open interaction, or of the context that was `seen`, whenever that was.
        """
        branch = self._scope.withheld.get(self._scope.place)
        withheld: list[Entry] = [*(branch.entries if branch is not None else ()), *getattr(seen, "withheld", ())]
        own_entries = [repeated(entry, withheld) for entry in entries]
        slots = await self._appender.admitted(
            [
                entry if withheld_entry is None else self._scope.gate.as_withheld(_with_metadata(entry, withheld_entry))
                for entry, withheld_entry in zip(entries, own_entries, strict=True)
            ]
        )
        await self._appender.tell_redacted(slots)
        return slots

    async def _planned(self, head: Head, slots: Sequence[Admitted], seen: int, mark: int) -> _Plan:
        """Plan the replacement for the session at this head.

        `seen` is the seq before which the caller has seen everything: entries from there on stay active. `mark` is the
        number of the key (0: none).
        """
        snapshots, now = SnapshotReader.of(self._scope), self._scope.clock()
        state = await snapshots.state(head)
        hidden = spans.union(state.inactive, await snapshots.evicted(head, state))
        hidden = spans.union(spans.minus(hidden, spans.of(head.pinned)), head.rewound)
        active = await snapshots.read(spans.visible(hidden, head.first_seq - 1, head.next_seq))
        certain = next((i for i, slot in enumerate(slots) if slot.own is not None), len(slots))
        admitted_entries = [slot.kept for slot in slots if slot.kept is not None]
        reused, new_entries = replacement(
            head, [entry for entry in active if not entry.expired(now)], admitted_entries, certain
        )
        later = spans.minus(staying(head, active, seen), state.inactive)
        stay = spans.minus(spans.union(later, spans.of(entry.seq for entry in reused)), head.rewound)
        archived = [entry for entry in active if not (entry.erased or spans.within(stay, entry.seq))]
        unused_entries = iter(new_entries)
        added = [Admitted(slot.kept and next(unused_entries), slot.own) for slot in slots[len(reused) :]]
        if not (added or archived or state.current or state.mask) and not (mark and head.revision):
            return _Plan(reused, added, None)
        detail: dict[str, Any] = {
            "entries": len(admitted_entries),
            "added": len(admitted_entries) - len(reused),
            "archived": len(archived),
        }
        if mark:
            once = _Once(key=mark, kept=spans.of(entry.seq for entry in reused))
            detail |= {"once": msgspec.to_builtins(once)}
        change = Change(
            kind="replace",
            reason="replace",
            created=head.created,
            turn=max((entry.seq for entry in active if entry.is_human and spans.within(stay, entry.seq)), default=0),
            compaction=Compaction(
                evicted=tuple(spans.visible(spans.union(stay, head.rewound), head.first_seq - 1, head.next_seq)),
                released=state.released,
            ),
            detail=detail,
        )
        return _Plan(reused, added, change)

    async def _replace(self, head: Head, plan: _Plan, change: Change, *, alone: bool) -> tuple[Entry, ...]:
        """Commit a plan and report it to observers. Raises Conflict if the plan does not fit the session any more.

        Entries that others append meanwhile are no conflict. With `alone` they are: they could belong to a group that
        the plan leaves out.
        """
        slots, branch = plan.fresh, None
        if any(slot.own is not None for slot in slots):
            branch = await Withheld.begin(*self._scope.place, self._scope.clock)
            slots = branch.expecting(slots)
        change = msgspec.structs.replace(change, entries=tuple(slot.kept for slot in slots if slot.kept is not None))
        creates = head.about is None and head.next_seq == 1
        if creates and (about := self._scope.about) is not None:
            await self._appender.declare()
            change = msgspec.structs.replace(change, about=about, said=about.__struct_fields__)
        after = await self._scope.store.commit(
            self._scope.key,
            change,
            expect_epoch=head.epoch,
            expect_revision=head.revision if alone or creates else None,
        )
        first = after.next_seq - len(change.entries)
        stored = await self._scope.store.read(
            self._scope.key, after=first - 1, before=after.next_seq, limit=len(change.entries)
        )
        added = len(stored)  # none, where somebody has cleared or deleted the session since
        self._scope.let_go()
        if branch is not None and added == len(change.entries):
            following = branch
            await self._scope.store.together(lambda: following.replace(change, slots, stored, after))
            if self._appender.turn.is_open or not branch.interaction_ended:
                self._scope.withheld[self._scope.place] = branch
        await self._appender.follow_up(Appended(after, tuple(stored), added))
        facts = {"revision": after.revision, **{name: change.detail[name] for name in ("entries", "added", "archived")}}
        await self._scope.tell("session:replaced", **facts)
        return (*plan.kept, *_in_place(slots, stored))

    async def _done_before(self, head: Head, mark: int, slots: Sequence[Admitted]) -> tuple[Entry, ...] | None:
        """Return the entries of an earlier replacement under this key, or None if there is none that still holds.

        Raises Conflict if it had other messages.
        """
        records = standing(await self._scope.store.records(self._scope.key, before=head.revision + 1))
        earlier = [
            (record, once) for record in records if (once := _once(head, record)) is not None and once.key == mark
        ]
        if not earlier:
            return None
        record, once = earlier[-1]
        entries = await self._scope.store.fetch(self._scope.key, [*spans.members(once.kept), *record.seqs])
        given_entries = [slot.kept for slot in slots if slot.kept is not None]
        if len(entries) != len(given_entries) or not all(map(says_the_same, entries, given_entries)):
            raise Conflict("the key", "was used for a replacement with other messages; give this one another key")
        return _in_place(slots, entries)

    async def pin(self, ids: Iterable[str | int | Entry], *, unpin: bool) -> None:
        """Pin these entries, or unpin them."""
        self._scope.may_write()
        log = LogReader(self._scope.store, self._scope.options)
        named, reason = tuple(ids), "unpinned" if unpin else "pinned"
        while named:
            head = await self._scope.head()
            entries = [await log.named(id) for id in named]
            for entry in entries if not unpin else ():
                if entry.erased:
                    raise ConfigError("ids", entry.seq, "an entry that is not erased: nothing of this one can be shown")
                if spans.within(head.rewound, entry.seq):
                    raise EntryNotFound(self._scope.key.session, entry.seq, "active entry")
            seqs = tuple(entry.seq for entry in entries)
            change = Change(kind="pin", reason=reason, created=head.created, seqs=seqs, unpin=unpin)
            try:
                await self._scope.store.commit(self._scope.key, change)
                return
            except Conflict:  # the session was deleted, and a new one may be in its place: find the entries again
                continue


def _with_metadata(entry: Entry, own: Entry) -> Entry:
    """Return the entry with the metadata of the withheld one that it repeats."""
    return (
        msgspec.structs.replace(entry, metadata={**(entry.metadata or {}), **own.metadata}) if own.metadata else entry
    )


def _is_open(head: Head) -> bool:
    """Return whether the next entry may belong to the newest group."""
    return bool(head.group or head.reasoning or head.pauses)


def _in_place(slots: Sequence[Admitted], stored: Sequence[Entry]) -> tuple[Entry, ...]:
    """Return the entries of slots in order: as stored, or as given for those that are withheld."""
    unused = iter(stored)
    return tuple(next(unused, slot.kept) if slot.kept is not None else slot.own or Entry() for slot in slots)


def _seen_at(first: Head, now: Head, since: int) -> int:
    """Return the seq before which everything was seen: `since`, or the first one if the session was cleared or another
    one took its place."""
    same = (first.created, first.first_seq) == (now.created, now.first_seq)
    return min(since, now.next_seq) if same else now.first_seq


def _mark(key: str) -> int:
    """Return the number that a record keeps of a key, a hash: keys may be private."""
    digest = sha256(f"palimpsest:replace:{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6]) + 1


def _once(head: Head, record: Record) -> _Once | None:
    """Return what a record says of its key and kept places; None for other records, and for what cannot be true."""
    try:
        once = msgspec.convert(record.detail.get("once") if record.kind == "replace" else None, _Once)
    except msgspec.ValidationError:  # the details of an imported record may hold anything
        return None
    return once if spans.astray(once.kept, head.first_seq, head.next_seq - 1) is None else None
