"""Choose the entries worth a closer look: those with the best parts, by what an index says of each term. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from heapq import nlargest

from palimpsest.recall.postings import PART_BITS


class Asked:
    """A term of a question: its weight, the parts that hold it, and the `most` that it adds to any of them."""

    def __init__(self, term: str, weight: float, found: Mapping[int, float]) -> None:
        self.term, self.weight, self.found = term, weight, found
        self.most = weight * max(found.values())

    def among(self, entries: Container[int]) -> Asked | None:
        """Return the term with only the parts of these entries, or None if none of them holds it."""
        found = {key: score for key, score in self.found.items() if key >> PART_BITS in entries}
        return Asked(self.term, self.weight, found) if found else None

    def scale(self) -> float:
        """Return the factor that turns the mean of the parts' index scores into 1."""
        return len(self.found) / sum(self.found.values())


def best_entries(asked: Sequence[Asked], candidates: int) -> list[tuple[float, int]]:
    """Return the best entries, each with the score of its best part, best first; of equal ones the newest first.

    Once enough entries have more than all later terms could add, parts that hold none of the terms so far are left out
    (Turtle and Flood, "Query evaluation: strategies and optimizations", 1995).

    Args:
        asked: The terms, those that add most first.
        candidates: How many entries.
    """
    totals: dict[int, float] = {}
    closed = False
    for i, term in enumerate(asked):
        weight, found = term.weight, term.found
        if not closed and len(totals) < len(found):  # otherwise the check costs more than it saves
            closed = _is_enough(totals, candidates, sum(later.most for later in asked[i:]))
        if closed:
            for key in totals.keys() & found.keys():
                totals[key] += weight * found[key]
        elif not totals:
            totals = {key: weight * score for key, score in found.items()}
        else:
            for key, score in found.items():
                totals[key] = totals.get(key, 0.0) + weight * score
    return _best_of(totals, candidates)


def _is_enough(totals: Mapping[int, float], candidates: int, rest: float) -> bool:
    """Return whether `candidates` entries have a part that scores more than `rest`."""
    return len({key >> PART_BITS for key, score in totals.items() if score > rest}) >= candidates


def _best_of(totals: Mapping[int, float], candidates: int) -> list[tuple[float, int]]:
    """Return the entries with the best parts, each with the score of its best part, best first."""
    best: dict[int, float] = {}
    for key, score in totals.items():
        entry = key >> PART_BITS
        if score > best.get(entry, -1.0):
            best[entry] = score
    return nlargest(candidates, zip(best.values(), best, strict=True))
