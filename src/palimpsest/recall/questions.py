"""What a question asks an index for: terms with weights, phrases, and the people and times it is about. Pure.

A question is data; nothing in it is query syntax. Quoted text is a phrase. `max_retry_count`, paths, versions and the
like are phrases of their pieces. Two words that stand side by side count more where they also do so in a text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from palimpsest.recall.analysis import terms, terms_of_word, words
from palimpsest.recall.dates import Span, days_of, spans
from palimpsest.recall.english import QUESTION_WORDS
from palimpsest.recall.parts import date_terms

PHRASE, PAIR, DAY = 1.0, 0.3, 1.0
"""Weights, where a word has 1: of a phrase, of two words that stand side by side, and of a day or month that is
mentioned."""

MOST_TERMS = 32
"""How many terms of a question are searched for. Of a longer one these are the first and the last: when somebody pastes
a text, what they want to know about it stands before or behind it."""

_QUOTED = re.compile(r"\"([^\"\n]{2,200})\"|“([^”\n]{2,200})”|`([^`\n]{2,200})`|«([^»\n]{2,200})»")
_IDENTIFIER = re.compile(r"[^\W_]{1,64}+(?>(?:[_./:@#\\-]{1,2}+[^\W_]{1,64}+)+)")
_FIRST_PERSON = re.compile(r"(?<![\w'])(?:I|[Mm]y|[Mm]e|[Mm]ine|I'(?:m|ve|d|ll))(?![\w'])")
_MANY = frozenset(("many", "often"))
_SINGULAR = frozenset(("is", "was"))
_HAVE = frozenset(("has", "have"))
_AUXILIARY = _HAVE | {"are", "can", "could", "did", "do", "does", "had", "might", "should", "were", "will", "would"}
_LONGEST = 10_000
_QUARTER = 92 * 24 * 3600 * 1_000_000


class Question(msgspec.Struct, frozen=True, gc=False):
    """What is asked.

    `terms` (one with spaces is a phrase) each have a weight. `words` are the terms of all words of the question, to
    recognise a speaker's name. `own` says that the person who asks means themself, `several` that more than one thing
    is asked for, which may have been said on different days. `spans` are the times that it mentions.
    """

    terms: tuple[str, ...]
    weights: tuple[float, ...]
    words: frozenset[str] = frozenset()
    own: bool = False
    several: bool = False
    spans: tuple[Span, ...] = ()


def question(text: str, now: int | None = None) -> Question:
    """Return what a question asks for; without terms if it has neither letters nor digits.

    Args:
        text: The question, in any language. Only its first 10,000 characters are read.
        now: When it is asked, in microseconds since 1970, to resolve dates and times in it. With None they are plain
            words.
    """
    text = text[:_LONGEST]
    all_terms: list[str] = []
    about: list[str] = []
    pairs: list[str] = []
    asked = words(text)
    last = ""
    for word in asked:
        found_terms = terms_of_word(word)
        all_terms += found_terms
        if word.lower() in QUESTION_WORDS:
            last = ""
            continue
        about += found_terms
        if last:
            pairs.append(f"{last} {found_terms[0]}")
        last = found_terms[-1]
    weights = dict.fromkeys(_first_and_last(about or all_terms, MOST_TERMS), 1.0)
    _add(weights, _first_and_last(pairs, MOST_TERMS // 2), PAIR)
    _add(weights, _phrases(text), PHRASE)
    mentioned = spans(text, now)[:4] if now is not None else []
    for span in mentioned:
        _add(weights, _dates(span), DAY)
    own = bool(_FIRST_PERSON.search(text))
    several = _asks_for_several([word.lower() for word in asked])
    return Question(tuple(weights), tuple(weights.values()), frozenset(all_terms), own, several, tuple(mentioned))


def _first_and_last(given: Sequence[str], most: int) -> list[str]:
    """Return these terms, each once.

    If there are more than `most`, return the first half of that number and the last ones.
    """
    every = list(dict.fromkeys(given))
    if len(every) <= most:
        return every
    first = every[: most // 2]
    tail = list(dict.fromkeys(term for term in reversed(given) if term not in first))
    return [*first, *reversed(tail[: most - len(first)])]


def _asks_for_several(lowered: Sequence[str]) -> bool:
    """Return whether an English question asks for several things: "how many", "which books did", "what has she"."""
    for i, asking in enumerate(lowered):
        if asking == "how" and not _MANY.isdisjoint(lowered[i + 1 : i + 2]):
            return True
        following = lowered[i + 1 : i + 7]
        verb = next((j for j, word in enumerate(following) if word in _AUXILIARY or word in _SINGULAR), None)
        if verb is None or following[verb] in _SINGULAR:
            continue
        noun = following[verb - 1] if verb and asking in ("what", "which") else ""
        if noun.endswith("s") and not noun.endswith("ss"):
            return True
        if asking in ("what", "which", "who", "where", "how") and following[verb] in _HAVE:
            return following[0] != "long"
    return False


def _dates(span: Span) -> Sequence[str]:
    """Return the terms of the days in a span of up to 8 days, of the months in one of up to a quarter, else none."""
    if span.until - span.since > _QUARTER:
        return []
    days = list(days_of(span))
    if len(days) <= 8:
        return [date_terms(day)[1] for day in days]
    return list(dict.fromkeys(date_terms(day)[0] for day in days))


def _phrases(text: str) -> list[str]:
    """Return quoted texts, and identifiers of several pieces, as phrases."""
    quoted = [next(filter(None, match.groups())) for match in _QUOTED.finditer(text)]
    named = [match[0] for match in _IDENTIFIER.finditer(text)]
    joined = [" ".join(terms(each)[:16]) for each in (*quoted, *named)]
    return [phrase for phrase in joined if " " in phrase][:8]


def _add(weights: dict[str, float], phrases: Sequence[str], weight: float) -> None:
    for phrase in phrases:
        weights[phrase] = max(weight, weights.get(phrase, 0.0))
