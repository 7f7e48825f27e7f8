"""Recognisers of numbers: bank accounts and national ids of people. Cards are in `cards`, telephones in `phones`. Pure.

Numbers with a checksum are recognised by it: MOD 97-10 for accounts (ISO 13616) and the French number, MOD 11,10 for
the German tax id (both ISO 7064). Those without are recognised by their form alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from palimpsest.privacy import Span
from palimpsest.privacy.recognisers import labels
from palimpsest.privacy.recognisers.scanning import DASHES, EDGE, END, SPACES, Scan, goes_on

# --- numbers in groups


def grouped(scan: Scan, sizes: tuple[int, ...], between: str) -> Iterator[tuple[int, int]]:
    """Yield the places of numbers in groups of these sizes, with the same one of the characters `between` in each
    gap."""
    text, shape, places = scan.text, scan.shape, list[tuple[int, int]]()
    for gap in dict.fromkeys(between.encode("ascii", "replace")):
        needle, start = bytes([gap]).join(b"0" * size for size in sizes), -1
        while (start := shape.find(needle, start + 1)) >= 0:
            end = start + len(needle)
            is_whole = shape[start - 1 : start] != b"0" != shape[end : end + 1]
            if is_whole and len(gaps := set(text[start:end]) - _DIGITS) == 1 and gaps <= {*between}:
                places.append((start, end))
    yield from sorted(places)


_DIGITS = frozenset("0123456789")


# --- bank accounts

_IBAN_LENGTHS = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 "
    "ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 "
    "LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 "
    "QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30"
)
_LENGTHS = {word[:2]: int(word[2:]) for word in _IBAN_LENGTHS.split()}


_IBAN_GAPS = f"{SPACES}{DASHES}._/\r\n"
_GAP = r"[ ?._/\r\n-]{1,2}"
_COUNTRIES = "|".join(_LENGTHS)

IBAN_SIGN = (
    rf"{EDGE}(?:{_COUNTRIES})[0-9]{{2}}(?:(?:{_GAP})?[0-9A-Za-z]){{11}}"
    rf"|{EDGE}(?:{_COUNTRIES.lower()})[0-9]{{2}}"
    rf"(?:[0-9A-Za-z]{{11}}|(?:{_GAP}[0-9A-Za-z]{{4}}){{2}}{_GAP}[0-9A-Za-z]{{3,4}}{END})"
)
"""Accounts have at least 15 characters. Hexadecimal ids are written in lower case, too, but not in groups of four."""


def ibans(scan: Scan) -> Iterator[Span]:
    """Find account numbers, by the country, its length, and the checksum.

    They may be in one piece, have single spaces or dashes anywhere, or be in groups of four with up to two separators
    of any kind between them; in lower case only in one piece or in groups of four.
    """
    for needle in (b"AA00", b"aa00"):
        end = 0
        while (start := scan.shape.find(needle, end)) >= 0:
            end = start + 1
            size = _LENGTHS.get(scan.text[start : start + 2].upper())
            last = _iban_end(scan.text, start, size) if size is not None else None
            if last is not None and scan.is_apart(start, last):
                yield Span(start, last, "iban")
                end = last


def _iban_end(text: str, start: int, size: int) -> int | None:
    """Return where the account number ends that begins at `start` and has `size` characters; None if it is none."""
    chars: list[str] = []
    groups, gap, has_plain_gaps = [0], 0, text[start].isupper()
    place = start
    while len(chars) < size and place < len(text):
        char = text[place]
        if char.isascii() and char.isalnum():
            if gap:
                groups.append(0)
            chars.append(char)
            groups[-1] += 1
            gap = 0
        elif char not in _IBAN_GAPS or gap == 2:
            return None
        else:
            gap += 1
            has_plain_gaps = has_plain_gaps and gap == 1 and char in " -\u00a0"
        place += 1
    in_fours = len(groups) == 1 or (set(groups[:-1]) == {4} and groups[-1] <= 4)
    if len(chars) < size or not (has_plain_gaps or in_fours):
        return None
    moved = "".join(chars[4:] + chars[:4]).upper()
    return place if int("".join(str(int(char, 36)) for char in moved)) % 97 == 1 else None


# --- numbers of people

_SPECIMENS = ("078051120", "219099999", "457555462")
"""Numbers printed on specimen cards and in advertisements, which belong to nobody."""

_SSN_GAPS = f".{SPACES}{DASHES}"
US_SSN_SIGN = (
    rf"{EDGE}[0-9]{{3}}[ .?-][0-9]{{2}}[ .?-][0-9]{{4}}{END}"
    rf"|{labels.SSN_SIGN}[0-9]{{9}}{END}"
)


def us_ssns(scan: Scan) -> Iterator[Span]:
    """Find US social security numbers: 3-2-4 digits, or nine behind "SSN"; only of areas that are given out."""
    places = [*grouped(scan, (3, 2, 4), _SSN_GAPS)]
    for start, end in scan.numbers:
        if end - start == 9 and labels.SSN.search(scan.text[max(start - 40, 0) : start]):
            places.append((start, end))
    for start, end in sorted(places):
        if _is_ssn("".join(filter(str.isdecimal, scan.text[start:end]))) and _stands_alone(scan, start, end):
            yield Span(start, end, "us_ssn")


def _is_ssn(digits: str) -> bool:
    area, group, serial = digits[:3], digits[3:5], digits[5:]
    return "000" < area < "900" and area != "666" and group != "00" and serial != "0000" and digits not in _SPECIMENS


_NINO = re.compile(
    r"(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D](?![A-Za-z0-9])"
)

UK_NINO_SIGN = rf"{EDGE}[A-CEGHJ-PR-TW-Z]{{2}}(?: ?[0-9]{{2}}){{3}} ?[A-D]{END}"


def uk_ninos(scan: Scan) -> Iterator[Span]:
    """Find British National Insurance numbers: a two-letter prefix in use, six digits, and a letter from A to D."""
    for needle in (b"AA0", b"AA 0"):
        end = 0
        while (start := scan.shape.find(needle, end)) >= 0:
            match = _NINO.match(scan.text, start)
            end = start + 1
            if match is not None and scan.is_apart(start, match.end()):
                yield Span(start, match.end(), "uk_nino")


DE_TAX_ID_SIGN = rf"{EDGE}[1-9](?:[0-9]{{10}}|[0-9](?: [0-9]{{3}}){{3}}){END}"


def de_tax_ids(scan: Scan) -> Iterator[Span]:
    """Find German tax ids: 11 digits, of which one occurs two or three times, with their check digit."""
    whole = [(start, end) for start, end in scan.numbers if end - start == 11]
    for start, end in sorted([*grouped(scan, (2, 3, 3, 3), " "), *whole]):
        if _is_tax_id(scan.text[start:end].replace(" ", "")) and scan.is_apart(start, end):
            yield Span(start, end, "de_tax_id")


def _is_tax_id(digits: str) -> bool:
    first = digits[:10]
    if first[0] == "0" or not 8 <= len(set(first)) <= 9 or max(map(first.count, first)) > 3:
        return False
    if len(set(first)) == 8 and max(map(first.count, first)) != 3:  # two digits twice
        return False
    product = 10
    for digit in first:
        total = (int(digit) + product) % 10 or 10
        product = total * 2 % 11
    return (11 - product) % 10 == int(digits[10])


_NIR = (1, 2, 2, 2, 3, 3, 2)

_NIR_GROUPS = "(?:[ .-][0-9]{2}){3}(?:[ .-][0-9]{3}){2}[ .-][0-9]{2}"
FR_NIR_SIGN = rf"{EDGE}[123478](?:[0-9]{{14}}|[0-9]{{12}}[ .-][0-9]{{2}}|{_NIR_GROUPS}){END}"


def fr_nirs(scan: Scan) -> Iterator[Span]:
    """Find French social security numbers: 13 digits and a key of two; not those with a letter (Corsica)."""
    places = [(start, end) for start, end in scan.numbers if end - start == 15]
    places += [*grouped(scan, _NIR, " -."), *grouped(scan, (13, 2), " -.")]
    for start, end in sorted(places):
        if _is_nir("".join(filter(str.isdecimal, scan.text[start:end]))) and scan.is_apart(start, end):
            yield Span(start, end, "fr_nir")


def _is_nir(digits: str) -> bool:
    month = int(digits[3:5])
    is_month = 1 <= month <= 12 or 20 <= month <= 42 or month >= 50
    return digits[0] in "123478" and is_month and 97 - int(digits[:13]) % 97 == int(digits[13:])


def _stands_alone(scan: Scan, start: int, end: int) -> bool:
    """Return whether no dash joins the number with more text, as in longer numbers of three or more groups."""
    text = scan.text
    before, after = text[max(start - 2, 0) : start], text[end : end + 2]
    joined = before[1:] == "-" and goes_on(before[0]) and not labels.SSN.search(text[max(start - 40, 0) : start])
    return scan.is_apart(start, end) and not joined and not (after[:1] == "-" and any(map(goes_on, after[1:])))
