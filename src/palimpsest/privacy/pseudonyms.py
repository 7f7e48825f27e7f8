"""Pseudonyms: `[EMAIL_1]` is the same address everywhere in a session. Pure; no clear value is ever kept."""

from __future__ import annotations

import hmac
import re
from ipaddress import ip_address

import msgspec

from palimpsest.errors.secret import Secret

MIN_KEY = 16
"""The least length of a key, in bytes: whoever knows the key soon guesses values of few digits."""

NUMBERED = 64
"""How many values a session numbers in order. Later values get a number that is computed and needs no memory. So a
session's head, which every append writes, stays small however many private values there are."""

_HASH_BYTES = 16
_LEAST: int = 10**14
_CHECKS: int = 10**5
"""A computed number has 15 decimal digits of the value's hash (the chance that two of 20,000 values share them is 1 in
4 million), and 5 of a keyed checksum, by which it is recognised."""


class Pseudonyms(msgspec.Struct, frozen=True):
    """The numbers that a session has given out, to be kept with it. A new session begins with `Pseudonyms()`.

    Only the numbers of its first values are kept; those of all others follow from value and key.

    The keys are `LABEL:` and a keyed hash of the value (HMAC-SHA256, 16 bytes): without the key nobody can tell which
    value it was or try values out, and with another key every value is new.
    """

    numbers: dict[str, int] = {}


class Numbering:
    """Gives values their numbers while a text is cleaned. The pseudonyms that it was given are never changed.

    Without a key nothing is numbered, and one stand-in is used for all values of a kind: `[EMAIL]`.
    """

    def __init__(self, given: Pseudonyms, key: Secret | None) -> None:
        self._given, self._key = given, key
        self._numbers: dict[str, int] | None = None
        self._highest: dict[str, int] | None = None

    @property
    def pseudonyms(self) -> Pseudonyms:
        """The pseudonyms that were given, with the new numbers."""
        return self._given if self._numbers is None else Pseudonyms(self._numbers)

    def stand_in(self, kind: str, value: str) -> str:
        """Return the stand-in for the value: `[EMAIL_1]`."""
        label = label_of(kind)
        if self._key is None:
            return f"[{label}]"
        digest = _hashed(self._key, f"{label}:{_plain(kind, value)}")
        name = f"{label}:{digest[:_HASH_BYTES].hex()}"
        numbers = self._given.numbers if self._numbers is None else self._numbers
        number = numbers.get(name)
        if number is None:
            number = self._next(label, name) if len(numbers) < NUMBERED else self._computed(label, digest)
        return f"[{label}_{number}]"

    def is_given(self, label: str, number: int) -> bool:
        """Return whether a value may have this number: one that was given out, or that was computed with the key."""
        if number < _LEAST * _CHECKS or self._key is None:
            return number <= self.highest(label)
        from_hash, check = divmod(number, _CHECKS)
        return check == self._check(label, from_hash)

    def _next(self, label: str, name: str) -> int:
        """Give a value the next number of its kind."""
        number = self.highest(label) + 1
        if self._numbers is None:
            self._numbers = dict(self._given.numbers)
        assert self._highest is not None, "set by highest()"
        self._numbers[name] = self._highest[label] = number
        return number

    def _computed(self, label: str, digest: bytes) -> int:
        """Return the number computed from a value's hash. Its first digit is not 0."""
        from_hash = _LEAST + int.from_bytes(digest, "big") % (9 * _LEAST)
        return from_hash * _CHECKS + self._check(label, from_hash)

    def _check(self, label: str, from_hash: int) -> int:
        assert self._key is not None, "without a key nothing is numbered"
        return int.from_bytes(_hashed(self._key, f"{label}_{from_hash}"), "big") % _CHECKS

    def highest(self, label: str) -> int:
        """Return the highest number of a label that was given out, or 0."""
        if self._highest is None:
            self._highest = {}
            for name, number in self._given.numbers.items():
                other = name.partition(":")[0]
                self._highest[other] = max(self._highest.get(other, 0), number)
        return self._highest.get(label, 0)


def _hashed(key: Secret, text: str) -> bytes:
    return hmac.digest(key.reveal(), text.encode("utf-8", "surrogatepass"), "sha256")


def label_of(kind: str) -> str:
    """Return the kind as it is written in a pseudonym: capitals, digits and underscores."""
    return re.sub(r"[^A-Z0-9]+", "_", kind.upper()).strip("_") or "PRIVATE"


_AS_WRITTEN = frozenset({"api_key", "credential", "private_key"})
_GROUPED = frozenset({"card", "iban", "phone", "us_ssn", "uk_nino", "de_tax_id", "fr_nir"})


def _plain(kind: str, value: str) -> str:
    """Return the value without differences of writing.

    Those are case, white space, and separators of digits; the `+` of a telephone number, the `@` of an address in a
    URL, and the zeros of an IPv6 address.
    """
    if kind in _AS_WRITTEN:
        return value
    folded = value.casefold()
    if kind == "ip":
        return _address(folded)
    if kind not in _GROUPED:
        return " ".join((folded.replace("%40", "@") if kind == "email" else folded).split())
    if kind == "phone" and (abroad := re.match(r"\W*(?:\+|00(?=\W*[1-9]))", folded)):
        return "+" + "".join(filter(str.isalnum, folded[abroad.end() :].replace("(0)", "")))
    return "".join(filter(str.isalnum, folded))


def _address(text: str) -> str:
    """Return an IP address in its one short form; other text unchanged."""
    try:
        return str(ip_address(text))
    except ValueError:
        return text
