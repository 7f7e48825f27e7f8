"""What may be kept of what is said: policies, patterns, recognisers, pseudonyms. Pure.

`palimpsest.privacy.policy` defines what a policy may ask for, `palimpsest.privacy.redaction` applies it, and
`palimpsest.privacy.gate` stands before every write. This module is the seam for users' own recognisers: names and
addresses of people cannot be found offline by rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Span(NamedTuple):
    """Characters `start` up to, but not including, `end` of a text are private and of this `kind`, such as "email"."""

    start: int
    end: int
    kind: str


class Recogniser(Protocol):
    """Finds what is private in a text. Any exception that it raises counts as a failure, never as "nothing found".

    It is called for every text on its way in, and again for a text in which something was found, so it should be quick
    and give equal answers for equal texts. It is not interrupted: a recogniser that calls a service needs a timeout of
    its own.
    """

    def __call__(self, text: str, /) -> Iterable[Span | tuple[int, int, str]]:
        """Return the spans of private text, in any order; they may overlap."""
        ...
