"""Which characters one place of a pattern reads, as ranges of code points. Classes such as `\\w` are ASCII's. Pure."""

from __future__ import annotations

from re import _constants as op  # type: ignore[attr-defined]
from typing import Any

from palimpsest.log.spans import union, visible

Ranges = tuple[tuple[int, int], ...]
"""Characters, as ascending ranges of code points, ends included."""

_LAST = 0x10FFFF
ALL: Ranges = ((0, _LAST),)
_DIGITS: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
_SPACE: Ranges = ((9, 13), (32, 32))
_IGNORECASE, _DOTALL = 2, 16  # bits of the parser's flags


def characters(code: Any, value: Any, flags: int) -> Ranges | None:
    """Return the characters that a node of the parsed pattern reads; None if it does not read exactly one."""
    if code is op.ANY:
        return ALL if flags & _DOTALL else negated(((10, 10),))
    if code is op.LITERAL:
        return _cased([(value, value)], flags)
    if code is op.NOT_LITERAL:
        return negated(_cased([(value, value)], flags))
    if code is op.IN:
        negate, listed = False, list[tuple[int, int]]()
        for kind, item in value:
            if kind is op.NEGATE:
                negate = True
            elif kind is op.CATEGORY:
                listed.extend(_CATEGORIES[item])
            else:
                listed.append(item if kind is op.RANGE else (item, item))
        ranges = _cased(listed, flags)
        return negated(ranges) if negate else ranges
    return None


def _cased(ranges: list[tuple[int, int]], flags: int) -> Ranges:
    """Return the ranges, with the letters of the other case added if case is ignored."""
    if not flags & _IGNORECASE:
        return union(ranges) if len(ranges) > 1 else tuple(ranges)
    cased = list(ranges)
    for low, high in ranges:
        for code in range(max(low, 65), min(high, 122) + 1) if high - low > 256 else range(low, high + 1):
            letter = chr(code)
            cased.extend((ord(other), ord(other)) for other in (letter.lower(), letter.upper()) if len(other) == 1)
    return union(cased)


def negated(ranges: Ranges) -> Ranges:
    return tuple(visible(ranges, -1, _LAST + 1))


def overlap(one: Ranges, other: Ranges) -> bool:
    """Return whether any character is in both."""
    return any(low <= top and bottom <= high for low, high in one for bottom, top in other)


_CATEGORIES: dict[Any, Ranges] = {
    op.CATEGORY_DIGIT: _DIGITS,
    op.CATEGORY_NOT_DIGIT: negated(_DIGITS),
    op.CATEGORY_SPACE: _SPACE,
    op.CATEGORY_NOT_SPACE: negated(_SPACE),
    op.CATEGORY_WORD: WORD,
    op.CATEGORY_NOT_WORD: negated(WORD),
}
