"""Saying what a session keeps active: a whole list in the place of what was, and pins."""

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
from palimpsest.sessions.scope import SessionScope
from palimpsest.sessions.withheld import Withheld
from palimpsest.stores import Appended

if TYPE_CHECKING:
    from palimpsest.context.result import Context


PATIENCE = 8
"""How often a replacement is planned anew because others go on in the group that is open."""


class _Once(msgspec.Struct, frozen=True):
    """What the record of a replacement under a key keeps: the key, as a number, and the places that stayed."""

    key: int
    kept: tuple[Span, ...]


ready(_Once)


class _Plan(NamedTuple):
    """A replacement: the entries that stay, what is to be added, and the change (None: all is as it is to be)."""

    kept: list[Entry]
    fresh: list[Admitted]
    change: Change | None


class Replacing:
    """Replaces what is active, and pins."""

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
        """Make these messages the active set."""
        self._scope.may_write()
        if self._appender.turn.buffer is not None:
            raise ConfigError("replace", "inside an atomic turn", "after it, or in a turn that is not atomic")
        entries, key = self._adding.decoded(messages, format, statuses, metadata), checked_key(key)
        for entry in entries:
            check_names(entry, "messages")
        slots, mark = await self._appender.admitted(entries), _mark(key) if key is not None else 0
        first = await self._scope.head()
        since = (
            first.next_seq
            if seen is None
            else (await History(self._scope.store, self._scope.key).point(first, revision_of(seen), "seen")).next_seq
        )
        tries = 0
        while True:
            head = await self._scope.head()
            if mark and (done := await self._done_before(head, mark, slots)) is not None:
                return done
            known = _seen_at(first, head, since)
            if tries >= PATIENCE:  # others go on in the open group all the time: it stays with what they add
                known = min(known, head.tail or known)
            plan = await self._planned(head, slots, known, mark)
            if plan.change is None:
                return tuple(plan.kept)
            try:
                return await self._replace(head, plan, plan.change, alone=tries < PATIENCE and _is_open(head))
            except Conflict:  # somebody was first: what is there is looked at anew
                tries += 1

    async def _planned(self, head: Head, slots: Sequence[Admitted], seen: int, mark: int) -> _Plan:
        """Return what is to be done, from the session of this head, of which all before the place `seen` was seen."""
        snapshots, now = SnapshotReader.of(self._scope), self._scope.clock()
        state = await snapshots.state(head)
        hidden = spans.union(state.inactive, await snapshots.evicted(head, state))
        hidden = spans.union(spans.minus(hidden, spans.of(head.pinned)), head.rewound)
        there = await snapshots.read(spans.visible(hidden, head.first_seq - 1, head.next_seq))
        sure = next((i for i, slot in enumerate(slots) if slot.own is not None), len(slots))
        given = [slot.kept for slot in slots if slot.kept is not None]
        kept, fresh = replacement(head, [entry for entry in there if not entry.expired(now)], given, sure)
        later = spans.minus(staying(head, there, seen), state.inactive)
        stay = spans.minus(spans.union(later, spans.of(entry.seq for entry in kept)), head.rewound)
        left = [entry for entry in there if not (entry.erased or spans.within(stay, entry.seq))]
        new = iter(fresh)
        rest = [Admitted(slot.kept and next(new), slot.own) for slot in slots[len(kept) :]]
        if not (rest or left or state.current or state.mask) and not (mark and head.revision):
            return _Plan(kept, rest, None)
        detail: dict[str, Any] = {"entries": len(given), "added": len(given) - len(kept), "archived": len(left)}
        if mark:
            once = _Once(key=mark, kept=spans.of(entry.seq for entry in kept))
            detail |= {"once": msgspec.to_builtins(once)}
        change = Change(
            kind="replace",
            reason="replace",
            created=head.created,
            turn=max((entry.seq for entry in there if entry.is_human and spans.within(stay, entry.seq)), default=0),
            compaction=Compaction(
                evicted=tuple(spans.visible(spans.union(stay, head.rewound), head.first_seq - 1, head.next_seq)),
                released=state.released,
            ),
            detail=detail,
        )
        return _Plan(kept, rest, change)

    async def _replace(self, head: Head, plan: _Plan, change: Change, *, alone: bool) -> tuple[Entry, ...]:
        """Commit a plan and tell of it. Raises Conflict where the session is not any more what was planned for.

        What is appended meanwhile is no conflict, unless it is to be `alone`: then it could belong to what is left out.
        """
        fresh, held = plan.fresh, None
        if any(slot.own is not None for slot in fresh):
            held = await Withheld.begin(*self._scope.place, self._scope.clock)
            fresh = held.expecting(fresh)
        change = msgspec.structs.replace(change, entries=tuple(slot.kept for slot in fresh if slot.kept is not None))
        makes = head.about is None and head.next_seq == 1
        if makes and (about := self._scope.about) is not None:
            await self._appender.declare()
            change = msgspec.structs.replace(change, about=about, said=about.__struct_fields__)
        after = await self._scope.store.commit(
            self._scope.key,
            change,
            expect_epoch=head.epoch,
            expect_revision=head.revision if alone or makes else None,
        )
        added = len(change.entries)
        stored = await self._scope.store.read(
            self._scope.key, after=after.next_seq - 1 - added, before=after.next_seq, limit=added
        )
        self._scope.let_go()
        if held is not None:
            following = held
            await self._scope.store.together(lambda: following.replace(change, fresh, stored, after.next_seq - added))
            if self._appender.turn.is_open or not held.interaction_ended:
                self._scope.withheld[self._scope.place] = held
        await self._appender.follow_up(Appended(after, tuple(stored), added))
        facts = {"revision": after.revision, **{name: change.detail[name] for name in ("entries", "added", "archived")}}
        await self._scope.tell("session:replaced", **facts)
        return (*plan.kept, *_in_place(fresh, stored))

    async def _done_before(self, head: Head, mark: int, slots: Sequence[Admitted]) -> tuple[Entry, ...] | None:
        """Return the entries of the replacement that was made under a key; None where there is none that stands."""
        records = standing(await self._scope.store.records(self._scope.key, before=head.revision + 1))
        made = [(one, once) for one in records if (once := _once(head, one)) is not None and once.key == mark]
        if not made:
            return None
        record, once = made[-1]
        found = await self._scope.store.fetch(self._scope.key, [*spans.members(once.kept), *record.seqs])
        given = [slot.kept for slot in slots if slot.kept is not None]
        if len(found) != len(given) or not all(map(says_the_same, found, given)):
            raise Conflict("the key", "was used for a replacement with other messages; a key is used once")
        return _in_place(slots, found)

    async def pin(self, ids: Iterable[str | int | Entry], *, unpin: bool) -> None:
        """Pin these entries, or let go of them."""
        self._scope.may_write()
        log = LogReader(self._scope.store, self._scope.options)
        named, reason = tuple(ids), "unpinned" if unpin else "pinned"
        while named:
            head = await self._scope.head()
            meant = [await log.named(id) for id in named]
            for entry in meant if not unpin else ():
                if entry.erased:
                    raise ConfigError("ids", entry.seq, "an entry that is not erased: of this one nothing can be shown")
                if spans.within(head.rewound, entry.seq):
                    raise EntryNotFound(self._scope.key.session, entry.seq, "active entry")
            seqs = tuple(entry.seq for entry in meant)
            change = Change(kind="pin", reason=reason, created=head.created, seqs=seqs, unpin=unpin)
            try:
                await self._scope.store.commit(self._scope.key, change)
                return
            except Conflict:  # it was deleted; another may be in its place
                continue


def _is_open(head: Head) -> bool:
    """Whether what comes next may belong to the newest group."""
    return bool(head.group or head.reasoning or head.pauses)


def _in_place(slots: Sequence[Admitted], stored: Sequence[Entry]) -> tuple[Entry, ...]:
    """The entries of slots: those stored, and what is withheld as it was given."""
    rest = iter(stored)
    return tuple(next(rest, slot.kept) if slot.kept is not None else slot.own or Entry() for slot in slots)


def _seen_at(first: Head, now: Head, since: int) -> int:
    """The place before which all was seen: nothing of another session in its place, or of what came after a clear."""
    same = (first.created, first.first_seq) == (now.created, now.first_seq)
    return min(since, now.next_seq) if same else now.first_seq


def _mark(key: str) -> int:
    """What a record keeps of a key: a number, in which nothing private can be found."""
    digest = sha256(f"palimpsest:replace:{key}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6]) + 1


def _once(head: Head, record: Record) -> _Once | None:
    """What the record of a replacement under a key says of it; None for others, and where it cannot be."""
    try:
        once = msgspec.convert(record.detail.get("once") if record.kind == "replace" else None, _Once)
    except msgspec.ValidationError:  # an import may say anything there
        return None
    return once if spans.astray(once.kept, head.first_seq, head.next_seq - 1) is None else None
