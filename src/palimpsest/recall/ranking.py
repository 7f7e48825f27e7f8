"""One order for all indexes: entries by what an index says of their parts, and of those around them. Pure.

An entry's score is what its best part has of the question, and what the entries around it have of it. What is around
is added up term by term and inside BM25's saturation, as fields are in BM25F (Robertson, Zaragoza and Taylor, "Simple
BM25 extension to multiple weighted fields", 2004): a term that an entry has itself gains little from those around it,
and one that it lacks is as good as said a little. Lengths count only in what an index says of a part, so that long
neighbours do not drown a short entry. Constants were chosen on half of LoCoMo and on other conversations at once; see
`bench/recall.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from heapq import nlargest

import msgspec

from palimpsest.log.entry import Kind, Role
from palimpsest.recall.analysis import terms
from palimpsest.recall.postings import K1, PART_BITS, SEQ_BITS, Matches
from palimpsest.recall.questions import Question

AROUND = ((-1, 0.4), (1, 0.2), (-2, 0.2), (2, 0.1))
"""What the entries around one add to it: what was said before counts more than what was said after."""

SITTING = 6 * 3600 * 1_000_000
"""Microseconds. A longer pause ends a sitting; what is beyond it is not around."""

SATURATION = 0.4
"""BM25's k1 for what is added up. Below that of an index: that something is said matters more than how often."""

REST = 0.3
"""The share of what an entry's other parts have and its best part lacks."""

LONG = 300
"""Characters. What is longer adds less to those around it, in proportion: most of it is about something else."""

OF_SITTING, OF_SPEAKER, OF_ASKER, OF_TIME = 0.1, 0.1, 0.1, 0.1
"""What is added for the sitting's best three entries, for a speaker whom the question names, for a user's own words
where the question is about the one who asks, and for a time that it speaks of: as shares of the best score."""

CANDIDATES = 48
"""Entries with the best parts, of which those around them are looked at, too."""


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What ranking knows of an entry beside its terms: `chars` are those of its text, `at` microseconds since 1970."""

    at: int
    turn: int
    kind: Kind
    role: Role
    chars: int
    name: str | None = None


class Ranked(msgspec.Struct, frozen=True, gc=False):
    """An entry that was found: where it is, its score (comparable within one answer only), the best of its parts."""

    session_number: int
    seq: int
    score: float
    part: int


class Ranking:
    """The order of what an index found, in two steps: `wanted` are the entries whose facts `ranked` needs."""

    def __init__(self, question: Question, matches: Matches, *, candidates: int = CANDIDATES) -> None:
        """Take the entries with the best parts.

        Args:
            question: What was asked.
            matches: What an index has of each of its terms, in the same order.
            candidates: Of how many entries the surroundings are looked at; more where a filter leaves few of them.
        """
        self._question = question
        asked = [(weight, found) for weight, found in zip(question.weights, matches, strict=True) if found]
        self._asked = [found for _, found in asked]
        self._scales = [len(found) / sum(found.values()) for found in self._asked]
        self._worths = [
            weight / scale * (SATURATION + 1) for (weight, _), scale in zip(asked, self._scales, strict=True)
        ]
        best: dict[int, float] = {}
        totals = _totals(asked)
        for key, score in totals.items():
            entry = key >> PART_BITS
            if score > best.get(entry, -1.0):
                best[entry] = score
        self._wanted = {entry for _, entry in nlargest(candidates, zip(best.values(), best, strict=True))}
        self._around = {entry + place for entry in self._wanted for place, _ in AROUND}
        self._reach = {entry + place for entry in self._wanted for place in range(-4, 5)}
        self._known: dict[int, dict[int, float]] = {}
        self._parts: dict[int, list[int]] = {}
        for key in totals:
            if (entry := key >> PART_BITS) in self._reach:
                self._parts.setdefault(entry, []).append(key)

    @property
    def wanted(self) -> list[int]:
        """The entries whose facts are needed, as `session number << 28 | seq`, in order; some may not exist."""
        return sorted(self._reach)

    def ranked(
        self, facts: Mapping[int, Facts], *, limit: int = 100, only: Callable[[Facts], bool] | None = None
    ) -> list[Ranked]:
        """Return the entries, best first; of equal ones the newest first.

        Args:
            facts: Those of `wanted`, by the same numbers. An entry without is left out, and is around nothing.
            limit: How many at most.
            only: Which entries may be returned; those that may not still count for those around them.
        """
        sources = self._sources(facts)
        scores: dict[int, float] = {}
        for entry in self._wanted | self._around:
            known = facts.get(entry)
            if known is not None:
                scores[entry] = self._score(entry, known.at, sources)
        self._add_sittings(scores, facts)
        self._add_who_and_when(scores, facts)
        kept = [entry for entry, score in scores.items() if score > 0 and (only is None or only(facts[entry]))]
        order = nlargest(limit, kept, key=lambda entry: (scores[entry], entry))
        mask = (1 << SEQ_BITS) - 1
        return [Ranked(entry >> SEQ_BITS, entry & mask, scores[entry], self._best_part(entry)) for entry in order]

    def _sources(self, facts: Mapping[int, Facts]) -> dict[int, tuple[int, float, dict[int, float]]]:
        """What may add to others: when it was said, how much of it counts for its length, how much of each term."""
        found = {}
        for entry in self.wanted:
            if entry in self._parts:
                known = facts.get(entry)
                if known is not None:
                    short = 1.0 if known.chars <= LONG else LONG / known.chars
                    found[entry] = (known.at, short, self._held(entry))
        return found

    def _score(self, entry: int, at: int, sources: Mapping[int, tuple[int, float, dict[int, float]]]) -> float:
        """The score of an entry with what is around it; between sessions there are numbers that no entry has."""
        own = sources[entry][2] if entry in sources else {}
        added: dict[int, float] | None = None
        for place, share in AROUND:
            near = sources.get(entry + place)
            if near is None or not -SITTING <= near[0] - at <= SITTING:
                continue
            given = share * near[1]
            if added is None:
                added = own.copy()
            for term, amount in near[2].items():
                if term in added:
                    added[term] += given * amount
                else:
                    added[term] = given * amount
        score = self._worth_of(own if added is None else added)
        if own and len(self._parts[entry]) > 1:  # what stands in another part than the best one counts less
            every = self._worth_of(own)
            best = max([self._worth_of(self._held_by(key)) for key in self._parts[entry]])
            score -= (1 - REST) * (every - best)
        return score

    def _best_part(self, entry: int) -> int:
        """The part that has most of the question; of equal ones the first."""
        keys = self._parts.get(entry)
        if keys is None or len(keys) == 1:
            return keys[0] & (1 << PART_BITS) - 1 if keys else 0
        return max(keys, key=lambda key: (self._worth_of(self._held_by(key)), -key)) & (1 << PART_BITS) - 1

    def _worth_of(self, held: Mapping[int, float]) -> float:
        worths, total = self._worths, 0.0
        for term, amount in held.items():
            total += worths[term] * amount / (amount + SATURATION)
        return total

    def _held(self, entry: int) -> dict[int, float]:
        """Which terms an entry has, and how much of each: the most that one of its parts has."""
        keys = self._parts[entry]
        if len(keys) == 1:
            return self._held_by(keys[0])
        known = self._held_by(keys[0]).copy()
        for key in keys[1:]:
            for term, amount in self._held_by(key).items():
                if amount > known.get(term, 0.0):
                    known[term] = amount
        return known

    def _held_by(self, key: int) -> dict[int, float]:
        """Which terms a part has, and how often for its length: what BM25 made of it, undone.

        The weight of the term is not known, but for a part of usual length that has it once the rest of the formula
        is 1, and most parts are such.
        """
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = {}
            for term, scores in enumerate(self._asked):
                if key in scores:
                    gain = scores[key] * self._scales[term]
                    found[term] = K1 * gain / (K1 + 1 - gain) if gain < 2.0 else K1 * 2.0 / (K1 - 1)
        return found

    def _add_sittings(self, scores: dict[int, float], facts: Mapping[int, Facts]) -> None:
        """Add to each entry what the best three of its sitting have."""
        sitting: list[int] = []
        last: Facts | None = None
        before = -1
        for entry in sorted(scores):
            now = facts[entry]
            if last is not None and (now.at - last.at > SITTING or entry >> SEQ_BITS != before >> SEQ_BITS):
                _add_best(sitting, scores)
                sitting = []
            sitting.append(entry)
            last, before = now, entry
        _add_best(sitting, scores)

    def _add_who_and_when(self, scores: dict[int, float], facts: Mapping[int, Facts]) -> None:
        """Add to what was said by whom the question names, by the one who asks about themself, at a time it names."""
        top = max(scores.values(), default=0.0)
        words, own, spans = self._question.words, self._question.own, self._question.spans
        for entry in scores:
            known = facts[entry]
            if known.name is not None and known.kind == "message" and not words.isdisjoint(_names(known.name)):
                scores[entry] += OF_SPEAKER * top
            if own and known.role == "user" and known.kind == "message":
                scores[entry] += OF_ASKER * top
            if spans and any(span.since <= known.at < span.until for span in spans):
                scores[entry] += OF_TIME * top


def _totals(asked: Sequence[tuple[float, Mapping[int, float]]]) -> dict[int, float]:
    """What each part has of all terms. The term of most parts is the first: most have none but that."""
    totals: dict[int, float] = {}
    for weight, found in sorted(asked, key=lambda one: -len(one[1])):
        if not totals:
            totals = {key: weight * score for key, score in found.items()}
            continue
        for key, score in found.items():
            totals[key] = totals.get(key, 0.0) + weight * score
    return totals


def _add_best(sitting: Sequence[int], scores: dict[int, float]) -> None:
    more = OF_SITTING * sum(sorted([scores[entry] for entry in sitting])[-3:]) / 3
    for entry in sitting:
        scores[entry] += more


@lru_cache(maxsize=1024)
def _names(name: str) -> frozenset[str]:
    return frozenset(terms(name))
