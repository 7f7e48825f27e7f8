"""What a context is given from a knowledge base, behind its newest entry: the best chunks that have room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from palimpsest.context.groups import Group, Meter
from palimpsest.context.tail import fitting
from palimpsest.sessions.shelves.records import KnowledgeHit

NAME = "knowledge"


class Known:
    """Chunks of a knowledge base, best first, of at most so many tokens together. A part of a tail."""

    name = NAME

    def __init__(self, hits: Sequence[KnowledgeHit], max_tokens: int | None) -> None:
        self._texts, self._most = [hit.shown for hit in hits], max_tokens

    def beside(self, shown: Collection[int]) -> Known:
        """They as they are: what they say is of other sessions."""
        return self

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """The best in at most so many tokens; "" where there are none, or no room for the first."""
        room = min((one for one in (most, self._most) if one is not None), default=None)
        text = ""
        for one in self._texts:
            longer = f"{text}\n\n{one}" if text else one
            if room is not None and count(longer) > room:
                break
            text = longer
        return text

    def group(self, most: int | None, meter: Meter) -> Group | None:
        """They as they are sent, with their fence; None where there are none, or no room."""
        return fitting(self, most, meter)
