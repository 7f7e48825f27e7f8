"""`messages`: JSON and JSON lines of provider messages in every format, also mixed with exports of Palimpsest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from palimpsest.errors import ImportFailed, InvalidEntry, shorten
from palimpsest.formats import GEMINI, find_format
from palimpsest.formats.common import has_words, noted, parted
from palimpsest.formats.openai_chat_parts import says_nothing
from palimpsest.formats.received.shapes import taken_as
from palimpsest.formats.wording import is_empty
from palimpsest.log.entry import Entry, Opaque
from palimpsest.transfer.sources.evidence import Evidence, is_provider_message
from palimpsest.transfer.sources.files import SourceFile
from palimpsest.transfer.sources.shapes import MessageSource, first_messages, messages_of


class Decoder:
    """Decodes provider messages one at a time, with the same result as decoding them together.

    For that it remembers what the model's next messages are tied to: in some formats they are, to reasoning, and behind
    a call until its result comes. Unless the format is `alone`, a message that it does not have is read as one of chat
    completions, as `add` does.
    """

    def __init__(self, format: str, *, alone: bool = True) -> None:
        self._format, self._alone = find_format(format), alone
        self.begin()

    @property
    def content(self) -> str:
        """The key under which a message of the format has what it says."""
        return "parts" if self._format.name == GEMINI else "content"

    def begin(self) -> None:
        """Begin a new conversation: forget the messages before."""
        self._before: list[Any] = []
        self._tied = False  # whether whatever the model says next is tied to these

    def read(self, message: Any) -> list[Entry]:
        """Return a message's entries. Raises InvalidEntry whose place begins with `messages[0]`."""
        message, metadata = parted(message)
        return noted(self._decoded(message), metadata, "messages[0]")

    def _decoded(self, message: Any) -> list[Entry]:
        if not self._alone and (other := taken_as(message, self._format.name)) != self._format.name:
            self.begin()
            return find_format(other).decode([message], "messages")
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
    """Provider messages. The format is the one named, or the one that the messages show signs of.

    Until the first sign messages are read as `openai`: without signs they say the same in every format.
    """

    def __init__(self, file: SourceFile, *, format: str | None = None, branches: bool = False) -> None:
        super().__init__(file, branches=branches)
        self._evidence = None if format is not None else Evidence()
        if self._evidence is not None:
            sample = self._document.sample()
            for value in sample:
                self._evidence.take_object(value)
            for i, message in enumerate(first_messages(sample), 1):
                self._evidence.take(message, f"message {i}")
            if self._evidence.conflict is not None:
                raise ImportFailed(file.name or "the file", self._evidence.conflict)
        self._read_as(format or (self._evidence or Evidence()).format)

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

    def look(self, value: Mapping[str, Any], where: str, *, is_message: bool) -> str | None:
        """Note the signs of a message, or of an object with messages, and read on in the format that they point to.

        Returns why the file cannot be read on, if there are signs of two formats by now.
        """
        if self._evidence is None or (is_message and _is_plain(value)):
            return None
        if is_message:
            self._evidence.take(value, where)
        else:
            self._evidence.take_object(value)
        if self._evidence.conflict is not None:
            return f"{self._evidence.conflict}. From here on nothing of the file is imported"
        if self._evidence.format != self.format:
            self._read_as(self._evidence.format)
        return None

    def read(self, message: Any) -> tuple[list[Entry], dict[str, int]]:
        """Return a message's entries; nothing is left out."""
        entries = self._decoder.read(message)
        content = self._decoder.content
        if entries and not (content in message and _is_plain(message)):
            _check_shown(entries[0], message, content)
        return entries, {}

    def _read_as(self, format: str) -> None:
        self.format: str | None = format
        self._decoder = Decoder(format, alone=self._evidence is None)


def _is_plain(message: Mapping[str, Any]) -> bool:
    """Return whether this is nothing but a role and a text, as most messages are: it has no signs of a format."""
    return len(message) == len(_PLAIN) and type(message.get("content")) is str and message.get("role") in _SPEAKERS


_PLAIN, _SPEAKERS = ("role", "content"), ("user", "assistant", "system")


def _check_shown(entry: Entry, message: Mapping[str, Any], content: str) -> None:
    """Raise InvalidEntry if no model would be shown what a message says, because it is not where the format has it.

    `content` is the key under which the format has it. `add` accepts such a message; but a file of them is of another
    make, and would be lost without a word.
    """
    if content not in message and is_empty(entry):
        speaking = (key for key, value in message.items() if has_words("" if key == "content" else key, value))
        if (key := next(speaking, None)) is not None:
            reason = f"is missing; no model would be shown what is under the key {shorten(key)}"
            raise InvalidEntry(f"messages[0].{content}", reason)
    for i, part in enumerate(entry.content if isinstance(entry.content, tuple) else ()):
        if isinstance(part, Opaque) and says_nothing(part) and has_words("", part.item.get("text")):
            reason = f"{shorten(part.item['text'])} is not text; no model would be shown it"
            raise InvalidEntry(f"messages[0].content[{i}].text", reason)
