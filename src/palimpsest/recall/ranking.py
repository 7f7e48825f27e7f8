"""Order the entries that an index found by their own parts and by the entries around them. The same for all indexes;
pure.

An entry's score is how well its best part matches the question, plus a share of how well the entries around it do. That
share is added term by term and inside BM25's saturation, like the fields of BM25F (Robertson, Zaragoza and Taylor,
"Simple BM25 extension to multiple weighted fields", 2004): a term that the entry has itself gains little from its
neighbours, and a term that only they have counts as if the entry had a little of it. Lengths count only in what an
index says of a part, so that long neighbours do not drown a short entry. The constants were chosen on half of LoCoMo
together with other conversations; see `bench/recall.py`.
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
"""Neighbours of an entry, by their distance, and what share they add to it: what was said before counts more than what
was said after."""

REACH = max(abs(place) for place, _ in AROUND)
"""How far the furthest neighbour is."""

SITTING = 6 * 3600 * 1_000_000
"""Microseconds. A longer pause between two entries ends a sitting; entries of another sitting are no neighbours."""

SATURATION = 0.4
"""BM25's k1 for the sum over neighbours. It is lower than an index's: whether something is said matters more than how
often."""

REST = 0.3
"""How much of a term counts that only other parts of the entry hold, and not its best one."""

LONG = 300
"""Characters. A longer entry adds less to its neighbours, in proportion, since most of it is about something else."""

OF_SITTING, OF_SPEAKER, OF_ASKER, OF_TIME = 0.1, 0.1, 0.1, 0.1
"""Shares of the best score that are added to an entry: for the best three entries of its sitting, for a speaker whom
the question names, for a user's own words if the question is about the person asking, and for a time that it
mentions."""

SEVERAL_OF_SPEAKER, SEVERAL_BEHIND = 0.25, 0.9
"""Used if the question asks for several things: the share for a named speaker (instead of `OF_SPEAKER`), and the factor
for all but the best entry of a sitting, so that more sittings appear among the first results."""

CANDIDATES = 28
"""How many entries, those with the best parts, are scored together with their neighbours."""

NOTHING = 1e-3
"""Terms that together add less than this share of the last candidate's score are not looked up for neighbours. A word
that half of all parts hold is such a term, if other words were asked for, too."""

_SEQ, _PART = (1 << SEQ_BITS) - 1, (1 << PART_BITS) - 1


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What ranking knows of an entry besides its terms: `chars` of its text, and `at`, in microseconds since 1970."""

    at: int
    kind: Kind
    role: Role
    chars: int
    name: str | None = None


class Ranked(msgspec.Struct, frozen=True, gc=False):
    """A found entry: where it is, its score (comparable only within one result), and the number of its best part."""

    session_number: int
    seq: int
    score: float
    part: int


class Ranking:
    """Orders what an index found, in two steps: `wanted` lists the entries whose facts `ranked` needs."""

    def __init__(
        self,
        question: Question,
        matches: Matches,
        *,
        candidates: int = CANDIDATES,
        among: Container[int] | None = None,
    ) -> None:
        """Choose the candidates: the entries with the best parts.

        Args:
            question: What was asked.
            matches: What an index found for each of its terms, in the same order.
            candidates: How many entries are scored together with their neighbours. With a filter, which drops some of
                them, more are needed.
            among: Entries the best of which become candidates, too, even if others are better.
        """
        self._question = question
        rows = zip(question.terms, question.weights, matches, strict=True)
        asked = self._asked = [Asked(term, weight, found) for term, weight, found in rows if found]
        asked.sort(key=lambda term: -term.most)
        best = best_entries(asked, candidates)
        least = best[-1][0] if len(best) == candidates and among is None else 0.0
        if among is not None:
            allowed = [narrowed for term in asked if (narrowed := term.among(among)) is not None]
            best += best_entries(sorted(allowed, key=lambda term: -term.most), candidates)
        top = sorted({entry for _, entry in best})
        self._to_score = set[int]().union(*(range(low, high) for low, high in _runs(top, REACH)))  # entries
        self._term_worths: list[float] = []  # of each term that was taken
        self._part_scores = defaultdict[int, float](float)  # by the key of the part
        self._amounts: dict[int, dict[int, float]] = {}  # by entry and index of the term
        reach = [(low << PART_BITS, high << PART_BITS) for low, high in _runs(top, 2 * REACH)]
        for i, term in enumerate(asked):
            if sum(later.most for later in asked[i:]) > NOTHING * least:
                self._take(term, reach)
        self._best, self._multi_part = self._best_parts()

    def _take(self, asked: Asked, reach: Sequence[tuple[int, int]]) -> None:
        """Record how often each part within reach has the next term, corrected for its length.

        The index gives BM25 scores; this undoes BM25's formula. The term's weight is unknown, but in a part of usual
        length that has the term once the rest of the formula is 1, and most parts are such. Of an entry's parts, the
        one that has the term most often counts.
        """
        scores, term = asked.found, len(self._term_worths)
        scale, worth = asked.scale(), _worth(asked)
        self._term_worths.append(worth)
        part_scores, amounts, cached = self._part_scores, self._amounts, dict[float, tuple[float, float]]()
        for key in _within(scores, reach):
            score = scores[key]
            if score not in cached:
                gain = score * scale
                amount = K1 * gain / (K1 + 1 - gain) if gain < 2.0 else K1 * 2.0 / (K1 - 1)
                cached[score] = amount, worth * amount / (amount + SATURATION)
            amount, added = cached[score]
            part_scores[key] += added
            entry_amounts = amounts.get(key >> PART_BITS)
            if entry_amounts is None:
                amounts[key >> PART_BITS] = {term: amount}
            elif amount > entry_amounts.get(term, 0.0):
                entry_amounts[term] = amount

    def _best_parts(self) -> tuple[dict[int, int], set[int]]:
        """Return the key of each entry's best part, of equal ones the first, and the entries of which several parts
        match."""
        best, multi_part = dict[int, int](), set[int]()
        for key, score in self._part_scores.items():
            entry = key >> PART_BITS
            best_key = best.setdefault(entry, key)
            if best_key == key:
                continue
            multi_part.add(entry)
            best_score = self._part_scores[best_key]
            if score > best_score or (score == best_score and key < best_key):
                best[entry] = key
        return best, multi_part

    @property
    def wanted(self) -> list[int]:
        """The entries whose facts are needed, as `session number << 28 | seq`, ascending; some may not exist."""
        return sorted(self._to_score.union(self._amounts))

    @property
    def whole(self) -> float:
        """The score of an entry that repeats every word of the question that is said anywhere."""
        return sum(_worth(term) for term in self._asked if " " not in term.term)

    def ranked(
        self, facts: Mapping[int, Facts], *, limit: int = 100, only: Callable[[Facts], bool] | None = None
    ) -> list[Ranked]:
        """Return the entries, best first; of equal ones the newest first.

        Args:
            facts: The facts of `wanted`, by the same numbers. An entry without facts is left out, and is no neighbour.
            limit: How many at most.
            only: Which entries may be returned. The others still count for their neighbours.
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
        """Return entries by their scores, to which shares for sitting, speaker and time are added, like `ranked`.

        Args:
            scores: The scores of `scores`, or others. They are changed.
            facts: The facts of all these entries.
            parts: The best part of each entry that was found by its meaning.
            of_speaker: The share for a speaker whom the question names, unless it asks for several things.
            limit: As for `ranked`.
            only: As for `ranked`.
        """
        sittings = _sittings(scores, facts)
        _add_sittings(scores, sittings)
        self._add_who_and_when(scores, facts, of_speaker)
        if self._question.several:
            _put_the_best_first(scores, sittings)
        scored = [(score, entry) for entry, score in scores.items() if score > 0 or entry in parts]
        kept = [(score, entry) for score, entry in scored if only is None or only(facts[entry])]
        return [
            Ranked(entry >> SEQ_BITS, entry & _SEQ, score, self._best.get(entry, parts.get(entry, 0)) & _PART)
            for score, entry in sorted(kept, reverse=True)[:limit]
        ]

    def scores(self, facts: Mapping[int, Facts]) -> dict[int, float]:
        """Return the score of each entry, neighbours included, before any share for sitting, speaker or time is added.

        Args:
            facts: The facts of `wanted`, as for `ranked`. Terms that only other parts than the best hold count less.
        """
        scores = dict.fromkeys(self._to_score & facts.keys(), 0.0)
        for worth, amounts in zip(self._term_worths, self._spread(scores, facts), strict=True):
            for entry, amount in amounts.items():
                scores[entry] += worth * amount / (amount + SATURATION)
        for entry in self._multi_part & scores.keys():
            every = sum(
                self._term_worths[term] * amount / (amount + SATURATION)
                for term, amount in self._amounts[entry].items()
            )
            scores[entry] -= (1 - REST) * (every - self._part_scores[self._best[entry]])
        return scores

    def _spread(self, scored: Container[int], facts: Mapping[int, Facts]) -> list[defaultdict[int, float]]:
        """Return how much of each term these entries have, with the shares of their neighbours in the same sitting.

        Neighbours are found by number. Between the numbers of two sessions some belong to no entry, so the sessions
        never mix.
        """
        spread = [defaultdict[int, float](float) for _ in self._term_worths]
        for entry, amounts_by_term in self._amounts.items():
            own_facts = facts.get(entry)
            if own_facts is None:
                continue
            at, weight = own_facts.at, 1.0 if own_facts.chars <= LONG else LONG / own_facts.chars
            near = [(entry, 1.0)] if entry in scored else []
            for distance, share in AROUND:
                neighbour = entry - distance
                if neighbour in scored and -SITTING <= facts[neighbour].at - at <= SITTING:
                    near.append((neighbour, share * weight))
            for term, amount in amounts_by_term.items():
                amounts = spread[term]
                for neighbour, share in near:
                    amounts[neighbour] += share * amount
        return spread

    def _add_who_and_when(self, scores: dict[int, float], facts: Mapping[int, Facts], of_speaker: float) -> None:
        """Add the shares for a named speaker, for a user who asks about themself, and for a time that is mentioned."""
        top = max(scores.values(), default=0.0)
        words, own, spans = self._question.words, self._question.own, self._question.spans
        of_speaker = SEVERAL_OF_SPEAKER if self._question.several else of_speaker
        for entry in scores:
            entry_facts = facts[entry]
            if (
                entry_facts.name is not None
                and entry_facts.kind == "message"
                and not words.isdisjoint(_names(entry_facts.name))
            ):
                scores[entry] += of_speaker * top
            if own and entry_facts.role == "user" and entry_facts.kind == "message":
                scores[entry] += OF_ASKER * top
            if spans and any(span.since <= entry_facts.at < span.until for span in spans):
                scores[entry] += OF_TIME * top


def _sittings(entries: Iterable[int], facts: Mapping[int, Facts]) -> list[list[int]]:
    """Return the entries of each sitting, ascending."""
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
    """Add to each entry a share of the best three scores in its sitting."""
    for sitting in sittings:
        share = OF_SITTING * sum(sorted([scores[entry] for entry in sitting])[-3:]) / 3
        for entry in sitting:
            scores[entry] += share


def _put_the_best_first(scores: dict[int, float], sittings: Iterable[Sequence[int]]) -> None:
    """Lower the scores of all but the best entry of each sitting."""
    for sitting in sittings:
        best = max(sitting, key=lambda entry: (scores[entry], entry))
        scores.update((entry, SEVERAL_BEHIND * scores[entry]) for entry in sitting if entry != best)


def _runs(entries: Iterable[int], far: int) -> list[list[int]]:
    """Return start and end (excluded) of each run of numbers that are at most `far` from an entry. Entries ascend."""
    runs: list[list[int]] = []
    for entry in entries:
        if runs and entry - far <= runs[-1][1]:
            runs[-1][1] = entry + far + 1
        else:
            runs.append([entry - far, entry + far + 1])
    return runs


def _within(found: Mapping[int, float], runs: Sequence[tuple[int, int]]) -> list[int]:
    """Return the keys that are inside one of these runs, ascending."""
    keys, inside, at = sorted(found), list[int](), 0
    for low, high in runs:
        at = bisect_left(keys, low, at)
        begin, at = at, bisect_left(keys, high, at)
        inside += keys[begin:at]
    return inside


def _worth(asked: Asked) -> float:
    """Return what a term adds at most to the score of an entry."""
    return asked.weight / asked.scale() * (SATURATION + 1)


def named_by(facts: Iterable[Facts]) -> frozenset[str]:
    """Return the terms of the speakers' names in these facts."""
    return frozenset[str]().union(*{_names(entry.name) for entry in facts if entry.name and entry.kind == "message"})


@lru_cache(maxsize=1024)
def _names(name: str) -> frozenset[str]:
    return frozenset(terms(name))
