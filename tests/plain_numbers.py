"""A slow and simple reference for the recognisers of private numbers: tries each definition at every place of a text.

Each function returns the (start, end) of what it finds. Only tables of facts (networks, countries) are taken from the
library.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from ipaddress import AddressValueError, IPv6Address
from itertools import pairwise

from palimpsest.privacy.recognisers import labels
from palimpsest.privacy.recognisers.cards import _NETWORKS
from palimpsest.privacy.recognisers.numbers import _LENGTHS, _SPECIMENS
from palimpsest.privacy.recognisers.scanning import DASHES, SPACES, softened
from privacy_corpus import luhn_digit, tax_digit

Places = set[tuple[int, int]]

SPREAD = re.compile(r"(?:[ ._/?\t\r\n-]|[^\x00-\x7f]){1,3}")
STRETCH = re.compile(r"[0-9](?:[0-9 .()/?-]|[^\x00-\x7f]){5,}[0-9]")
NINO = re.compile(r"(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z](?: ?[0-9]{2}){3} ?[A-D](?![A-Za-z0-9])")
OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
IPV4 = re.compile(rf"(?<![A-Za-z0-9])(?<![0-9]\.){OCTET}(?:\.{OCTET}){{3}}(?![A-Za-z0-9]|\.[0-9])")
IPV6 = re.compile(
    r"(?<![A-Za-z0-9:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,8}(?:(?:\.[0-9]{1,3}){3})?(?![A-Za-z0-9:])"
)


DAY = re.compile(
    r"(?:(?:19|20)[0-9]{2}([./-])(?:0?[1-9]|1[0-2])\1(?:0?[1-9]|[12][0-9]|3[01])"
    r"|(?:0?[1-9]|[12][0-9]|3[01])([./-])(?:0?[1-9]|[12][0-9]|3[01])\2(?:19|20)[0-9]{2})(?![0-9])"
)
Groups = list[tuple[int, int]]
MOST = 18
"""How many groups of digits are looked at for one telephone number."""


def groups(text: str, start: int = 0, end: int | None = None) -> Groups:
    """Return the places of all runs of digits."""
    return [match.span() for match in re.compile("[0-9]+").finditer(text, start, len(text) if end is None else end)]


def digits(text: str) -> str:
    return "".join(re.findall("[0-9]", text))


def touching(char: str) -> bool:
    """Whether a character is a digit or a letter of a script with capitals."""
    return char.isdecimal() or char.upper() != char.lower()


def apart(text: str, start: int, end: int, behind: int = 0) -> bool:
    """Whether no character from `behind` on that is `touching` adjoins the place, nor a decimal point with a digit."""
    before, after = text[max(start - 2, behind) : start], text[end : end + 2]
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
    last = 0
    for stretch in STRETCH.finditer(text):
        run = groups(text, *stretch.span())
        if re.match(r"[0-9]{1,3}[.)] {1,2}[0(]", stretch.group()):  # begins with the number of a list item
            run = run[1:]
        for start, stop in in_stretch(text, run):
            opens = start - (len(text[max(start - 2, 0) : start]) - len(text[max(start - 2, 0) : start].rstrip("+(")))
            if apart(text, opens, stop, behind=last):
                found.add((opens, stop))
                last = stop
    return found


def in_stretch(text: str, run: Groups) -> Iterator[tuple[int, int]]:
    ends = [i for i in range(1, len(run)) if ends_a_number(text[run[i - 1][1] : run[i][0]])]
    follows = True  # a telephone number, or more than space
    for begin, end in pairwise([0, *ends, len(run)]):
        follows = follows or not text[run[begin - 1][1] : run[begin][0]].isspace()
        part = run[begin:end]
        while follows and part:
            count = phone_groups(text, part[:MOST])
            follows = count > 0
            if follows:
                yield part[0][0], part[count - 1][1]
                part = part[count:]
        yield from american(text, part)


def ends_a_number(gap: str) -> bool:
    endings = (". ", " - ", "/ ", " / ", " \u2013 ", " \u2014 ")
    return len(gap) > 3 or gap in endings or gap.strip(f".()/{SPACES}{DASHES}") != ""


def phone_groups(text: str, run: Groups) -> int:
    """Return how many of these groups are a telephone number."""
    taken = [count for count in range(1, len(run) + 1) if len(digits(text[run[0][0] : run[count - 1][1]])) <= 17]
    if not taken:
        return 0
    first, widest = 0, 0
    for i in range(1, len(run)):
        size = len(digits(text[run[0][0] : run[i - 1][1]]))
        if size > 17 or text[run[i][0]] != "0" or size < 9:
            continue
        sizes = {end - start for start, end in run[:i]}
        is_column = sizes != {2} and sizes == {run[i][1] - run[i][0]}
        gaps = [text[left[1] : right[0]] for left, right in pairwise(run[: i + 1])]
        earlier = max((len(gap.strip("()")) for gap in gaps[:-1]), default=0)
        if not is_column:
            first = first or i
            widest = widest or (i if len(gaps[-1]) > earlier else 0)
    another = first and any(is_phone(text, run[first : first + count]) for count in range(2, 7))
    tried = [widest, first if another else 0, taken[-1], first]
    return next((count for count in tried if count and is_phone(text, run[:count])), 0)


def is_phone(text: str, run: Groups) -> bool:
    start, first = run[0][0], text[slice(*run[0])]
    count = sum(e - s for s, e in run)
    if text[:start].endswith(("+", "+(")):
        return 8 <= count <= 15 and first[0] != "0"
    if len(run) > 1 and re.match("00(?!0)", first) and 10 <= count <= 17:
        return True
    is_date = [e - s for s, e in run[:3]] == [2, 2, 4]
    national = len(run) > 1 and re.match("0[1-9]", first) and 9 <= count <= 12
    if national and not is_date and "." not in text[run[0][1] : run[1][0]]:
        return True
    is_labelled = labels.PHONE.search(text[max(start - 40, 0) : start]) is not None
    return 7 <= count <= 15 and is_labelled and not DAY.match(text, start)


def american(text: str, run: Groups) -> Iterator[tuple[int, int]]:
    for i in range(len(run) - 2):
        area, _, line = run[i : i + 3]
        number = re.fullmatch(r"[2-9][0-9]{2}(?:-| |\.|\) |\)|\)-)[2-9][0-9]{2}[-. ][0-9]{4}", text[area[0] : line[1]])
        if number and line[1] - line[0] == 4:
            country = i and text[slice(*run[i - 1])] == "1" and area[0] - run[i - 1][1] <= 2
            yield run[i - 1][0] if country else area[0], line[1]


# --- numbers of people, addresses


def us_ssn(text: str) -> Places:
    found = {*in_groups(text, (3, 2, 4), f".{SPACES}{DASHES}")}
    found |= {span for span in groups(text) if span[1] - span[0] == 9 and labels.SSN.search(text[: span[0]][-40:])}
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
    named = labels.SSN.search(text[:start][-40:])
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
    six = set()
    for match in IPV6.finditer(text):
        address = re.sub("(?<!:):$", "", match.group())  # a colon behind it
        if is_ipv6(address):
            six.add((match.start(), match.start() + len(address)))
    return four | six


def is_ipv6(text: str) -> bool:
    groups = [group for group in text.split(":") if group]
    if len(groups) < 2 or not re.search("[0-9]", text):
        return False
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return False
    in_use = len(groups) > 2 or "." in text or not address.is_reserved
    return in_use and not address.is_loopback


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
