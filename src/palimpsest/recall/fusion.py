"""One order of what was found by words and what was found by meaning: a weighted sum of both. Pure.

The scores by words are shares of what an entry would have that says all that is asked for: where nobody says much of
it, meaning counts for more, and where somebody repeats it, for less. The cosines of the nearest parts are stretched
from their least to their greatest (min-max), best part of each entry, and what the entries around one have is added as
it is for words. A sum of ranks ("reciprocal rank fusion") lets the weaker of two legs spoil the order of the better
one; this does not.
What speaks for an entry whatever its text is like (its sitting, who said it, and when) is added to the sum, so that it
counts for what meaning alone has found, too. Source: own, after what was measured; `bench/recall_vectors.py` measures
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from palimpsest.recall.postings import PART_BITS
from palimpsest.recall.ranking import AROUND, LONG, SITTING, Facts, Ranked, Ranking

WEIGHT = 0.2
"""The share of meaning. Chosen on the first five conversations of LoCoMo and on conversations that are not LoCoMo: more
finds more in chats, and less where questions repeat the words of long answers and of JSON."""

BY_WORDS = 56
"""Entries with the best parts by words, of which those around them are looked at: more than where only words count."""

OF_SPEAKER = 0.2
"""What is added for a speaker whom the question names, as a share of the best score: twice what it is where only words
count, for the name is no part of what is compared in meaning."""

NEAREST = 100
"""Parts that are asked of an index of vectors: the least of them is what counts as nothing in common."""


class Meaning:
    """What is near to a question in meaning, in two steps, as `Ranking`: `wanted` are entries whose facts it needs."""

    def __init__(self, nearest: Mapping[int, float]) -> None:
        """Take what an index of vectors found.

        Args:
            nearest: The cosines of the nearest parts, by key; of some `NEAREST` of them.
        """
        best: dict[int, tuple[float, int]] = {}
        for key, cosine in nearest.items():
            found = cosine, -(key & (1 << PART_BITS) - 1)
            entry = key >> PART_BITS
            if cosine > 0 and found > best.get(entry, (0.0, 0)):
                best[entry] = found
        low = max(min(nearest.values(), default=0.0), 0.0)
        reach = max((cosine for cosine, _ in best.values()), default=0.0) - low
        self._worth = {entry: (cosine - low) / reach if reach > 0 else 1.0 for entry, (cosine, _) in best.items()}
        self._part = {entry: -part for entry, (_, part) in best.items()}

    @property
    def wanted(self) -> list[int]:
        """The entries whose facts are needed, as `session number << 28 | seq`, in order; some may not exist."""
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
        """Return what was found by either, best first; of equal ones the newest first.

        Args:
            ranking: What was found by words.
            facts: Those of `wanted`, of both, by the same numbers.
            weight: The share of meaning, from 0 to 1.
            limit: How many at most.
            only: Which entries may be returned; those that may not still count for those around them.
        """
        near = self._smoothed(facts)
        scores = _shares(ranking.scores(facts), ranking.whole, 1 - weight)
        for entry, share in _shares(near, max(near.values(), default=0.0), weight).items():
            scores[entry] = scores.get(entry, 0.0) + share
        return ranking.ordered(scores, facts, self._part, OF_SPEAKER, limit, only)

    def _smoothed(self, facts: Mapping[int, Facts]) -> dict[int, float]:
        """The worth of each entry with that of those around it, in its sitting; long ones add less to others."""
        found: dict[int, float] = {}
        for entry, worth in self._worth.items():
            known = facts.get(entry)
            if known is None:
                continue
            found[entry] = found.get(entry, 0.0) + worth
            given = worth if known.chars <= LONG else worth * LONG / known.chars
            for place, share in AROUND:
                other = facts.get(entry - place)
                if other is not None and abs(other.at - known.at) <= SITTING:
                    found[entry - place] = found.get(entry - place, 0.0) + share * given
        return found


def _shares(scores: Mapping[int, float], whole: float, weight: float) -> dict[int, float]:
    """Scores as shares of a whole, times a weight; of nothing nothing."""
    return {entry: weight * score / whole for entry, score in scores.items()} if whole > 0 and weight > 0 else {}
