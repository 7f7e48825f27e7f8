"""A slow and simple reference for the recognisers of private numbers: tries each definition at every place of a text.

Each function returns the (start, end) of what it finds. Only tables of facts (networks, countries) are taken from the
library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from ipaddress import AddressValueError, IPv6Address
from itertools import pairwise

from palimpsest.privacy.recognisers.cards import _NETWORKS
from palimpsest.privacy.recognisers.numbers import _LENGTHS, _SPECIMENS
from palimpsest.privacy.recognisers.scanning import DASHES, SPACES, softened
from privacy_corpus import luhn_digit, tax_digit

Places = set[tuple[int, int]]

SPREAD = re.compile(r"(?:[ ._/?\t\r\n-]|[^\x00-\x7f]){1,3}")
STRETCH = re.compile(r"[0-9](?:[0-9 .()/?-]|[^\x00-\x7f]){5,}[0-9]")
PHONE_LABEL = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:tele)?(?:phone|fon|fone)|(?:tel|mobile|mobil|cell|call|fax|whatsapp|handy))\b\W{0,4}\Z",
    re.IGNORECASE,
)
SSN_LABEL = re.compile(
    r"(?<![A-Za-z0-9])(?:ssn|social security(?: (?:number|no\.?|#))?)\W{0,4}(?:is\W{1,3})?\Z", re.IGNORECASE
)
NINO = re.compile(r"(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z](?: ?[0-9]{2}){3} ?[A-D](?![A-Za-z0-9])")
OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4 = re.compile(rf"(?<![A-Za-z0-9])(?<![0-9]\.){OCTET}(?:\.{OCTET}){{3}}(?![A-Za-z0-9]|\.[0-9])")
IPV6 = re.compile(
    r"(?<![A-Za-z0-9:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,8}(?:(?:\.[0-9]{1,3}){3})?(?![A-Za-z0-9:])"
)


def groups(text: str, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """Return the places of all runs of digits."""
    return [match.span() for match in re.compile("[0-9]+").finditer(text, start, len(text) if end is None else end)]


def digits(text: str) -> str:
    return "".join(re.findall("[0-9]", text))


def touching(char: str) -> bool:
    """Whether a character is a digit or a letter of a script with capitals."""
    return char.isdecimal() or char.upper() != char.lower()


def apart(text: str, start: int, end: int) -> bool:
    """Whether no character that is `touching` adjoins the place, nor a decimal point with another digit."""
    before, after = text[max(start - 2, 0) : start], text[end : end + 2]
    if before and (touching(before[-1]) or (before[-1] == "." and before[0].isdecimal())):
        return False
    return not (after and (touching(after[0]) or (after[0] == "." and after[1:].isdecimal())))


def in_groups(text: str, sizes: tuple[int, ...], between: str) -> Iterator[tuple[int, int]]:
    """Yield the places of groups of digits of these sizes with one and the same character between them."""
    all_groups = groups(text)
    for i in range(len(all_groups)):
        run = all_groups[i : i + len(sizes)]
        gaps = {text[left[1] : right[0]] for left, right in pairwise(run)}
        if tuple(end - start for start, end in run) == sizes and len(gaps) == 1 and gaps <= {*between}:
            yield run[0][0], run[-1][1]


# --- accounts and cards


def iban(text: str) -> Places:
    found: Places = set()
    last = 0
    for start in range(len(text)):
        size = _LENGTHS.get(text[start : start + 2].upper(), 0)
        begins = re.match("[A-Z]{2}[0-9]{2}|[a-z]{2}[0-9]{2}", text[start : start + 4])
        if start < last or not begins or not size:
            continue
        gap = f"[{re.escape(SPACES + DASHES)}._/\r\n]{{0,2}}"
        whole = re.compile(f"[A-Za-z0-9](?:{gap}[A-Za-z0-9]){{{size - 1}}}").match(text, start)
        if whole is None:
            continue
        parts = re.findall("[A-Za-z0-9]+", whole.group())
        gaps = set(re.findall("[^A-Za-z0-9]+", whole.group()))
        in_fours = {len(part) for part in parts[:-1]} <= {4} and (len(parts) == 1 or len(parts[-1]) <= 4)
        plain = begins.group().isupper() and gaps <= {*" -\u00a0"}
        bare = "".join(parts).upper()
        number = "".join(str(int(char, 36)) for char in bare[4:] + bare[:4])
        if (plain or in_fours) and int(number) % 97 == 1 and apart(text, start, whole.end()):
            found.add((start, whole.end()))
            last = whole.end()
    return found


def is_card(number: str) -> bool:
    first = int(number[:6])
    of_network = any(low <= first <= high and len(number) in sizes for low, high, sizes in _NETWORKS)
    return of_network and luhn_digit(number[:-1]) == number[-1]


GROUPED = ((4, 4, 4, 4, 3), (4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (4, 4, 4, 1))


def card(text: str) -> Places:
    whole = {
        (start, end)
        for start, end in groups(text)
        if 12 <= end - start <= 19
        and is_card(text[start:end])
        and apart(text, start, end + 2 if text.startswith(".0", end) else end)
    }
    parted: dict[int, int] = {}
    for sizes in GROUPED:
        for start, end in in_groups(text, sizes, " -\u00a0"):
            if is_card(digits(text[start:end])) and apart(text, start, end):
                parted.setdefault(start, end)
    last = 0
    for start, end in sorted(parted.items()):
        if start >= last:
            whole.add((start, end))
            last = end
    return whole | set(spread_cards(text))


def spread_cards(text: str) -> Iterator[tuple[int, int]]:
    """Yield cards in groups that are separated by more than one space or dash, but no columns of a table."""
    all_groups = groups(text)
    gaps = [text[left[1] : right[0]] for left, right in pairwise(all_groups)]
    for i in range(len(all_groups)):
        for wanted in (*GROUPED, (8, 8)):
            last = i + len(wanted) - 1
            run, inside = all_groups[i : last + 1], gaps[i:last]
            if tuple(end - start for start, end in run) != wanted or not all(map(SPREAD.fullmatch, inside)):
                continue
            if wanted != (8, 8) and any(set(inside) == {gap} for gap in " -\u00a0"):
                continue
            if not (all(map(str.isspace, inside)) or is_one_gap(inside)):
                continue
            beside = [(all_groups[i - 1], gaps[i - 1])] if i else []
            beside += [(all_groups[last + 1], gaps[last])] if last < len(gaps) else []
            goes_on = any(group[1] - group[0] >= 3 and gap in inside for group, gap in beside)
            start, end = run[0][0], run[-1][1]
            if not goes_on and is_card(digits(text[start:end])) and apart(text, start, end):
                yield start, end


def is_one_gap(gaps: list[str]) -> bool:
    return len(set(gaps)) == 1 and set(gaps[0]) <= {*f"{SPACES}{DASHES}._/\t\r\n"}


# --- telephones


def phone(text: str) -> Places:
    found: Places = set()
    for stretch in STRETCH.finditer(text):
        run = groups(text, *stretch.span())
        if re.match(r"[0-9]{1,3}[.)] {1,2}[0(]", stretch.group()):  # begins with the number of a list item
            run = run[1:]
        end = phone_end(text, run)
        for start, stop in [(run[0][0], end)] if end is not None else american(text, run):
            opens = start - (len(text[max(start - 2, 0) : start]) - len(text[max(start - 2, 0) : start].rstrip("+(")))
            if apart(text, opens, stop):
                found.add((opens, stop))
    return found


def phone_end(text: str, run: list[tuple[int, int]]) -> int | None:
    """Return the end of the telephone number that begins with the first of these groups, or None if none does."""
    taken = [run[0]]
    for group in run[1:]:
        gap = text[taken[-1][1] : group[0]]
        allowed = len(gap) <= 3 and set(gap) <= {*f".()/{SPACES}{DASHES}"} and gap not in (". ", " - ", "/ ", " / ")
        if not allowed or sum(end - start for start, end in [*taken, group]) > 17:
            break
        taken.append(group)
    count, first, (start, end) = sum(e - s for s, e in taken), text[slice(*taken[0])], (taken[0][0], taken[-1][1])
    if text[:start].endswith(("+", "+(")):
        return end if 8 <= count <= 15 and first[0] != "0" else None
    if len(taken) > 1 and re.match("00(?!0)", first) and 10 <= count <= 17:
        return end
    is_date = [e - s for s, e in taken[:3]] == [2, 2, 4]
    national = len(taken) > 1 and re.match("0[1-9]", first) and 9 <= count <= 12
    if national and not is_date and "." not in text[taken[0][1] : taken[1][0]]:
        return end
    return end if 7 <= count <= 15 and PHONE_LABEL.search(text[max(start - 24, 0) : start]) else None


def american(text: str, run: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for i in range(len(run) - 2):
        area, _, line = run[i : i + 3]
        number = re.fullmatch(r"[2-9][0-9]{2}(?:-| |\.|\) |\)|\)-)[2-9][0-9]{2}[-. ][0-9]{4}", text[area[0] : line[1]])
        if number and line[1] - line[0] == 4:
            country = i and text[slice(*run[i - 1])] == "1" and area[0] - run[i - 1][1] <= 2
            yield run[i - 1][0] if country else area[0], line[1]


# --- numbers of people, addresses


def us_ssn(text: str) -> Places:
    found = {*in_groups(text, (3, 2, 4), f".{SPACES}{DASHES}")}
    found |= {span for span in groups(text) if span[1] - span[0] == 9 and SSN_LABEL.search(text[: span[0]][-40:])}
    return {
        (start, end)
        for start, end in found
        if re.match("(?!000|666|9)[0-9]{3}(?!00)[0-9]{2}(?!0000)", digits(text[start:end]))
        and digits(text[start:end]) not in _SPECIMENS
        and apart(text, start, end)
        and not joined(text, start, end)
    }


def joined(text: str, start: int, end: int) -> bool:
    """Whether a dash joins the place to other characters, except to a label such as "SSN"."""
    before, after = text[max(start - 2, 0) : start], text[end : end + 2]
    named = SSN_LABEL.search(text[:start][-40:])
    ahead = before.endswith("-") and len(before) == 2 and touching(before[0]) and not named
    return ahead or (after.startswith("-") and len(after) == 2 and touching(after[1]))


def uk_nino(text: str) -> Places:
    matches = [NINO.match(text, start) for start in range(len(text))]
    return {match.span() for match in matches if match is not None and apart(text, *match.span())}


def de_tax_id(text: str) -> Places:
    found = {*in_groups(text, (2, 3, 3, 3), " "), *(span for span in groups(text) if span[1] - span[0] == 11)}
    return {span for span in found if is_tax_id(digits(text[slice(*span)])) and apart(text, *span)}


def is_tax_id(number: str) -> bool:
    counts = sorted(map(number[:10].count, set(number[:10])))
    repeated = counts in ([1] * 8 + [2], [1] * 7 + [3])
    return number[0] != "0" and repeated and tax_digit(number[:10]) == number[10]


def fr_nir(text: str) -> Places:
    found = {*in_groups(text, (1, 2, 2, 2, 3, 3, 2), " -."), *in_groups(text, (13, 2), " -.")}
    found |= {span for span in groups(text) if span[1] - span[0] == 15}
    return {span for span in found if is_nir(digits(text[slice(*span)])) and apart(text, *span)}


def is_nir(number: str) -> bool:
    month = int(number[3:5])
    born = number[0] in "123478" and (1 <= month <= 12 or 20 <= month <= 42 or month >= 50)
    return born and 97 - int(number[:13]) % 97 == int(number[13:])


def ip(text: str) -> Places:
    four = {
        match.span()
        for match in IPV4.finditer(text)
        if not match.group().startswith(("127.", "0.0.0.0", "255.255.255.255"))  # noqa: S104 (nothing is bound to it)
    }
    return four | {match.span() for match in IPV6.finditer(text) if is_ipv6(match.group())}


def is_ipv6(text: str) -> bool:
    if len([group for group in text.split(":") if group]) < 2 or not re.search("[0-9]", text):
        return False
    try:
        return not IPv6Address(text).is_loopback
    except AddressValueError:
        return False


PLAIN: dict[str, Callable[[str], Places]] = {
    "iban": iban,
    "card": card,
    "phone": phone,
    "us_ssn": us_ssn,
    "uk_nino": uk_nino,
    "de_tax_id": de_tax_id,
    "fr_nir": fr_nir,
    "ip": ip,
}


def found(kind: str, text: str) -> list[tuple[int, int]]:
    """Return the places of numbers of this kind, in order."""
    return sorted(PLAIN[kind](softened(text)))
