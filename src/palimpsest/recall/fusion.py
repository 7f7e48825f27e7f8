"""One order of what was found by words and what was found by meaning: a weighted sum of both, each from 0 to 1. Pure.

The scores by words are divided by the best one. The cosines of the nearest parts are stretched from their least to
their greatest (min-max), best part of each entry, and what the entries around one have is added as it is for words. A
sum of ranks ("reciprocal rank fusion") lets the weaker of two legs spoil the order of the better one; this does not.
Source: own, after what was measured; `bench/recall_vectors.py` measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest

from palimpsest.recall.postings import PART_BITS, SEQ_BITS
from palimpsest.recall.ranking import AROUND, LONG, SITTING, Facts, Ranked

WEIGHT = 0.25
"""The share of meaning. Chosen on the first five conversations of LoCoMo and on conversations that are not LoCoMo: more
finds more in chats, and less where questions repeat the words of long answers and of JSON."""

BY_WORDS = 56
"""Entries with the best parts by words, of which those around them are looked at: more than where only words count."""

NEAREST = 200
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
        ranked: Sequence[Ranked],
        facts: Mapping[int, Facts],
        *,
        weight: float = WEIGHT,
        limit: int = 100,
        only: Callable[[Facts], bool] | None = None,
    ) -> list[Ranked]:
        """Return what was found by either, best first, with scores from 0 to 1; of equal ones the newest first.

        Args:
            ranked: What was found by words, by `Ranking.ranked`: better more of them than are asked for here.
            facts: Those of `wanted`, by the same numbers, and of what is ranked.
            weight: The share of meaning, from 0 to 1.
            limit: How many at most.
            only: Which entries may be returned; those that may not still count for those around them.
        """
        near = self._smoothed(facts)
        top = max(near.values(), default=0.0)
        scores = {entry: weight * score / top for entry, score in near.items()} if top > 0 else {}
        parts = dict(self._part)
        best = max((one.score for one in ranked), default=0.0)
        for one in ranked:
            entry = one.session_number << SEQ_BITS | one.seq
            scores[entry] = scores.get(entry, 0.0) + (1 - weight) * one.score / best
            parts[entry] = one.part
        kept = [entry for entry in scores if only is None or (entry in facts and only(facts[entry]))]
        order = nlargest(limit, kept, key=lambda entry: (scores[entry], entry))
        mask = (1 << SEQ_BITS) - 1
        return [Ranked(entry >> SEQ_BITS, entry & mask, scores[entry], parts.get(entry, 0)) for entry in order]

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
