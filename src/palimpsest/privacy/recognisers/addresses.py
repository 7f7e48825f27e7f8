"""Recognisers of e-mail and IP addresses. Pure; each looks only around an "@", dots between digits, or colons."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv6Address

from palimpsest.privacy import Span
from palimpsest.privacy.recognisers.scanning import Scan

_AT = re.compile("@|%40")
_ACCENTS = r"\u0300-\u036f"
"""Combining accents, which follow a letter of a script with capitals as characters of their own."""

_VOWELS = (
    r"\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670"
    r"\u0900-\u0903\u093a-\u0963\u0971-\u09e3\u09fe-\u0a65\u0a70-\u0ae5\u0af9-\u0b65\u0b82-\u0be5\u0c00-\u0c65"
    r"\u0c80-\u0ce5\u0d00-\u0d65\u0d81-\u0ddf\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece"
    r"\u102b-\u103e\u17b4-\u17d3\u200c\u200d"
)
"""Combining vowels and tones of other scripts, from Hebrew and Arabic by those of India to Thai, Lao, Burmese and
Khmer; letters that lie between them are included."""

_LOCAL = re.compile(rf"[\w{_ACCENTS}{_VOWELS}.!#$%&'*+/=?^`{{|}}~-]{{1,64}}")
_QUOTED = re.compile(r"\"[\w .!#$%&'*+/=?^`{|}~-]{1,62}\"")
"""A name in quotes, which may have spaces: `"jane doe"@example.com`. Matched backwards, like `_LOCAL`."""

_CAPITALS = r"A-Za-z\u00c0-\u024f\u0370-\u04ff"
"""Letters of scripts with capitals, whose words have spaces between them."""

_LETTER = rf"(?:[^\W\d_]|[{_ACCENTS}{_VOWELS}])"
_DOMAIN = re.compile(
    rf"(?:[^\W_](?:[\w{_ACCENTS}{_VOWELS}-]{{0,61}}(?:[0-9]|{_LETTER}))?\.){{1,8}}"
    rf"(?:[Xx][Nn]--[A-Za-z0-9-]{{0,58}}[A-Za-z0-9]|[A-Za-z]{{2,24}}(?![0-9{_CAPITALS}{_ACCENTS}])"
    rf"|[^\W\d_]{_LETTER}{{1,24}}(?![^\W_]))"
)
_WRITTEN_TO = re.compile(rf"[^\W\d_{_CAPITALS}]|[{_VOWELS}]")
"""Characters that may touch an address without being part of it: Chinese and other scripts put no space before it."""

_FILE_ENDS = (
    "avif bmp css csv gif html ico jpeg jpg js json jsx log map md mp3 mp4 pdf png svg ts tsx txt webp xml yaml"
)
_FILES = frozenset(_FILE_ENDS.split())
"""Extensions of file names, which are no top-level domains: `logo@2x.png`."""

_COUNTRIES = frozenset({"md"})
"""Extensions that are top-level domains, too: `ion@mail.md` is in Moldova, but `ion@example.org.md` names a file."""

_NO_TOPS = _FILES | {"min"}
"""What no domain ends with before a file's extension: `lib@next.min.js`."""


def emails(scan: Scan) -> Iterator[Span]:
    """Find e-mail addresses: the text around an "@", or its URL escape, with a domain of at least two labels.

    `git@host:path` names a repository and is left alone.
    """
    text, end = scan.text, 0
    for sign in _AT.finditer(text):
        at, after = sign.span()
        before = text[max(at - 64, end) : at][::-1] if at >= end else ""
        local = _QUOTED.match(before) or _LOCAL.match(before)
        domain = _DOMAIN.match(text, after, after + 255)
        end = max(end, after)
        if local is None or domain is None:
            continue
        name = local.group()[::-1]
        name = name if name[0] == '"' else _WRITTEN_TO.split(name)[-1] or name
        name = name.lstrip(".'`/=?&{|}!#$%^*~-")
        host = _host(domain.group())
        if name and host and not (name == "git" and text[domain.end() : domain.end() + 1] in (":", "/")):
            end = after + len(host)
            yield Span(at - len(name), end, "email")


def _host(domain: str) -> str:
    """Return the domain without a file's extension (`jo@example.org.pdf`); "" if that leaves no domain."""
    rest, _, top = domain.rpartition(".")
    if top.lower() not in _FILES:
        return domain
    if top.lower() in _COUNTRIES and "." not in rest:
        return domain
    is_domain = rest[0].isalpha() and _DOMAIN.fullmatch(rest) and rest.rpartition(".")[2].lower() not in _NO_TOPS
    return rest if is_domain else ""


_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = re.compile(rf"(?<![A-Za-z0-9])(?<![0-9]\.){_OCTET}(?:\.{_OCTET}){{3}}(?![A-Za-z0-9]|\.[0-9])")
_IPV6 = re.compile(
    r"(?<![A-Za-z0-9:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,8}(?:(?:\.[0-9]{1,3}){3})?(?![A-Za-z0-9:])"
)
_DOTS, _COLONS = re.compile(r"\.(?=[0-9]{1,3}\.[0-9]{1,3}\.)"), re.compile(r":[0-9A-Fa-f]{0,4}:")
"""What an address always has in its middle. Both patterns begin with a fixed character, which `re` finds quickly.

The first dot found may end a word before the address; the next one is then in the address.
"""

_NOBODY = ("127.", "0.0.0.0", "255.255.255.255")  # noqa: S104 (nothing is bound to it)

IP_SIGN = (
    r"\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]"
    r"|:(?:[0-9A-Fa-f]{1,4}:){5}|[0-9A-Fa-f]::|::[0-9A-Fa-f]"
)
"""What follows the first dot or colon of an address. `_COLONS` alone also matches times; so many groups, or "::", are
only in addresses and in code."""


def ip_addresses(scan: Scan) -> Iterator[Span]:
    """Find IPv4 and IPv6 addresses.

    Loopback, unspecified and broadcast addresses belong to nobody and are left alone.
    """
    text = scan.text
    for match in _around(_DOTS, _IPV4, text, "0123456789"):
        if not match.group().startswith(_NOBODY):
            yield Span(*match.span(), "ip")
    for match in _around(_COLONS, _IPV6, text, "0123456789abcdefABCDEF"):
        found = match.group()
        found = found[:-1] if found[-1] == ":" != found[-2:-1] else found  # a colon behind it: `fe80::1: timed out`
        if _is_ipv6(found):
            yield Span(match.start(), match.start() + len(found), "ip")


def _around(middle: re.Pattern[str], address: re.Pattern[str], text: str, digits: str) -> Iterator[re.Match[str]]:
    """Yield the addresses with this middle; before it there may be only the digits of the address."""
    end = 0
    for sign in middle.finditer(text):
        start = sign.start()
        while start > max(sign.start() - 4, end) and text[start - 1] in digits:
            start -= 1
        match = address.match(text, start) if start >= end else None
        if match is not None:
            yield match
            end = match.end()


def may_be_ip(scan: Scan) -> bool:
    """Return whether the text has the middle of an address."""
    text = scan.text
    if not scan.digits:
        return False
    four = text.count(".") >= 3 and _DOTS.search(text) is not None
    return four or (text.count(":") >= 2 and _COLONS.search(text) is not None)


def _is_ipv6(text: str) -> bool:
    """Return whether this is the address of a host.

    One with "::" needs a digit and two groups: `abc::def` may be code. With no more than two groups it must be in a
    range that is given out, or hold an IPv4 address: `rows[1::2]` is code, too.
    """
    groups = sum(map(bool, text.split(":")))
    if groups < 2 or not any(map(str.isdigit, text)):
        return False
    try:
        address = IPv6Address(text)
    except AddressValueError:
        return False
    return not address.is_loopback and (groups > 2 or not address.is_reserved or "." in text)
