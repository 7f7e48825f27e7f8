"""What may be kept of what is said: policies, patterns, recognisers, pseudonyms. Pure.

`palimpsest.privacy.policy` says what a policy may ask for, `palimpsest.privacy.redaction` does it,
`palimpsest.privacy.gate` stands in front of every write. Here is the seam for recognisers of one's own: names and
addresses of people cannot be found offline by rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Span(NamedTuple):
    """Characters `start` up to, but not including, `end` of a text are of this `kind`, such as "email"."""

    start: int
    end: int
    kind: str


class Recogniser(Protocol):
    """Finds what is private in a text. Whatever it raises counts as a failure, never as "nothing found".

    It is asked for every text on its way in, more than once where something was found, so it should be quick and
    answer alike for equal texts. It is not interrupted: one that asks somebody else keeps a timeout of its own.
    """

    def __call__(self, text: str, /) -> Iterable[Span | tuple[int, int, str]]:
        """Return the spans of private text, in any order; they may overlap."""
        ...
