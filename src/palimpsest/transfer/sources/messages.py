"""`messages`: JSON and JSON lines of provider messages in every format, also mixed with exports of Palimpsest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.formats import find_format
from palimpsest.formats.common import noted, parted
from palimpsest.log.entry import Entry
from palimpsest.transfer.sources.evidence import format_of, is_provider_message
from palimpsest.transfer.sources.files import SourceFile
from palimpsest.transfer.sources.shapes import MessageSource, first_messages, messages_of


class Decoder:
    """Decodes provider messages one at a time, with the same result as decoding them together.

    For that it remembers what the model's next messages are tied to: in some formats they are, to reasoning, and behind
    a call until its result comes.
    """

    def __init__(self, format: str) -> None:
        self._format = find_format(format)
        self.begin()

    def begin(self) -> None:
        """Begin a new conversation: forget the messages before."""
        self._before: list[Any] = []
        self._tied = False  # whether whatever the model says next is tied to these

    def read(self, message: Any) -> list[Entry]:
        """Return a message's entries. Raises InvalidEntry whose place begins with `messages[0]`."""
        message, metadata = parted(message)
        return noted(self._decoded(message), metadata, "messages[0]")

    def _decoded(self, message: Any) -> list[Entry]:
        entries = self._format.decode([message], "messages")
        if not entries or any(entry.role != "assistant" for entry in entries):
            self.begin()
            return entries
        if self._before:
            entries = self._format.decode([*self._before, message], "messages")[-len(entries) :]
        if not self._tied:
            self._tied = entries[0].continues or all(entry.is_reasoning for entry in entries)
            if self._tied or any(entry.kind == "tool_call" for entry in entries):
                self._before = [*self._before, message] if entries[0].continues else [message]
        return entries


class Messages(MessageSource):
    """Provider messages. The format is the one named, or the one that the first messages show signs of."""

    def __init__(self, file: SourceFile, *, format: str | None = None, branches: bool = False) -> None:
        super().__init__(file, branches=branches)
        sample = self._document.sample()
        self.format = format or format_of(list(first_messages(sample)), sample, file.name or "the file")
        self._decoder = Decoder(self.format)

    @staticmethod
    def speaks(value: object) -> bool:
        """Return whether this is a message, a list of messages, or an object that has messages."""
        if isinstance(value, list):
            return any(isinstance(item, dict) and is_provider_message(item) for item in value[:50])
        if not isinstance(value, dict):
            return False
        held = messages_of(value)
        return is_provider_message(value) if held is None else not held[1] or Messages.speaks(held[1])

    def begin(self) -> None:
        """Begin a new conversation."""
        self._decoder.begin()

    def is_message(self, value: Mapping[str, Any]) -> bool:
        """Return whether an object is a message."""
        return is_provider_message(value)

    def read(self, message: Any) -> tuple[list[Entry], dict[str, int]]:
        """Return a message's entries; nothing is left out."""
        return self._decoder.read(message), {}
