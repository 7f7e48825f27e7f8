"""The seam to providers' message formats. One file per format; names resolve here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from palimpsest.log.entry import Entry
from palimpsest.runtime.registry import Registry

Message = dict[str, Any]

FormatName: TypeAlias = Literal["anthropic", "gemini", "openai", "openai-responses", "text"]
"""The formats that come with Palimpsest. For one of your own, a type checker wants a cast."""


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


class Adapted(msgspec.Struct, repr_omit_defaults=True, frozen=True):
    """An entry (its `seq`) that a format cannot take as it is, and `what` became of it: the nearest valid thing."""

    seq: int
    what: str


class Joined(msgspec.Struct, frozen=True):
    """A whole request's messages. `system` is what the provider takes outside of them (None: nothing)."""

    messages: list[Message]
    system: Any = None


class Format(Protocol):
    """A provider's message format. All of it is pure; `encode(decode(x)) == x` for every valid `x`.

    A context is made in two steps: `render` turns each group into messages by itself, so that later groups
    change nothing of earlier ones; `join` puts them in a row as the provider wants it.
    """

    name: str
    prime: int
    """Tokens that the provider, or `join`, adds once to every request."""
    tools_prime: int
    """Tokens that the provider adds once to a request with tools, beside their schemas."""
    bills_kept: bool
    """Whether what `Native.keep` holds of this format's entries is sent again and not part of `overhead`, so that it is
    counted as one more text of the entry."""
    signs_together: bool
    """Whether the provider takes all signed reasoning of one message or none, so that what is left of it cannot be sent
    when some of it has gone."""
    cache_seconds: float
    """How long the provider's cache holds what it was sent, since the last call that it served."""
    words: frozenset[str]
    """What its items are made of: their keys, and what stands under `type` and `role`. Nobody who asks where a text is
    mentioned means these."""

    def decode(self, messages: Sequence[Any], where: str) -> list[Entry]:
        """Return the messages as entries. Raises InvalidEntry naming the place of what is malformed."""
        ...

    def encode(self, entries: Sequence[Entry]) -> list[Any]:
        """Return entries as messages of the type that the provider's client takes, as they came in, unrepaired."""
        ...

    def render(self, group: Sequence[Shown], adapted: list[Adapted] | None = None) -> list[Message]:
        """Return one group of a context as messages that the provider accepts.

        What another provider's item has no counterpart for here becomes the nearest valid thing; with
        `adapted`, each of those is added to that list.
        """
        ...

    def join(self, system: str | None, messages: list[Message]) -> Joined:
        """Return rendered groups as one request's messages, with the caller's system text.

        Where the provider wants roles to alternate, neighbours of one role are merged here.
        """
        ...

    def overhead(self, entry: Entry) -> int:
        """Tokens that the provider, or the way it is rendered, adds to this entry beside its texts."""
        ...

    def validate(self, messages: Sequence[Any]) -> list[Problem]:
        """Return every rule of the provider that the messages break, each with its source."""
        ...

    def request(self, joined: Joined, tools: Sequence[Message], *, cache_breakpoints: bool = False) -> dict[str, Any]:
        """Return the keyword arguments of the provider's own client.

        With `cache_breakpoints` they mark where the provider's prompt cache is to begin anew, for providers
        that want to be told; the others' caches need no marks.
        """
        ...


FORMATS = Registry(
    "format",
    "palimpsest.formats",
    {
        "anthropic": "palimpsest.formats.anthropic:Anthropic",
        "gemini": "palimpsest.formats.gemini:Gemini",
        "openai": "palimpsest.formats.openai_chat:OpenAIChat",
        "openai-responses": "palimpsest.formats.openai_responses:OpenAIResponses",
        "text": "palimpsest.formats.text:PlainText",
    },
)
"""Formats by name. `FORMATS.register("mine", Mine)` adds a class whose instances are of this seam."""

_made: dict[str, Format] = {}


def find_format(name: str) -> Format:
    """Return the format of this name. Raises ConfigError, with the nearest name, for an unknown one."""
    found = _made.get(name) if isinstance(name, str) else None
    if found is None:
        found = _made[name] = FORMATS.find(name)()
    return found


def known_format(name: str | None) -> Format | None:
    """Return the format of this name, or None where nobody knows it: a log may hold entries of one that has gone."""
    return find_format(name) if name is not None and FORMATS.knows(name) else None


def words_of(name: str | None) -> frozenset[str]:
    """What items of this format are made of, and those of all that come with Palimpsest: a log may hold any of them."""
    own = known_format(name)
    return _built_in_words() | own.words if own is not None else _built_in_words()


@cache
def _built_in_words() -> frozenset[str]:
    return _COMMON.union(*(find_format(name).words for name in FORMATS.built_in))


_COMMON = frozenset(
    {
        "assistant",
        "call",
        "content",
        "data",
        "error",
        "id",
        "image",
        "index",
        "jpeg",
        "message",
        "messages",
        "name",
        "null",
        "object",
        "png",
        "role",
        "status",
        "success",
        "system",
        "text",
        "tool",
        "tool_call",
        "type",
        "user",
    }
)
"""What items of several providers are made of, and what the log says of any item."""
