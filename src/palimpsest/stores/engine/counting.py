"""Token counts and other figures of entries: storing them, reading them, finding entries without a count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from palimpsest.log import spans as ranges
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.stores.backend import Ask, Cells, Range, Row, Step
from palimpsest.stores.engine.forms import FIGURE, LAST, TOKENS, ask_counts, count_rows, counts_of, stamped
from palimpsest.stores.engine.known import Known
from palimpsest.stores.engine.reading import Reading, belongs_to, readable
from palimpsest.stores.engine.sessions import Sessions

MANY = 512
"""Rows of counts read at once when all counts are gone through; they cover up to 16,384 entries."""

Puts = list[tuple[str, list[Row]]]


class Counting:
    """The verbs of the store that keep figures of entries, and those that search them."""

    def __init__(self, sessions: Sessions, reading: Reading, clock: Callable[[], int]) -> None:
        self._sessions, self._reading, self._clock = sessions, reading, clock

    async def count(
        self, key: SessionKey, counter: str, counts: Mapping[int, int], mark: object, epoch: int | None
    ) -> None:
        """Store counts of entries that had none, unless the epoch has changed: then texts may have changed, too."""

        def put(keys: Sequence[int]) -> Puts:
            return [(TOKENS + counter, count_rows({at: counts[at & LAST] for at in keys}))]

        await self._keep(key, counts, put, mark, epoch)

    async def note(self, key: SessionKey, figures: Mapping[str, Mapping[int, int]]) -> None:
        """Store figures. Each may change later on its own, so each has a row of its own."""

        def put(keys: Sequence[int]) -> Puts:
            return [
                (FIGURE + name, [Row(at, stamped(b"%d" % by_seq[at & LAST], at)) for at in keys if at & LAST in by_seq])
                for name, by_seq in figures.items()
            ]

        await self._keep(key, {seq for by_seq in figures.values() for seq in by_seq}, put, None, None)

    async def _keep(
        self,
        key: SessionKey,
        seqs: Iterable[int],
        rows_of: Callable[[Sequence[int]], Puts],
        mark: object,
        epoch: int | None,
    ) -> None:
        """Put rows of those of these entries that exist, in a batch that is refused if the session's head has moved."""
        for _ in range(3):  # beside a writer that never pauses the figures are given up
            known, living = await self._living(key, seqs, mark)
            head = known.stored
            if not living or head is None or (epoch is not None and known.head.epoch != epoch):
                return
            put = Step(known.logs, rows_only=True, put=rows_of(living))
            check = Step(known.place, head.hot, head.hot)
            if await self._sessions.crowds.write([check, put], self._clock(), lasting=False) is None:
                return
            mark = None  # the head has moved, so the entries must be looked for

    async def _living(self, key: SessionKey, seqs: Iterable[int], mark: object) -> tuple[Known, list[int]]:
        """Return a session, and the keys of those of these entries that exist and are no tombstones.

        The store is not asked while the session still has the `mark` that it had when all of them were there.
        """
        remembered = self._sessions.remembered(key)
        if remembered is not None and mark is not None and remembered.standing.mark == mark:
            return remembered, sorted(remembered.keys(seqs))
        known, seen = await self._sessions.look(
            key, lambda known: [known.ask(Range("entry", list(ranges.of(known.keys(seqs)))))]
        )
        return known, sorted(row[0] for one in seen for row in one.rows[0] if _is_living(row))

    # --- looking through

    async def noted(self, key: SessionKey, name: str, after: int) -> dict[int, int]:
        """Return the figures of the entries after a seq, by seq."""
        _, seen = await self._sessions.look(key, lambda known: [known.ask(Range(FIGURE + name, known.spans(after)))])
        return {at & LAST: figure for at, figure in counts_of(seen[0].rows[0]).items()} if seen else {}

    async def uncounted(self, key: SessionKey, counter: str, after: int, limit: int | None) -> tuple[int, list[Entry]]:
        """Return the epoch, and the entries without a count. Their seqs are worked out from the stored counts first."""
        counted: tuple[ranges.Span, ...] = ()
        last_seen, unfinished = after, True

        def asks(known: Known) -> list[Ask]:
            return [known.ask(ask_counts(counter, known.spans(last_seen), MANY))]

        while unfinished:
            known, seen = await self._sessions.look(key, asks)
            if not seen:
                return 0, []
            rows = seen[0].rows[0]
            counted = ranges.union(counted, ranges.of(_own(known, counts_of(rows))))
            unfinished = len(rows) >= MANY
            last_seen = rows[-1][0] & LAST if unfinished else last_seen
        missing = ranges.visible(counted, max(after, known.head.first_seq - 1), known.head.next_seq)
        spans = [span for low, high in missing for span in known.spans(low - 1, high + 1)]
        if not spans:
            return known.head.epoch, []
        rows = await self._reading.rows(known, Range("entry", spans, limit))
        return known.head.epoch, await self._reading.entries(known, rows, {})


def _own(known: Known, counts: Mapping[int, int]) -> dict[int, int]:
    """Return these counts by seq, without those of entries that only other sessions have."""
    return {key & LAST: tokens for key, tokens in counts.items() if belongs_to(known, key)}


def _is_living(row: Cells) -> bool:
    """Return whether this row is of an entry that is no tombstone."""
    if b'"erased":true' not in row[1]:
        return True
    entry = readable(row)
    return entry is not None and not entry.erased
