"""Heads of a sealed backend as they were seen last: none is taken for the newest that is older than one of these."""

from __future__ import annotations

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Place, PlaceHead
from palimpsest.stores.encrypted.rows import Rows, is_clear
from palimpsest.stores.encrypted.sealing import Unsealed
from palimpsest.stores.encrypted.values import Known

KEPT = 4096
"""Heads that are remembered at once."""


class Heads:
    """Opens heads, and remembers them by where they are kept."""

    def __init__(self, url: str, rows: Rows) -> None:
        self._url, self._rows = url, rows
        self.all: dict[Place, Known] = {}

    def opened(self, place: Place, stored: PlaceHead | None, floor: Known | None) -> Known | None:
        """The head of a place as it is stored, which is no earlier one than `floor`. Raises StoreCorrupt, WrongKey."""
        if stored is None:
            self.all.pop(place, None)
            return None
        if is_clear(place):
            return Known(stored, stored)
        known = self.all.get(place)
        if known is None or known.stored != stored:
            try:
                known = self._rows.values.opened(place, stored, known)
            except Unsealed as fault:
                raise fault.told(self._url, self._rows.what(place, known)) from None
        if floor is not None and known.is_before(floor):
            told = "is of an earlier time: a later one was there before"
            raise StoreCorrupt(self._url, f"{self._rows.what(place, known)} {told}")
        self.remember(place, known)
        return known

    def remember(self, place: Place, known: Known) -> None:
        """Let this be the newest head that was seen of a place, unless a later one was."""
        before = self.all.get(place)
        if before is not None and known.is_before(before):
            return
        if len(self.all) >= KEPT:
            self.all.clear()
        self.all[place] = known
