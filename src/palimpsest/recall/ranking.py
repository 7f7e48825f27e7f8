"""One order for all indexes: entries by what an index says of their parts, and of those around them. Pure.

An entry's score is what its best part has of the question, and what the entries around it have of it. What is around
is added up term by term and inside BM25's saturation, as fields are in BM25F (Robertson, Zaragoza and Taylor, "Simple
BM25 extension to multiple weighted fields", 2004): a term that an entry has itself gains little from those around it,
and one that it lacks is as good as said a little. Lengths count only in what an index says of a part, so that long
neighbours do not drown a short entry. Constants were chosen on half of LoCoMo and on other conversations at once; see
`bench/recall.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec

from palimpsest.log.entry import Kind, Role
from palimpsest.recall.analysis import terms
from palimpsest.recall.candidates import Asked, best_entries
from palimpsest.recall.postings import K1, PART_BITS, SEQ_BITS, Matches
from palimpsest.recall.questions import Question

AROUND = ((-1, 0.4), (1, 0.2), (-2, 0.2), (2, 0.1))
"""What the entries around one add to it: what was said before counts more than what was said after."""

REACH = max(abs(place) for place, _ in AROUND)

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

SEVERAL_OF_SPEAKER, SEVERAL_BEHIND = 0.25, 0.9
"""Where several things are asked for: `OF_SPEAKER`, and what others of a sitting count beside its best, so that more
sittings have a say."""

CANDIDATES = 28
"""Entries with the best parts, of which those around them are looked at, too."""

NOTHING = 1e-3
"""The share of what the last candidate has below which terms say nothing of what is around. A word that half of all
parts hold is such, where other words were asked for, too."""

_SEQ, _PART = (1 << SEQ_BITS) - 1, (1 << PART_BITS) - 1


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What ranking knows of an entry beside its terms: `chars` are those of its text, `at` microseconds since 1970."""

    at: int
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

    def __init__(
        self,
        question: Question,
        matches: Matches,
        *,
        candidates: int = CANDIDATES,
        among: Container[int] | None = None,
    ) -> None:
        """Take the entries with the best parts.

        Args:
            question: What was asked.
            matches: What an index has of each of its terms, in the same order.
            candidates: Of how many entries the surroundings are looked at; more where a filter leaves few of them.
            among: Entries of which the best are taken, too, where others leave them no place.
        """
        self._question = question
        every = zip(question.terms, question.weights, matches, strict=True)
        asked = self._asked = [Asked(term, weight, found) for term, weight, found in every if found]
        asked.sort(key=lambda term: -term.most)
        best = best_entries(asked, candidates)
        least = best[-1][0] if len(best) == candidates and among is None else 0.0
        if among is not None:
            some = [one for term in asked if (one := term.among(among)) is not None]
            best += best_entries(sorted(some, key=lambda term: -term.most), candidates)
        top = sorted({entry for _, entry in best})
        self._scored = set[int]().union(*(range(low, high) for low, high in _runs(top, REACH)))
        self._worths: list[float] = []
        self._worth = defaultdict[int, float](float)
        self._held: dict[int, dict[int, float]] = {}
        reach = [(low << PART_BITS, high << PART_BITS) for low, high in _runs(top, 2 * REACH)]
        for i, term in enumerate(asked):
            if sum(one.most for one in asked[i:]) > NOTHING * least:
                self._take(term, reach)
        self._best, self._divided = self._best_parts()

    def _take(self, asked: Asked, reach: Sequence[tuple[int, int]]) -> None:
        """Take in how often each part of entries within reach has the next term, for its length: what BM25 made of it,
        undone. An entry has as much of it as the part that has most.

        The weight of the term is not known, but for a part of usual length that has it once the rest of the formula
        is 1, and most parts are such.
        """
        found, term = asked.found, len(self._worths)
        scale, worth = asked.scale(), _worth(asked)
        self._worths.append(worth)
        worths, holding, known = self._worth, self._held, dict[float, tuple[float, float]]()
        for key in _within(found, reach):
            score = found[key]
            if score not in known:
                gain = score * scale
                amount = K1 * gain / (K1 + 1 - gain) if gain < 2.0 else K1 * 2.0 / (K1 - 1)
                known[score] = amount, worth * amount / (amount + SATURATION)
            amount, added = known[score]
            worths[key] += added
            held = holding.get(key >> PART_BITS)
            if held is None:
                holding[key >> PART_BITS] = {term: amount}
            elif amount > held.get(term, 0.0):
                held[term] = amount

    def _best_parts(self) -> tuple[dict[int, int], set[int]]:
        """The key of each entry's part that has most of the question, of equal ones the first; and the entries of which
        several parts have something of it."""
        best, divided = dict[int, int](), set[int]()
        for key, worth in self._worth.items():
            entry = key >> PART_BITS
            other = best.setdefault(entry, key)
            if other == key:
                continue
            divided.add(entry)
            most = self._worth[other]
            if worth > most or (worth == most and key < other):
                best[entry] = key
        return best, divided

    @property
    def wanted(self) -> list[int]:
        """The entries whose facts are needed, as `session number << 28 | seq`, in order; some may not exist."""
        return sorted(self._scored.union(self._held))

    @property
    def whole(self) -> float:
        """The score of an entry that has all words of the question which are said at all, and often."""
        return sum(_worth(term) for term in self._asked if " " not in term.term)

    def ranked(
        self, facts: Mapping[int, Facts], *, limit: int = 100, only: Callable[[Facts], bool] | None = None
    ) -> list[Ranked]:
        """Return the entries, best first; of equal ones the newest first.

        Args:
            facts: Those of `wanted`, by the same numbers. An entry without is left out, and is around nothing.
            limit: How many at most.
            only: Which entries may be returned; those that may not still count for those around them.
        """
        return self.ordered(self.scores(facts), facts, {}, OF_SPEAKER, limit, only)

    def ordered(
        self,
        scores: dict[int, float],
        facts: Mapping[int, Facts],
        parts: Mapping[int, int],
        of_speaker: float,
        limit: int,
        only: Callable[[Facts], bool] | None,
    ) -> list[Ranked]:
        """Return entries by their scores, with what is added for sitting, speaker and time, as `ranked` does.

        Args:
            scores: Those of `scores`, or others. They are changed.
            facts: Those of all these entries.
            parts: The best part of each entry that is found without words.
            of_speaker: What is added for a speaker whom the question names, unless it asks for several things.
            limit: As for `ranked`; so is `only`.
        """
        sittings = _sittings(scores, facts)
        _add_sittings(scores, sittings)
        self._add_who_and_when(scores, facts, of_speaker)
        if self._question.several:
            _put_the_best_first(scores, sittings)
        found = [(score, entry) for entry, score in scores.items() if score > 0 or entry in parts]
        kept = [(score, entry) for score, entry in found if only is None or only(facts[entry])]
        return [
            Ranked(entry >> SEQ_BITS, entry & _SEQ, score, self._best.get(entry, parts.get(entry, 0)) & _PART)
            for score, entry in sorted(kept, reverse=True)[:limit]
        ]

    def scores(self, facts: Mapping[int, Facts]) -> dict[int, float]:
        """Return what each entry has of the question, with what is around it, before anything is added.

        Args:
            facts: Those of `wanted`, as for `ranked`. What stands in another part than the best counts less.
        """
        scores = dict.fromkeys(self._scored & facts.keys(), 0.0)
        for worth, amounts in zip(self._worths, self._spread(scores, facts), strict=True):
            for entry, amount in amounts.items():
                scores[entry] += worth * amount / (amount + SATURATION)
        for entry in self._divided & scores.keys():
            every = sum(self._worths[term] * held / (held + SATURATION) for term, held in self._held[entry].items())
            scores[entry] -= (1 - REST) * (every - self._worth[self._best[entry]])
        return scores

    def _spread(self, scored: Container[int], facts: Mapping[int, Facts]) -> list[defaultdict[int, float]]:
        """How much of each term these entries have, with what is around them in their sitting. Between sessions there
        are numbers that no entry has."""
        spread = [defaultdict[int, float](float) for _ in self._worths]
        for entry, held in self._held.items():
            known = facts.get(entry)
            if known is None:
                continue
            at, given = known.at, 1.0 if known.chars <= LONG else LONG / known.chars
            near = [(entry, 1.0)] if entry in scored else []
            for place, share in AROUND:
                other = entry - place
                if other in scored and -SITTING <= facts[other].at - at <= SITTING:
                    near.append((other, share * given))
            for term, amount in held.items():
                amounts = spread[term]
                for other, share in near:
                    amounts[other] += share * amount
        return spread

    def _add_who_and_when(self, scores: dict[int, float], facts: Mapping[int, Facts], of_speaker: float) -> None:
        """Add to what was said by whom the question names, by the one who asks about themself, at a time it names."""
        top = max(scores.values(), default=0.0)
        words, own, spans = self._question.words, self._question.own, self._question.spans
        of_speaker = SEVERAL_OF_SPEAKER if self._question.several else of_speaker
        for entry in scores:
            known = facts[entry]
            if known.name is not None and known.kind == "message" and not words.isdisjoint(_names(known.name)):
                scores[entry] += of_speaker * top
            if own and known.role == "user" and known.kind == "message":
                scores[entry] += OF_ASKER * top
            if spans and any(span.since <= known.at < span.until for span in spans):
                scores[entry] += OF_TIME * top


def _sittings(entries: Iterable[int], facts: Mapping[int, Facts]) -> list[list[int]]:
    """The entries of each sitting, ascending."""
    sittings, sitting, last, next_session = list[list[int]](), list[int](), 0, 0
    for entry in sorted(entries):
        at = facts[entry].at
        if entry >= next_session or at - last > SITTING:
            sittings.append(sitting := [])
            next_session = (entry >> SEQ_BITS) + 1 << SEQ_BITS
        sitting.append(entry)
        last = at
    return sittings


def _add_sittings(scores: dict[int, float], sittings: Iterable[Sequence[int]]) -> None:
    """Add to each entry what the best three of its sitting have."""
    for sitting in sittings:
        more = OF_SITTING * sum(sorted([scores[entry] for entry in sitting])[-3:]) / 3
        for entry in sitting:
            scores[entry] += more


def _put_the_best_first(scores: dict[int, float], sittings: Iterable[Sequence[int]]) -> None:
    """Have all but the best entry of each sitting count less."""
    for sitting in sittings:
        best = max(sitting, key=lambda entry: (scores[entry], entry))
        scores.update((entry, SEVERAL_BEHIND * scores[entry]) for entry in sitting if entry != best)


def _runs(entries: Iterable[int], far: int) -> list[list[int]]:
    """First and end of the runs of what is no further than `far` from one of these entries, which ascend."""
    runs: list[list[int]] = []
    for entry in entries:
        if runs and entry - far <= runs[-1][1]:
            runs[-1][1] = entry + far + 1
        else:
            runs.append([entry - far, entry + far + 1])
    return runs


def _within(found: Mapping[int, float], runs: Sequence[tuple[int, int]]) -> list[int]:
    """The keys that are in one of these runs, ascending."""
    keys, within, at = sorted(found), list[int](), 0
    for low, high in runs:
        at = bisect_left(keys, low, at)
        begin, at = at, bisect_left(keys, high, at)
        within += keys[begin:at]
    return within


def _worth(asked: Asked) -> float:
    """What a term adds at most to the score of an entry."""
    return asked.weight / asked.scale() * (SATURATION + 1)


def named_by(facts: Iterable[Facts]) -> frozenset[str]:
    """Return the terms of the names of those who said what these facts are of."""
    return frozenset[str]().union(*{_names(one.name) for one in facts if one.name and one.kind == "message"})


@lru_cache(maxsize=1024)
def _names(name: str) -> frozenset[str]:
    return frozenset(terms(name))
