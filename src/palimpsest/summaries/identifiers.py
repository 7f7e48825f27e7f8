"""What of a text must be copied and never reworded: identifiers, and the names that people talk about. Pure.

The text is read token by token, and no pattern goes back over more than a few characters: the time is linear in
the length, whatever the text is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

LONGEST = 256
"""Characters. What is longer without a break is data, not something to refer to by."""

_QUOTED = 60
_MONTH = (
    "(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?"
    "|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_UNIT = (
    "%|°[CF]|percent|ms|milliseconds?|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?|days?|weeks?|months?|years?|decades?"
    "|mm|cm|m|km|miles?|feet|ft|inch(?:es)?|mg|g|kg|tons?|lbs?|pounds?|oz|ml|l|lit(?:er|re)s?|bytes?|[kMGT]i?B|Hz|[kMG]Hz|[kM]?W|V|px"
    "|tokens?|dollars?|euros?|cents?|bucks|USD|EUR|GBP|CHF|JPY|times|people|thousand|million|billion"
)
_DAY = "\\d{1,2}(?:st|nd|rd|th)?"
_PHRASE = re.compile(
    rf"(?<!\w){_DAY} (?:of )?{_MONTH}\b(?:,? \d{{4}}\b)?"
    rf"|(?<!\w){_MONTH}\.? {_DAY}\b(?:,? \d{{4}}\b)?"
    rf"|(?<!\w){_MONTH},? \d{{4}}\b"
    r"|(?<!\w)\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?"
    r"|(?<![\w.])\d{1,2}(?::\d\d){0,2} ?[AaPp](?:m\b|M\b|\.[mM]\.)"
    rf"|(?<![\w.,])[$€£¥]?\d{{1,12}}(?:[.,]\d{{1,9}})? ?(?:{_UNIT})(?!\w)"
)
_SEPARATORS = r"\s\"`<>(){}\[\],;|=“”„«»!?…—"
_TOKEN = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]{1,15}://[^\s<>\"`“”]++"
    r"|[-+]?[$€£¥]?\d{1,3}+(?:,\d{3})++(?:\.\d++)?%?"
    rf"|(?:[^'\u2019{_SEPARATORS}]|(?<=\w)['\u2019](?=\w))++"
)
_BREAK = r"\n\r\v\f\x85\u2028\u2029"
_IN_QUOTES = re.compile(rf"(?<!\w)\"([^\"{_BREAK}]{{2,{_QUOTED}}})\"(?!\w)|“([^”{_BREAK}]{{2,{_QUOTED}}})”")
_UNCASED_NUMBER = re.compile(r"\d++(?:[.,:/-]\d++)*+[^\W\d_]?")
_CODE = re.compile(
    r"[\w.+-]{1,64}@[\w-]{1,64}(?:\.[\w-]{1,64}){1,8}"  # an e-mail address
    r"|[@#]\w[\w-]*"  # a handle, a tag
    r"|(?:~|\.{1,2}|[A-Za-z]:)?[/\\][\w.@~+-][^\s]*"  # a path from a root
    r"|[\w.@~+-]+(?:[/\\][\w.@~+-]+){2,}[/\\]?"  # a path of three steps
    r"|[\w@~+-]+[/\\][\w@~+-]*[._-][\w.@~+-]*"  # a path with something of a file name
    r"|_*[^\W_]+(?:_+[^\W_]+)+_*|__[^\W_]+__"  # snake_case
    r"|\.[a-z]\w+(?:\.\w+)*"  # .gitignore
)
_DOTTED = re.compile(r"[^\W\d_][\w-]*(?:(?:\.|::)[^\W\d_][\w-]*)+(?:\(\))?")
_CAMEL = re.compile(r"[^\W\d_]*[a-z][A-Z][^\W\d_]*")
_ENDS = ".:-*~'\u2019/\\&"
_BREAKS = frozenset('.!?:;"“”„«»…*•—\u2013\n\r(){}[]<>|')
_JOINING = frozenset(("of", "de", "da", "del", "della", "der", "den", "di", "du", "la", "le", "van", "von", "y"))
_INSIDE = re.compile(r"(?<=\w)['\u2019-](?=\w)")
_WORDS = 8
"""A name has at most so many."""

_NO_NAME = re.compile(r"(?:ing|ly|ed|['\u2019](?:ve|re|ll|d|m|t))$")
"""Ends of the words that begin many sentences and few names."""

_POSSESSIVE = re.compile(r"['\u2019][sS]?$")

_COMMON = """
a about above actually add after afterwards again ago ah all almost alone already alright also although always am
amazing an and another any anybody anyone anything anyway are aren aren't as ask assistant at awesome aww back bad be
because been before being below best better between big both bring but by bye call can can't cannot change check
cheers choose come congrats congratulations cool correct could couldn't create dear definitely delete did didn't do
does doesn't doing don don't done down during each easy either else enjoy enough error even ever every everybody
everyone everything exactly excellent fantastic far feel few finally find fine first five follow for four friend from
further future get give glad go god going gonna good goodbye got gotta great ha had haha happy hard has hasn't have
haven't having he he's hello help her here here's hers hey hi him his hmm hope hopefully how how's however i i'd i'll
i'm i've if in indeed instead interesting into is isn't it it'd it'll it's its just keep kind know last later least
less let let's like listen little lol long look looking lots love lovely made make many may maybe me meanwhile might
mine more moreover most much must my nah need never new next nice no nobody none nope not nothing now of off oh ok
okay old omg on once one only open or other others otherwise our out over own perfect perhaps personally place play
please plus possible previous probably put quite rather read ready really recently remember right run said same say
see seems send set several shall she she's should show since so some somebody someone something sometimes soon sorry
sounds speaking start still stop such summary super sure system take talk tell than thank thanks that that'd that'll
that's the their them then there there's these they they'd they'll they're they've thing things think this those
though three thus to today together tomorrow tonight too tool totally true try trying two u ugh uh um under
unfortunately until up update upon us use used user using very wait want was wasn't way we we'd we'll we're we've
welcome well were what what's whatever when whenever where where's wherever whether which while who who's whoever whom
whose why will wish with without woah won't wonderful work would wouldn't wow write wrong ya yay yea yeah year yep yes
yesterday yet you you'd you'll you're you've your yours yup
"""
COMMON = frozenset(_COMMON.split())
"""English words that begin sentences or hold them together: no names when capitalised, and without matter."""


class Term(NamedTuple):
    """Something that a text mentions: its words, where it begins, whether it is an identifier.

    One that is not `sure` is a name only because it is capitalised, which the first word of a sentence is anyway.
    """

    text: str
    start: int
    identifier: bool
    sure: bool = True


def identifiers(text: str) -> tuple[str, ...]:
    """Return what of a text is an identifier, each once, in the order of its first place.

    That is: addresses, paths, file names, ids, versions, code names, handles, dates, times, amounts with their unit,
    numbers of two digits and more, and what stands in quotes, up to 60 characters. None is longer than 256 characters.
    """
    return _once(found.text for found in _merged(_identifiers(text, _tokens(text))))


def terms(text: str) -> tuple[str, ...]:
    """Return identifiers and proper names, each once, in order; names of several words are one.

    The first word of a sentence is a name when it is no common word and is nowhere in the text in lower case.
    """
    return _once(found.text for found in mentions(text))


def mentions(text: str) -> list[Term]:
    """Return every place where a text mentions a term, in order."""
    tokens = _tokens(text)
    names = list(_names(text, tokens))
    if not all(name.sure for name in names):
        lower = {text[first:last].rstrip(_ENDS) for first, last in tokens if text[first].islower()}
        names = [name for name in names if name.sure or name.text.lower() not in lower]
    return _merged((*_identifiers(text, tokens), *names))


def contains(text: str, identifier: str) -> bool:
    """Whether `identifier` stands in `text` letter by letter, and not as a part of a longer word or number."""
    start = text.find(identifier) if identifier else -1
    while start >= 0:
        end = start + len(identifier)
        if _is_border(text, start, -1) and _is_border(text, end, 1):
            return True
        start = text.find(identifier, start + 1)
    return False


def missing(text: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return those of `wanted` that do not stand in `text`, in their order."""
    return tuple(identifier for identifier in wanted if not contains(text, identifier))


def _is_border(text: str, at: int, step: int) -> bool:
    """Whether a word or number that begins or ends at `at` is over there, looking outwards."""
    outer = at if step > 0 else at - 1
    inner = outer - step
    if not 0 <= outer < len(text):
        return True
    one, other = text[inner], text[outer]
    if _is_word(one) and _is_word(other):
        return _is_uncased(one) or _is_uncased(other)
    beyond = outer + step
    if one.isdigit() and other in ".,:" and 0 <= beyond < len(text):
        return not text[beyond].isdigit()
    return True


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _is_uncased(char: str) -> bool:
    """Whether this is a letter of a script without capitals, some of which set no blanks between words."""
    return char.isalpha() and char.lower() == char.upper()


def _tokens(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in _TOKEN.finditer(text)]


def _once(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(found))


# --- identifiers


def _identifiers(text: str, tokens: list[tuple[int, int]]) -> Iterator[Term]:
    """Yield identifiers; they may lie in each other."""
    before = 0
    for first, last in tokens:
        token = text[first:last]
        if not token.isalpha():
            yield from _identifying(token, first)
            if last - first <= LONGEST and any(map(str.isdigit, token)):
                yield from _phrase(text, before, first, last)
        elif not (token.islower() or token.istitle()):
            yield from _identifying(token, first)
        before = first
    if '"' in text or "“" in text:
        yield from _quoted(text)


def _phrase(text: str, before: int, first: int, last: int) -> Iterator[Term]:
    """Yield the date, time or amount that a token with a number in it belongs to; a month may stand before it."""
    at = first + len(text[first:last]) - len(text[first:last].lstrip("':*\u2019&~-"))
    for start in (before, at):
        if found := _PHRASE.match(text, start):
            yield Term(found.group(), start, identifier=True)


def _quoted(text: str) -> Iterator[Term]:
    """Yield what stands in quotes; in JSON that would be everything."""
    if text.lstrip()[:1] in ("{", "["):
        return
    for match in _IN_QUOTES.finditer(text):
        group = 1 if match.group(1) is not None else 2
        inner = match.group(group)
        if inner == inner.strip() and any(map(str.isalnum, inner)):
            yield Term(inner, match.start(group), identifier=True)


def _merged(found: Iterable[Term]) -> list[Term]:
    """Return them in order without those that lie in a longer one."""
    kept: list[Term] = []
    end = -1
    for term in sorted(found, key=lambda term: (term.start, -len(term.text))):
        if term.start + len(term.text) > end:
            kept.append(term)
            end = term.start + len(term.text)
    return kept


def _identifying(token: str, at: int) -> Iterator[Term]:
    """Yield what of a token without blanks is an identifier."""
    if "://" not in token:
        stripped = token.lstrip("':*\u2019&")
        at += len(token) - len(stripped)
        token = _POSSESSIVE.sub("", stripped.rstrip(_ENDS) or stripped)
    else:
        token = token.rstrip(".,;:!?'\u2019)]*")
    if not 1 < len(token) <= LONGEST:
        return
    if any(map(str.isdigit, token)):
        if not token.isascii() and any(map(_is_uncased, token)):
            for number in _UNCASED_NUMBER.finditer(token):
                if len(number.group()) > 1:
                    yield Term(number.group(), at + number.start(), identifier=True)
        elif _is_number_or_id(token):
            yield Term(token, at, identifier=True)
    elif "://" in token or _is_code(token):
        yield Term(token, at, identifier=True)


def _is_number_or_id(token: str) -> bool:
    digits = sum(map(str.isdigit, token))
    return digits > 1 or token[0] in "$€£¥#" or token[-1] == "%" or any(map(str.isalpha, token))


def _is_code(token: str) -> bool:
    if _CODE.fullmatch(token) or _CAMEL.fullmatch(token):
        return True
    if not _DOTTED.fullmatch(token):
        return False
    steps = token.replace("::", ".").split(".")
    if all(len(step) == 1 for step in steps):  # e.g., U.S
        return False
    ends_a_sentence = len(steps) == 2 and steps[0].islower() and steps[1].istitle()
    return not ends_a_sentence


# --- names


def _names(text: str, tokens: list[tuple[int, int]]) -> Iterator[Term]:
    """Yield runs of capitalised words, without the common words at their ends."""
    run: list[tuple[str, int, bool]] = []
    before = 0
    for first, last in tokens:
        token = text[first:last]
        if not run and token.islower():
            before = last
            continue
        gap = text[before - 1 : first] if before else "\n"
        before = last
        if run and (gap[1:] != " " or gap[0] in _BREAKS or len(run) == _WORDS):
            yield from _named(run)
            run = []
        if run and token in _JOINING:
            run.append((token, first, False))
            continue
        word = _POSSESSIVE.sub("", token.rstrip(_ENDS).lstrip("'\u2019*"))
        if word[:1].isupper() and _INSIDE.sub("", word).isalpha():
            run.append((word, first + token.index(word), not _BREAKS.isdisjoint(gap)))
            if word == token:
                continue
        if run:
            yield from _named(run)
            run = []
    yield from _named(run)


def _named(run: list[tuple[str, int, bool]]) -> Iterator[Term]:
    """Yield the name that a run of words is, if it is one."""
    first, last = 0, len(run)
    while first < last and (run[first][0].islower() or _is_common(run[first][0])):
        if run[first][0] == "New" and first + 1 < last and run[first + 1][0][0].isupper():
            break
        first += 1
    while last > first and (run[last - 1][0].islower() or _is_common(run[last - 1][0])):
        last -= 1
    name = " ".join(word for word, _, _ in run[first:last])
    if not 1 < len(name) <= LONGEST:
        return
    begins = last - first == 1 and run[first][2]
    if not (begins and _NO_NAME.search(name)):
        yield Term(name, run[first][1], identifier=False, sure=not begins)


def _is_common(word: str) -> bool:
    return word.lower().replace("\u2019", "'") in COMMON
