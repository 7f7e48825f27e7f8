"""What a context recalls behind its newest entry: passages of entries that it does not show, as many as fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from palimpsest.context.groups import Group, Meter
from palimpsest.context.tail import fitting
from palimpsest.sessions.recalling.recalled import Passage, packed, plain

NAME = "recalled"


class Recollection:
    """Passages of one session, best first, that answer the `terms` of a query. A part of a context's tail."""

    name = NAME

    def __init__(self, passages: Sequence[Passage], terms: Sequence[str]) -> None:
        self._passages, self._terms = passages, terms

    def beside(self, shown: Collection[int]) -> Recollection:
        """Return only the passages of entries that the context does not show."""
        return Recollection([passage for passage in self._passages if passage.seq not in shown], self._terms)

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """Return the best passages that fit into `most` tokens, in the order of the log; "" if none fits."""
        return plain(packed(self._passages, (), most, count, self._terms)[0])

    def group(self, most: int | None, meter: Meter) -> Group | None:
        """Return the fenced passages as they are sent; None if none fits."""
        return fitting(self, most, meter)
