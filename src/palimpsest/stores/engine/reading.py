"""Reading a session: entries with their counts, records, what stands for entries that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from palimpsest.errors import StoreCorrupt
from palimpsest.log import spans as ranges
from palimpsest.log.change import Record
from palimpsest.log.entry import Entry, placed_at, set_aside, unpack
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.withdrawal import tombstone
from palimpsest.runtime.logs import warn
from palimpsest.stores.backend import Ask, Cells, Named, Range, Seen
from palimpsest.stores.engine.forms import (
    CHANGED,
    DAMAGED,
    LAST,
    ask_counts,
    checked,
    counts_of,
    key_of,
    record_of,
    remains,
)
from palimpsest.stores.engine.known import Known
from palimpsest.stores.engine.large import MARK, Large, asked, held, sound, whole
from palimpsest.stores.engine.sessions import Sessions
from palimpsest.stores.rules import Looks
from palimpsest.stores.values import Standing

BESIDE = 8
"""Entries beside a damaged one that are looked at on each side."""


class Reading:
    """What of the store's verbs only reads."""

    def __init__(self, sessions: Sessions, large: Large, look: Looks | None = None) -> None:
        self._sessions, self._large, self._look = sessions, large, look or sessions.backend.look
        self._backend, self._url = sessions.backend, sessions.url

    def within(self, look: Looks) -> Reading:
        """The same for a session that is known, which looks at the store by this."""
        return Reading(self._sessions, self._large.within(look), look)

    # --- entries

    async def page(
        self,
        key: SessionKey,
        after: int,
        before: int | None,
        limit: int | None,
        newest_first: bool,
        counter: str | None,
        revision: int = 0,
    ) -> tuple[Standing, list[Entry], list[Record]]:
        """Entries, and the record of a revision, in one look that tells how the session is, too."""

        def asks(known: Known) -> list[Ask]:
            where = known.spans(after, before)
            wanted = [Range("entry", where, limit, newest_first)]
            if counter is not None:
                wanted.append(ask_counts(counter, _spans_read(known, after, before, limit, newest_first=newest_first)))
            more = [of_records(known, revision - 1, revision + 1)] if revision else []
            return [known.ask(*wanted), *more] if limit != 0 else []

        known, seen = await self._sessions.look(key, asks)
        if not seen:
            return known.standing, [], []
        rows = seen[0].rows[0]
        self._whole(known, rows, _expected(known.head, after, before, limit))
        counts = counts_of(seen[0].rows[1]) if counter is not None else {}
        records = self.told(known, seen[1].rows[0]) if revision else []
        return known.standing, await self.entries(known, rows, counts, in_order=True), records

    async def rows(self, known: Known, *wanted: Range | Named) -> list[Cells]:
        """Rows of a session's logs, beside its head, which vouches for them."""
        _, seen = await self._look([Ask(known.place), known.ask(*wanted)])
        return [row for rows in seen.rows for row in rows]

    def _whole(self, known: Known, rows: Sequence[Cells], expected: int) -> None:
        """Raise StoreCorrupt unless there are just as many rows as a log without gaps has, and none behind its head."""
        told = f"entries of session {known.key.session!r}"
        if len(rows) < expected and known.place not in self._backend.lacking:
            raise StoreCorrupt(self._url, f"{told} are missing: it is damaged")
        if len(rows) > expected or (rows and max(rows[0][0] & LAST, rows[-1][0] & LAST) >= known.head.next_seq):
            raise StoreCorrupt(self._url, f"{told} are there that its head, which is of an earlier time, does not know")

    async def fetch(
        self, key: SessionKey, seqs: Sequence[int], ids: Sequence[str], counter: str | None
    ) -> tuple[Known, list[Entry]]:
        """The session as it is, and its entries of these places and ids."""
        known, seen = await self._sessions.look(key, lambda known: [_by_name(known, seqs, ids, counter)])
        return known, await self._fetched(known, seen[0], seqs, ids, counter) if seen else []

    async def by_ids(self, known: Known, ids: Sequence[str]) -> list[Entry]:
        """The entries of a session that have these ids, in log order."""
        if known.there is None:
            return []
        _, seen = await self._look([Ask(known.place), _by_name(known, (), ids, None)])
        return await self._fetched(known, seen, (), ids, None)

    async def _fetched(
        self, known: Known, seen: Seen, seqs: Iterable[int], ids: Iterable[str], counter: str | None
    ) -> list[Entry]:
        meant, names, head = set(seqs), set(ids), known.head
        rows = {row[0]: row for row in (*seen.rows[0], *seen.rows[1])}
        mine = [row for key, row in rows.items() if is_of(known, key)]
        mine.sort(key=lambda row: row[0] & LAST)
        there = {row[0] & LAST for row in mine}
        missing = any(head.first_seq <= seq < head.next_seq and seq not in there for seq in meant)
        if missing and known.place not in self._backend.lacking:
            raise StoreCorrupt(self._url, f"entries of session {known.key.session!r} are missing: it is damaged")
        counts = counts_of(seen.rows[2]) if counter is not None else {}
        apart = [key for key, _, id, _ in mine if key not in counts and id]
        if counter is not None and apart:  # they were found by ids that do not tell their places
            (more,) = await self._look([known.ask(ask_counts(counter, [(key, key) for key in apart]))])
            counts |= counts_of(more.rows[0])
        entries = await self.entries(known, mine, counts)
        return [e for e in entries if (e.seq in meant or e.id in names) and head.first_seq <= e.seq < head.next_seq]

    async def entries(
        self, known: Known, rows: Sequence[Cells], counts: Mapping[int, int], *, in_order: bool = False
    ) -> list[Entry]:
        """The entries of rows, whole, with what stands for those that cannot be read.

        Raises StoreCorrupt where one of these is not in its place among rows that are `in_order` of theirs.
        """
        found: list[Entry] = []
        apart: list[tuple[int, Cells, bytes]] = []
        for row in rows:
            key, value, id, _ = row
            try:
                body = checked(value, key)
                entry = unpack(body, counts.get(key))
                if id and entry.id != id:
                    raise ValueError(CHANGED)
                found.append(entry)
                if body[:8] == MARK:
                    apart.append((len(found) - 1, row, body))
            except DAMAGED as fault:
                if in_order and not _in_place(rows, len(found)):
                    told = f"an entry of session {known.key.session!r} is not in its place, but has the number"
                    raise StoreCorrupt(self._url, f"{told} {key & LAST}: it is damaged") from fault
                found.append(await self.aside(known, row, fault))
        if apart:
            contents = await self._large.load(known, [digest for _, _, body in apart for digest in held(body)])
            for i, row, body in apart:
                try:
                    found[i] = unpack(whole(body, contents), counts.get(row[0]))
                except DAMAGED:
                    found[i] = await self._at_once(known, row, found[i], counts.get(row[0]))
        return found

    async def _at_once(self, known: Known, row: Cells, entry: Entry, tokens: int | None) -> Entry:
        """An entry whose large content was not there, read with that as of one moment: it may have been erased."""
        key, body = row[0], row[1][:-8]
        while True:
            old, digests = row[1], held(body)
            asks = [Ask(known.place), known.ask(Range("entry", [(key, key)])), asked(known, digests)]
            try:
                _, rows, contents = await self._look(asks)
                if not rows.rows[0]:
                    return tombstone(entry)  # it has been cleared
                row = rows.rows[0][0]
                body = checked(row[1], key)
                if body[:8] != MARK:
                    return unpack(body, tokens)
                if row[1] == old:
                    return unpack(whole(body, sound(contents, digests)), tokens)
            except (*DAMAGED, StoreCorrupt) as fault:
                return await self.aside(known, row, fault)

    async def slim(self, known: Known, rows: Iterable[Cells]) -> list[Entry]:
        """The entries of rows without what is kept apart."""
        found = []
        for row in rows:
            try:
                found.append(_read(row))
            except DAMAGED as fault:
                found.append(await self.aside(known, row, fault))
        return found

    async def aside(self, known: Known, row: Cells, why: object) -> Entry:
        """What stands for the entry of a row that cannot be read. That it is so is told, once."""
        key, session = row[0], known.key.session
        log, seq = key >> 32, key & LAST
        if (known.key, seq) not in self._sessions.told:
            self._sessions.told.add((known.key, seq))
            told = f"entry {seq} of session {session!r} cannot be read ({why or CHANGED})"
            warn("%s: %s", self._url, f"{told}; it is set aside, and `repair` takes it out")
        wanted = [
            Range("entry", [(key_of(log, 0), key - 1)], BESIDE, newest_first=True),
            Range("entry", [(key + 1, key_of(log, LAST))], BESIDE),
        ]
        _, seen = await self._look([Ask(known.place), known.ask(*wanted)])
        before, behind = ([entry for row in rows if (entry := readable(row))] for rows in seen.rows)
        body, name = remains(row)
        return set_aside(name, seq, body, before, behind)

    async def graves(self, known: Known) -> set[int]:
        """The places of a session's tombstones that can be read."""
        rows = await self.rows(known, Range("entry", known.spans()))
        return {entry.seq for row in rows if (entry := readable(row)) is not None and entry.erased}

    # --- records

    async def records(self, key: SessionKey, after: int, before: int | None) -> list[Record]:
        known, seen = await self._sessions.look(key, lambda known: [of_records(known, after, before)])
        return self.told(known, seen[0].rows[0]) if seen else []

    def told(self, known: Known, rows: Iterable[Cells]) -> list[Record]:
        """The records of rows. Raises StoreCorrupt naming one that cannot be read."""
        found = []
        for row in rows:
            try:
                found.append(record_of(row))
            except DAMAGED as cause:
                told = (
                    f"the record of revision {row[0] & LAST} of session {known.key.session!r} cannot be read ({cause})"
                )
                raise StoreCorrupt(self._url, told) from cause
        return found


def _spans_read(
    known: Known, after: int, before: int | None, limit: int | None, *, newest_first: bool
) -> list[tuple[int, int]]:
    """The spans of keys that such a page reads, as a log has no gaps; of newest ones from where they begin at least."""
    if limit is not None and newest_first:
        end = known.head.next_seq if before is None else min(before, known.head.next_seq)
        after = max(after, end - limit - 1)
    elif limit is not None:
        end = max(after + 1, known.head.first_seq) + limit
        before = end if before is None else min(before, end)
    return known.spans(after, before)


def of_records(known: Known, after: int = 0, before: int | None = None) -> Ask:
    """What asks for the records of a session between two revisions, both exclusive."""
    low, high = max(after + 1, 0), LAST if before is None else before - 1
    spans = [(key_of(known.log, low), key_of(known.log, high))] if low <= high else []
    return known.ask(Range("record", spans))


def _by_name(known: Known, seqs: Iterable[int], ids: Sequence[str], counter: str | None) -> Ask:
    """What asks for the entries at these places, and of these ids, which may tell their places."""
    places = {*seqs, *map(placed_at, ids)}
    points = list(ranges.of(known.keys(places)))
    wanted: list[Range | Named] = [Range("entry", points), Named("entry", list(ids))]
    if counter is not None:
        wanted.append(ask_counts(counter, points))
    return known.ask(*wanted)


def is_of(known: Known, key: int) -> bool:
    """Whether the entry of this key is one of the session's."""
    return known.log_of(key & LAST) == key >> 32


def _in_place(rows: Sequence[Cells], i: int) -> bool:
    """Whether a row is between its neighbours, as far as these are of its log."""
    near = [row[0] for row in (*rows[max(i - 1, 0) : i], *rows[i + 1 : i + 2]) if row[0] >> 32 == rows[i][0] >> 32]
    return len(near) < 2 or near[0] < rows[i][0] < near[1] or near[1] < rows[i][0] < near[0]


def readable(row: Cells) -> Entry | None:
    """The entry of a row, without what is kept apart, where that can be read."""
    try:
        return _read(row)
    except DAMAGED:
        return None


def _read(row: Cells) -> Entry:
    """The same. Raises one of `DAMAGED`, also where it is found by the id of another."""
    entry = unpack(checked(row[1], row[0]))
    if row[2] and entry.id != row[2]:
        raise ValueError(CHANGED)
    return entry


def _expected(head: Head, after: int, before: int | None, limit: int | None) -> int:
    """How many entries there must be between the two, by what the head says."""
    first = max(after + 1, head.first_seq)
    end = head.next_seq if before is None else min(before, head.next_seq)
    there = max(end - first, 0)
    return there if limit is None else min(there, limit)
