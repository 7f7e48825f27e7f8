"""Counts of tokens, and other figures of entries: kept, and looked through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from palimpsest.log import spans as ranges
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.stores.backend import Ask, Cells, Range, Row, Step
from palimpsest.stores.engine.forms import FIGURE, LAST, TOKENS, ask_counts, count_rows, counts_of, stamped
from palimpsest.stores.engine.known import Known
from palimpsest.stores.engine.reading import Reading, is_of, readable
from palimpsest.stores.engine.sessions import Sessions

MANY = 512
"""Rows of counts that are read at once where all are looked through: of up to 16,384 entries."""

Puts = list[tuple[str, list[Row]]]


class Counting:
    """The verbs of the store that keep figures of entries, and those that look them through."""

    def __init__(self, sessions: Sessions, reading: Reading, clock: Callable[[], int]) -> None:
        self._sessions, self._reading, self._clock = sessions, reading, clock

    async def count(
        self, key: SessionKey, counter: str, counts: Mapping[int, int], mark: object, epoch: int | None
    ) -> None:
        """Keep counts of tokens, of entries that had none, unless another epoch has begun: they may say other words."""

        def put(keys: Sequence[int]) -> Puts:
            return [(TOKENS + counter, count_rows({at: counts[at & LAST] for at in keys}))]

        await self._keep(key, counts, put, mark, epoch)

    async def note(self, key: SessionKey, figures: Mapping[str, Mapping[int, int]]) -> None:
        """Keep figures, each of which may be another one later, and so has a row of its own."""

        def put(keys: Sequence[int]) -> Puts:
            return [
                (FIGURE + name, [Row(at, stamped(b"%d" % some[at & LAST], at)) for at in keys if at & LAST in some])
                for name, some in figures.items()
            ]

        await self._keep(key, {seq for some in figures.values() for seq in some}, put, None, None)

    async def _keep(
        self,
        key: SessionKey,
        seqs: Iterable[int],
        put: Callable[[Sequence[int]], Puts],
        mark: object,
        epoch: int | None,
    ) -> None:
        """Put rows of those of these entries that are there, in a step that is refused where others have written."""
        for _ in range(3):  # beside somebody who never pauses it is given up
            known, alive = await self._living(key, seqs, mark)
            head = known.there
            if not alive or head is None or (epoch is not None and known.head.epoch != epoch):
                return
            step = Step(known.logs, rows_only=True, put=put(alive))
            unmoved = Step(known.place, head.hot, head.hot)
            if await self._sessions.crowds.write([unmoved, step], self._clock(), lasting=False) is None:
                return
            mark = None  # others have moved it: what is there is looked for

    async def _living(self, key: SessionKey, seqs: Iterable[int], mark: object) -> tuple[Known, list[int]]:
        """A session, and the keys of those of its entries at these places that are there; all are while it has a mark
        that it had when they were."""
        seen = self._sessions.remembered(key)
        if seen is not None and mark is not None and seen.standing.mark == mark:
            return seen, sorted(seen.keys(seqs))
        known, found = await self._sessions.look(
            key, lambda known: [known.ask(Range("entry", list(ranges.of(known.keys(seqs)))))]
        )
        return known, sorted(row[0] for one in found for row in one.rows[0] if _is_living(row))

    # --- looking through

    async def noted(self, key: SessionKey, name: str, after: int) -> dict[int, int]:
        """The figures of the entries after a place."""
        _, seen = await self._sessions.look(key, lambda known: [known.ask(Range(FIGURE + name, known.spans(after)))])
        return {at & LAST: figure for at, figure in counts_of(seen[0].rows[0]).items()} if seen else {}

    async def uncounted(self, key: SessionKey, counter: str, after: int, limit: int | None) -> tuple[int, list[Entry]]:
        """The epoch, and the entries without a count, of which the places are found first."""
        counted: tuple[ranges.Span, ...] = ()
        at, more = after, True

        def asks(known: Known) -> list[Ask]:
            return [known.ask(ask_counts(counter, known.spans(at), MANY))]

        while more:
            known, seen = await self._sessions.look(key, asks)
            if not seen:
                return 0, []
            rows = seen[0].rows[0]
            counted = ranges.union(counted, ranges.of(_own(known, counts_of(rows))))
            more = len(rows) >= MANY
            at = rows[-1][0] & LAST if more else at
        missing = ranges.visible(counted, max(after, known.head.first_seq - 1), known.head.next_seq)
        where = [span for low, high in missing for span in known.spans(low - 1, high + 1)]
        if not where:
            return known.head.epoch, []
        rows = await self._reading.rows(known, Range("entry", where, limit))
        return known.head.epoch, await self._reading.entries(known, rows, {})


def _own(known: Known, counts: Mapping[int, int]) -> dict[int, int]:
    """Counts by key as counts by seq, without those of entries that only others have."""
    return {key & LAST: tokens for key, tokens in counts.items() if is_of(known, key)}


def _is_living(row: Cells) -> bool:
    """Whether this is of an entry that is no tombstone."""
    if b'"erased":true' not in row[1]:
        return True
    entry = readable(row)
    return entry is not None and not entry.erased
