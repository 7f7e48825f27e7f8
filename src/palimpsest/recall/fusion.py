"""Merge what was found by words and what was found by meaning into one order: a weighted sum of both. Pure.

Scores by words are taken as shares of what an entry would score that says all that is asked for. So meaning counts for
more if nobody says much of it, and for less if somebody repeats it. The cosines of the nearest parts are stretched from
their least to their greatest (min-max); of each entry the best part counts, and neighbours add to it as they do for
words. A sum of ranks ("reciprocal rank fusion") lets the weaker of two searches spoil the order of the better one; this
does not.

What counts for an entry whatever its text (its sitting, who said it, and when) is added to the sum, so that it helps
entries found by meaning alone, too. Source: own, from measurements with `bench/recall_vectors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from palimpsest.recall.postings import PART_BITS
from palimpsest.recall.ranking import AROUND, LONG, SITTING, Facts, Ranked, Ranking

WEIGHT = 0.2
"""The share of meaning. Chosen on the first five conversations of LoCoMo and on conversations that are not LoCoMo: a
higher one finds more in chats, and less where questions repeat the words of long answers and of JSON."""

BY_WORDS = 56
"""How many entries, those with the best parts by words, are scored together with their neighbours: more than with words
alone."""

OF_SPEAKER = 0.2
"""The share of the best score for a speaker whom the question names: twice that of a search by words alone, since the
name is left out of what is compared by meaning."""

NEAREST = 100
"""How many parts an index of vectors is asked for. The cosine of the last one counts as nothing in common."""


class Meaning:
    """What is near to a question in meaning, in two steps like `Ranking`: `wanted` lists the entries to get facts
    of."""

    def __init__(self, nearest: Mapping[int, float]) -> None:
        """Take what an index of vectors found.

        Args:
            nearest: The cosines of the nearest parts, by key; about `NEAREST` of them.
        """
        best: dict[int, tuple[float, int]] = {}
        for key, cosine in nearest.items():
            candidate = cosine, -(key & (1 << PART_BITS) - 1)
            entry = key >> PART_BITS
            if cosine > 0 and candidate > best.get(entry, (0.0, 0)):
                best[entry] = candidate
        low = max(min(nearest.values(), default=0.0), 0.0)
        reach = max((cosine for cosine, _ in best.values()), default=0.0) - low
        self._worth = {entry: (cosine - low) / reach if reach > 0 else 1.0 for entry, (cosine, _) in best.items()}
        self._part = {entry: -part for entry, (_, part) in best.items()}

    @property
    def wanted(self) -> list[int]:
        """The entries whose facts are needed, as `session number << 28 | seq`, ascending; some may not exist."""
        return sorted({entry + place for entry in self._worth for place in (0, *(place for place, _ in AROUND))})

    def joined(
        self,
        ranking: Ranking,
        facts: Mapping[int, Facts],
        *,
        weight: float = WEIGHT,
        limit: int = 100,
        only: Callable[[Facts], bool] | None = None,
    ) -> list[Ranked]:
        """Return what was found by words or by meaning, best first; of equal ones the newest first.

        Args:
            ranking: What was found by words.
            facts: The facts of `wanted` of both, by the same numbers.
            weight: The share of meaning, from 0 to 1.
            limit: How many at most.
            only: Which entries may be returned. The others still count for their neighbours.
        """
        near = self._smoothed(facts)
        scores = _shares(ranking.scores(facts), ranking.whole, 1 - weight)
        for entry, share in _shares(near, max(near.values(), default=0.0), weight).items():
            scores[entry] = scores.get(entry, 0.0) + share
        return ranking.ordered(scores, facts, self._part, OF_SPEAKER, limit, only)

    def _smoothed(self, facts: Mapping[int, Facts]) -> dict[int, float]:
        """Return the worth of each entry with shares of its neighbours' in the same sitting.

        Long entries add less to others.
        """
        smoothed: dict[int, float] = {}
        for entry, worth in self._worth.items():
            entry_facts = facts.get(entry)
            if entry_facts is None:
                continue
            smoothed[entry] = smoothed.get(entry, 0.0) + worth
            given = worth if entry_facts.chars <= LONG else worth * LONG / entry_facts.chars
            for place, share in AROUND:
                other = facts.get(entry - place)
                if other is not None and abs(other.at - entry_facts.at) <= SITTING:
                    smoothed[entry - place] = smoothed.get(entry - place, 0.0) + share * given
        return smoothed


def _shares(scores: Mapping[int, float], whole: float, weight: float) -> dict[int, float]:
    """Return scores as shares of `whole`, times `weight`; none if either is 0."""
    return {entry: weight * score / whole for entry, score in scores.items()} if whole > 0 and weight > 0 else {}
