"""A slow and simple reference for `palimpsest.summaries.mentions`: reads what a text mentions token by token."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from palimpsest.summaries.identifiers import COMMON, ENDS, LONGEST, POSSESSIVE, TOKEN, identifying, phrase, quoted
from palimpsest.summaries.mentions import Term

TOKENS = re.compile(TOKEN)
BREAKS = frozenset('.!?:;"“”„«»…*•—\u2013\n\r(){}[]<>|')
JOINING = frozenset(("of", "de", "da", "del", "della", "der", "den", "di", "du", "la", "le", "van", "von", "y"))
INSIDE = re.compile(r"(?<=\w)['\u2019-](?=\w)")
NO_NAME = re.compile(r"(?:ing|ly|ed|['\u2019](?:ve|re|ll|d|m|t))$")
WORDS = 8
Spans = list[tuple[int, int]]


def identifiers(text: str) -> tuple[str, ...]:
    """Return the identifiers in a text, each once."""
    return tuple(dict.fromkeys(found.text for found in merged(identified(text, tokens(text)))))


def mentions(text: str) -> list[Term]:
    """Return every mention of a term in a text, in order."""
    spans = tokens(text)
    found = list(names(text, spans))
    lower = {text[first:last].rstrip(ENDS) for first, last in spans if text[first].islower()}
    found = [name for name in found if name.sure or name.text.lower() not in lower]
    return merged((*identified(text, spans), *found))


def tokens(text: str) -> Spans:
    return [match.span() for match in TOKENS.finditer(text)]


def merged(found: Iterable[Term]) -> list[Term]:
    """Return the terms in order, without those that overlap a longer one before them."""
    kept: list[Term] = []
    end = -1
    for term in sorted(found, key=lambda term: (term.start, -len(term.text))):
        if term.start + len(term.text) > end:
            kept.append(term)
            end = term.start + len(term.text)
    return kept


def identified(text: str, spans: Spans) -> Iterator[Term]:
    """Yield the identifiers; they may overlap each other."""
    before = 0
    for first, last in spans:
        token = text[first:last]
        if not token.isalpha() or not (token.islower() or token.istitle()):
            yield from (Term(words, first + at, identifier=True) for at, words in identifying(token))
        if last - first <= LONGEST and any(map(str.isdigit, token)):
            for start in (before, first + len(token) - len(token.lstrip("':*\u2019&~-"))):
                if words := phrase(text, start):
                    yield Term(words, start, identifier=True)
        before = first if last - first <= LONGEST else last
    yield from (Term(words, at, identifier=True) for at, words in quoted(text))


def names(text: str, spans: Spans) -> Iterator[Term]:
    """Yield the names in a text: runs of capitalised words, without common words at their ends."""
    run: list[tuple[str, int, bool]] = []
    before = 0
    for first, last in spans:
        token, gap = text[first:last], text[before - 1 : first] if before else "\n"
        before = last
        if run and (gap[1:] != " " or gap[0] in BREAKS or len(run) == WORDS):
            yield from named(run)
            run = []
        if run and token in JOINING:
            run.append((token, first, False))
            continue
        word = POSSESSIVE.sub("", token.rstrip(ENDS).lstrip("'\u2019*"))
        opens = bool(run) or word.lower() not in COMMON or word in ("New", word.lower(), word.upper())
        if word[:1].isupper() and INSIDE.sub("", word).isalpha() and opens:
            run.append((word, first + token.index(word), not BREAKS.isdisjoint(gap)))
            if word == token:
                continue
        if run:
            yield from named(run)
            run = []
    yield from named(run)


def named(run: list[tuple[str, int, bool]]) -> Iterator[Term]:
    """Yield the name that a run of words forms, if any."""
    first, last = 0, len(run)
    while first < last and is_small(run[first][0]):
        if run[first][0] == "New" and first + 1 < last and run[first + 1][0][0].isupper():
            break
        first += 1
    while last > first and is_small(run[last - 1][0]):
        last -= 1
    name = " ".join(word for word, _, _ in run[first:last])
    if not 1 < len(name) <= LONGEST:
        return
    begins = last - first == 1 and run[first][2]
    if not (begins and NO_NAME.search(name)):
        yield Term(name, run[first][1], identifier=False, sure=not begins)


def is_small(word: str) -> bool:
    return word[0].islower() or word.lower().replace("\u2019", "'") in COMMON
