"""The recogniser of payment cards: a network's prefix and length, and Luhn's checksum (ISO/IEC 7812). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from palimpsest.privacy import Span
from palimpsest.privacy.recognisers.numbers import grouped
from palimpsest.privacy.recognisers.scanning import DASHES, EDGE, END, SPACES, Run, Scan

_NETWORKS: tuple[tuple[int, int, frozenset[int]], ...] = (
    (400000, 499999, frozenset({13, 16, 19})),  # Visa
    (510000, 559999, frozenset({16})),  # Mastercard
    (222100, 272099, frozenset({16})),
    (220000, 220499, frozenset({16, 17, 18, 19})),  # Mir
    (340000, 349999, frozenset({15})),  # American Express
    (370000, 379999, frozenset({15})),
    (601100, 601199, frozenset({16, 19})),  # Discover
    (644000, 659999, frozenset({16, 19})),
    (300000, 305999, frozenset({14, 16})),  # Diners Club
    (360000, 369999, frozenset({14, 16})),
    (380000, 399999, frozenset({14, 16})),
    (352800, 358999, frozenset({16, 19})),  # JCB
    (620000, 629999, frozenset({16, 17, 18, 19})),  # UnionPay
    (501900, 501999, frozenset({16})),  # Dankort
    (506099, 506198, frozenset({16, 18, 19})),  # Verve
    (506699, 506778, frozenset({16})),  # Elo
    (509000, 509999, frozenset({16})),
    (627780, 627780, frozenset({16})),
    (636297, 636297, frozenset({16})),
    (636368, 636368, frozenset({16})),
    (606282, 606282, frozenset({16})),  # Hipercard
    (508500, 508999, frozenset({16})),  # RuPay
    (606985, 607984, frozenset({16})),
    (608001, 608500, frozenset({16})),
    (501800, 501899, frozenset(range(12, 20))),  # Maestro
    (502000, 502099, frozenset(range(12, 20))),
    (503800, 503899, frozenset(range(12, 20))),
    (589300, 589399, frozenset(range(12, 20))),
    (630400, 630499, frozenset(range(12, 20))),
    (675900, 675999, frozenset(range(12, 20))),
    (676100, 676399, frozenset(range(12, 20))),
)
"""First and last six digits of each network, and how long its numbers are."""

_CARD_GROUPS = ((4, 4, 4, 4, 3), (4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 1))
"""Sizes of the groups in which a card's digits may be written."""

_SPREAD_GROUPS = (*_CARD_GROUPS, (8, 8))
"""The same for groups with something other than one space or dash between them."""

_SPREAD = re.compile(rb"0000(?:0000)?(?:[ ._/?\t\r\n-]{1,3}0++)+")
"""Over a shape: the longest run of groups of digits with little between them that begins with a group of four or
eight."""

_BEFORE = re.compile(rb"(0+)([ ._/?\t\r\n-]{1,3})$")
"""Over a shape: a group before a place."""

_DIGITS = re.compile(rb"0+")

_BESIDE = 3
"""A group of at least so many digits beside the number, with a gap that the number has, too: then it is part of a
longer row of numbers, and no card."""

_PLAIN = " -\u00a0"
_SIGNS = (b"0000 0000", b"0000-0000", b"0000?0000")
"""Over a shape: a card in groups with a plain gap always has one of these."""

_GAPS = frozenset(f"{SPACES}{DASHES}._/\t\r\n")

_GAP = r"[ ._/?\t\r\n-]{1,3}"
_IN_FOURS = f"[0-9]{{4}}{_GAP}[0-9]{{4}}{_GAP}[0-9]"
_IN_GROUPS = f"[0-9]{{3}}{_GAP}(?:{_IN_FOURS}|[0-9]{{6}}{_GAP}[0-9]{{4}})|[0-9]{{7}}{_GAP}[0-9]{{8}}"
CARD_SIGN = f"{EDGE}[2-6](?:[0-9]{{11,18}}{END}|{_IN_GROUPS})"
"""No network has numbers that begin otherwise."""


def may_be_card(scan: Scan) -> bool:
    """Return whether the text has enough digits."""
    return scan.digits >= 12


def cards(scan: Scan) -> Iterator[Span]:
    """Find card numbers, in one piece or in groups.

    With single spaces or dashes between the groups they are found anywhere. With anything else between them (two
    spaces, dots, line ends, thin spaces) they must stand alone, since columns of numbers look alike.
    """
    whole = [(start, end) for start, end in scan.numbers if 12 <= end - start <= 19 and _is_whole(scan, start, end)]
    parted = _parted(scan) if any(sign in scan.shape for sign in _SIGNS) else ()
    for start, end in sorted([*whole, *parted]):
        yield Span(start, end, "card")
    for match in _SPREAD.finditer(scan.shape):
        if match.end() - match.start() >= 12:
            yield from _spread(scan, Run([group.span() for group in _DIGITS.finditer(scan.shape, *match.span())]))


def _spread(scan: Scan, run: Run) -> Iterator[Span]:
    """Yield the cards in a run of groups that `_parted` does not look for."""
    groups = run.groups
    sizes = [end - start for start, end in groups]
    gaps = [scan.text[left[1] : right[0]] for left, right in pairwise(groups)]
    for i, size in enumerate(sizes):
        for wanted in _SPREAD_GROUPS if size in (4, 8) else ():
            last = i + len(wanted) - 1
            if tuple(sizes[i : last + 1]) != wanted or not _is_spread({*gaps[i:last]}, wanted):
                continue
            start, end = groups[i][0], groups[last][1]
            before = _BEFORE.search(scan.shape, max(start - 12, 0), start)
            beside = [(len(before[1]), scan.text[slice(*before.span(2))])] if before is not None else []
            beside += list(zip(sizes[last + 1 : last + 2], gaps[last : last + 1], strict=True))
            is_in_row = any(size >= _BESIDE and gap in gaps[i:last] for size, gap in beside)
            digits = "".join(scan.text[slice(*group)] for group in groups[i : last + 1])
            if not is_in_row and _is_card(digits) and scan.is_apart(start, end):
                yield Span(start, end, "card")


def _is_spread(gaps: set[str], wanted: tuple[int, ...]) -> bool:
    """Return whether the gaps are all white space, or all the same, and not those that `_parted` looks for."""
    if wanted in _CARD_GROUPS and any(gaps == {gap} for gap in _PLAIN):
        return False
    return all(map(str.isspace, gaps)) or (len(gaps) == 1 and _GAPS.issuperset(*gaps))


def _is_whole(scan: Scan, start: int, end: int) -> bool:
    """Return whether a number in one piece is a card."""
    apart = scan.is_apart(start, end + 2 if scan.text.startswith(".0", end) else end)  # tables may write it as a float
    return apart and _is_card(scan.text[start:end])


def _parted(scan: Scan) -> Iterator[tuple[int, int]]:
    """Yield cards in groups with a plain gap between them."""
    end_of: dict[int, int] = {}
    for sizes in _CARD_GROUPS:
        for start, end in grouped(scan, sizes, _PLAIN):
            digits = "".join(filter(str.isdecimal, scan.text[start:end]))
            if start not in end_of and _is_card(digits) and scan.is_apart(start, end):
                end_of[start] = end
    last = 0
    for start, end in sorted(end_of.items()):
        if start >= last:
            yield start, end
            last = end


def _is_card(digits: str) -> bool:
    size, first = len(digits), int(digits[:6])
    return any(low <= first <= high and size in sizes for low, high, sizes in _NETWORKS) and has_luhn(digits)


def has_luhn(digits: str) -> bool:
    """Return whether the last digit is Luhn's checksum of the others."""
    doubled = (int(digit) * 2 for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(two - 9 if two > 9 else two for two in doubled)) % 10 == 0
