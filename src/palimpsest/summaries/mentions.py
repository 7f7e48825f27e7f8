"""What a text mentions, found in one walk over the words worth a look. Pure.

One pattern skips words that neither name nor identify anything, as nearly all do, and stops at the others. It never
backtracks, so the time is linear in the length of any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from string import ascii_lowercase, digits
from typing import NamedTuple

import msgspec

from palimpsest.summaries.identifiers import (
    COMMON,
    ENDS,
    FOLLOWING,
    LONGEST,
    POSSESSIVE,
    SEPARATORS,
    TOKEN,
    identifying,
    phrase,
    quoted,
)

_JOINING = frozenset(("of", "de", "da", "del", "della", "der", "den", "di", "du", "la", "le", "van", "von", "y"))
_USUAL = frozenset(word.capitalize() for word in COMMON)
"""Nearly all capitalised words that are no names."""

_OPENINGS = _USUAL - {"New"}

_JOINS = frozenset(word[0] for word in _JOINING)
_ALONE = frozenset(ascii_lowercase + digits) - _JOINS
"""What the next word begins with if it does not continue a name."""

_JOINED = 50
"""More characters than small words between two others take."""

_QUOTES = "'\u2019"
_APART = frozenset("\"`<>(){}[],;|=“”„«»!?…—'\u2019")
"""What separates tokens, beside blanks."""

_BREAKS = frozenset('.!?:;"“”„«»…*•—\u2013\n\r(){}[]<>|')
_INSIDE = re.compile(r"(?<=\w)['\u2019-](?=\w)")
_WORDS = 8
"""Most words of a name."""

_NO_NAME = re.compile(r"(?:ing|ly|ed|['\u2019](?:ve|re|ll|d|m|t))$")
"""Ends of words that begin many sentences and few names."""

_FEW = 8
"""Most doubtful names that are searched in the text one by one. For more of them the words of the text are listed."""

_MONTHS = frozenset(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"])
"""What names of months begin with."""

_DIGITS = (  # including those that only `str.isdigit` recognises
    r"\d²³¹\u1369-\u1371\u19da\u2070\u2074-\u2079\u2080-\u2089\u2460-\u2468\u2474-\u247c\u2488-\u2490\u24ea\u24f5-\u24fd"
    r"\u24ff\u2776-\u277e\u2780-\u2788\u278a-\u2792\U00010a40-\U00010a43\U00010e60-\U00010e68\U00011052-\U0001105a"
    r"\U0001f100-\U0001f10a"
)
_END = rf"(?=[{SEPARATORS}'\u2019]|\Z)"
_WORD, _NUMBER, _AMOUNT = 1, 2, 3
_BETWEEN = r" \n\t,;!?\"()"
_NEXT = re.compile(
    rf"(?>(?:[a-z{_BETWEEN}]+(?<=[{_BETWEEN}])(?>(?:: )?)"  # whole words, what stands between them
    rf"|[a-z]++[.:][{_BETWEEN}]++"
    rf"|[{SEPARATORS}]++"
    rf"|[a-z](?>(?:[^{SEPARATORS}{_DIGITS}A-Z@#/\\_.:'\u2019]++|[.:](?![\w:])|(?<=\w)['\u2019](?=\w))*){_END}"
    rf"|(?>(?:[^\w{SEPARATORS}@#/\\'\u2019.:{_DIGITS}]|[.:](?![\w:]))+){_END}"  # signs
    r"|(?<!\w)['\u2019]|['\u2019](?!\w)"
    r")*)"
    rf"(?:([A-Z][a-z]*+)(?=[.:]?(?:[{SEPARATORS}]|\Z))"
    rf"|([0-9]++)(?!,[0-9]{{3}})(?=[{SEPARATORS}]|\Z)(?:(?={FOLLOWING})())?|({TOKEN})|\Z)"
)
_TOKEN = re.compile(TOKEN)


class Term(msgspec.Struct, frozen=True, gc=False):
    """Something that a text mentions: its words, where it begins, whether it is an identifier.

    A name that is not `sure` is capitalised, but may be only the first word of a sentence.
    """

    text: str
    start: int
    identifier: bool
    sure: bool = True


class _Token(NamedTuple):
    """A parsed token: identifiers and their places, whether it has digits, and a capitalised word with its place."""

    inside: tuple[tuple[int, str], ...]
    is_numbered: bool
    word: str
    place: int


Known = dict[str, _Token]
"""Tokens that were parsed before."""

_MOST_KNOWN = 4_096


def identifiers(text: str) -> tuple[str, ...]:
    """Return the identifiers of a text, each once, in the order of their first place.

    These are addresses, paths, file names, ids, versions, code names, handles, dates, times, amounts with their unit,
    numbers of at least two digits, and quoted texts of up to 60 characters. None is longer than 256 characters.
    """
    places, _, _ = _walk(text, {})
    return _once(_merged(places))


def terms(text: str) -> tuple[str, ...]:
    """Return identifiers and proper names, each once, in order. A name of several words is one term.

    The first word of a sentence counts as a name if it is not a common word and is nowhere in the text in lower case.
    """
    return _once(mentions(text))


def mentions(text: str, known: Known | None = None) -> list[Term]:
    """Return every mention of a term in a text, in order. `known` may be shared by many texts of one kind."""
    places, names, separate = _walk(text, {} if known is None else known)
    if names:
        places += _without_common(text, names, separate)
    return _merged(places)


def _once(mentioned: Iterable[Term]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(term.text for term in mentioned))


_Place = tuple[int, int, bool, str, bool]
"""Where a term begins, its negative length, whether it is only a name, its words, and whether it is sure."""

_Run = list[tuple[str, int]]
"""Capitalised words, and small ones between them, with the place of each."""


def _merged(places: list[_Place]) -> list[Term]:
    """Return the terms in order, without those inside of a longer one."""
    kept: list[Term] = []
    end = -1
    places.sort()
    for start, length, named, text, sure in places:
        if start - length > end:
            kept.append(Term(text, start, not named, sure))
            end = start - length
    return kept


def _walk(text: str, known: Known) -> tuple[list[_Place], list[_Place], bool]:
    """Return the identifiers of a text, which may overlap, its names, and whether all tokens are separate words."""
    places: list[_Place] = []
    names: list[_Place] = []
    run: _Run = []
    separate = True
    # The gap before the run, where the run ends, and where the last token began and ended.
    gap, run_end, last_start, last_end = (0, 0), 0, 0, 0
    for match in _NEXT.finditer(text):
        kind = match.lastindex
        if kind is None:
            break
        if kind == _WORD:
            word, last = match[_WORD], match.end()
            start = first = last - len(word)
            if not run and (word in _OPENINGS or text[last : last + 1] != " " or text[last + 1 : last + 2] in _ALONE):
                if word not in _USUAL:
                    _add_name(names, word, first, _begins(text, last_end, first))
                last_start, last_end = first, last
                continue
        elif kind <= _AMOUNT:
            word, number = "", match[_NUMBER]
            first, last = match.span(_NUMBER)
            start = first
            if 1 < last - first <= LONGEST:  # inlined, since plain numbers are frequent
                places.append((first, first - last, False, number, True))
            if kind == _AMOUNT or text[last_start : last_start + 3] in _MONTHS:
                _add_phrases(places, text, last_start, first, number)
        else:
            token = match[kind]
            first, last = match.span(kind)
            parsed = known.get(token) or _parsed_token(token, known)
            if parsed.inside or parsed.is_numbered:
                _add_token(places, text, last_start, token, first, parsed)
            word, start = parsed.word, first + parsed.place
            separate = separate and not ("," in token or "://" in token)
        last_start = first
        if run and (not word or text[run_end:first] != " " or len(run) == _WORDS):
            _join(names, text, run, gap, run_end, first if word else run_end)
        if word and (run or word not in _OPENINGS):
            gap, run_end = gap if run else (last_end, first), last
            run.append((word, start))
            if last - first != len(word):
                _name(names, text, run, gap)
        last_end = last
    _name(names, text, run, gap)
    places += [(start, -len(inner), False, inner, True) for start, inner in quoted(text)]
    return places, names, separate


# --- identifiers


def _add_token(places: list[_Place], text: str, last_start: int, token: str, first: int, parsed: _Token) -> None:
    """Add the identifiers in a token, and the phrases that it belongs to if it has digits."""
    for offset, words in parsed.inside:
        places.append((first + offset, -len(words), False, words, True))
    if parsed.is_numbered:
        _add_phrases(places, text, last_start, first, token)


def _parsed_token(token: str, known: Known) -> _Token:
    """Parse a token that has punctuation, digits, capitals, or letters beyond ASCII."""
    is_plain = token.isalpha() and (token.islower() or token.istitle())
    inside = () if is_plain else tuple(identifying(token))
    word, place = _capitalised(token)
    parsed = _Token(inside, any(map(str.isdigit, token)), word, place)
    if len(known) < _MOST_KNOWN and len(token) <= LONGEST:
        known[token] = parsed
    return parsed


def _add_phrases(places: list[_Place], text: str, last_start: int, first: int, token: str) -> None:
    """Add the date, time or amount that a token with a number belongs to; a month may come before it."""
    if len(token) > LONGEST:
        return
    if text[last_start : last_start + 3] in _MONTHS and last_start < first and (words := phrase(text, last_start)):
        places.append((last_start, -len(words), False, words, True))
    at = first if token[0].isdigit() else first + len(token) - len(token.lstrip("':*\u2019&~-"))
    if words := phrase(text, at):
        places.append((at, -len(words), False, words, True))


# --- names


def _capitalised(token: str) -> tuple[str, int]:
    """Return the word of a token without the signs around it, and its place, if it is capitalised."""
    if token[0].isupper() or token[0] in "'\u2019*":
        word = POSSESSIVE.sub("", token.rstrip(ENDS).lstrip("'\u2019*"))
        if word[:1].isupper() and (word.isalpha() or _INSIDE.sub("", word).isalpha()):
            return word, token.index(word)
    return "", 0


def _join(names: list[_Place], text: str, run: _Run, gap: tuple[int, int], run_end: int, first: int) -> None:
    """Continue a run that ends at `run_end` if small words lead from it to the next one at `first`, else end it."""
    if 2 < first - run_end < _JOINED and text[run_end + 1] in _JOINS:
        between = text[run_end:first]
        small = between[1:-1].split(" ")
        if between[0] == between[-1] == " " and _JOINING.issuperset(small):
            for word in small:
                if len(run) == _WORDS:
                    _name(names, text, run, gap)
                if run:
                    run.append((word, 0))
            if len(run) < _WORDS:
                return
    _name(names, text, run, gap)


def _name(names: list[_Place], text: str, run: _Run, gap: tuple[int, int]) -> None:
    """End the run, and add the name in it, if there is one."""
    first, last = 0, len(run)
    while first < last and _is_small(run[first][0]):
        if run[first][0] == "New" and first + 1 < last and run[first + 1][0][0].isupper():
            break
        first += 1
    while last > first and _is_small(run[last - 1][0]):
        last -= 1
    if first < last:
        name, start = run[first]
        if last - first > 1:
            name = " ".join([word for word, _ in run[first:last]])
        _add_name(names, name, start, last == 1 and _begins(text, *gap))
    run.clear()


def _add_name(names: list[_Place], name: str, start: int, begins: bool) -> None:
    """Add a name. A single word that `begins` a sentence is doubtful."""
    if 1 < len(name) <= LONGEST and not (begins and _NO_NAME.search(name)):
        names.append((start, -len(name), True, name, not begins))


def _is_small(word: str) -> bool:
    """Whether no name begins or ends with this word."""
    return word.lower().replace("\u2019", "'") in COMMON or word[0].islower()


def _begins(text: str, last_end: int, first: int) -> bool:
    """Whether a sentence begins at `first`: more than a blank separates it from the token that ends at `last_end`."""
    for at in range(first - 1, max(last_end - 2, -1), -1):
        char = text[at]
        if char.isalnum():
            return False  # the usual case, reached early
        if char in _BREAKS:
            return True
        if not (char in _APART or char.isspace()):
            return False
    return not last_end


def _without_common(text: str, names: Sequence[_Place], separate: bool) -> Iterable[_Place]:
    """Return the names without doubtful ones that also occur in lower case."""
    doubtful = {name.lower() for *_, name, sure in names if not sure}
    if len(doubtful) > _FEW or not separate:
        doubtful &= {token.rstrip(ENDS) for token in _TOKEN.findall(text) if token[0].islower()}
    else:
        doubtful = {word for word in doubtful if word in text and _occurs_as_token(text, word)}
    return [place for place in names if place[4] or place[3].lower() not in doubtful] if doubtful else names


def _occurs_as_token(text: str, word: str) -> bool:
    """Whether a word is a token of the text, with or without punctuation after it."""
    at = text.find(word)
    while at >= 0:
        if _is_token(text, at, at + len(word)):
            return True
        at = text.find(word, at + 1)
    return False


def _is_token(text: str, first: int, last: int) -> bool:
    char_before = text[first - 1] if first else " "
    if char_before in _QUOTES and first > 1 and _is_word(text[first - 2]):
        return False
    if not (char_before in _APART or char_before.isspace()):
        return False
    for at in range(last, len(text)):
        char = text[at]
        if char in _QUOTES:
            return not (_is_word(text[at - 1]) and _is_word(text[at + 1 : at + 2] or " "))
        if char not in ENDS:
            return char in _APART or char.isspace()
    return True


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"
