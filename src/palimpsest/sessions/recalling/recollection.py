"""What a context recalls, behind its newest entry: passages that it does not hold anyway, as many as have room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from palimpsest.context.groups import Group, Meter
from palimpsest.context.tail import fitting
from palimpsest.sessions.recalling.recalled import Passage, packed, plain

NAME = "recalled"


class Recollection:
    """Passages of one session, best first, that answer these `terms` of a query. A part of a tail."""

    name = NAME

    def __init__(self, passages: Sequence[Passage], terms: Sequence[str]) -> None:
        self._passages, self._terms = passages, terms

    def beside(self, shown: Collection[int]) -> Recollection:
        """Those of entries that the context does not show."""
        return Recollection([one for one in self._passages if one.seq not in shown], self._terms)

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """The best in at most so many tokens, in the order of the log; "" where there are none, or no room."""
        return plain(packed(self._passages, (), most, count, self._terms)[0])

    def group(self, most: int | None, meter: Meter) -> Group | None:
        """They as they are sent, with their fence; None where there are none, or no room."""
        return fitting(self, most, meter)
