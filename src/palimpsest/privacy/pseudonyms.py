"""Pseudonyms: `[EMAIL_1]` is the same address wherever it stands in a session. Pure; no clear value is ever kept."""

from __future__ import annotations

import hmac
import re
from ipaddress import ip_address

import msgspec

from palimpsest.errors.secret import Secret

MIN_KEY = 16
"""Bytes that a key has at least: numbers of few digits are soon guessed by whoever knows it."""

NUMBERED = 64
"""Values that a session numbers as they come. What comes later has a number that needs no memory, so that a session's
head, which every append writes, stays small however many private values there are."""

_HASH_BYTES = 16
_LEAST: int = 10**14
_CHECKS: int = 10**5
"""A number that is made has 15 decimal digits of the value's hash (two of 20,000 values meet by a chance of 1 in
4 million), and 5 of a keyed checksum, by which it is known again."""


class Pseudonyms(msgspec.Struct, frozen=True):
    """The numbers that a session has given out, to be kept with it. A new session begins with `Pseudonyms()`.

    They are those of its first values only; all others have numbers that follow from value and key.

    The keys are `LABEL:` and a keyed hash of the value (HMAC-SHA256, 16 bytes): without the key nobody can tell, or try
    out, which value it was, and with another key every value is new.
    """

    numbers: dict[str, int] = {}


class Numbering:
    """Gives values their numbers while some text is cleaned. What it was given is never changed.

    Without a key nothing is numbered, and one thing stands for all values of a kind: `[EMAIL]`.
    """

    def __init__(self, given: Pseudonyms, key: Secret | None) -> None:
        self._given, self._key = given, key
        self._numbers: dict[str, int] | None = None
        self._highest: dict[str, int] | None = None

    @property
    def pseudonyms(self) -> Pseudonyms:
        """What was given, with the numbers that are new."""
        return self._given if self._numbers is None else Pseudonyms(self._numbers)

    def stand_in(self, kind: str, value: str) -> str:
        """Return what stands for the value: `[EMAIL_1]`."""
        label = label_of(kind)
        if self._key is None:
            return f"[{label}]"
        digest = _hashed(self._key, f"{label}:{_plain(kind, value)}")
        name = f"{label}:{digest[:_HASH_BYTES].hex()}"
        known = self._given.numbers if self._numbers is None else self._numbers
        number = known.get(name)
        if number is None:
            number = self._next(label, name) if len(known) < NUMBERED else self._made(label, digest)
        return f"[{label}_{number}]"

    def is_given(self, label: str, number: int) -> bool:
        """Whether a value may have this number: whether it was given out, or was made with the key."""
        if number < _LEAST * _CHECKS or self._key is None:
            return number <= self.highest(label)
        made, check = divmod(number, _CHECKS)
        return check == self._check(label, made)

    def _next(self, label: str, name: str) -> int:
        """Give a value the next number of its kind."""
        number = self.highest(label) + 1
        if self._numbers is None:
            self._numbers = dict(self._given.numbers)
        assert self._highest is not None, "highest() has made it"
        self._numbers[name] = self._highest[label] = number
        return number

    def _made(self, label: str, digest: bytes) -> int:
        """The number of a value that follows from its hash. Its first digit is not 0."""
        made = _LEAST + int.from_bytes(digest, "big") % (9 * _LEAST)
        return made * _CHECKS + self._check(label, made)

    def _check(self, label: str, made: int) -> int:
        assert self._key is not None, "without a key nothing is numbered"
        return int.from_bytes(_hashed(self._key, f"{label}_{made}"), "big") % _CHECKS

    def highest(self, label: str) -> int:
        """The highest number of a label that was given out, or 0."""
        if self._highest is None:
            self._highest = {}
            for name, number in self._given.numbers.items():
                of = name.partition(":")[0]
                self._highest[of] = max(self._highest.get(of, 0), number)
        return self._highest.get(label, 0)


def _hashed(key: Secret, text: str) -> bytes:
    return hmac.digest(key.reveal(), text.encode("utf-8", "surrogatepass"), "sha256")


def label_of(kind: str) -> str:
    """The kind as it stands in a pseudonym: capitals, digits and underscores."""
    return re.sub(r"[^A-Z0-9]+", "_", kind.upper()).strip("_") or "PRIVATE"


_AS_WRITTEN = frozenset({"api_key", "credential", "private_key"})
_GROUPED = frozenset({"card", "iban", "phone", "us_ssn", "uk_nino", "de_tax_id", "fr_nir"})


def _plain(kind: str, value: str) -> str:
    """The value without what may be written in one way or another: case, white space, and what groups digits; the `+`
    of a telephone, the `@` of an address in a link, and the zeros of an IPv6 address."""
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
    """An IP address in its one short form; as it is, where it is none."""
    try:
        return str(ip_address(text))
    except ValueError:
        return text
