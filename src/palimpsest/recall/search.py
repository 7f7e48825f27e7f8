"""From a query to the places of entries: what an index answers, ranked. And which words of a text a query asked for."""

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
"""Times as many candidates are looked at where a filter leaves some out."""

EVERY = 1_000_000
"""Parts that hold a common word which are gone through, at most, where a filter leaves out nearly all of what is looked
at, the newest first."""


Apart = Callable[..., Awaitable[Any]]
"""Returns what a function returns of these arguments, without holding up an event loop: `Store.apart`."""

Nearest = Callable[[frozenset[str], Collection[int] | None], Awaitable[Mapping[int, float]]]
"""Returns the cosines of the parts nearest to a question without these names in it, and of the nearest of these
entries, by key: `Embedding.nearest`."""

Takes = Callable[[Facts], bool]
"""Whether an entry may answer."""


class Hit(msgspec.Struct, frozen=True, gc=False):
    """An entry that answers, by its session's number and its `seq`; its best part; and how well: 1 for the best."""

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
    """Return which entries answer a question best, at most `limit`, of these sessions (None: of all).

    Args:
        index: the tenant's.
        question: what is asked.
        numbers: of the sessions that are looked in; None: all.
        only: which entries may answer; None: all.
        limit: the most entries.
        apart: where what takes long is computed.
        nearest: what is near to it in meaning, but for the terms of speakers' names; None: only words count.
    """
    candidates = max(CANDIDATES if nearest is None else BY_WORDS, limit) * (NARROW if only is not None else 1)
    matches = await _matches(index, question, numbers)
    ranking, wanted = await apart(_begun, question, matches, candidates)
    facts, takes = await index.facts(wanted), only.takes if only is not None else None
    near, places = dict[int, float](), list[int]()
    if nearest is not None:
        places = await index.places(only, numbers) if only is not None else places
        near |= await nearest(question.words & named_by(facts.values()), None if only is None else places)
    hits = await _ranked(index, ranking, facts, near, takes, limit, apart)
    if only is None or len(hits) >= limit or sum(map(len, matches)) <= candidates:
        return hits
    taken = set(places if nearest is not None else await index.places(only, numbers))
    if not taken:
        return hits
    left = [
        await _left(index, term, found, numbers, taken, candidates, apart)
        for term, found in zip(question.terms, matches, strict=True)
    ]
    entries = set[int]().union(*(first for _, first in left))
    ranking, wanted = await apart(_begun, question, [found for found, _ in left], candidates, entries)
    return await _ranked(index, ranking, await index.facts(wanted), near, takes, limit, apart)


async def _left(
    index: Index,
    term: str,
    found: Mapping[int, float],
    numbers: Sequence[int] | None,
    taken: set[int],
    most: int,
    apart: Apart,
) -> tuple[Mapping[int, float], set[int]]:
    """The parts that hold a term, of a common one with the newest `most` that a filter has `taken` beside those that
    were found; and the entries of these that it has."""
    if len(found) < COMMON:
        return found, {key >> PART_BITS for key in found} & taken
    some = {place >> SEQ_BITS for place in taken}
    (every,) = await index.matches([spoken(term)], sorted(some) if len(some) <= RANGES else numbers, EVERY)
    newest: list[int] = await apart(_newest, every, taken, most)
    return {**found, **{key: every[key] for key in newest}}, {key >> PART_BITS for key in newest}


def _newest(keys: Iterable[int], taken: set[int], most: int) -> list[int]:
    return nlargest(most, [key for key in keys if key >> PART_BITS in taken])


def _begun(
    question: Question, matches: Sequence[Mapping[int, float]], candidates: int, among: Container[int] | None = None
) -> tuple[Ranking, list[int]]:
    """A ranking, and of which entries the facts are wanted."""
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
    """The entries in their order, with what is near in meaning."""
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
    if meaning is None:
        ranked = ranking.ranked(facts, limit=limit, only=takes)
    else:
        ranked = meaning.joined(ranking, facts, limit=limit, only=takes)
    top = max((one.score for one in ranked), default=0.0) or 1.0  # a filter may leave only what counts for nothing
    return [Hit(one.session_number, one.seq, one.score / top, one.part) for one in ranked]


async def _matches(index: Index, question: Question, numbers: Sequence[int] | None) -> list[Mapping[int, float]]:
    """What the index has of each term. Two common words side by side are not looked for in all sessions: that takes
    long, and tells little."""
    terms = [spoken(term) for term in question.terms]
    weights = zip(terms, question.weights, strict=True)
    pairs = {term for term, weight in weights if " " in term and weight <= PAIR} if numbers is None else set[str]()
    first = list(dict.fromkeys(term for term in terms if term and term not in pairs))
    found = dict(zip(first, await index.matches(first, numbers), strict=True))
    rest = [pair for pair in pairs if any(len(found.get(word, ())) < COMMON for word in pair.split())]
    found |= dict(zip(rest, await index.matches(rest, numbers), strict=True)) if rest else {}
    whole = (" " in term or " " not in asked for term, asked in zip(terms, question.terms, strict=True))
    return [found.get(term, {}) if same else {} for term, same in zip(terms, whole, strict=True)]


def unnamed(text: str, names: frozenset[str]) -> str:
    """Return a question without names, as it is compared in meaning: who speaks stands in, or beside, all that they
    say, and says nothing of what it means. One that says nothing else is returned as it is.

    Args:
        text: the question.
        names: their terms.
    """
    if not names:
        return text
    left = _WORD.sub(lambda word: "" if frozenset() < _terms_of(word[0]) <= names else word[0], text)
    says = any(word[0].lower() not in QUESTION_WORDS for word in _WORD.finditer(left))
    return " ".join(left.split()) if says else text


def highlighted(text: str, terms: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Return which words of a text a query asked for: first character and end of each.

    Args:
        text: a passage.
        terms: the query's.
    """
    wanted = {piece for term in terms for piece in term.split()}
    words = (found for found in _WORD.finditer(text) if not wanted.isdisjoint(_terms_of(found[0])))
    return tuple(span for word in words for span in _asked_of(word, wanted))


def _asked_of(word: re.Match[str], wanted: Collection[str]) -> list[tuple[int, int]]:
    """The word, or of a whole sentence without blanks the letters that were asked for."""
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


# Letters with their marks, which in some scripts are no letters to `re`, and what shows nothing between them (soft
# hyphens, joiners); an emoji is a word, and 1,299 one number.
_UNSEEN = "\xad\u200b-\u200d\u2060"
_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u065f\u0900-\u109f\u1780-\u17ff"
_LETTERS = rf"[\w{_MARKS}{_UNSEEN}]+"
_WORD = re.compile(rf"{_LETTERS}(?:(?<=\d),(?=\d{{3}}(?!\d)){_LETTERS})*(?:['\u2019]\w+)?|[{EMOJI}]")


@lru_cache(10_000)
def _terms_of(word: str) -> frozenset[str]:
    return frozenset(terms_of(word))
