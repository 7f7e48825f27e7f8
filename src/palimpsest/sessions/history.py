"""What a session was at an earlier time, derived from its entries and records. Reads only.

A time is a revision, or the place behind an entry. Nothing is stored for this beside the log: each entry knows the
revision that added it, and records tell the cuts, pins, erasures and rewinds in between.
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
"""Entries read in each step of the search for a revision's place. A step is a round trip; halving would take more."""

RECORDS = 4096
"""Revisions whose records are read at once when all records are read."""

When = int | str | Entry
"""An earlier time: a revision, or the entry (or its id) that was the newest then."""


def revision_of(seen: object) -> int:
    """Return the revision of a context, or the given revision. Raises ConfigError for anything else.

    Args:
        seen: the context or revision that the caller has seen.
    """
    revision = getattr(seen, "revision", seen)
    if not is_whole(revision, -MOST, MOST):
        raise ConfigError("seen", seen, "a context of the session, or a revision")
    return revision


def _revisions(head: Head, found: object) -> str:
    """Say which revisions are accepted; if `found` has a `revision` (as a context has), suggest that."""
    own = ", such as its `revision`" if is_whole(getattr(found, "revision", None)) else ""
    return f"a revision from 0 to {head.revision}{own}"


class Point(msgspec.Struct, frozen=True):
    """A time of a session: the revision, and the `next_seq` that the head had then."""

    revision: int
    next_seq: int


class History:
    """One session's past."""

    def __init__(self, store: Store, key: SessionKey) -> None:
        self._store, self._key = store, key

    async def point(self, head: Head, when: When | None, where: str) -> Point:
        """Return the time that `when` names (None: now).

        Raises ConfigError, naming the argument `where`, for a time that never was, EntryNotFound for an unknown entry.
        """
        if when is None:
            return Point(head.revision, head.next_seq)
        if isinstance(when, Entry | str):
            id = when if isinstance(when, str) else when.id
            entries = await self._store.fetch(self._key, ids=[id] if unfit(id) is None else ())
            if entries:
                return Point(entries[0].revision, entries[0].seq + 1)
            if isinstance(when, Entry) or not when.isdecimal():
                raise EntryNotFound(self._key.session, id)
        if isinstance(when, bool) or not isinstance(when, int) or not 0 <= when <= head.revision:
            entry = ", or an Entry or its id (a number is a revision here, not a `seq`)"
            raise ConfigError(where, when, _revisions(head, when) + entry)
        return await self._point_of(head, when, where)

    async def _point_of(self, head: Head, revision: int, where: str) -> Point:
        """Return the time of a revision. Raises ConfigError for one before the session was cleared."""
        later = await self._store.records(self._key, after=revision)
        cleared = [record.revision for record in later if record.kind == "clear"]
        if cleared:
            raise ConfigError(where, revision, f"a revision from {cleared[-1]} on: everything before it was cleared")
        return Point(revision, await self.end(head, revision))

    async def end(self, head: Head, revision: int) -> int:
        """Return the `next_seq` that the session had at this revision."""
        low, high = head.first_seq, head.next_seq
        while low < high:
            step = max((high - low) // PROBES, 1)
            probes = await self._store.fetch(self._key, range(low + step - 1, high, step))
            for entry in probes:
                if entry.revision > revision:
                    high = entry.seq
                    break
                low = entry.seq + 1
            if not probes:  # the entries have gone since
                break
        return low

    async def view(self, head: Head, view: str, at: int) -> Head:
        """Return the head as it was at revision `at`, as far as that is known without a walk over the log.

        It suffices to render the newest cut of that time and to tell whether another cut was due: it has the cut, what
        was rewound, compacted, pinned by a change of its own, and still open. Totals are not in it.
        """
        if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at <= head.revision:
            raise ConfigError("at", at, _revisions(head, at))
        point = await self._point_of(head, at, "at")
        if at == head.revision:
            return head
        records = standing(await self._store.records(self._key, before=at + 1))
        reasons = [record.reason for record in records if record.kind == "cut" and record.view == view]
        cut, rewound = _cuts(records).get(view), _rewound(records)
        replaced = [displaced.places for displaced in left_out(records)[-1:]]
        past_head = await self._open_head(head.first_seq, point.next_seq, spans.union(rewound, *replaced))
        return msgspec.structs.replace(
            past_head,
            revision=at,
            epoch_reason=reasons[-1] if reasons else "",
            views={view: cut} if cut else {},
            thoughts=min(head.thoughts, point.next_seq),
            rewound=rewound,
            pinned=await self._pinned(msgspec.structs.replace(past_head, pinned=()), records),
            compaction=_compaction(records),
            created=head.created,
        )

    async def _open_head(self, first_seq: int, next_seq: int, hidden: Sequence[spans.Span]) -> Head:
        """Return a head with what was open behind the newest entry of that time: its group, with calls or reasoning."""
        walk = Walk(first_seq)
        visible = spans.visible(hidden, first_seq - 1, next_seq)
        newest = await self._store.read(self._key, after=visible[-1][1] - 1, limit=1) if visible else ()
        for entry in newest:
            async for batch in self._batches(entry.group - 1, next_seq):
                walk.follow([each for each in batch if not spans.within(hidden, each.seq)])
        return msgspec.structs.replace(walk.head, next_seq=next_seq, group=_open_group(walk.head))

    async def shown(self, head: Head, then: Head) -> Head:
        """Return `then`, a head that `view` has returned, completed with everything that was pinned at that time.

        That suffices for a context without conditions. It reads the pinned entries and what was changed since, not the
        whole log. The numbers of entries and interactions, known names and open calls of closed groups are not in it.
        """
        records = standing(await self._store.records(self._key, before=then.revision + 1))
        if then is head or left_out(records):  # after a replacement only a walk tells what was pinned
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

    async def between(self, head: Head, point: Point, now: int) -> tuple[int, int]:
        """Return the earliest and the latest time at which the session was at a point; `now` if it still is.

        These are the times of the last write before it and of the first one after it. The clock may have been set back
        in between, and an entry may bring an earlier or later time along.
        """
        near = await self._store.read(self._key, after=(end := point.next_seq) - 2, before=end + 1)
        records = await self._store.records(self._key)
        before = [(entry.revision, entry.at) for entry in near if entry.seq < end]
        before += [(record.revision, record.at) for record in records if record.revision <= point.revision]
        after = [(entry.revision, entry.at) for entry in near if entry.seq >= end]
        after += [(record.revision, record.at) for record in records if record.revision > point.revision]
        times = max(before, default=(0, head.created))[1], min(after, default=(0, now))[1]
        return min(times), max(times)

    async def changed(self, at: int) -> tuple[frozenset[int], bool]:
        """Return which entries were erased after a revision, and whether any texts were redacted."""
        later = await self._store.records(self._key, after=at)
        erased = frozenset(seq for record in later if record.kind == "erase" for seq in record.seqs)
        return erased, any(record.kind == "redact" for record in later)

    async def head(self, head: Head, point: Point) -> Head:
        """Return the whole head as it was at a point, by walking the log up to there. For now it is `head` itself.

        Entries erased since count as erased. Epoch, usage, pseudonyms and compaction attempts are those of `head`.
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
        past_head = walk.end()
        return msgspec.structs.replace(
            past_head,
            revision=point.revision,
            epoch=head.epoch,
            epoch_reason=head.epoch_reason,
            next_seq=point.next_seq,
            group=_open_group(past_head),
            pinned=await self._pinned(past_head, records),
            erased=erased,
            views=_cuts(records),
            usage=head.usage,
            rewound=rewound,
            hidden=hidden,
            thoughts=min(head.thoughts, point.next_seq),
            compaction=_compaction(records),
            attempts=_attempts(head.attempts, point.next_seq),
            pseudonyms=head.pseudonyms,
            forked_from=head.forked_from,
            about=head.about,
            created=head.created,
        )

    async def alive(self, head: Head, after: int) -> tuple[int, int]:
        """Return how many entries after a `seq` are not erased, and how many of those are not rewound."""
        alive = shown = 0
        async for batch in self._batches(after, head.next_seq):
            seqs = [entry.seq for entry in batch if not entry.erased]
            alive += len(seqs)
            shown += sum(not spans.within(head.rewound, seq) for seq in seqs)
        return alive, shown

    async def history(self, head: Head, after: int, before: int | None) -> list[Record]:
        """Return what each revision between the two did, oldest first: the records, and one made for each addition."""
        records = await self._store.records(self._key, after=after, before=before)
        recorded = {record.revision for record in records}
        first = await self.end(head, after)
        last = head.next_seq if before is None else await self.end(head, before - 1)
        added: dict[int, tuple[int, list[int]]] = {}
        async for batch in self._batches(first - 1, last):
            for entry in batch:
                added.setdefault(entry.revision, (entry.at, []))[1].append(entry.seq)
        additions = [
            Record(revision=revision, kind="add", reason="", at=at, seqs=tuple(seqs))
            for revision, (at, seqs) in added.items()
            if revision not in recorded  # a replacement adds entries and has a record
        ]
        return sorted([*additions, *records], key=lambda record: record.revision)

    async def records(self, head: Head) -> AsyncIterator[Record]:
        """Yield the records up to this head, oldest first, read in batches."""
        after, most = 0, RECORDS
        while after < head.revision:
            before = min(after + most, head.revision) + 1
            records = await self._store.records(self._key, after=after, before=before)
            for record in records:
                yield record
            after, most = before - 1, RECORDS if records else 2 * most  # an import may have left a wide gap

    def entries(self, head: Head) -> AsyncIterator[Entry]:
        """Yield every entry before this head, oldest first, read in batches."""
        return entries_of(self._store, self._key, [(head.first_seq, head.next_seq - 1)])

    async def _pinned(self, then: Head, records: Sequence[Record]) -> tuple[int, ...]:
        """Return the pins of `then` changed by the pins, unpins and replacements of these records."""
        pinned = set(then.pinned)
        for record in records:
            if record.kind == "pin":
                pinned = pinned - set(record.seqs) if record.unpin else pinned | set(record.seqs)
            elif record.kind == "replace":
                evicted = record.compaction.evicted if record.compaction is not None else ()
                pinned = {seq for seq in pinned if not spans.within(evicted, seq)}
        entries = await self._store.fetch(self._key, sorted(pinned))
        return tuple(entry.seq for entry in entries if not entry.erased and entry.seq < then.next_seq)

    def _batches(self, after: int, before: int) -> AsyncIterator[list[Entry]]:
        return batches_of(self._store, self._key, [(after + 1, before - 1)])


def _rewound(records: Sequence[Record]) -> tuple[tuple[int, int], ...]:
    """Return the ranges that were hidden after the last rewind among these records."""
    return next((record.rewound for record in reversed(records) if record.kind == "rewind"), ())


def _cuts(records: Sequence[Record]) -> dict[str, Cut]:
    """Return the newest cut of each view among these records."""
    return {record.view: record.cut for record in records if record.cut is not None}


def _compaction(records: Sequence[Record]) -> int:
    """Return the revision of the newest record that says what is compacted, or 0 if there is none."""
    return next((record.revision for record in reversed(records) if record.compaction is not None), 0)


def _pins(entry: Entry) -> bool:
    """Return whether an entry was pinned when it was added, and is not erased."""
    return (entry.pinned or (entry.role == "system" and entry.kind == "message")) and not entry.erased


def _open_group(head: Head) -> int:
    """Return the open group if a call in it still waits, else 0. An erased call waits for nothing."""
    return head.group if any(call.group == head.group for call in head.calls) else 0


def _attempts(attempts: Attempts | None, next_seq: int) -> Attempts | None:
    """Return the notes on compaction attempts for a log that ends at `next_seq`: no cursor may be beyond that."""
    if attempts is None:
        return None
    cursors = {name: min(cursor, next_seq) for name, cursor in attempts.cursors.items()}
    return msgspec.structs.replace(attempts, cursors=cursors)


# --- what has happened since a head was looked at
#
# Every change leaves a record, except appends and notes of usage, prompts, attempts and pseudonyms. Of the changes
# that begin an epoch, an import that replaces a session leaves no record, and a redaction leaves one before its epoch.


_BEGINNING = frozenset(("cut", "compact", "replace", "erase", "clear", "rewind"))
"""Kinds of changes that begin an epoch."""


async def since(
    store: Store, key: SessionKey, before: Head, now: Head, *, redacted: bool = False
) -> list[Record] | None:
    """Return the records that came between two heads of a session, oldest first.

    None if they do not tell everything: it is another session, it was cleared, or (unless `redacted`) redacted.
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
    """Return the kinds of the records that `since` returns, or None where it returns None."""
    records = await since(store, key, before, now)
    return None if records is None else {record.kind for record in records}
