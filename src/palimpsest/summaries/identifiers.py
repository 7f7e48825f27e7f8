"""Identifiers: what must be copied and never reworded, found in tokens without blanks, dates and quotes. Pure.

No pattern backtracks over more than a few characters, so the time is linear in the length of any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

LONGEST = 256
"""Most characters of an identifier: a longer text without a break is data, and nobody refers to it."""

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
FOLLOWING = rf" (?:(?:of )?{_MONTH}|[AaPp][Mm.]|(?:{_UNIT})(?!\w))|,\d"
"""What follows plain digits that begin such a phrase. If something else follows, they begin none."""

SEPARATORS = r"\s\"`<>(){}\[\],;|=“”„«»!?…—"
TOKEN = (
    r"[A-Za-z][A-Za-z0-9+.-]{1,15}://[^\s<>\"`“”]++"
    r"|[-+]?[$€£¥]?\d{1,3}+(?>(?:,\d{3})+)(?:\.\d++)?%?"
    rf"|(?>(?:[^'\u2019{SEPARATORS}]|(?<=\w)['\u2019](?=\w))+)"
)
_BREAK = r"\n\r\v\f\x85\u2028\u2029"
_IN_QUOTES = re.compile(rf"(?<!\w)\"([^\"{_BREAK}]{{2,{_QUOTED}}})\"(?!\w)|“([^”{_BREAK}]{{2,{_QUOTED}}})”")
_UNCASED_NUMBER = re.compile(r"\d++(?>(?:[.,:/-]\d++)*)[^\W\d_]?")
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
ENDS = ".:-*~'\u2019/\\&"
POSSESSIVE = re.compile(r"['\u2019][sS]?$")

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
"""English words that begin sentences or hold them together: no names if capitalised, and without content."""


def contains(text: str, identifier: str) -> bool:
    """Whether `identifier` occurs in `text` letter by letter, and not as part of a longer word or number."""
    start = text.find(identifier) if identifier else -1
    while start >= 0:
        end = start + len(identifier)
        if _is_border(text, start, -1) and _is_border(text, end, 1):
            return True
        start = text.find(identifier, start + 1)
    return False


def missing(text: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """Return those of `wanted` that do not occur in `text`, in their order."""
    return tuple(identifier for identifier in wanted if not contains(text, identifier))


def _is_border(text: str, at: int, step: int) -> bool:
    """Whether a word or number that begins or ends at `at` does not continue there; `step` points outwards."""
    outer = at if step > 0 else at - 1
    inner = outer - step
    if not 0 <= outer < len(text):
        return True
    inner_char, outer_char = text[inner], text[outer]
    if _is_word(inner_char) and _is_word(outer_char):
        return _is_uncased(inner_char) or _is_uncased(outer_char)
    beyond = outer + step
    if inner_char.isdigit() and outer_char in ".,:" and 0 <= beyond < len(text):
        return not text[beyond].isdigit()
    return True


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _is_uncased(char: str) -> bool:
    """Whether this is a letter of a script without capitals; some of these write no blanks between words."""
    return char.isalpha() and char.lower() == char.upper()


def phrase(text: str, start: int) -> str | None:
    """Return the date, time or amount that begins at `start`, if any."""
    match = _PHRASE.match(text, start)
    return match.group() if match else None


def quoted(text: str) -> Iterator[tuple[int, str]]:
    """Yield quoted texts and where they begin. None for JSON, in which everything is quoted."""
    if not ('"' in text or "“" in text) or text.lstrip()[:1] in ("{", "["):
        return
    for match in _IN_QUOTES.finditer(text):
        group = 1 if match.group(1) is not None else 2
        inner = match.group(group)
        if inner == inner.strip() and any(map(str.isalnum, inner)):
            yield match.start(group), inner


def identifying(token: str) -> Iterator[tuple[int, str]]:
    """Yield the identifiers in a token without blanks, and where in it they begin."""
    offset = 0
    if "://" not in token:
        stripped = token.lstrip("':*\u2019&")
        offset = len(token) - len(stripped)
        token = POSSESSIVE.sub("", stripped.rstrip(ENDS) or stripped)
    else:
        token = token.rstrip(".,;:!?'\u2019)]*")
    if not 1 < len(token) <= LONGEST:
        return
    if any(map(str.isdigit, token)):
        if not token.isascii() and any(map(_is_uncased, token)):
            for number in _UNCASED_NUMBER.finditer(token):
                if len(number.group()) > 1:
                    yield offset + number.start(), number.group()
        elif _is_number_or_id(token):
            yield offset, token
    elif "://" in token or _is_code(token):
        yield offset, token


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
