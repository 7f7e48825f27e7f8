"""Finding messages in the shapes that files have: single messages, lists, objects with messages; lines or one document.

The shapes are the same for all sources of messages. Each of these derives from `MessageSource`, and reads one message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from palimpsest.errors import InvalidEntry
from palimpsest.log.entry import Entry
from palimpsest.transfer.sources import Conversation, Piece
from palimpsest.transfer.sources.common import need
from palimpsest.transfer.sources.documents import Document, DocumentSource
from palimpsest.transfer.sources.outlines import Outline
from palimpsest.transfer.sources.values import Value

LISTS = ("messages", "input", "contents")
"""The keys under which an object may have its messages."""

SYSTEMS = ("system", "instructions", "system_instruction", "systemInstruction")
"""The keys under which an object may have system text beside the messages."""

CONFIG = "config"
"""The key under which an object for Google's client has its settings, system text among them."""

IDS = ("session_id", "id")
NEITHER = "is neither a message, a list of messages, an object with `messages`, nor an export of Palimpsest"


def is_export(value: object) -> bool:
    """Return whether this is a session that `export()` wrote."""
    return isinstance(value, dict) and "schema_version" in value and "entries" in value


def messages_of(value: Mapping[str, Any]) -> tuple[str, list[Any]] | None:
    """Return the key under which an object has messages, and the messages; None if it has none."""
    for key in LISTS:
        held = value.get(key)
        if isinstance(held, list):
            return key, held
    if isinstance(value.get("input"), str) and "role" not in value:
        return "input", [{"role": "user", "content": value["input"]}]
    return None


def first_messages(sample: list[Any]) -> Iterator[Any]:
    """Yield the messages in the first values of a file, whatever their shape."""
    for value in sample:
        if isinstance(value, list):
            yield from value[:50]
        elif isinstance(value, dict) and not is_export(value):
            held = messages_of(value)
            if held is None:
                yield value
            else:
                yield from held[1][:50]


class MessageSource(DocumentSource, ABC):
    """The base of sources of messages: a source of its own reads one message, the shapes are the same for all."""

    def begin(self) -> None:
        """Begin a new conversation: messages read before have no influence any more."""

    @abstractmethod
    def is_message(self, value: Mapping[str, Any]) -> bool:
        """Return whether an object is a message."""

    @abstractmethod
    def read(self, message: Any) -> tuple[list[Entry], dict[str, int]]:
        """Return the checked entries of a message, and the numbers of what was left out, by reason.

        Raises InvalidEntry with a `where` that begins with `messages[0]`.
        """

    def look(self, value: Mapping[str, Any], where: str, *, is_message: bool) -> str | None:
        """Look at a message before it is read, or at an object with messages before these are.

        Returns why the source reads no further from there on; None if it does.
        """
        return None

    def conversation_id(self, messages: list[Any]) -> str | None:
        """Return the id of the conversation that messages name as theirs, or None."""
        return None

    def pieces(self) -> Iterator[Piece]:
        """Yield the messages of the document, up to where the source stops."""
        try:
            yield from self._pieces()
        except _Stopped as stopped:
            yield stopped.piece

    def _pieces(self) -> Iterator[Piece]:
        document = self._document
        if document.layout == "list":
            yield from self._list(document)
        elif (outline := document.outline) is not None and (key := _streamed(document, outline)) is not None:
            yield from self._outlined(document, outline, key)
        else:
            for item in document.items():
                yield from self._alone(item, document.layout == "lines")

    def _list(self, document: Document) -> Iterator[Piece]:
        """Yield the pieces of a list: one conversation, unless its items are conversations themselves."""
        if any(isinstance(value, dict) and self.is_message(value) for value in document.sample()):
            held = [value for value in document.sample() if isinstance(value, dict)]
            conversation = Conversation(id=self.conversation_id(held))
            yield from self._conversation(document.items(), "messages", conversation)
            return
        for item in document.items():
            number = str(item.place + 1)
            if item.fault is not None:
                yield Piece(place=f"item {number}", fault=item.fault, counts=True, end=item.end)
            else:
                yield from self._value(item, f"item {number}", f"item {number} ", number)

    def _outlined(self, document: Document, outline: Outline, key: str) -> Iterator[Piece]:
        """Yield the pieces of the one object of a document, reading its messages one by one."""
        value = dict(outline.value)
        for name in SYSTEMS:
            if name in outline.lists:
                value[name] = [item.value for item in document.listed(name)]
        begin, end = outline.lists[key].begin, outline.end
        yield from self._object(value, (key, value[key]), "", "", (begin, end), document.listed(key))
        yield Piece(place="messages", counts=True, end=outline.end)

    def _alone(self, item: Value, is_line: bool) -> Iterator[Piece]:
        """Yield the pieces of one line, or of the one value of a document."""
        place = str(item.place)
        if item.fault is not None:
            yield Piece(place=place, fault=item.fault, counts=True, end=item.end)
        elif is_line:
            yield from self._value(item, place, f"{place}: ", place)
        else:
            yield from self._value(item, "messages", "", "")

    def _value(self, item: Value, place: str, before: str, number: str) -> Iterator[Piece]:
        value = item.value
        if isinstance(value, list):
            conversation = Conversation(id=self.conversation_id(value), number=number)
            yield from self._conversation(_each(value, item.end), f"{before}messages", conversation)
        elif is_export(value):
            yield Piece(place=place, export=value, end=item.end)
        elif isinstance(value, dict) and (held := messages_of(value)) is not None:
            ends = item.end, item.end
            yield from self._object(value, held, before, number, ends, _each(held[1], item.end))
        elif isinstance(value, dict) and self.is_message(value):
            yield self._message(value, place, None, item.end)
            return
        else:
            yield Piece(place=place, fault=NEITHER, end=item.end)
        yield Piece(place=place, counts=True, end=item.end)  # it takes a place in the file's own conversation

    def _object(
        self,
        value: Mapping[str, Any],
        held: tuple[str, list[Any]],
        before: str,
        number: str,
        ends: tuple[int, int],
        items: Iterator[Value],
    ) -> Iterator[Piece]:
        """Yield the pieces of an object with messages.

        `held` is the key of the messages with all or the first of them, `ends` how many bytes of the file are read
        before and after them, `items` yields them all.
        """
        key, messages = held
        begin, end = ends
        if (reason := self.look(value, before or key, is_message=False)) is not None:
            raise _Stopped(Piece(place=before.rstrip(": ") or key, fault=reason, end=begin))
        own = next((value[name] for name in IDS if isinstance(value.get(name), str) and value[name]), None)
        title = value.get("title")
        conversation = Conversation(
            id=own or self.conversation_id(messages),
            title=title if isinstance(title, str) else None,
            number=number,
        )
        config = value.get(CONFIG)
        config = config if isinstance(config, dict) else {}
        for where, holder in (("", value), (f"{CONFIG}.", config)):
            for name in SYSTEMS:
                yield from self._system(holder.get(name), f"{where}{name}", before, conversation, begin)
        yield from self._conversation(items, f"{before}{key}", conversation)
        beside = {name for name in value if name not in (key, *IDS, *SYSTEMS, "title")}
        if config and config.keys() <= set(SYSTEMS):
            beside.remove(CONFIG)
        if beside:
            reason = "settings beside the messages, such as model and tools"
            yield Piece(place=before or key, left_out={reason: len(beside)}, end=end)

    def _system(self, given: Any, name: str, before: str, conversation: Conversation, end: int) -> Iterator[Piece]:
        """Yield the system text beside the messages as a message with a key, so that places of later ones stay."""
        if given in (None, "", [], {}):
            return
        place = f"{before}{name}"
        try:
            text = _system_text(given)
        except InvalidEntry as fault:
            yield Piece(place=place, conversation=conversation, fault=fault.reason, end=end)
            return
        yield Piece(
            place=place,
            conversation=conversation,
            entries=(Entry(role="system", content=text),),
            key=f"{name} {conversation.number}",
            once=True,
            end=end,
        )

    def _conversation(self, items: Iterator[Value], place: str, conversation: Conversation) -> Iterator[Piece]:
        """Yield the messages of a conversation, with faults in the places of malformed ones."""
        self.begin()
        for item in items:
            where = f"{place}[{item.place}]"
            if item.fault is None:
                yield self._message(item.value, where, conversation, item.end)
            else:
                yield Piece(place=where, conversation=conversation, fault=item.fault, counts=True, end=item.end)

    def _message(self, message: Any, place: str, conversation: Conversation | None, end: int) -> Piece:
        if isinstance(message, dict) and (reason := self.look(message, place, is_message=True)) is not None:
            raise _Stopped(Piece(place=place, conversation=conversation, fault=reason, counts=True, end=end))
        try:
            entries, left_out = self.read(need(message, dict, "messages[0]", "a message: a mapping"))
        except InvalidEntry as fault:
            within = fault.where.removeprefix("messages[0]").removeprefix(".")
            reason = f"{within}: {fault.reason}" if within else fault.reason
            return Piece(place=place, conversation=conversation, fault=reason, counts=True, end=end)
        return Piece(
            place=place, conversation=conversation, entries=tuple(entries), counts=True, left_out=left_out, end=end
        )


class _Stopped(Exception):
    """The source reads no further. `piece` is the last one, and says why."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece


def _streamed(document: Document, outline: Outline) -> str | None:
    """Return the key of the messages of a large object that can be read one by one; None if it is to be read whole."""
    held = None if is_export(outline.value) else messages_of(outline.value)
    if held is None or held[0] not in outline.lists:
        return None
    return held[0] if all(document.fits(name) for name in SYSTEMS if name in outline.lists) else None


def _each(messages: list[Any], end: int) -> Iterator[Value]:
    return (Value(i, message, None, end) for i, message in enumerate(messages))


def _system_text(given: Any) -> str:
    """Return the text of a system prompt: a text, a list of text blocks, or an object with parts."""
    if isinstance(given, str):
        return given
    if isinstance(given, dict) and isinstance(given.get("parts"), list):
        given = given["parts"]
    if isinstance(given, dict) and isinstance(given.get("text"), str):
        given = [given]
    if isinstance(given, list):
        values = [part.get("text") if isinstance(part, dict) else part for part in given]
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) == len(values):
            return "\n".join(texts)
    raise InvalidEntry("system", "is neither text nor a list of text blocks")
