"""Reading a session: entries with their counts, records, and stand-ins for entries that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from palimpsest.errors import StoreCorrupt
from palimpsest.log import spans as ranges
from palimpsest.log.change import Record
from palimpsest.log.entry import Entry, set_aside, unpack
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.ids import placed_at
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
from palimpsest.stores.engine.large import MARK, Large, ask_contents, digests_in, put_back, sound_contents
from palimpsest.stores.engine.sessions import Sessions
from palimpsest.stores.rules import AsyncLook
from palimpsest.stores.values import Standing

BESIDE = 8
"""Neighbours of a damaged entry that are read on each side, to tell what it must have been."""

RESCUE = "restore a backup, or save the rest with `palimpsest export --leave-out-damaged`"
"""What to do about a session that lacks entries."""


class Reading:
    """The verbs of the store that only read."""

    def __init__(self, sessions: Sessions, large: Large, look: AsyncLook | None = None) -> None:
        self._sessions, self._large, self._look = sessions, large, look or sessions.backend.look
        self._backend, self._url = sessions.backend, sessions.url

    def within(self, look: AsyncLook) -> Reading:
        """Return the same reader for a session that is already known, which looks at the store through `look`."""
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
        """Return how the session is, its entries, and the record of a revision, all in one look."""

        def asks(known: Known) -> list[Ask]:
            spans = known.spans(after, before)
            wanted = [Range("entry", spans, limit, newest_first)]
            if counter is not None:
                wanted.append(ask_counts(counter, _spans_read(known, after, before, limit, newest_first=newest_first)))
            record_asks = [ask_records(known, revision - 1, revision + 1)] if revision else []
            return [known.ask(*wanted), *record_asks] if limit != 0 else []

        known, seen = await self._sessions.look(key, asks)
        if not seen:
            return known.standing, [], []
        rows = seen[0].rows[0]
        self._check_complete(known, rows, _expected(known.head, after, before, limit))
        counts = counts_of(seen[0].rows[1]) if counter is not None else {}
        records = self.records_of(known, seen[1].rows[0]) if revision else []
        return known.standing, await self.entries(known, rows, counts, in_order=True), records

    async def rows(self, known: Known, *wanted: Range | Named) -> list[Cells]:
        """Return rows of a session's logs, read together with its head, which vouches for them."""
        _, seen = await self._look([Ask(known.place), known.ask(*wanted)])
        return [row for rows in seen.rows for row in rows]

    def _check_complete(self, known: Known, rows: Sequence[Cells], expected: int) -> None:
        """Raise StoreCorrupt unless these are exactly the rows of a log without gaps, and none is beyond its head."""
        what = f"entries of session {known.key.session!r}"
        if len(rows) < expected and known.place not in self._backend.lacking:
            raise StoreCorrupt(self._url, f"{what} are missing: it is damaged; {RESCUE}")
        if len(rows) > expected or (rows and max(rows[0][0] & LAST, rows[-1][0] & LAST) >= known.head.next_seq):
            raise StoreCorrupt(self._url, f"{what} are newer than its head, which is out of date; {RESCUE}")

    async def fetch(
        self, key: SessionKey, seqs: Sequence[int], ids: Sequence[str], counter: str | None
    ) -> tuple[Known, list[Entry]]:
        """Return the session as it is now, and its entries with these seqs and ids."""
        known, seen = await self._sessions.look(key, lambda known: [_ask_entries(known, seqs, ids, counter)])
        return known, await self._fetched(known, seen[0], seqs, ids, counter) if seen else []

    async def by_ids(self, known: Known, ids: Sequence[str]) -> list[Entry]:
        """Return the entries of a session that have these ids, in log order."""
        if known.stored is None:
            return []
        _, seen = await self._look([Ask(known.place), _ask_entries(known, (), ids, None)])
        return await self._fetched(known, seen, (), ids, None)

    async def _fetched(
        self, known: Known, seen: Seen, seqs: Iterable[int], ids: Iterable[str], counter: str | None
    ) -> list[Entry]:
        """Return the entries of what was seen that were asked for and belong to the session, in log order."""
        seqs_meant, ids_meant, head = set(seqs), set(ids), known.head
        rows = {row[0]: row for row in (*seen.rows[0], *seen.rows[1])}
        own_rows = [row for key, row in rows.items() if belongs_to(known, key)]
        own_rows.sort(key=lambda row: row[0] & LAST)
        present_seqs = {row[0] & LAST for row in own_rows}
        missing = any(head.first_seq <= seq < head.next_seq and seq not in present_seqs for seq in seqs_meant)
        if missing and known.place not in self._backend.lacking:
            name = known.key.session
            raise StoreCorrupt(self._url, f"entries of session {name!r} are missing: it is damaged; {RESCUE}")
        counts = counts_of(seen.rows[2]) if counter is not None else {}
        uncounted = [key for key, _, id, _ in own_rows if key not in counts and id]
        if counter is not None and uncounted:  # found by ids that do not encode their seqs, so no counts were asked for
            (extra,) = await self._look([known.ask(ask_counts(counter, [(key, key) for key in uncounted]))])
            counts |= counts_of(extra.rows[0])
        entries = await self.entries(known, own_rows, counts)
        return [
            e for e in entries if (e.seq in seqs_meant or e.id in ids_meant) and head.first_seq <= e.seq < head.next_seq
        ]

    async def entries(
        self, known: Known, rows: Sequence[Cells], counts: Mapping[int, int], *, in_order: bool = False
    ) -> list[Entry]:
        """Return the entries of these rows with their large contents, and stand-ins for those that cannot be read.

        With `in_order`, raises StoreCorrupt if an unreadable row is out of place among its neighbours.
        """
        entries: list[Entry] = []
        incomplete: list[tuple[int, Cells, bytes]] = []
        for row in rows:
            key, value, id, _ = row
            try:
                body = checked(value, key)
                entry = unpack(body, counts.get(key))
                if id and entry.id != id:
                    raise ValueError(CHANGED)
                entries.append(entry)
                if body[:8] == MARK:
                    incomplete.append((len(entries) - 1, row, body))
            except DAMAGED as fault:
                if in_order and not _in_place(rows, len(entries)):
                    problem = f"an entry of session {known.key.session!r} is not in its place, but has the number"
                    raise StoreCorrupt(self._url, f"{problem} {key & LAST}: it is damaged; {RESCUE}") from fault
                entries.append(await self.stand_in(known, row, fault))
        if incomplete:
            contents = await self._large.load(
                known, [digest for _, _, body in incomplete for digest in digests_in(body)]
            )
            for i, row, body in incomplete:
                try:
                    entries[i] = unpack(put_back(body, contents), counts.get(row[0]))
                except DAMAGED:
                    entries[i] = await self._reread_whole(known, row, entries[i], counts.get(row[0]))
        return entries

    async def _reread_whole(self, known: Known, row: Cells, entry: Entry, tokens: int | None) -> Entry:
        """Read an entry again together with its large content, at one moment; the first look missed the content.

        The content may have been erased between the two looks.
        """
        key, body = row[0], row[1][:-8]
        while True:
            before, digests = row[1], digests_in(body)
            asks = [Ask(known.place), known.ask(Range("entry", [(key, key)])), ask_contents(known, digests)]
            try:
                _, rows, contents = await self._look(asks)
                if not rows.rows[0]:
                    return tombstone(entry)  # the entry was cleared meanwhile
                row = rows.rows[0][0]
                body = checked(row[1], key)
                if body[:8] != MARK:
                    return unpack(body, tokens)
                if row[1] == before:
                    return unpack(put_back(body, sound_contents(contents, digests)), tokens)
            except (*DAMAGED, StoreCorrupt) as fault:
                return await self.stand_in(known, row, fault)

    async def without_large(self, known: Known, rows: Iterable[Cells]) -> list[Entry]:
        """Return the entries of these rows without their large contents."""
        entries = []
        for row in rows:
            try:
                entries.append(_read(row))
            except DAMAGED as fault:
                entries.append(await self.stand_in(known, row, fault))
        return entries

    async def stand_in(self, known: Known, row: Cells, why: object) -> Entry:
        """Return the stand-in for the entry of a row that cannot be read. Logs one warning for each such entry."""
        key, session = row[0], known.key.session
        log, seq = key >> 32, key & LAST
        if (known.key, seq) not in self._sessions.warned:
            self._sessions.warned.add((known.key, seq))
            problem = f"entry {seq} of session {session!r} cannot be read ({why or CHANGED})"
            warn("%s: %s", self._url, f"{problem}; it is set aside, and `repair` takes it out")
        neighbours = [
            Range("entry", [(key_of(log, 0), key - 1)], BESIDE, newest_first=True),
            Range("entry", [(key + 1, key_of(log, LAST))], BESIDE),
        ]
        _, seen = await self._look([Ask(known.place), known.ask(*neighbours)])
        before, behind = ([entry for row in rows if (entry := readable(row))] for rows in seen.rows)
        body, name = remains(row)
        return set_aside(name, seq, body, before, behind)

    async def tombstones(self, known: Known) -> set[int]:
        """Return the seqs of a session's readable tombstones."""
        rows = await self.rows(known, Range("entry", known.spans()))
        return {entry.seq for row in rows if (entry := readable(row)) is not None and entry.erased}

    # --- records

    async def records(self, key: SessionKey, after: int, before: int | None) -> list[Record]:
        """Return the records between two revisions, both exclusive, oldest first."""
        known, seen = await self._sessions.look(key, lambda known: [ask_records(known, after, before)])
        return self.records_of(known, seen[0].rows[0]) if seen else []

    def records_of(self, known: Known, rows: Iterable[Cells]) -> list[Record]:
        """Decode records from their rows. Raises StoreCorrupt, which names the revision, if one cannot be read."""
        records = []
        for row in rows:
            try:
                records.append(record_of(row))
            except DAMAGED as cause:
                problem = (
                    f"the record of revision {row[0] & LAST} of session {known.key.session!r} cannot be read ({cause})"
                )
                raise StoreCorrupt(self._url, problem) from cause
        return records


def _spans_read(
    known: Known, after: int, before: int | None, limit: int | None, *, newest_first: bool
) -> list[tuple[int, int]]:
    """Return the spans of keys that such a page reads, given that a log has no gaps.

    Newest first, the spans may begin before the page does, never after.
    """
    if limit is not None and newest_first:
        end = known.head.next_seq if before is None else min(before, known.head.next_seq)
        after = max(after, end - limit - 1)
    elif limit is not None:
        end = max(after + 1, known.head.first_seq) + limit
        before = end if before is None else min(before, end)
    return known.spans(after, before)


def ask_records(known: Known, after: int = 0, before: int | None = None) -> Ask:
    """Ask for the records of a session between two revisions, both exclusive."""
    low, high = max(after + 1, 0), LAST if before is None else before - 1
    spans = [(key_of(known.log, low), key_of(known.log, high))] if low <= high else []
    return known.ask(Range("record", spans))


def _ask_entries(known: Known, seqs: Iterable[int], ids: Sequence[str], counter: str | None) -> Ask:
    """Ask for the entries at these seqs and with these ids; ids may encode their seq."""
    all_seqs = {*seqs, *map(placed_at, ids)}
    spans = list(ranges.of(known.keys(all_seqs)))
    wanted: list[Range | Named] = [Range("entry", spans), Named("entry", list(ids))]
    if counter is not None:
        wanted.append(ask_counts(counter, spans))
    return known.ask(*wanted)


def belongs_to(known: Known, key: int) -> bool:
    """Return whether the entry at this key is one of the session's."""
    return known.log_of(key & LAST) == key >> 32


def _in_place(rows: Sequence[Cells], i: int) -> bool:
    """Return whether row `i` lies between its neighbours, as far as those are rows of the same log."""
    neighbour_keys = [
        row[0] for row in (*rows[max(i - 1, 0) : i], *rows[i + 1 : i + 2]) if row[0] >> 32 == rows[i][0] >> 32
    ]
    return (
        len(neighbour_keys) < 2
        or neighbour_keys[0] < rows[i][0] < neighbour_keys[1]
        or neighbour_keys[1] < rows[i][0] < neighbour_keys[0]
    )


def readable(row: Cells) -> Entry | None:
    """Return the entry of a row without its large contents, or None if it cannot be read."""
    try:
        return _read(row)
    except DAMAGED:
        return None


def _read(row: Cells) -> Entry:
    """Like `readable`, but raise one of `DAMAGED`, also if the row is indexed by another entry's id."""
    entry = unpack(checked(row[1], row[0]))
    if row[2] and entry.id != row[2]:
        raise ValueError(CHANGED)
    return entry


def _expected(head: Head, after: int, before: int | None, limit: int | None) -> int:
    """Return how many entries there must be between the two seqs, according to the head."""
    first = max(after + 1, head.first_seq)
    end = head.next_seq if before is None else min(before, head.next_seq)
    count = max(end - first, 0)
    return count if limit is None else min(count, limit)
