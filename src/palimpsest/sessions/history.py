"""What a session was at an earlier time: found again from its entries and records. Reads only.

A time is a revision, or the place behind an entry. Nothing about it is stored beside what the log holds anyway:
entries know the revision that added them, records the cuts, pins, erasures and rewinds that came between.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import msgspec

from palimpsest.errors import ConfigError, EntryNotFound
from palimpsest.log import spans
from palimpsest.log.change import Record
from palimpsest.log.checks import unfit
from palimpsest.log.entry import Entry
from palimpsest.log.head import Attempts, Cut, Head, SessionKey
from palimpsest.log.resuming import Walk, left_out, standing
from palimpsest.log.values import MOST, is_whole
from palimpsest.sessions.paging import batches_of, entries_of
from palimpsest.stores import Store

PROBES = 16
"""Entries that are looked at together to find when a revision was: a look is a round trip, a search by halves many."""

RECORDS = 4096
"""Revisions whose records are read at once where all are."""

When = int | str | Entry
"""A revision, or an entry (or its id) that is to be the newest."""


def revision_of(seen: object) -> int:
    """Return the revision that a context shows, or that is given. Raises ConfigError for what is neither.

    Args:
        seen: what somebody says to have seen of a session.
    """
    revision = getattr(seen, "revision", seen)
    if not is_whole(revision, -MOST, MOST):
        raise ConfigError("seen", seen, "a context of the session, or a revision")
    return revision


def _revisions(head: Head, found: object) -> str:
    """Which revisions there are, for who gave something else; what has a revision of its own is told where."""
    own = ", such as its `revision`" if is_whole(getattr(found, "revision", None)) else ""
    return f"a revision from 0 to {head.revision}{own}"


class Point(msgspec.Struct, frozen=True):
    """A time of a session: the revision, and the `next_seq` of then."""

    revision: int
    next_seq: int


class History:
    """One session's past."""

    def __init__(self, store: Store, key: SessionKey) -> None:
        self._store, self._key = store, key

    async def point(self, head: Head, when: When | None, where: str) -> Point:
        """Return the time that `when` names (None: now). Raises ConfigError, naming `where`, for one that never was."""
        if when is None:
            return Point(head.revision, head.next_seq)
        if isinstance(when, Entry | str):
            id = when if isinstance(when, str) else when.id
            found = await self._store.fetch(self._key, ids=[id] if unfit(id) is None else ())
            if found:
                return Point(found[0].revision, found[0].seq + 1)
            if isinstance(when, Entry) or not when.isdecimal():
                raise EntryNotFound(self._key.session, id)
        if isinstance(when, bool) or not isinstance(when, int) or not 0 <= when <= head.revision:
            entry = ", or an entry, by its id or as it is (a number is no `seq` here)"
            raise ConfigError(where, when, _revisions(head, when) + entry)
        return await self._there(head, when, where)

    async def _there(self, head: Head, revision: int, where: str) -> Point:
        """Return the time of a revision. Raises ConfigError for one before the session was cleared."""
        later = await self._store.records(self._key, after=revision)
        cleared = [record.revision for record in later if record.kind == "clear"]
        if cleared:
            raise ConfigError(where, revision, f"a revision from {cleared[-1]} on: what was before was cleared")
        return Point(revision, await self.end(head, revision))

    async def end(self, head: Head, revision: int) -> int:
        """Return the `next_seq` that the session had at this revision."""
        low, high = head.first_seq, head.next_seq
        while low < high:
            step = max((high - low) // PROBES, 1)
            found = await self._store.fetch(self._key, range(low + step - 1, high, step))
            for entry in found:
                if entry.revision > revision:
                    high = entry.seq
                    break
                low = entry.seq + 1
            if not found:  # they have gone since
                break
        return low

    async def view(self, head: Head, view: str, at: int) -> Head:
        """Return the head as it was at revision `at`, as far as that takes no walk over the log.

        That is what shows what the newest cut of then shows, and whether another one was due: the cut, what was hidden,
        compacted, pinned by a change of its own, and still open. Figures are not in it.
        """
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at <= head.revision:
            raise ConfigError("at", at, _revisions(head, at))
        point = await self._there(head, at, "at")
        if at == head.revision:
            return head
        records = standing(await self._store.records(self._key, before=at + 1))
        reasons = [record.reason for record in records if record.kind == "cut" and record.view == view]
        cut, rewound = _cuts(records).get(view), _rewound(records)
        left = [one.places for one in left_out(records)[-1:]]
        then = await self._open(head.first_seq, point.next_seq, spans.union(rewound, *left))
        return msgspec.structs.replace(
            then,
            revision=at,
            epoch_reason=reasons[-1] if reasons else "",
            views={view: cut} if cut else {},
            rewound=rewound,
            pinned=await self._pinned(msgspec.structs.replace(then, pinned=()), records),
            compaction=_compaction(records),
            created=head.created,
        )

    async def _open(self, first_seq: int, next_seq: int, hidden: Sequence[spans.Span]) -> Head:
        """Return a head that knows what was open behind the newest entry of then: its group, with calls or thoughts."""
        walk = Walk(first_seq)
        visible = spans.visible(hidden, first_seq - 1, next_seq)
        newest = await self._store.read(self._key, after=visible[-1][1] - 1, limit=1) if visible else ()
        for entry in newest:
            async for batch in self._batches(entry.group - 1, next_seq):
                walk.follow([one for one in batch if not spans.within(hidden, one.seq)])
        return msgspec.structs.replace(walk.head, next_seq=next_seq, group=_open_group(walk.head))

    async def shown(self, head: Head, then: Head) -> Head:
        """Return the head of a `view` with all that was pinned then, as far as a context without conditions shows it.

        That reads what is pinned and what was changed since, and not the log. How many entries and interactions there
        were, which names were known and what was open in closed groups is not in it.
        """
        records = standing(await self._store.records(self._key, before=then.revision + 1))
        if then is head or left_out(records):  # what a replacement leaves behind takes a walk
            return await self.head(head, Point(then.revision, then.next_seq))
        later = await self._store.records(self._key, after=then.revision)
        named = {*head.pinned, *(seq for record in later if record.kind == "pin" for seq in record.seqs)}
        pinned = {entry.seq for entry in await self._store.fetch(self._key, sorted(named)) if _pins(entry)}
        changed = [record.compaction.evicted for record in later if record.kind == "replace" and record.compaction]
        moved = spans.union(*changed, spans.minus(head.rewound, then.rewound))
        for low, high in spans.common(moved, [(head.first_seq, then.next_seq - 1)]):
            async for batch in self._batches(low - 1, high + 1):
                pinned.update(entry.seq for entry in batch if _pins(entry))
        shown = tuple(seq for seq in sorted(pinned) if not spans.within(then.rewound, seq))
        return msgspec.structs.replace(
            then,
            epoch=head.epoch,
            usage=head.usage,
            pseudonyms=head.pseudonyms,
            forked_from=head.forked_from,
            about=head.about,
            pinned=await self._pinned(msgspec.structs.replace(then, pinned=shown), records),
        )

    async def between(self, head: Head, point: Point) -> tuple[int, int | None]:
        """Return when the writes before and after a time were (None: nothing was written since)."""
        at, end = point.revision, point.next_seq
        near = await self._store.read(self._key, after=end - 2, before=end + 1)
        records = await self._store.records(self._key)
        before = [entry.at for entry in near if entry.seq < end] + [one.at for one in records if one.revision <= at]
        after = [entry.at for entry in near if entry.seq >= end] + [one.at for one in records if one.revision > at]
        late = min(after, default=None)
        early = max(before, default=head.created)
        return (early if late is None else min(early, late)), late

    async def changed(self, at: int) -> tuple[frozenset[int], bool]:
        """Return which entries were erased after a revision, and whether any texts were redacted."""
        later = await self._store.records(self._key, after=at)
        erased = frozenset(seq for record in later if record.kind == "erase" for seq in record.seqs)
        return erased, any(record.kind == "redact" for record in later)

    async def head(self, head: Head, point: Point) -> Head:
        """Return the whole head as it was then, by walking the log up to there; now, that is the head itself.

        What has been erased since counts as erased. Epoch, usage, pseudonyms and what is remembered of compactions are
        those of today.
        """
        if point == Point(head.revision, head.next_seq):
            return head
        records = standing(await self._store.records(self._key, before=point.revision + 1))
        rewound, walk = _rewound(records), Walk(head.first_seq, left_out(records))
        erased = hidden = 0
        async for batch in self._batches(head.first_seq - 1, point.next_seq):
            walk.follow([entry for entry in batch if not spans.within(rewound, entry.seq)])
            erased += sum(entry.erased for entry in batch)
            hidden += sum(not entry.erased and spans.within(rewound, entry.seq) for entry in batch)
        then = walk.end()
        return msgspec.structs.replace(
            then,
            revision=point.revision,
            epoch=head.epoch,
            epoch_reason=head.epoch_reason,
            next_seq=point.next_seq,
            group=_open_group(then),
            pinned=await self._pinned(then, records),
            erased=erased,
            views=_cuts(records),
            usage=head.usage,
            rewound=rewound,
            hidden=hidden,
            compaction=_compaction(records),
            attempts=_attempts(head.attempts, point.next_seq),
            pseudonyms=head.pseudonyms,
            forked_from=head.forked_from,
            about=head.about,
            created=head.created,
        )

    async def alive(self, head: Head, after: int) -> tuple[int, int]:
        """Return how many entries after a `seq` are no tombstones, and how many of those no rewind hides."""
        alive = shown = 0
        async for batch in self._batches(after, head.next_seq):
            left = [entry.seq for entry in batch if not entry.erased]
            alive += len(left)
            shown += sum(not spans.within(head.rewound, seq) for seq in left)
        return alive, shown

    async def history(self, head: Head, after: int, before: int | None) -> list[Record]:
        """Return what every revision between the two did, oldest first: additions beside what the records tell."""
        records = await self._store.records(self._key, after=after, before=before)
        told = {record.revision for record in records}
        first = await self.end(head, after)
        last = head.next_seq if before is None else await self.end(head, before - 1)
        added: dict[int, tuple[int, list[int]]] = {}
        async for batch in self._batches(first - 1, last):
            for entry in batch:
                added.setdefault(entry.revision, (entry.at, []))[1].append(entry.seq)
        additions = [
            Record(revision=revision, kind="add", reason="", at=at, seqs=tuple(seqs))
            for revision, (at, seqs) in added.items()
            if revision not in told  # of a replacement
        ]
        return sorted([*additions, *records], key=lambda record: record.revision)

    async def records(self, head: Head) -> AsyncIterator[Record]:
        """Yield the records up to this head, oldest first, some at a time."""
        after, most = 0, RECORDS
        while after < head.revision:
            before = min(after + most, head.revision) + 1
            found = await self._store.records(self._key, after=after, before=before)
            for record in found:
                yield record
            after, most = before - 1, RECORDS if found else 2 * most  # an import may have left a wide gap

    def entries(self, head: Head) -> AsyncIterator[Entry]:
        """Yield every entry before this head, oldest first, some at a time."""
        return entries_of(self._store, self._key, [(head.first_seq, head.next_seq - 1)])

    async def _pinned(self, then: Head, records: Sequence[Record]) -> tuple[int, ...]:
        pinned = set(then.pinned)
        for record in records:
            if record.kind == "pin":
                pinned = pinned - set(record.seqs) if record.unpin else pinned | set(record.seqs)
            elif record.kind == "replace":
                left = record.compaction.evicted if record.compaction is not None else ()
                pinned = {seq for seq in pinned if not spans.within(left, seq)}
        there = await self._store.fetch(self._key, sorted(pinned))
        return tuple(entry.seq for entry in there if not entry.erased and entry.seq < then.next_seq)

    def _batches(self, after: int, before: int) -> AsyncIterator[list[Entry]]:
        return batches_of(self._store, self._key, [(after + 1, before - 1)])


def _rewound(records: Sequence[Record]) -> tuple[tuple[int, int], ...]:
    """The ranges that the rewinds among these records had hidden after the last of them."""
    return next((record.rewound for record in reversed(records) if record.kind == "rewind"), ())


def _cuts(records: Sequence[Record]) -> dict[str, Cut]:
    """The newest cut of each view among these records."""
    return {record.view: record.cut for record in records if record.cut is not None}


def _compaction(records: Sequence[Record]) -> int:
    """The revision of the newest among these records that says what is compacted; 0: nothing is."""
    return next((record.revision for record in reversed(records) if record.compaction is not None), 0)


def _pins(entry: Entry) -> bool:
    """Whether an entry was pinned when it was added."""
    return (entry.pinned or (entry.role == "system" and entry.kind == "message")) and not entry.erased


def _open_group(head: Head) -> int:
    """The open group, if a call in it still waits: one that was erased waits for nothing."""
    return head.group if any(call.group == head.group for call in head.calls) else 0


def _attempts(attempts: Attempts | None, next_seq: int) -> Attempts | None:
    """What is remembered of compactions, where the log ends earlier: nobody has looked beyond its end."""
    if attempts is None:
        return None
    cursors = {name: min(cursor, next_seq) for name, cursor in attempts.cursors.items()}
    return msgspec.structs.replace(attempts, cursors=cursors)


# --- what has happened since a head was looked at
#
# A record tells of every change but appends, and what is remembered of usage, prompts, attempts and pseudonyms. All
# that begin an epoch leave one, but for an import that takes a session's place and a redaction, whose record comes
# before it.


_BEGINNING = frozenset(("cut", "compact", "replace", "erase", "clear", "rewind"))
"""Kinds of changes that begin an epoch."""


async def since(
    store: Store, key: SessionKey, before: Head, now: Head, *, redacted: bool = False
) -> list[Record] | None:
    """Return the records that came between two heads of a session, oldest first.

    None where they do not tell all: another session is in its place, it was cleared, or (unless `redacted` says that
    this is no matter) texts of it were redacted.
    """
    if (now.created, now.first_seq) != (before.created, before.first_seq) or now.revision < before.revision:
        return None
    if now.revision == before.revision:
        return []
    records = await store.records(key, after=before.revision, before=now.revision + 1)
    begun = sum(record.kind in _BEGINNING for record in records)
    most = begun + sum(record.kind == "redact" for record in records) if redacted else begun
    return records if begun <= now.epoch - before.epoch <= most else None


async def kinds_since(store: Store, key: SessionKey, before: Head, now: Head) -> set[str] | None:
    """Return the kinds of those records; None as `since` has it."""
    found = await since(store, key, before, now)
    return None if found is None else {record.kind for record in found}
