"""The seam to providers' message formats: the protocol `Format`, its records, and the registry of formats by name.

Each format has modules of its own, which are imported when the format is first used.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from palimpsest.log.entry import Entry
from palimpsest.runtime.registry import Registry

if TYPE_CHECKING:
    from palimpsest.tokens.models import Model

Message = dict[str, Any]

CHAT, RESPONSES, ANTHROPIC, GEMINI, TEXT = "openai", "openai-responses", "anthropic", "gemini", "text"
"""The names of the built-in formats."""

FormatName: TypeAlias = Literal["anthropic", "gemini", "openai", "openai-responses", "text"]
"""The same for type checkers. For a format of your own they need a cast."""


CACHE_SECONDS = 3600.0
"""The assumed lifetime of a prompt cache, if nothing more exact is known. OpenAI's ends 5 to 10 minutes after the last
call, and an hour after it at the latest, unless a request asks for 24 hours or the model differs
(learn.microsoft.com/azure/foundry/openai/how-to/prompt-caching). Google names no time for its implicit cache, and an
hour for the explicit one (ai.google.dev/gemini-api/docs/caching). Both as of 2026-11."""


class Problem(msgspec.Struct, frozen=True):
    """A rule of the provider that a list of messages breaks: the message's index, the rule, and the rule's source."""

    message: int
    rule: str
    source: str

    def __str__(self) -> str:
        return f"messages[{self.message}]: {self.rule} ({self.source})"


class Shown(msgspec.Struct, frozen=True, gc=False):
    """One entry as a context shows it. `text` replaces the entry's content; None shows the content as it is.

    With `data` the entry is shown as a plain user message, whatever its kind: late results and background.
    """

    entry: Entry
    text: str | None = None
    data: bool = False


class Adapted(msgspec.Struct, repr_omit_defaults=True, frozen=True):
    """An entry, by its `seq`, that a format cannot take as it is, and `what` was sent in its place."""

    seq: int
    what: str


class Joined(msgspec.Struct, frozen=True):
    """The messages of a whole request. `system` is the system text that the provider takes beside them, or None."""

    messages: list[Message]
    system: Any = None


class Format(Protocol):
    """A provider's message format. All methods are pure, and `encode(decode(x)) == x` for every valid `x`.

    A format is a class that derives from this one. It needs a name and the methods that are abstract here; everything
    else has the default that most providers want.

    A context is made in two steps. `render` turns each group into messages by itself, so that later groups do not
    change the messages of earlier ones. `join` then arranges all messages as the provider wants them.
    """

    name: str
    content: str = "content"
    """The key of a message that holds its content; empty if messages are texts."""
    prime: int = 0
    """Tokens that the provider, or `join`, adds once to every request."""
    tools_prime: int = 0
    """Tokens that the provider adds once to a request with tools, beside their schemas."""
    bills_kept: bool = False
    """Whether the keys in `Native.keep` are sent again and `overhead` does not count them. Then they are counted as one
    more text of the entry."""
    signs_together: bool = False
    """Whether the provider takes all signed reasoning of a message or none. Then none can be sent once some is gone."""
    signs_calls: bool = False
    """Whether the provider refuses a call of its own that has lost its signature, unlike another provider's call."""
    cache_seconds: float = CACHE_SECONDS
    """How long the provider's prompt cache keeps a prefix after the last call that used it."""
    words: frozenset[str] = frozenset()
    """The words that this format's items are made of: their keys, and values of `type` and `role`. A search for
    mentions of a text ignores them."""

    @abstractmethod
    def decode(self, messages: Sequence[Any], where: str) -> list[Entry]:
        """Return the messages as entries. Raises InvalidEntry naming the place of what is malformed."""
        ...

    @abstractmethod
    def encode(self, entries: Sequence[Entry]) -> list[Any]:
        """Return entries as messages of this format, as they came in; nothing is repaired."""
        ...

    @abstractmethod
    def render(self, group: Sequence[Shown], adapted: list[Adapted] | None = None) -> list[Message]:
        """Return one group of a context as messages that the provider accepts.

        Content of other providers that this format has no counterpart for is replaced by the nearest valid thing. Each
        replacement is added to the list `adapted`, if one is given.
        """
        ...

    def for_model(self, model: str | None) -> Format:
        """Return the format as the model of this name wants it (None: no name is known). The same object each time."""
        return self

    def unbound(self, entry: Entry, model: Model | None) -> Entry:
        """Return the message without what this model takes only behind exactly the messages that it was made behind.

        Some models of Anthropic refuse signed reasoning behind others. The same entry is returned if nothing is bound.
        """
        return entry

    @abstractmethod
    def join(self, system: str | None, messages: list[Message]) -> Joined:
        """Return the messages of rendered groups as those of one request, with the caller's system text.

        If the provider wants roles to alternate, neighbouring messages of one role are merged here.
        """
        ...

    @abstractmethod
    def overhead(self, entry: Entry) -> int:
        """Return the tokens that the provider, or rendering, adds to this entry beside its texts."""
        ...

    @abstractmethod
    def validate(self, messages: Sequence[Any]) -> list[Problem]:
        """Return every rule of the provider that the messages break, each with its source."""
        ...

    @abstractmethod
    def request(self, joined: Joined, tools: Sequence[Message], *, cache_breakpoints: bool = False) -> dict[str, Any]:
        """Return the keyword arguments for the provider's own client.

        With `cache_breakpoints` they contain marks for the provider's prompt cache, if it needs any: most cache
        without.
        """
        ...


FORMATS = Registry(
    "format",
    "palimpsest.formats",
    {
        ANTHROPIC: "palimpsest.formats.anthropic:Anthropic",
        GEMINI: "palimpsest.formats.gemini:Gemini",
        CHAT: "palimpsest.formats.openai_chat:OpenAIChat",
        RESPONSES: "palimpsest.formats.openai_responses:OpenAIResponses",
        TEXT: "palimpsest.formats.text:PlainText",
    },
)
"""Formats by name. `FORMATS.register("mine", Mine)` adds a class whose instances implement `Format`."""

_instances: dict[str, Format] = {}


def find_format(name: str) -> Format:
    """Return the format of this name. Raises ConfigError, with the nearest name, for an unknown one."""
    format = _instances.get(name) if isinstance(name, str) else None
    if format is None:
        format = _instances[name] = FORMATS.find(name)()
    return format


def known_format(name: str | None) -> Format | None:
    """Return the format of this name, or None if it is unknown: a log may hold entries of a format that was removed."""
    return find_format(name) if name is not None and FORMATS.knows(name) else None


def words_of(name: str | None) -> frozenset[str]:
    """Return the words of this format's items and of all built-in formats, as a log may hold items of any of them."""
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
"""Words of the items of several providers, and words that the log uses for any item."""
