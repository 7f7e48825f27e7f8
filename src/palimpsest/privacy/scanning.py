"""A first look at a text, which tells cheaply what cannot be in it. Pure.

Most texts hold nothing private, so each recogniser asks first for what it cannot do without: an "@", seven digits, a
long word. Two translations of the text answer that at memory speed:

    text    Call 0171-55 or ask for AKIAIOSFODNN7EXAMPLE
    shape   Aaaa 0000-00 aa aaa aaa AAAAAAAAAAAAA0AAAAAA    capitals as A, letters as a, digits as 0, the rest as it is
    words   xxxx xxxxxxx xx xxx xxx xxxxxxxxxxxxxxxxxxxx    what keys are made of as x, the rest as a space
"""

from __future__ import annotations

import re
from typing import NamedTuple

from palimpsest.privacy import languages

_DIGITS, _CAPITALS, _LETTERS = b"0123456789", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz"
_SHAPE = bytes.maketrans(_DIGITS + _CAPITALS + _LETTERS, b"0" * 10 + b"A" * 26 + b"a" * 26)
_WORDS = bytes(ord("x") if code in _DIGITS + _CAPITALS + _LETTERS + b"_-." else ord(" ") for code in range(256))
_RUN, _GROUP = re.compile(rb"0[0 .()/?-]{5,}0"), re.compile(rb"0+")
_LONG = re.compile(rb"0000000000*+")
"""Of a shape: "?" stands for spaces and dashes that are not ASCII. `re` looks quickly for what all begin with."""

SPACES, DASHES = (
    " \u00a0\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u3000",
    "-\u2010\u2011\u2012\u2013\u2014\u2212",
)
"""What stands between groups of digits as a space or a dash."""

EDGE, END = r"(?:^|[^0-9A-Za-z.]|(?:^|[^0-9])\.)", "(?:$|[^0-9A-Za-z])"
"""Of signs (`recognisers`), what `is_apart` asks for before and behind a number, as far as ASCII tells."""

_GIVES = re.compile(
    rf"\b(?:ist?|est?|{languages.SAYS})\b|bearer|\bidentified\b|\bpassword\s+'|[\uff1a\uff1d{languages.SAYS_BEHIND}]",
    re.IGNORECASE,
)

LONG_WORD = 20
"""Characters that a key or token has at least."""


def softened(text: str) -> str:
    """The text with spaces for JSON's escapes of white space: in `\\n555-1234` no letter touches the number."""
    if "\\" not in text:
        return text
    return text.replace("\\n", "  ").replace("\\r", "  ").replace("\\t", "  ")


def goes_on(char: str) -> bool:
    """Whether a number goes on with this character beside it: a digit, or a letter of a script that has capitals.

    The other scripts are written without spaces (Chinese, Japanese, Thai), or put endings and articles to a number
    (Korean, Hebrew, Arabic).
    """
    return char.isdecimal() or char.lower() != char.upper()


class Run(NamedTuple):
    """Digits with only spaces, dots, dashes, slashes and brackets between them, as (start, end) of each group."""

    groups: list[tuple[int, int]]


class Scan:
    """One text, softened, and what is known of it."""

    __slots__ = ("_long_words", "_numbers", "_runs", "ascii", "capitals", "digits", "shape", "text")

    def __init__(self, text: str) -> None:
        self.text = text = softened(text)
        self.ascii = text.encode("ascii", "replace")
        """One byte for each character, "?" for what is not ASCII."""
        self.shape = self.ascii.translate(_SHAPE)
        self.digits = self.shape.count(b"0")
        self.capitals = b"AA" in self.shape
        """Whether two capitals stand together somewhere."""
        self._numbers: list[tuple[int, int]] | None = None
        self._runs: list[tuple[int, int]] | None = None
        self._long_words: list[tuple[int, int]] | None = None

    @property
    def may_assign(self) -> bool:
        """Whether something could be given a value: with a sign, in words, by a flag, or to a bearer."""
        text = self.text
        if ":" in text or "=" in text or "--" in text or "-p" in text or "</" in text or " is " in text:
            return True
        return _GIVES.search(text) is not None

    @property
    def lower(self) -> str:
        """The text with ASCII's letters in lower case, so that places stay right."""
        return self.text.lower() if self.text.isascii() else self.ascii.lower().decode("ascii")

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Where runs of at least seven characters are, where the text has digits enough for a number."""
        if self._runs is None:
            self._runs = [match.span() for match in _RUN.finditer(self.shape)] if self.digits >= 7 else []
        return self._runs

    @property
    def numbers(self) -> list[tuple[int, int]]:
        """Where nine digits and more are in one piece."""
        if self._numbers is None:
            self._numbers = [match.span() for match in _LONG.finditer(self.shape)] if self.digits >= 9 else []
        return self._numbers

    def run(self, start: int, end: int) -> Run:
        """The run that is there, by its groups."""
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

    def is_apart(self, start: int, end: int) -> bool:
        """Whether nothing `goes_on` with this place, nor a decimal point with a digit behind it."""
        text = self.text
        before, after = text[max(start - 2, 0) : start], text[end : end + 2]
        if before and (goes_on(before[-1]) or (before[-1] == "." and before[0].isdecimal())):
            return False
        return not after or not (goes_on(after[0]) or (after[0] == "." and after[1:].isdecimal()))
