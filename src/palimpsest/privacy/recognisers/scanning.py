"""A cheap first look at a text, which shows what cannot be in it. Pure.

Most texts hold nothing private, so each recogniser first asks for what it always needs: an "@", seven digits, a long
word. Two translations of the text answer that at memory speed:

    text    Call 0171-55 or ask for AKIAIOSFODNN7EXAMPLE
    shape   Aaaa 0000-00 aa aaa aaa AAAAAAAAAAAAA0AAAAAA    capitals as A, letters as a, digits as 0, the rest unchanged
    words   xxxx xxxxxxx xx xxx xxx xxxxxxxxxxxxxxxxxxxx    characters of keys as x, the rest as a space
"""

from __future__ import annotations

import re
from typing import NamedTuple

from palimpsest.privacy.recognisers import languages

_DIGITS, _CAPITALS, _LETTERS = b"0123456789", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz"
_SHAPE = bytes.maketrans(_DIGITS + _CAPITALS + _LETTERS, b"0" * 10 + b"A" * 26 + b"a" * 26)
_WORDS = bytes(ord("x") if code in _DIGITS + _CAPITALS + _LETTERS + b"_-." else ord(" ") for code in range(256))
_RUN, _GROUP = re.compile(rb"0[0 .()/?-]{5,}0"), re.compile(rb"0+")
_LONG = re.compile(rb"0000000000*+")
"""Patterns over a shape. "?" stands for spaces and dashes that are not ASCII. All alternatives begin with the same
character, which `re` finds quickly."""

SPACES, DASHES = (
    " \u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000",
    "-\u2010\u2011\u2012\u2013\u2014\u2212",
)
"""The characters that count as a space or a dash between groups of digits."""

EDGE, END = r"(?:^|[^0-9A-Za-z.]|(?:^|[^0-9])\.)", "(?:$|[^0-9A-Za-z])"
"""For signs (see `recognisers`): what `is_apart` demands before and behind a number, as far as ASCII can tell."""

_GIVES = re.compile(
    rf"\b(?:ist?|est?|{languages.SAYS})\b|bearer|\bidentified\b|\bpassword\s+'|[\uff1a\uff1d{languages.SAYS_BEHIND}]",
    re.IGNORECASE,
)

LONG_WORD = 20
"""The least length of a key or token, in characters."""


def softened(text: str) -> str:
    """Return the text with spaces for JSON's escapes of white space: in `\\n555-1234` no letter may touch the
    number."""
    if "\\" not in text:
        return text
    return text.replace("\\n", "  ").replace("\\r", "  ").replace("\\t", "  ")


def goes_on(char: str) -> bool:
    """Return whether this character beside a number is part of it: a digit, or a letter of a script that has capitals.

    Other scripts are written without spaces (Chinese, Japanese, Thai), or attach endings and articles to a number
    (Korean, Hebrew, Arabic).
    """
    return char.isdecimal() or char.lower() != char.upper()


class Run(NamedTuple):
    """Groups of digits, as (start, end), with only spaces, dots, dashes, slashes and brackets between them."""

    groups: list[tuple[int, int]]


class Scan:
    """One text, softened, and what is known of it."""

    __slots__ = ("_long_words", "_numbers", "_runs", "ascii", "capitals", "digits", "shape", "text")

    def __init__(self, text: str) -> None:
        self.text = text = softened(text)
        self.ascii = text.encode("ascii", "replace")
        """One byte a character, "?" for each that is not ASCII."""
        self.shape = self.ascii.translate(_SHAPE)
        self.digits = self.shape.count(b"0")
        self.capitals = b"AA" in self.shape
        """Whether two capitals stand side by side anywhere."""
        self._numbers: list[tuple[int, int]] | None = None
        self._runs: list[tuple[int, int]] | None = None
        self._long_words: list[tuple[int, int]] | None = None

    @property
    def may_assign(self) -> bool:
        """Whether the text may give a value to a name: with a sign, in words, by a flag, or behind "bearer"."""
        text = self.text
        if ":" in text or "=" in text or "--" in text or "-p" in text or "</" in text or " is " in text:
            return True
        return _GIVES.search(text) is not None

    @property
    def lower(self) -> str:
        """The text with ASCII letters in lower case; every character keeps its place."""
        return self.text.lower() if self.text.isascii() else self.ascii.lower().decode("ascii")

    @property
    def runs(self) -> list[tuple[int, int]]:
        """The runs of seven or more digits and separators; none if the text has fewer than seven digits."""
        if self._runs is None:
            self._runs = [match.span() for match in _RUN.finditer(self.shape)] if self.digits >= 7 else []
        return self._runs

    @property
    def numbers(self) -> list[tuple[int, int]]:
        """Where nine digits or more stand in one piece."""
        if self._numbers is None:
            self._numbers = [match.span() for match in _LONG.finditer(self.shape)] if self.digits >= 9 else []
        return self._numbers

    def run(self, start: int, end: int) -> Run:
        """Return the run at this place, with its groups."""
        return Run([group.span() for group in _GROUP.finditer(self.shape, start, end)])

    @property
    def long_words(self) -> list[tuple[int, int]]:
        """Words of letters, digits, "_", "-" and "." that are long enough for a key."""
        if self._long_words is None:
            words = self.ascii.translate(_WORDS)
            self._long_words, needle, end = [], b"x" * LONG_WORD, 0
            while (start := words.find(needle, end)) >= 0:
                end = words.find(b" ", start)
                end = len(words) if end < 0 else end
                self._long_words.append((start, end))
        return self._long_words

    def is_apart(self, start: int, end: int, behind: int = 0) -> bool:
        """Return whether nothing beside this place belongs to it (see `goes_on`), nor a decimal point with a digit.

        What is before the place `behind` belongs to something else.
        """
        text = self.text
        before, after = text[max(start - 2, behind) : start], text[end : end + 2]
        if before and (goes_on(before[-1]) or (before[-1] == "." and before[0].isdecimal())):
            return False
        return not after or not (goes_on(after[0]) or (after[0] == "." and after[1:].isdecimal()))
