"""`Resealer`: seals heads and rows under other keys anew, under the key in use, while others read and write."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import LAST_KEY, Ask, Backend, Cells, Place, Range, Row, Step
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.sealed_batch import NO_HEAD
from palimpsest.stores.encrypted.sealed_bytes import LIFE, SealedHead, Unsealed, key_of
from palimpsest.stores.encrypted.sealed_rows import LOG, Heads, Rows, describe_row, is_clear
from palimpsest.stores.rules import expect_of, heads_at

STRETCH = 256
"""Rows that are sealed in one step, so that no step holds up writers for long."""

TABLES = {LOG: ("entry", "record"), "tree": ("share",)}
"""The tables with sealed rows, by space."""


class Resealer:
    """Seals heads and rows of a backend anew under the key that this process writes with."""

    def __init__(self, below: Backend, rows: Rows, heads: Heads, markings: Markings) -> None:
        self._below, self._rows, self._heads, self._markings = below, rows, heads, markings

    async def head(self, place: Place) -> bool:
        """Seal the head of a stored place anew. Return whether it was under another key."""
        while not is_clear(place):
            floor = self._heads.by_place.get(place)
            (stored,) = await heads_at(self._below, [place])
            before = self._heads.open(place, stored, floor)
            if before is None or before.key_id == self._markings.writing:
                break
            after = self._rows.values.head(place, before._replace(bound=None), self._markings.writing)
            step = Step(place, before.stored.hot, after.stored.hot, after.stored.cold, before.expires, destroys=True)
            (refusal,) = await self._below.write([[step]], 0)
            if refusal is None:
                self._heads.remember(place, after)
                return True
        return False

    async def rows(self, place: Place) -> int:
        """Seal the rows of a place anew, `STRETCH` at a time. Return how many were under another key.

        Others use the store between two stretches. A stretch is put if the head that notes the place's rows has not
        moved since the rows were read; plain appends do not move it. Raises StoreCorrupt or WrongKey for the first
        unreadable row, after all others were sealed.
        """
        changed, damaged = 0, list[StoreCorrupt]()
        for table in TABLES.get(place.space, ()):
            low: int | None = 0
            while low is not None:
                low, put, bad = await self._below.together(partial(self._stretch, place, table, low))
                changed += put
                damaged += bad
        if damaged:
            raise damaged[0]
        return changed

    async def _stretch(self, place: Place, table: str, low: int) -> tuple[int | None, int, list[StoreCorrupt]]:
        """Seal the next rows from a key on anew. Return the key to go on with, how many were put, and errors."""
        while True:
            (seen,) = await self._below.look([Ask(place, [Range(table, [(low, LAST_KEY)], STRETCH)])])
            rows, hot = seen.rows[0], expect_of(seen.head)
            put, bad = self._resealed(place, table, rows)
            if put and hot is None:  # without a head, an erasure of these rows meanwhile would go unnoticed
                await self._make_head(place)
                continue
            step = Step(place, hot, hot, put=[(table, put)], destroys=True)
            if not put or await self._below.write([[step]], 0) == [None]:
                return rows[-1][0] + 1 if len(rows) == STRETCH else None, len(put), bad

    async def _make_head(self, place: Place) -> None:
        """Make the head that notes a place's rows, and that every erasure moves, unless it exists."""
        empty = SealedHead(NO_HEAD, NO_HEAD, life=os.urandom(LIFE))
        head = self._rows.values.head(place, empty, self._markings.writing).stored
        await self._below.write([[Step(place, None, head.hot, head.cold)]], 0)

    def _resealed(self, place: Place, table: str, rows: Sequence[Cells]) -> tuple[list[Row], list[StoreCorrupt]]:
        """Seal those of these rows that are under another key. Return them, and an error for each unreadable one."""
        own, resealed, bad = self._markings.writing, list[Row](), list[StoreCorrupt]()
        open_row = self._rows.values.opener(place, table)
        for row in rows:
            if key_of(row[1]) != own:
                try:
                    plain, token = open_row(row)
                except Unsealed as fault:
                    bad.append(fault.as_error(self._below.url, describe_row(place, table, row[0])))
                else:
                    resealed.append(self._rows.values.row(place, table, plain, token, own, row[2]))
        return resealed, bad
