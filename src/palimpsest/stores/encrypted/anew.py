"""What is stored under another key than the one that is written with is sealed anew, as it is, while others go on."""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.errors import StoreCorrupt
from palimpsest.log.spans import Span
from palimpsest.stores.backend import Ask, Backend, Cells, Place, Range, Row, Step
from palimpsest.stores.encrypted.heads import Heads
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.rows import Rows, all_of, what_row
from palimpsest.stores.encrypted.values import Known, key_of

STRETCH = 256
"""Rows that are sealed in one step, so that writers go on."""


class Anew:
    """Seals anew what a backend has."""

    def __init__(self, below: Backend, rows: Rows, heads: Heads, markings: Markings) -> None:
        self._below, self._rows, self._heads, self._markings = below, rows, heads, markings
        self._values, self._layout = rows.values, rows.layout

    async def seal(self, place: Place) -> int:
        """Bring a head, and the rows that it vouches for, under the key that is written with.

        Returns how many rows were under another; of a head that has none, whether it was. `place` is where it is kept.
        """
        moved, known = await self._head_anew(place), self._heads.all.get(place)
        if known is None or not known.reads:
            return int(moved)
        return sum([await self._rows_anew(place, table, span) for span in known.reads for table in self._layout.tables])

    async def _head_anew(self, place: Place) -> bool:
        own, own_tables = self._markings.writing, self._layout.own_tables.get(place.space, ())
        while True:
            floor = self._heads.all.get(place)
            (seen,) = await self._below.look([Ask(place, [all_of(table) for table in own_tables])])
            if seen.head is None:
                return False
            known = self._heads.opened(place, seen.head, floor)
            put = [(table, self._anew(place, table, rows)) for table, rows in zip(own_tables, seen.rows, strict=True)]
            if known.key_id == own and not any(rows for _, rows in put):
                return False
            after = self._values.head(place, known._replace(bound=b""), own, known.name)
            stored = after.stored
            step = Step(place, seen.head.hot, stored.hot, stored.cold, known.expires, put=put, destroys=True)
            (refusal,) = await self._below.write([[step]], 0)
            if refusal is None:
                self._heads.remember(place, after)
                return True

    async def _rows_anew(self, place: Place, table: str, span: Span) -> int:
        """Bring rows of a log under the key that is written with, a stretch at a time; how many were under another.

        The head of `place` vouches for them. Whoever only appends meanwhile is not in the way.
        """
        changed, (low, high) = 0, span
        logs = Place(place.tenant, place.home, self._layout.log, "")
        while True:
            floor = self._heads.all.get(place)
            head, seen = await self._below.look(
                [Ask(place), Ask(logs, [Range(table, [(low, high)], STRETCH)], head=False)]
            )
            rows = seen.rows[0]
            if head.head is None or not rows:
                return changed
            known = self._heads.opened(place, head.head, floor)
            put = self._anew(logs, table, rows)
            if put and not await self._put_anew(
                place, known, Step(logs, rows_only=True, put=[(table, put)], destroys=True)
            ):
                continue
            changed += len(put)
            if len(rows) < STRETCH:
                return changed
            low = rows[-1][0] + 1

    async def _put_anew(self, place: Place, known: Known, step: Step) -> bool:
        """Put rows if nothing has become of the head since but appends."""
        now = known
        while now.notes is known.notes and now.reads == known.reads:
            stored = now.stored.hot
            (refusal,) = await self._below.write([[Step(place, stored, stored), step]], 0)
            if refusal is None:
                return True
            if refusal[0] is None:
                return False
            now = self._heads.opened(place, refusal[0], now)
        return False

    def _anew(self, place: Place, table: str, rows: Sequence[Cells]) -> list[Row]:
        """Those of these rows that are under another key, sealed anew. Raises StoreCorrupt, WrongKey."""
        own, found = self._markings.writing, []
        for row in rows:
            if key_of(row[1]) == own:
                continue
            opened, mark = self._rows.row_opened(place, table, row)
            if opened is None:
                raise StoreCorrupt(
                    self._below.url, f"{what_row(place, table, row[0])} cannot be read: `repair` it first"
                )
            found.append(self._values.row(place, table, opened, mark, own, row[2]))
        return found
