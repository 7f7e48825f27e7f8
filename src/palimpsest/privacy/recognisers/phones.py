"""The recogniser of telephone numbers, which have no checksum: by their form, or by a word before them. Pure.

Digits with little between them are a run. A run may have several numbers, with slashes, dashes, wide spaces or words of
scripts without spaces between them: so it is cut into parts, and what follows a number begins anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from palimpsest.privacy import Span
from palimpsest.privacy.recognisers import labels
from palimpsest.privacy.recognisers.scanning import DASHES, EDGE, END, SPACES, Scan

Groups: TypeAlias = Sequence[tuple[int, int]]
"""Where groups of digits are."""

_SEVEN = r"(?:[ .()/?-]{0,3}[0-9]){7}"

PHONE_SIGN = "|".join(
    (
        rf"\+\(?[1-9]{_SEVEN}",
        rf"{EDGE}0[0-9]{_SEVEN}",
        rf"{EDGE}(?:1[^0-9]{{1,2}})?[2-9][0-9]{{2}}(?:[ .-]|\)[ -]?)[2-9][0-9]{{2}}[ .-][0-9]{{4}}{END}",
        rf"{labels.PHONE_SIGN}{_SEVEN}",
    )
)

_LISTED = re.compile(r"[0-9]{1,3}[.)] {1,2}(?=[0(])")
"""The number of a list item before a telephone number."""

_DAY = re.compile(
    r"(?:(?:19|20)[0-9]{2}([./-])(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12][0-9]|3[01])"
    r"|(?:0?[1-9]|[12][0-9]|3[01])([./-])(?:0?[1-9]|[12][0-9]|3[01])\2(?:19|20)[0-9]{2})(?![0-9])"
)
"""A date, which may stand behind a label, too: `last call: 2026-11-30`."""

_AMERICAN = (b"000-0000", b"000.0000", b"000 0000")

_BETWEEN = f".()/{SPACES}{DASHES}"
MOST = 18
"""How many groups are looked at for one number, which has at most 17 digits."""

_ENDING = (". ", " - ", "/ ", " / ", " \u2013 ", " \u2014 ")
"""Gaps behind which another number begins, and so do gaps of more than three characters, or with others than these."""

_CUTS = (b"?", b". ", b" - ", b"/ ")
"""Over a shape: where a run may be cut into parts."""


def phones(scan: Scan) -> Iterator[Span]:
    """Find telephone numbers.

    These are international ones with "+" or "00", North American ones in three groups, national ones that begin with 0
    and are grouped, and any of 7 to 15 digits behind a word such as "phone:". Others look like any number and are not
    found.
    """
    text, american = scan.text, any(sign in scan.shape for sign in _AMERICAN)
    lower = text.lower()
    labelled, last = any(part in lower for part in labels.PHONE_PARTS), 0
    for start, stop in scan.runs:
        listed = _LISTED.match(text, start, stop)
        first = start if listed is None else listed.end()
        if american or _begins(text, first, labelled) or any(cut in scan.shape[start:stop] for cut in _CUTS):
            for opens, end in _in_run(text, scan.run(first, stop).groups, labelled):
                before = text[max(opens - 2, 0) : opens]
                begin = opens - (len(before) - len(before.rstrip("+(")))
                if scan.is_apart(begin, end, behind=last):
                    yield Span(begin, end, "phone")
                    last = end


def _in_run(text: str, groups: Groups, labelled: bool) -> Iterator[tuple[int, int]]:
    """Yield the places of numbers in a run."""
    followed = True  # in columns of numbers only what follows a telephone number may be another one
    for part, gap in _parts(text, groups):
        done, followed = 0, followed or not gap.isspace()
        while followed and done < len(part):
            count = _count(text, part[done : done + MOST]) if _begins(text, part[done][0], labelled) else 0
            followed = count > 0
            if followed:
                yield part[done][0], part[done + count - 1][1]
                done += count
        yield from _american(text, part[done:])


def _parts(text: str, groups: Groups) -> Iterator[tuple[Groups, str]]:
    """Yield the parts of a run, cut where a number surely ends, each with the gap before it ("" for the first)."""
    begin, before = 0, ""
    for i in range(1, len(groups)):
        gap = text[groups[i - 1][1] : groups[i][0]]
        if len(gap) > 3 or gap in _ENDING or gap.strip(_BETWEEN):
            yield groups[begin:i], before
            begin, before = i, gap
    yield groups[begin:], before


def _begins(text: str, start: int, labelled: bool) -> bool:
    """Return whether a number that begins here may be one of a telephone. `labelled`: whether the text has labels."""
    if text[start - 1 : start] in ("+", "(") or (text[start] == "0" and text[start + 1 : start + 2].isdecimal()):
        return True
    return labelled and _is_labelled(text, start)


def _is_labelled(text: str, start: int) -> bool:
    """Return whether the word before a number names a telephone. Most words are ruled out by their last letters."""
    at = start - 4 if start > 3 and text.startswith('": ', start - 3) else start - 1
    while at >= max(start - 10, 0):
        if text[at].isalnum() or text[at] == "_":
            letters = text[at - 1 : at + 1]  # beyond ASCII some count as ASCII ones: the second I of MOBİL
            may_end = letters.lower() in labels.PHONE_ENDS or not letters.isascii()
            return may_end and labels.PHONE.search(text[max(start - 40, 0) : start]) is not None
        at -= 1
    return False


def _count(text: str, groups: Groups) -> int:
    """Return how many of the groups, from the first one on, are a telephone number; 0 if they begin with none.

    All of them up to 17 digits count, or those before a group with 0 in front, which may begin another number: behind a
    wider gap, if a number does begin there, or if all together are none. Groups of one size are a column of numbers,
    unless they are pairs.
    """
    whole = wide = zero = digits = 0
    gaps, sizes = list[str](), set[int]()
    for i, (start, end) in enumerate(groups):
        gap = text[groups[i - 1][1] : start] if i else ""
        if text[start] == "0" and digits >= 9:
            is_column = len(sizes | {end - start}) == 1 and sizes != {2}
            zero = zero or (0 if is_column else i)
            wide = wide or (i if len(gap) > max(map(len, gaps), default=0) and not is_column else 0)
        gaps.append(gap.strip("()"))
        sizes.add(end - start)
        digits += end - start
        if digits > 17:
            break
        whole = i + 1
    another = zero if zero and any(_is_phone(text, groups[zero : zero + count]) for count in range(2, 7)) else 0
    return next((count for count in (wide, another, whole, zero) if count and _is_phone(text, groups[:count])), 0)


def _is_phone(text: str, groups: Groups) -> bool:
    """Return whether these groups, of which the first may begin a number, are one of a telephone."""
    start, first = groups[0][0], text[slice(*groups[0])]
    digits = sum(end - begin for begin, end in groups)
    if text[max(start - 2, 0) : start].endswith(("+", "+(")):
        return 8 <= digits <= 15 and first[0] != "0"
    if first.startswith("00") and first[2:3] != "0" and len(groups) > 1 and 10 <= digits <= 17:
        return True
    national = first[0] == "0" and first[1:2] not in ("", "0") and len(groups) > 1 and 9 <= digits <= 12
    if national and not _is_date(groups) and "." not in text[groups[0][1] : groups[1][0]]:
        return True
    return 7 <= digits <= 15 and _DAY.match(text, start) is None and _is_labelled(text, start)


def _is_date(groups: Groups) -> bool:
    return [end - start for start, end in groups[:3]] == [2, 2, 4]


def _american(text: str, groups: Groups) -> Iterator[tuple[int, int]]:
    """Yield numbers of 3-3-4 digits, with or without the country code 1; neither group of three begins with 0 or 1."""
    for i in range(len(groups) - 2):
        three = groups[i : i + 3]
        if [end - start for start, end in three] != [3, 3, 4] or any(text[at] in "01" for at, _ in three[:2]):
            continue
        gaps = text[three[0][1] : three[1][0]], text[three[1][1] : three[2][0]]
        if gaps[0] in ("-", " ", ".", ") ", ")", ")-") and gaps[1] in ("-", " ", "."):
            country = i > 0 and text[slice(*groups[i - 1])] == "1" and three[0][0] - groups[i - 1][1] <= 2
            yield groups[i - 1][0] if country else three[0][0], three[2][1]
