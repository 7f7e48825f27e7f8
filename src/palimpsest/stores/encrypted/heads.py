"""Heads of a sealed backend as they were seen last: none is taken for the newest that is older than one of these."""

from __future__ import annotations

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Place, PlaceHead
from palimpsest.stores.encrypted.rows import Rows
from palimpsest.stores.encrypted.sealing import Unsealed
from palimpsest.stores.encrypted.values import Known, Values

KEPT = 4096
"""Heads that are remembered at once."""


class Heads:
    """Opens heads, and remembers them by where they are kept."""

    def __init__(self, url: str, rows: Rows, values: Values) -> None:
        self._url, self._rows, self._values = url, rows, values
        self.all: dict[Place, Known] = {}

    def opened(self, place: Place, stored: PlaceHead, floor: Known | None) -> Known:
        """The head of a place as it is stored, which is no earlier one than `floor`. Raises StoreCorrupt, WrongKey."""
        if self._rows.is_clear(place):
            return Known(stored, stored, "", b"", 0)
        before = self.all.get(place)
        if before is not None and before.stored == stored:
            known = before
        else:
            try:
                known = self._values.opened(place, stored, before)
            except Unsealed as fault:
                raise fault.told(self._url, self._rows.what(place, before)) from None
            if place.space == self._rows.layout.heads:
                known = known._replace(reads=self._rows.layout.reads(known.plain, before))
        if floor is not None and floor.life == known.life and floor.moves > known.moves:
            told = "is of an earlier time: a later one was there before"
            raise StoreCorrupt(self._url, f"{self._rows.what(place, known)} {told}")
        self.remember(place, known)
        return known

    def remember(self, place: Place, known: Known) -> None:
        """Let this be the newest head that was seen of a place, unless a later one was."""
        before = self.all.get(place)
        if before is not None and before.life == known.life and before.moves > known.moves:
            return
        if len(self.all) >= KEPT:
            self.all.clear()
        self.all[place] = known
