"""What is stored under another key than the one that is written with is sealed anew, as it is, while others go on."""

from __future__ import annotations

import os
from collections.abc import Sequence

from palimpsest.errors import StoreError
from palimpsest.stores.backend import LAST_KEY, Ask, Backend, Cells, Place, Range, Row, Step
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.sealed_batch import NO_HEAD
from palimpsest.stores.encrypted.sealed_bytes import LIFE, SealedHead, Unsealed, key_of
from palimpsest.stores.encrypted.sealed_rows import LOG, Heads, Rows, is_clear, what_row
from palimpsest.stores.rules import expect_of, heads_at

STRETCH = 256
"""Rows that are sealed in one step, so that writers go on."""

TABLES = {LOG: ("entry", "record"), "tree": ("share",)}


class Resealer:
    """Seals under the key that is written with what a backend has under another."""

    def __init__(self, below: Backend, rows: Rows, heads: Heads, markings: Markings) -> None:
        self._below, self._rows, self._heads, self._markings = below, rows, heads, markings

    async def head(self, place: Place) -> bool:
        """Bring the head that is kept there under the key that is written with; whether it was under another."""
        while not is_clear(place):
            floor = self._heads.all.get(place)
            (stored,) = await heads_at(self._below, [place])
            known = self._heads.opened(place, stored, floor)
            if known is None or known.key_id == self._markings.writing:
                break
            after = self._rows.values.head(place, known._replace(bound=None), self._markings.writing)
            step = Step(place, known.stored.hot, after.stored.hot, after.stored.cold, known.expires, destroys=True)
            (refusal,) = await self._below.write([[step]], 0)
            if refusal is None:
                self._heads.remember(place, after)
                return True
        return False

    async def rows(self, place: Place) -> int:
        """Bring the rows of a place under the key that is written with, a stretch at a time; how many were not.

        They are put if meanwhile nothing was noted of any: who only appends is not in the way. Raises StoreCorrupt,
        when all the rest is done, for one that cannot be read.
        """
        changed, damaged = 0, list[StoreError]()
        for table in TABLES.get(place.space, ()):
            low = 0
            while True:
                (seen,) = await self._below.look([Ask(place, [Range(table, [(low, LAST_KEY)], STRETCH)])])
                rows, hot = seen.rows[0], expect_of(seen.head)
                put, bad = self._resealed(place, table, rows)
                if put and hot is None:  # nothing would tell that these rows have gone meanwhile
                    await self._noted(place)
                    continue
                if put:
                    step = Step(place, hot, hot, put=[(table, put)], destroys=True)
                    (refusal,) = await self._below.write([[step]], 0)
                    if refusal is not None:
                        continue
                changed += len(put)
                damaged += bad
                if len(rows) < STRETCH:
                    break
                low = rows[-1][0] + 1
        if damaged:
            raise damaged[0]
        return changed

    async def _noted(self, place: Place) -> None:
        """Make the head that whoever destroys something moves, where there is none."""
        made = SealedHead(NO_HEAD, NO_HEAD, life=os.urandom(LIFE))
        head = self._rows.values.head(place, made, self._markings.writing).stored
        await self._below.write([[Step(place, None, head.hot, head.cold)]], 0)

    def _resealed(self, place: Place, table: str, rows: Sequence[Cells]) -> tuple[list[Row], list[StoreError]]:
        """Those of these rows that are under another key, sealed anew, and why others could not be opened."""
        own, found, bad = self._markings.writing, list[Row](), list[StoreError]()
        open_row = self._rows.values.opener(place, table)
        for row in rows:
            if key_of(row[1]) != own:
                try:
                    opened, mark = open_row(row)
                except Unsealed as fault:
                    bad.append(fault.told(self._below.url, what_row(place, table, row[0])))
                else:
                    found.append(self._rows.values.row(place, table, opened, mark, own, row[2]))
        return found, bad
