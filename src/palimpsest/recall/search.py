"""From a query to the places of entries: what an index answers, ranked. Also the words of a passage to highlight."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from heapq import nlargest
from typing import Any

import msgspec

from palimpsest.recall.analysis import EMOJI, UNSPACED
from palimpsest.recall.analysis import terms as terms_of
from palimpsest.recall.english import QUESTION_WORDS
from palimpsest.recall.fusion import BY_WORDS, Meaning
from palimpsest.recall.index import COMMON, RANGES, Filter, Index, spoken
from palimpsest.recall.postings import PART_BITS, SEQ_BITS
from palimpsest.recall.questions import PAIR, Question
from palimpsest.recall.ranking import CANDIDATES, Facts, Ranking, named_by

NARROW = 10
"""With a filter, this many times as many candidates are looked at, because it leaves some of them out."""

EVERY = 1_000_000
"""If a filter leaves out nearly all candidates, this many parts that hold a common word are searched, the newest
first."""


Apart = Callable[..., Awaitable[Any]]
"""Runs a function that takes long without holding up an event loop, and returns its result: `Store.apart`."""

Nearest = Callable[[frozenset[str], Collection[int] | None], Awaitable[Mapping[int, float]]]
"""Given names to leave out of the question, and places of entries (or None), returns the cosines of the parts nearest
to the question and of the nearest parts of these entries, by key: `Embedding.nearest`."""

Takes = Callable[[Facts], bool]
"""Whether a search may return an entry with these facts."""


class Hit(msgspec.Struct, frozen=True, gc=False):
    """An entry that answers a question.

    `number` is its session's; `part` is its best part; `score` is relative to the best hit, which has 1.
    """

    number: int
    seq: int
    score: float
    part: int


async def search(
    index: Index,
    question: Question,
    numbers: Sequence[int] | None,
    only: Filter | None,
    limit: int,
    apart: Apart,
    nearest: Nearest | None = None,
) -> list[Hit]:
    """Return the entries that answer a question best, at most `limit`, best first.

    Args:
        index: the tenant's index.
        question: what is asked.
        numbers: the sessions to search; None: all.
        only: which entries may be returned; None: all.
        limit: how many entries at most.
        apart: runs what takes long.
        nearest: finds parts by meaning, given the terms of speakers' names; None: only words count.
    """
    candidates = max(CANDIDATES if nearest is None else BY_WORDS, limit) * (NARROW if only is not None else 1)
    matches = await _matches(index, question, numbers)
    ranking, wanted = await apart(_start, question, matches, candidates)
    facts, takes = await index.facts(wanted), only.takes if only is not None else None
    cosines, places = dict[int, float](), list[int]()
    if nearest is not None:
        places = await index.places(only, numbers) if only is not None else places
        cosines |= await nearest(question.words & named_by(facts.values()), None if only is None else places)
    hits = await _ranked(index, ranking, facts, cosines, takes, limit, apart)
    if only is None or len(hits) >= limit or sum(map(len, matches)) <= candidates:
        return hits
    # The filter left too few of the candidates: take them again from the entries that it allows.
    allowed = set(places if nearest is not None else await index.places(only, numbers))
    if not allowed:
        return hits
    widened = [
        await _widened(index, term, term_matches, numbers, allowed, candidates, apart)
        for term, term_matches in zip(question.terms, matches, strict=True)
    ]
    entries = set[int]().union(*(places for _, places in widened))
    ranking, wanted = await apart(_start, question, [term_matches for term_matches, _ in widened], candidates, entries)
    return await _ranked(index, ranking, await index.facts(wanted), cosines, takes, limit, apart)


async def _widened(
    index: Index,
    term: str,
    found: Mapping[int, float],
    numbers: Sequence[int] | None,
    allowed: set[int],
    most: int,
    apart: Apart,
) -> tuple[Mapping[int, float], set[int]]:
    """Return the parts that hold a term, and which of the allowed entries they belong to.

    `found` is what a first search had of the term. For a common term, the newest `most` parts of allowed entries are
    added to it.
    """
    if len(found) < COMMON:
        return found, {key >> PART_BITS for key in found} & allowed
    sessions = {place >> SEQ_BITS for place in allowed}
    (every,) = await index.matches([spoken(term)], sorted(sessions) if len(sessions) <= RANGES else numbers, EVERY)
    newest: list[int] = await apart(_newest, every, allowed, most)
    return {**found, **{key: every[key] for key in newest}}, {key >> PART_BITS for key in newest}


def _newest(keys: Iterable[int], allowed: set[int], most: int) -> list[int]:
    return nlargest(most, [key for key in keys if key >> PART_BITS in allowed])


def _start(
    question: Question, matches: Sequence[Mapping[int, float]], candidates: int, among: Container[int] | None = None
) -> tuple[Ranking, list[int]]:
    """Return a ranking, and the entries whose facts it needs."""
    ranking = Ranking(question, matches, candidates=candidates, among=among)
    return ranking, ranking.wanted


async def _ranked(
    index: Index,
    ranking: Ranking,
    facts: dict[int, Facts],
    near: Mapping[int, float],
    takes: Takes | None,
    limit: int,
    apart: Apart,
) -> list[Hit]:
    """Return the hits in order, with those that are near in meaning, if any."""
    meaning = Meaning(near) if near else None
    if meaning is not None:
        facts |= await index.facts([entry for entry in meaning.wanted if entry not in facts])
    hits: list[Hit] = await apart(_hits, ranking, facts, takes, limit, meaning)
    return hits


def _hits(
    ranking: Ranking,
    facts: Mapping[int, Facts],
    takes: Takes | None,
    limit: int,
    meaning: Meaning | None,
) -> list[Hit]:
    """Return the hits in order, with scores relative to the best."""
    if meaning is None:
        ranked = ranking.ranked(facts, limit=limit, only=takes)
    else:
        ranked = meaning.joined(ranking, facts, limit=limit, only=takes)
    top = max((entry.score for entry in ranked), default=0.0) or 1.0  # behind a filter all scores may be 0
    return [Hit(entry.session_number, entry.seq, entry.score / top, entry.part) for entry in ranked]


async def _matches(index: Index, question: Question, numbers: Sequence[int] | None) -> list[Mapping[int, float]]:
    """Return the matches of each term of the question.

    When all sessions are searched, a pair of common words that stand side by side is not looked for: it takes long and
    tells little. A phrase whose silent words leave a single word matches nothing: it is no phrase any more.
    """
    terms = [spoken(term) for term in question.terms]
    weights = zip(terms, question.weights, strict=True)
    pairs = {term for term, weight in weights if " " in term and weight <= PAIR} if numbers is None else set[str]()
    asked_first = list(dict.fromkeys(term for term in terms if term and term not in pairs))
    matches_by_term = dict(zip(asked_first, await index.matches(asked_first, numbers), strict=True))
    pairs_left = [pair for pair in pairs if any(len(matches_by_term.get(word, ())) < COMMON for word in pair.split())]
    matches_by_term |= (
        dict(zip(pairs_left, await index.matches(pairs_left, numbers), strict=True)) if pairs_left else {}
    )
    is_intact = (" " in term or " " not in given_term for term, given_term in zip(terms, question.terms, strict=True))
    return [matches_by_term.get(term, {}) if intact else {} for term, intact in zip(terms, is_intact, strict=True)]


def unnamed(text: str, names: frozenset[str]) -> str:
    """Return a question without speakers' names, to compare it by meaning.

    A speaker's name is part of all that they say, so it says nothing about what that means. A question that has nothing
    else to say is returned unchanged.

    Args:
        text: the question.
        names: the terms of the names.
    """
    if not names:
        return text
    without_names = _WORD.sub(lambda word: "" if frozenset() < _terms_of(word[0]) <= names else word[0], text)
    says_more = any(word[0].lower() not in QUESTION_WORDS for word in _WORD.finditer(without_names))
    return " ".join(without_names.split()) if says_more else text


def highlighted(text: str, terms: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return where the words that a query asked for stand in a text: start and end of each, in characters.

    Args:
        text: a passage.
        terms: the terms of the query.
    """
    wanted = {piece for term in terms for piece in term.split()}
    words = (match for match in _WORD.finditer(text) if not wanted.isdisjoint(_terms_of(match[0])))
    return tuple(span for word in words for span in _asked_of(word, wanted))


def _asked_of(word: re.Match[str], wanted: Collection[str]) -> list[tuple[int, int]]:
    """Return the span of a word; in a sentence written without blanks, the spans of the letters that were asked for."""
    spans: list[tuple[int, int]] = []
    for run in UNSPACED.finditer(word[0]):
        letters = run[0]
        for i in range(len(letters)):
            pair = next((letters[i : i + size] for size in (2, 1) if letters[i : i + size] in wanted), "")
            start = word.start() + run.start() + i
            if pair and spans and spans[-1][1] >= start:
                spans[-1] = spans[-1][0], max(spans[-1][1], start + len(pair))
            elif pair:
                spans.append((start, start + len(pair)))
    return spans or [word.span()]


# A word: letters with their marks (in some scripts `re` takes marks for no letters) and invisible characters between
# them (soft hyphens, joiners). An emoji is a word, and 1,299 is one number.
_UNSEEN = "\xad\u200b-\u200d\u2060"
_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u065f\u0900-\u109f\u1780-\u17ff"
_LETTERS = rf"[\w{_MARKS}{_UNSEEN}]+"
_WORD = re.compile(rf"{_LETTERS}(?:(?<=\d),(?=\d{{3}}(?!\d)){_LETTERS})*(?:['\u2019]\w+)?|[{EMOJI}]")


@lru_cache(10_000)
def _terms_of(word: str) -> frozenset[str]:
    return frozenset(terms_of(word))
