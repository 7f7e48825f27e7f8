"""`claude`: the conversations of Claude's data export, from conversations.json or from the archive.

One message may have thoughts, text, tool calls and their results in a row. They become entries in that order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from palimpsest.errors import InvalidEntry, shorten
from palimpsest.formats import find_format
from palimpsest.log.entry import Entry, Opaque, Part, Reasoning, Role, Text
from palimpsest.transfer.sources import Conversation, Piece
from palimpsest.transfer.sources.common import (
    TooManyBranches,
    Tree,
    as_json,
    content,
    has_value,
    metadata,
    microseconds,
    native,
    need,
    opaque,
    rest,
    within,
)
from palimpsest.transfer.sources.documents import DocumentSource
from palimpsest.transfer.sources.limits import Limits

NAME = "claude"
ELSEWHERE = "messages in other branches (edits and retries)"
EMPTY = "messages without content"
_SENDERS: dict[str, Role] = {"human": "user", "assistant": "assistant"}

_SHAPES: dict[str, tuple[str, ...]] = {
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id", "content", "is_error"),
    "image": ("source",),
    "document": ("source", "title", "context"),
}
"""Blocks that have the shape of the Messages API, and the keys that it has for them."""


class Claude(DocumentSource):
    """Claude's data export."""

    @staticmethod
    def speaks(value: object) -> bool:
        """Return whether this is a conversation: an object with `chat_messages`."""
        return isinstance(value, dict) and isinstance(value.get("chat_messages"), list)

    def pieces(self) -> Iterator[Piece]:
        """Yield the messages, conversation by conversation."""
        for place, number, item in self._document.conversations():
            if item.fault is not None:
                yield Piece(place=place, fault=item.fault, end=item.end)
            elif not self.speaks(item.value):
                yield Piece(
                    place=place, fault="is not a conversation: an object with chat_messages is needed", end=item.end
                )
            else:
                yield from self._conversation(item.value, place, number, item.end)

    def _conversation(self, value: Mapping[str, Any], place: str, number: str, end: int) -> Iterator[Piece]:
        own, title = value.get("uuid"), value.get("name")
        id = own if isinstance(own, str) and own else None
        about = {"id": id, "title": title if isinstance(title, str) and title else None}
        messages: list[Any] = value["chat_messages"]
        current_length = 0
        try:
            for branch, path in enumerate(_branches(messages, self._limits), 1):
                if branch > 1 and not self._branches:
                    break
                current_length = current_length or len(path)
                conversation = Conversation(
                    id=id if branch == 1 or id is None else f"{id}~{branch}",
                    title=about["title"],
                    number=number if branch == 1 else f"{number}~{branch}",
                )
                first = {"conversation": {key: text for key, text in about.items() if text}}
                for i in path:
                    piece = _piece(messages[i], f"{place}.chat_messages[{i}]", conversation, id or "", first, end)
                    first = first if piece.fault or not piece.entries else {}
                    yield piece
        except TooManyBranches as fault:
            yield Piece(place=f"{place}.chat_messages", fault=str(fault), end=end)
        if not self._branches and current_length < len(messages):
            yield Piece(place=place, left_out={ELSEWHERE: len(messages) - current_length}, end=end)


def _branches(messages: list[Any], limits: Limits) -> Iterator[list[int]]:
    """Yield the branches as indexes of messages, the newest first. If messages name no parents, yield one with all.

    Raises TooManyBranches before a branch, other than the first, that is beyond a limit.
    """
    places = {
        message["uuid"]: i
        for i, message in enumerate(messages)
        if isinstance(message, dict) and isinstance(message.get("uuid"), str)
    }
    have_parents = [
        isinstance(message, dict) and isinstance(message.get("parent_message_uuid"), str) for message in messages
    ]
    if not messages or len(places) < len(messages) or not all(have_parents):
        yield list(range(len(messages)))
        return
    tree = Tree({id: messages[i]["parent_message_uuid"] for id, i in places.items()})
    newest = max(places, key=places.__getitem__)
    yield [places[id] for id in tree.path(newest)]
    others = sorted((leaf for leaf in tree.leaves if leaf != newest), key=places.__getitem__)
    for path in tree.paths(others, limits):
        yield [places[id] for id in path]


def _piece(message: Any, place: str, conversation: Conversation, id: str, about: Mapping[str, Any], end: int) -> Piece:
    try:
        entries = _entries(need(message, dict, "", "a message: an object"), about)
    except InvalidEntry as fault:
        return Piece(place=within(place, fault), conversation=conversation, fault=fault.reason, end=end)
    own = message.get("uuid")
    return Piece(
        place=place,
        conversation=conversation,
        entries=tuple(entries),
        key=f"{NAME}:{id}:{own}" if isinstance(own, str) and own else "",
        counts=True,
        left_out={} if entries else {EMPTY: 1},
        end=end,
    )


def _entries(message: Mapping[str, Any], about: Mapping[str, Any]) -> list[Entry]:
    """Return the entries of a message: its attachments, then its blocks, then its files.

    Raises InvalidEntry with a place within the message.
    """
    sender = need(message.get("sender"), str, "sender", "human or assistant")
    if sender not in _SENDERS:
        raise InvalidEntry("sender", f"{shorten(sender)} is neither human nor assistant")
    at = microseconds(message.get("created_at"))
    kept = rest(message, "uuid", "text", "content", "sender", "created_at", "attachments", "files")
    reader = _Blocks(_SENDERS[sender], str(message.get("uuid") or ""), at, {**about, **kept})
    for i, given in enumerate(need(message.get("attachments") or [], list, "attachments", "a list")):
        reader.attachment(need(given, dict, f"attachments[{i}]", "an attachment: an object"))
    blocks = need(message.get("content") or [], list, "content", "a list of blocks")
    text = message.get("text")
    if not any(map(_repeats_text, blocks)) and isinstance(text, str) and text:
        blocks = [*blocks, {"type": "text", "text": text}]
    for i, block in enumerate(blocks):
        reader.block(need(block, dict, f"content[{i}]", "a block: an object"), i)
    for given in need(message.get("files") or [], list, "files", "a list"):
        reader.part(opaque("file", given if isinstance(given, dict) else {"file_name": given}))
    return reader.done()


def _repeats_text(block: Any) -> bool:
    """Return whether the `text` of the message only repeats this block. With tool calls it describes these."""
    if not isinstance(block, dict):
        return False
    return block.get("type") in ("tool_use", "tool_result") or (block.get("type") == "text" and bool(block.get("text")))


class _Blocks:
    """Converts the blocks of one message to entries, in order."""

    def __init__(self, role: Role, id: str, at: int, kept: Mapping[str, Any]) -> None:
        self._role, self._id, self._at, self._kept = role, id, at, dict(kept)
        self._entries: list[Entry] = []
        self._parts: list[Part] = []
        self._beside: list[dict[str, Any]] = []
        self._calls: dict[str, OrderedDict[str, None]] = {}  # by tool, the ids of open calls, the oldest first
        self._tools: dict[str, list[str]] = {}  # by id of an open call, its tools
        self._runs = False  # whether the last entry is the model's, so that a call continues it

    def attachment(self, given: Mapping[str, Any]) -> None:
        """Add an attachment: as a context entry if the export has its text, else as an opaque part with its name."""
        text, name = given.get("extracted_content"), given.get("file_name")
        if not isinstance(text, str) or not text:
            self.part(opaque("attachment", given))
            return
        context_name = name if isinstance(name, str) and name else "attachment"
        self._add(Entry(kind="context", content=text, name=context_name), rest(given, "file_name", "extracted_content"))

    def part(self, part: Part, beside: Mapping[str, Any] | None = None) -> None:
        """Add a part of the message; `beside` are values of it that no part has a field for."""
        self._parts.append(part)
        if beside:
            self._beside.append(dict(beside))

    def block(self, block: Mapping[str, Any], index: int) -> None:
        """Add one block of the message's content."""
        kind = block.get("type")
        text = block.get("text" if kind == "text" else "thinking")
        if kind in ("text", "thinking") and isinstance(text, str):
            if text:
                part = Text(text=text) if kind == "text" else Reasoning(text=text)
                self.part(part, rest(block, "type", "text", "thinking"))
        elif kind in ("tool_use", "tool_result"):
            self._tool(block, str(kind), index)
        else:
            self.part(self._decoded(block, str(kind)) or opaque(str(kind or "block"), block))

    def _tool(self, block: Mapping[str, Any], kind: str, index: int) -> None:
        """Add a tool call or a tool result."""
        known = ("type", *_SHAPES[kind], *(("name",) if kind == "tool_result" else ()))
        name = block.get("name")
        tool = name if isinstance(name, str) and name else "unknown"
        if kind == "tool_use":
            given = block.get("id")
            id = given if isinstance(given, str) and given else f"call_{self._id}_{index}"
            self._end_message()
            self._calls.setdefault(tool, OrderedDict())[id] = None
            self._tools.setdefault(id, []).append(tool)
            entry = Entry(
                kind="tool_call",
                role="assistant",
                name=tool,
                call_id=id,
                content=as_json(block.get("input") if isinstance(block.get("input"), dict) else {}),
                continues=self._runs,
            )
            beside = rest(block, *known) | ({} if isinstance(block.get("input"), dict) else rest(block, "id", "name"))
            self._add(entry, beside, runs=True)
            return
        self._end_message()
        parts = self._result(block.get("content"))
        entry = Entry(
            kind="tool_result",
            role="tool",
            name=tool if name else None,
            call_id=self._answered(block.get("tool_use_id"), tool, index),
            content=content(parts),
            status="error" if block.get("is_error") is True else None,
            native=native(NAME, parts),
        )
        self._add(entry, rest(block, *known))

    def _answered(self, given: object, tool: str, index: int) -> str:
        """Return the id of the call that a result answers: the given one, else that of the tool's oldest open call."""
        if not isinstance(given, str) or not given:
            given = next(iter(self._calls.get(tool, ())), f"result_{self._id}_{index}")
        for name in self._tools.pop(given, ()):
            self._calls[name].pop(given, None)
        return given

    def _result(self, given: Any) -> list[Part]:
        if isinstance(given, str):
            return [Text(text=given)] if given else []
        parts: list[Part] = []
        for block in given if isinstance(given, list) else [given] if has_value(given) else []:
            if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
                parts.append(Text(text=block["text"]))
            elif isinstance(block, dict):
                kind = str(block.get("type") or "block")
                parts.append(self._decoded(block, kind) or opaque(kind, block))
            else:
                parts.append(Text(text=block if isinstance(block, str) else as_json(block)))
        return parts

    def _decoded(self, block: Mapping[str, Any], kind: str) -> Part | None:
        """Return the part that the Messages API's format makes of an image or document; None for another shape."""
        if kind not in ("image", "document"):
            return None
        plain = {"type": kind, **{key: block[key] for key in _SHAPES[kind] if has_value(block.get(key))}}
        try:
            entries = find_format("anthropic").decode([{"role": "user", "content": [plain]}], "messages")
        except InvalidEntry:
            return None
        held = entries[0].content if len(entries) == 1 else ""
        part = held[0] if isinstance(held, tuple) and len(held) == 1 else None
        return None if part is None or isinstance(part, Opaque) or part.extra else part

    def _end_message(self) -> None:
        """Make a message entry of the parts that were added since the last entry."""
        parts, self._parts = self._parts, []
        beside, self._beside = self._beside, []
        if parts:
            entry = Entry(role=self._role, content=content(parts), native=native(NAME, parts))
            self._add(entry, {"blocks": beside} if beside else {}, runs=self._role == "assistant")

    def _add(self, entry: Entry, beside: Mapping[str, Any], *, runs: bool = False) -> None:
        kept = {**self._kept, **beside}
        self._kept, self._runs = {}, runs
        self._entries.append(replace(entry, at=self._at, metadata=metadata(NAME, kept)))

    def done(self) -> list[Entry]:
        """Return the entries."""
        self._end_message()
        return self._entries
