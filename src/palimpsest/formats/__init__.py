"""The seam to providers' message formats. One file per format; names resolve here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from palimpsest.entries import Entry
from palimpsest.registry import Registry

Message = dict[str, Any]


class Problem(msgspec.Struct, frozen=True):
    """A rule of the provider that a list of messages breaks: which message, which rule, and its source."""

    message: int
    rule: str
    source: str

    def __str__(self) -> str:
        return f"messages[{self.message}]: {self.rule} ({self.source})"


class Shown(msgspec.Struct, frozen=True, gc=False):
    """One entry as a context shows it. `text` replaces its content; None shows the content as it is.

    `data` shows it as a plain user message (late results, background) whatever its kind.
    """

    entry: Entry
    text: str | None = None
    data: bool = False


class Format(Protocol):
    """A provider's message format. All three are pure; `encode(decode(x)) == x` for every valid `x`."""

    name: str
    prime: int
    """Tokens that the provider adds once to every request."""

    def decode(self, messages: Sequence[Any], where: str) -> list[Entry]:
        """Return the messages as entries. Raises InvalidEntry naming the place of what is malformed."""
        ...

    def encode(self, entries: Sequence[Entry]) -> list[Message]:
        """Return entries as messages, as they came in; nothing is repaired."""
        ...

    def render(self, group: Sequence[Shown]) -> list[Message]:
        """Return one group of a context as messages that the provider accepts."""
        ...

    def system(self, text: str) -> list[Message]:
        """Return the caller's system text as the messages it becomes."""
        ...

    def overhead(self, entry: Entry) -> int:
        """Tokens that the provider adds to this entry beside its texts."""
        ...

    def validate(self, messages: Sequence[Any]) -> list[Problem]:
        """Return every rule of the provider that the messages break, each with its source."""
        ...

    def request(self, messages: list[Message], tools: Sequence[Message]) -> dict[str, Any]:
        """Return the keyword arguments of the provider's own client."""
        ...


FORMATS = Registry("format", "palimpsest.formats", {"openai": "palimpsest.formats.openai_chat:OpenAIChat"})
"""Formats by name. `FORMATS.register("mine", Mine)` adds a class whose instances are of this seam."""

_made: dict[str, Format] = {}


def find_format(name: str) -> Format:
    """Return the format of this name. Raises ConfigError, with the nearest name, for an unknown one."""
    found = _made.get(name)
    if found is None:
        found = _made[name] = FORMATS.find(name)()
    return found
