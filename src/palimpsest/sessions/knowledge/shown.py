"""What a context shows from a knowledge base behind its newest entry: the best chunks that fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from palimpsest.context.groups import Group, Meter
from palimpsest.context.tail import fitting
from palimpsest.sessions.shelves.records import KnowledgeHit

NAME = "knowledge"


class KnowledgePart:
    """Chunks of a knowledge base, best first, of at most `max_tokens` together. A part of a context's tail."""

    name = NAME

    def __init__(self, hits: Sequence[KnowledgeHit], max_tokens: int | None) -> None:
        self._texts, self._most = [hit.shown for hit in hits], max_tokens

    def beside(self, shown: Collection[int]) -> KnowledgePart:
        """Return the same chunks: they are of other sessions, so the context shows none of them already."""
        return self

    def within(self, most: int | None, count: Callable[[str], int]) -> str:
        """Return the best chunks that fit into `most` tokens; "" if there are none, or the first does not fit."""
        room = min((limit for limit in (most, self._most) if limit is not None), default=None)
        text = ""
        for chunk in self._texts:
            longer = f"{text}\n\n{chunk}" if text else chunk
            if room is not None and count(longer) > room:
                break
            text = longer
        return text

    def group(self, most: int | None, meter: Meter) -> Group | None:
        """Return the fenced chunks as they are sent; None if none fits."""
        return fitting(self, most, meter)
