"""The seam to where conversations come from. One file per source; names resolve here, and so does `auto`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from palimpsest.log.entry import Entry
from palimpsest.runtime.registry import Registry

if TYPE_CHECKING:
    from palimpsest.transfer.sources.files import SourceFile


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """Which conversation a piece belongs to: its own id and title, where it has them.

    `number` is its place among the conversations of a file; it names the session where nothing else does.
    """

    id: str | None = None
    title: str | None = None
    number: str = ""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a file, or what is wrong at this place. Pieces come in the order of the file.

    `place` is a line number (`12`) or a path (`conversations[3].mapping.abc`). Without a `conversation` the message
    belongs to the one that the whole file is. `key` is the source's own id of the message, and nothing of what it
    says; with `shared` another file may have another message under it, and with `once` the same words are taken
    once, wherever in the file they stand. Without a key a message is known by its place: how many pieces that `counts`
    came before it in its conversation. `fault` says why there are no entries. `export` is a session of our own, whole.
    `left_out` counts what was not taken, by reason. `end` is how many bytes of the file were read.
    """

    place: str
    conversation: Conversation | None = None
    entries: tuple[Entry, ...] = ()
    key: str = ""
    shared: bool = False
    once: bool = False
    counts: bool = False
    fault: str | None = None
    export: Mapping[str, Any] | None = None
    left_out: dict[str, int] = {}
    end: int = 0


class Source(Protocol):
    """Reads one kind of file. Made for one file; all of it is reading, nothing is stored.

    `format` is what the messages of the file are written in, for sources of provider messages.
    """

    format: str | None

    def __init__(self, file: SourceFile, *, format: str | None = None, branches: bool = False) -> None:
        """Look at the file's beginning. Raises ImportFailed for one that is not of this source.

        With `branches` every branch of a conversation is one of its own, not just the current one.
        """
        ...

    @staticmethod
    def speaks(value: object) -> bool:
        """Whether a JSON value, alone or as an item of the file's list, is of this source's shape."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """Yield what is in the file, holding no more than one conversation at a time."""
        ...


SourceName: TypeAlias = Literal[
    "auto", "palimpsest", "chatgpt", "claude", "langchain", "pydantic-ai", "openai-agents", "messages"
]
"""What a file of conversations is; "auto" finds out. For a source of your own, a type checker wants a cast."""

NAMES = {
    "palimpsest": "palimpsest.transfer.sources.exports:Exports",
    "chatgpt": "palimpsest.transfer.sources.chatgpt:ChatGPT",
    "claude": "palimpsest.transfer.sources.claude:Claude",
    "langchain": "palimpsest.transfer.sources.langchain:LangChain",
    "pydantic-ai": "palimpsest.transfer.sources.pydantic_ai:PydanticAI",
    "openai-agents": "palimpsest.transfer.sources.openai_agents:OpenAIAgents",
    "messages": "palimpsest.transfer.sources.messages:Messages",
}
"""In the order in which `auto` asks them whether a value is theirs: the most particular first, since others' messages
may have a `role` or `parts`, too."""

SOURCES = Registry("source", "palimpsest.sources", dict(NAMES))
"""Sources by name. `SOURCES.register("mine", Mine)` adds a class of this seam; it is not part of `auto`."""
