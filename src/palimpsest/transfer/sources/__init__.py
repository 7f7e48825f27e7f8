"""The seam to files of other programs: `Source`, one module for each source, and the table that resolves names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from palimpsest.log.entry import Entry
from palimpsest.runtime.registry import Registry

if TYPE_CHECKING:
    from palimpsest.transfer.sources.files import SourceFile


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """The conversation that a piece belongs to, with its own id and title, if it has them.

    `number` is its place among the conversations of the file. It becomes part of the session's id if the conversation
    has no id.
    """

    id: str | None = None
    title: str | None = None
    number: str = ""


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a file, or a fault at its place. Pieces come in the order of the file.

    `place` is a line number (`12`) or a path (`conversations[3].mapping.abc`). Without a `conversation` the message
    belongs to the one conversation that the file is. `key` is the source's own id of the message and has nothing of its
    text. With `shared` another file may have another message under the same key. With `once` the same words are
    imported only once, wherever they are in the file. A message without a key is identified by its place: the number of
    pieces with `counts` before it in its conversation. `fault` says why there are no entries. `export` is a whole
    session exported by Palimpsest. `left_out` counts by reason what was not imported. `end` is how many bytes of the
    file were read.
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
    """Reads one kind of file. One object reads one file; it stores nothing.

    `format` is the format of the messages in the file, for sources of provider messages, else None. It may change
    while the file is read.
    """

    format: str | None

    def __init__(self, file: SourceFile, *, format: str | None = None, branches: bool = False) -> None:
        """Read the beginning of the file. Raises ImportFailed if it is not of this source.

        With `branches` every branch of a conversation becomes a conversation; without, only the current one does.
        """
        ...

    @staticmethod
    def speaks(value: object) -> bool:
        """Return whether a JSON value, alone or as an item of the file's list, has the shape of this source."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """Yield the pieces of the file, with no more than one conversation in memory at a time."""
        ...


SourceName: TypeAlias = Literal[
    "auto", "palimpsest", "chatgpt", "claude", "langchain", "pydantic-ai", "openai-agents", "messages"
]
"""The names of sources; "auto" detects the source. Registered sources need a cast for type checkers."""

NAMES = {
    "palimpsest": "palimpsest.transfer.sources.exports:Exports",
    "chatgpt": "palimpsest.transfer.sources.chatgpt:ChatGPT",
    "claude": "palimpsest.transfer.sources.claude:Claude",
    "langchain": "palimpsest.transfer.sources.langchain:LangChain",
    "pydantic-ai": "palimpsest.transfer.sources.pydantic_ai:PydanticAI",
    "openai-agents": "palimpsest.transfer.sources.openai_agents:OpenAIAgents",
    "messages": "palimpsest.transfer.sources.messages:Messages",
}
"""In the order in which `auto` asks whether a value is theirs: the most specific first, since messages of several
sources have a `role` or `parts`."""

SOURCES = Registry("source", "palimpsest.sources", dict(NAMES))
"""Sources by name. `SOURCES.register("mine", Mine)` adds a `Source` class; `auto` does not consider it."""
