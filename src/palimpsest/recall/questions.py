"""What a question asks an index for: terms with weights, phrases, who and when it is about. Pure.

A question is data: nothing in it is syntax. What stands in quotes is a phrase; `max_retry_count`, paths, versions and
the like are phrases of their pieces; words that stand side by side count more where they do so in a text, too.
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
"""Weights beside a word's 1: of a phrase, of two words that stand side by side, of a day or month that is spoken of."""

MOST_TERMS = 32
"""Terms of a question that are asked; of a longer one the first and the last: what somebody wants of a text that they
give stands before it, or behind."""

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
    """What is asked: `terms` (one with spaces is a phrase) with a weight each, and what it says of who and when.

    `words` are the terms of all its words, by which a speaker's name is known; `own` says that the one who asks means
    themself; `several` that more than one thing is asked for, said on several days perhaps; `spans` are the times that
    it speaks of.
    """

    terms: tuple[str, ...]
    weights: tuple[float, ...]
    words: frozenset[str] = frozenset()
    own: bool = False
    several: bool = False
    spans: tuple[Span, ...] = ()


def question(text: str, now: int | None = None) -> Question:
    """Return what a question asks for; no terms where it has neither letters nor digits.

    Args:
        text: The question, in any language. Beyond 10,000 characters it is not read.
        now: When it is asked, in microseconds since 1970, for dates and times in it; None leaves them words.
    """
    text = text[:_LONGEST]
    every: list[str] = []
    about: list[str] = []
    pairs: list[str] = []
    said = words(text)
    last = ""
    for word in said:
        found = terms_of_word(word)
        every += found
        if word.lower() in QUESTION_WORDS:
            last = ""
            continue
        about += found
        if last:
            pairs.append(f"{last} {found[0]}")
        last = found[-1]
    weights = dict.fromkeys(_first_and_last(about or every, MOST_TERMS), 1.0)
    _add(weights, _first_and_last(pairs, MOST_TERMS // 2), PAIR)
    _add(weights, _phrases(text), PHRASE)
    times = spans(text, now)[:4] if now is not None else []
    for span in times:
        _add(weights, _dates(span), DAY)
    own = bool(_FIRST_PERSON.search(text))
    several = _asks_for_several([word.lower() for word in said])
    return Question(tuple(weights), tuple(weights.values()), frozenset(every), own, several, tuple(times))


def _first_and_last(said: Sequence[str], most: int) -> list[str]:
    """Each of these once: where there are more than so many, the half of that which comes first, and the last ones."""
    every = list(dict.fromkeys(said))
    if len(every) <= most:
        return every
    first = every[: most // 2]
    last = list(dict.fromkeys(term for term in reversed(said) if term not in first))
    return [*first, *reversed(last[: most - len(first)])]


def _asks_for_several(said: Sequence[str]) -> bool:
    """Whether more than one thing is asked for, in English: "how many", "which books did", "what has she"."""
    for i, asking in enumerate(said):
        if asking == "how" and not _MANY.isdisjoint(said[i + 1 : i + 2]):
            return True
        behind = said[i + 1 : i + 7]
        verb = next((j for j, word in enumerate(behind) if word in _AUXILIARY or word in _SINGULAR), None)
        if verb is None or behind[verb] in _SINGULAR:
            continue
        noun = behind[verb - 1] if verb and asking in ("what", "which") else ""
        if noun.endswith("s") and not noun.endswith("ss"):
            return True
        if asking in ("what", "which", "who", "where", "how") and behind[verb] in _HAVE:
            return behind[0] != "long"
    return False


def _dates(span: Span) -> Sequence[str]:
    """The terms of the days of a week or less, of the months of a quarter or less, of nothing longer."""
    if span.until - span.since > _QUARTER:
        return []
    days = list(days_of(span))
    if len(days) <= 8:
        return [date_terms(day)[1] for day in days]
    return list(dict.fromkeys(date_terms(day)[0] for day in days))


def _phrases(text: str) -> list[str]:
    """What stands in quotes, and identifiers of several pieces."""
    quoted = [next(filter(None, found.groups())) for found in _QUOTED.finditer(text)]
    named = [found[0] for found in _IDENTIFIER.finditer(text)]
    joined = [" ".join(terms(each)[:16]) for each in (*quoted, *named)]
    return [phrase for phrase in joined if " " in phrase][:8]


def _add(weights: dict[str, float], phrases: Sequence[str], weight: float) -> None:
    for phrase in phrases:
        weights[phrase] = max(weight, weights.get(phrase, 0.0))
