"""`chatgpt`: the conversations of ChatGPT's data export, from conversations.json or from the archive.

A conversation is a tree of nodes. The path to its current node is the conversation as shown; edits and regenerated
answers are branches beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from palimpsest.errors import InvalidEntry
from palimpsest.log.entry import Entry, Kind, Part, Reasoning, Role, Status, Text
from palimpsest.transfer.sources import Conversation, Piece
from palimpsest.transfer.sources.common import (
    TooManyBranches,
    Tree,
    arguments,
    content,
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

NAME = "chatgpt"
ELSEWHERE = "messages in other branches (edits and regenerated answers)"
HIDDEN = "hidden or empty system messages"
EMPTY = "messages without content"
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


class ChatGPT(DocumentSource):
    """ChatGPT's data export."""

    @staticmethod
    def speaks(value: object) -> bool:
        """Return whether this is a conversation: an object with a `mapping` of nodes."""
        return isinstance(value, dict) and isinstance(value.get("mapping"), dict)

    def pieces(self) -> Iterator[Piece]:
        """Yield the messages, conversation by conversation."""
        for place, number, item in self._document.conversations():
            if item.fault is not None:
                yield Piece(place=place, fault=item.fault, end=item.end)
                continue
            try:
                value = need(item.value, dict, "", "a conversation: an object with a `mapping`")
                mapping = need(value.get("mapping"), dict, "mapping", "an object with the conversation's nodes")
            except InvalidEntry as fault:
                yield Piece(place=within(place, fault), fault=fault.reason, end=item.end)
                continue
            yield from _Talk(value, mapping, place, number).pieces(self._limits if self._branches else None, item.end)


class _Talk:
    """One conversation."""

    def __init__(self, value: Mapping[str, Any], mapping: Mapping[str, Any], place: str, number: str) -> None:
        self._value, self._mapping, self._place, self._number = value, mapping, place, number
        own = value.get("conversation_id") or value.get("id")
        self._id = own if isinstance(own, str) else None
        title = value.get("title")
        self._title = title if isinstance(title, str) and title else None
        nodes = {node: held for node, held in mapping.items() if isinstance(held, dict)}
        parents = {node: held.get("parent") for node, held in nodes.items()}
        self._tree = Tree({node: parent if isinstance(parent, str) else None for node, parent in parents.items()})
        self._nodes = nodes

    def pieces(self, branches: Limits | None, end: int) -> Iterator[Piece]:
        """Yield the current branch, then the others within the limits `branches`.

        With None the others are left out, and only the number of their messages is reported.
        """
        for node, held in self._mapping.items():
            if not isinstance(held, dict):
                yield Piece(place=f"{self._place}.mapping.{node}", fault="is not an object", end=end)
        if not self._nodes:
            return
        current = self._value.get("current_node")
        if not isinstance(current, str) or current not in self._nodes:
            if current is not None:
                reason = "is not a node of the mapping, so the newest branch is imported"
                yield Piece(place=f"{self._place}.current_node", fault=reason, end=end)
            current = max(self._tree.leaves, key=self._time)
        current_path = self._tree.path(current)
        yield from self._branch(current_path, 1, end)
        seen = set(current_path)
        others = sorted((leaf for leaf in self._tree.leaves if leaf not in seen), key=self._time)
        if branches is not None:
            try:
                for number, path in enumerate(self._tree.paths(others, branches), 2):
                    yield from self._branch(path, number, end)
            except TooManyBranches as fault:
                yield Piece(place=f"{self._place}.mapping", fault=str(fault), end=end)
            return
        left_out = sum(self._speaks(node) for node in self._nodes if node not in seen)
        if left_out:
            yield Piece(place=self._place, left_out={ELSEWHERE: left_out}, end=end)

    def _time(self, node: str) -> int:
        message = self._nodes[node].get("message")
        return microseconds(message.get("create_time")) if isinstance(message, dict) else 0

    def _speaks(self, node: str) -> bool:
        try:
            return bool(_Path(0, {}).entries(self._nodes[node], node)[0])
        except InvalidEntry:
            return False

    def _branch(self, nodes: list[str], branch: int, end: int) -> Iterator[Piece]:
        own = self._id if branch == 1 or self._id is None else f"{self._id}~{branch}"
        number = self._number if branch == 1 else f"{self._number}~{branch}"
        conversation = Conversation(id=own, title=self._title, number=number)
        about = {"id": self._id, "title": self._title}
        path = _Path(microseconds(self._value.get("create_time")), {k: v for k, v in about.items() if v})
        for node in nodes:
            place = f"{self._place}.mapping.{node}"
            try:
                entries, left_out = path.entries(self._nodes[node], node)
            except InvalidEntry as fault:
                yield Piece(place=within(place, fault), conversation=conversation, fault=fault.reason, end=end)
                continue
            yield Piece(
                place=place,
                conversation=conversation,
                entries=tuple(entries),
                key=f"{NAME}:{self._id or ''}:{node}",
                left_out={left_out: 1} if left_out else {},
                end=end,
            )


class _Path:
    """Converts the messages of one branch in order. It remembers open calls and the time of the last message.

    `about` goes into the metadata of the first entry.
    """

    def __init__(self, began: int, about: Mapping[str, Any]) -> None:
        self._now, self._about = began, about  # the time of the last message that had one
        self._open: dict[str, list[str]] = {}  # by the root of a tool's name, the ids of calls

    def entries(self, node: Mapping[str, Any], id: str) -> tuple[list[Entry], str | None]:
        """Return the entries of a node, and if there are none, why (None: it has no message).

        Raises InvalidEntry with a place within the node.
        """
        message = node.get("message")
        if message is None:
            return [], None
        need(message, dict, "message", "a message: an object")
        author = need(message.get("author"), dict, "message.author", "an author: an object")
        role = need(author.get("role"), str, "message.author.role", "a role")
        body = need(message.get("content"), dict, "message.content", "an object with a content_type")
        about = message.get("metadata")
        about = about if isinstance(about, dict) else {}
        self._now = microseconds(message.get("create_time")) or self._now
        kind = str(body.get("content_type"))
        parts = _parts(kind, body)
        hidden = bool(about.get("is_visually_hidden_from_conversation"))
        if role == "system" and (hidden or not parts) and kind != "user_editable_context":
            return [], HIDDEN
        if not parts and not (role == "assistant" and _recipient(message)):
            return [], EMPTY if role != "system" else HIDDEN
        kept = rest(message, "id", "author", "create_time", "content", "recipient")
        kept |= {"content": beside} if (beside := _beside(kind, body)) else {}
        kept |= {"author": who} if (who := rest(author, "role")) else {}
        if self._about:
            kept["conversation"], self._about = dict(self._about), {}
        return [self._entry(message, id, role, author, kind, parts, kept)], None

    def _entry(
        self,
        message: Mapping[str, Any],
        id: str,
        role: str,
        author: Mapping[str, Any],
        kind: str,
        parts: list[Part],
        kept: Mapping[str, Any],
    ) -> Entry:
        entry_kind: Kind = "message"
        entry_role: Role = "user"
        name = call_id = None
        status: Status | None = None
        body: str | tuple[Part, ...] = content(parts)
        tool = _recipient(message) if role == "assistant" else None
        if kind in ("user_editable_context", "model_editable_context"):
            entry_kind, name = "context", "custom instructions" if kind.startswith("user") else "memory"
        elif tool is not None:
            entry_kind, entry_role, name, call_id = "tool_call", "assistant", tool, f"call_{id}"
            self._open.setdefault(_root(tool), []).append(call_id)
            text = "\n".join(part.text for part in parts if isinstance(part, Text))
            body = arguments(text, "code" if kind == "code" else "text")
        elif role == "tool":
            author_name = author.get("name")
            entry_kind, entry_role = "tool_result", "tool"
            name = author_name if isinstance(author_name, str) and author_name else None
            call_id = self._answered(name) or f"result_{id}"
            status = "error" if kind == "system_error" else None
        elif role in _ROLES:
            entry_role = _ROLES[role]
        else:
            entry_kind, name = "context", role
        if entry_kind == "message" and entry_role == "user":
            self._open.clear()
        return Entry(
            kind=entry_kind,
            role=entry_role,
            content=body,
            name=name,
            call_id=call_id,
            status=status,
            metadata=metadata(NAME, kept),
            native=native(NAME, parts),
            at=self._now,
        )

    def _answered(self, tool: str | None) -> str | None:
        """Return the call that a tool's message answers: the only open one of this tool. None if there are several."""
        open_calls = self._open.get(_root(tool or ""), [])
        return open_calls.pop() if len(open_calls) == 1 else None


def _root(tool: str) -> str:
    return tool.partition(".")[0]


def _recipient(message: Mapping[str, Any]) -> str | None:
    """Return the tool that an assistant's message is addressed to, or None."""
    recipient = message.get("recipient")
    return recipient if isinstance(recipient, str) and recipient not in ("", "all") else None


def _text(value: object) -> list[Part]:
    return [Text(text=value)] if isinstance(value, str) and value else []


def _parts(kind: str, body: Mapping[str, Any]) -> list[Part]:
    """Return the parts of a message, none for one that says nothing. Content of unknown types is kept whole."""
    if kind in ("text", "multimodal_text"):
        held = need(body.get("parts", []), list, "message.content.parts", "a list of parts")
        return [part for value in held for part in _part(value)]
    if kind in ("code", "execution_output", "system_error"):
        return _text(body.get("text"))
    if kind == "thoughts":
        thoughts = need(body.get("thoughts") or [], list, "message.content.thoughts", "a list of thoughts")
        return [Reasoning(text=text) for thought in thoughts if (text := _thought(thought))]
    if kind == "reasoning_recap":
        recap = body.get("content")
        return [Reasoning(text=recap)] if isinstance(recap, str) and recap else []
    lines: list[Any] = []
    if kind == "tether_quote":
        lines = [body.get("title"), body.get("url"), body.get("text")]
    elif kind == "tether_browsing_display":
        lines = [body.get("summary"), body.get("result")]
    elif kind == "user_editable_context":
        lines = [body.get("user_profile"), body.get("user_instructions")]
    elif kind == "model_editable_context":
        lines = [body.get("model_set_context")]
    else:
        return [opaque(kind, body)] if rest(body, "content_type") else []
    return _text("\n\n".join(line for line in lines if isinstance(line, str) and line))


def _part(value: Any) -> list[Part]:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        return _text(value["text"])  # the transcript of speech
    if isinstance(value, dict):
        return [opaque(str(value.get("content_type") or "part"), value)]
    return [opaque("part", {"value": value})] if value is not None else []


def _thought(thought: Any) -> str:
    if not isinstance(thought, dict):
        return thought if isinstance(thought, str) else ""
    texts = (thought.get("summary"), thought.get("content"))
    return "\n".join(text for text in texts if isinstance(text, str) and text)


_PART_KEYS = ("text", "summary", "content", "content_type")
"""Keys of a part, or of a thought, that its entry has already."""

_BODY_KEYS = {
    "text": ("parts",),
    "multimodal_text": ("parts",),
    "code": ("text",),
    "execution_output": ("text",),
    "system_error": ("text",),
    "thoughts": ("thoughts",),
    "reasoning_recap": ("content",),
    "tether_quote": ("title", "url", "text"),
    "tether_browsing_display": ("summary", "result"),
    "user_editable_context": ("user_profile", "user_instructions"),
    "model_editable_context": ("model_set_context",),
}


"""For each type of content the keys that its entry has already."""


def _beside(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return what content has beside the text of its entry; nothing for an unknown type, which is kept whole."""
    if kind not in _BODY_KEYS:
        return {}
    kept = rest(body, "content_type", *_BODY_KEYS[kind])
    listed = body.get("thoughts" if kind == "thoughts" else "parts")
    parts = [value for value in listed if isinstance(value, dict)] if isinstance(listed, list) else []
    texts = [value for value in parts if "text" in value or kind == "thoughts"]
    extras = [extra for value in texts if (extra := rest(value, *_PART_KEYS))]
    kept |= {"parts": extras} if extras else {}
    return {"content_type": kind, **kept} if kept or kind != "text" else kept
