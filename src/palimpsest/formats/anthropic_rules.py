"""The rules of Anthropic's Messages API for a list of messages, each with its source. Pure.

Sources: Anthropic's API reference, "Create a Message", and its guides on tool use, extended thinking and prompt
caching. The source "API error 400" means that a rule is only known from the API's error messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from palimpsest.formats import Problem
from palimpsest.formats.anthropic_cache import MOST_MARKS, is_in_order, marks_in
from palimpsest.formats.anthropic_kinds import (
    begins_with_summary,
    declined,
    is_hosted_call,
    is_hosted_result,
    is_signed_compaction,
)

if TYPE_CHECKING:
    from palimpsest.tokens.models import Model

TOOL_ID = re.compile(r"[a-zA-Z0-9_-]+")
NAME_LENGTH = 128
"""The most characters of a tool's name."""

TOOL_NAME = re.compile(f"[a-zA-Z0-9_-]{{1,{NAME_LENGTH}}}")
THINKING = ("thinking", "redacted_thinking")

_REFERENCE = "API reference, Messages"
_TOOLS = "guide to tool use"
_ERROR = "API error 400"


_FREE = re.compile(r"claude-(instant|[23]|(opus|sonnet|haiku)-[34]|(opus|sonnet|fable|mythos)-5(?!-\d(?!\d))|mythos-p)")
"""Names of Claude's models that take signed thinking behind any messages."""


def binds_thinking(model: Model | None) -> bool:
    """Whether the model takes signed thinking only behind exactly the messages that it was made behind.

    Later ones refuse it elsewhere: "The block is bound to a different conversation" (guide "Prefix checks on thinking
    blocks"). An unknown model may be one of these.
    """
    return model is None or ("claude" in model.name and _FREE.search(model.name) is None)


def broken_rules(messages: Sequence[Any]) -> list[Problem]:
    """Return every rule that the messages break, in the order of the messages."""
    check = _Check()
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            check.broken(i, "a message must be a mapping with role and content", _REFERENCE)
            continue
        check.message(i, message)
    check.end(messages)
    return check.problems


class _Check:
    """The state of a check: the problems so far, the last role, calls that wait for results, all ids and marks."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.role = ""
        self.ids: set[str] = set()
        self.waiting: list[str] = []
        self.asked_at = -1
        self.marks: list[Any] = []
        self.hosted: set[str] = set()

    def broken(self, i: int, rule: str, source: str) -> None:
        self.problems.append(Problem(i, rule, source))

    def message(self, i: int, message: dict[str, Any]) -> None:
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant"):
            hint = (
                "; give system text beside the messages, since not all models take it among them"
                if role == "system"
                else ""
            )
            self.broken(i, f"unknown role {role!r}{hint}", _REFERENCE)
        elif i == 0 and role != "user" and not begins_with_summary({"content": content}):
            self.broken(i, "the first message must have the role user", _REFERENCE)
        elif role == self.role:
            self.broken(
                i, f"two messages of role {role} in a row; the roles user and assistant must alternate", _REFERENCE
            )
        self.role = str(role)
        if isinstance(content, str):
            blocks: list[Any] = [{"type": "text", "text": content}]
        elif isinstance(content, list):
            blocks = content
        else:
            blocks = []
        if not blocks:
            self.broken(i, "a message needs content that is not empty", _REFERENCE)
        whole = [block for block in blocks if isinstance(block, dict) and isinstance(block.get("type"), str)]
        if len(whole) < len(blocks):
            self.broken(i, "content must be text or a list of blocks with a type", _REFERENCE)
        self.results(i, role, whole)
        self.blocks(i, role, whole)

    def results(self, i: int, role: Any, blocks: list[dict[str, Any]]) -> None:
        """Check that each call is answered once, at the beginning of the next message, and that nothing else is."""
        answered = [block.get("tool_use_id") for block in blocks if block["type"] == "tool_result"]
        come_first = [block["type"] == "tool_result" for block in blocks[: len(answered)]]
        for id in answered:
            if role != "user" or id not in self.waiting:
                self.broken(i, f"a tool_result for {id!r}, which the message before does not call", _ERROR)
        if len(set(map(repr, answered))) < len(answered):
            self.broken(i, "two tool_result blocks for one call", _ERROR)
        missing = [id for id in self.waiting if id not in answered]
        if missing:
            self.broken(self.asked_at, f"calls without a tool_result in the next message: {missing}", _ERROR)
        if self.waiting and not all(come_first):
            self.broken(i, "tool_result blocks must come before all other blocks", _TOOLS)
        self.waiting = []

    def blocks(self, i: int, role: Any, blocks: list[dict[str, Any]]) -> None:
        if declined(blocks):
            self.broken(i, "blocks that a declined model has left unfinished before a fallback", "guide to fallback")
        if any(map(is_signed_compaction, blocks[1:] if i == 0 else blocks)):
            self.broken(i, "a signed compaction that is not the first block", _ERROR)
        for block in blocks:
            self.marks += marks_in([block])
            if block["type"] == "text":
                _text(self, i, block.get("text"))
            elif block["type"] == "tool_use":
                self.call(i, role, block)
            elif block["type"] == "tool_result":
                _result(self, i, block)
            elif block["type"] in THINKING:
                self.thinking(i, role, block)
            elif is_hosted_call(block["type"]):
                self.hosted.add(repr(block.get("id")))
            elif is_hosted_result(block["type"]) and repr(block.get("tool_use_id")) not in self.hosted:
                self.broken(i, f"a {block['type']} block without its call before it", _ERROR)
        if role == "assistant" and blocks and blocks[-1]["type"] in THINKING:
            self.broken(i, "a message of the assistant must not end with thinking", _ERROR)

    def call(self, i: int, role: Any, block: dict[str, Any]) -> None:
        id, name = block.get("id"), block.get("name")
        if role != "assistant":
            self.broken(i, "a tool_use block in a message that is not the assistant's", _ERROR)
        if not isinstance(id, str) or not TOOL_ID.fullmatch(id):
            self.broken(i, f"the id {id!r} of a call may have only letters, digits, _ and -", _ERROR)
        elif id in self.ids:
            self.broken(i, f"two calls share the id {id!r}", _ERROR)
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            self.broken(i, f"the tool name {name!r} must have 1 to 128 letters, digits, _ and -", _ERROR)
        if not isinstance(block.get("input"), dict):
            self.broken(i, "the input of a call must be an object", _REFERENCE)
        if isinstance(id, str):
            self.ids.add(id)
            self.waiting.append(id)
            self.asked_at = i

    def thinking(self, i: int, role: Any, block: dict[str, Any]) -> None:
        key = "signature" if block["type"] == "thinking" else "data"
        if role != "assistant":
            self.broken(i, f"a {block['type']} block in a message that is not the assistant's", _ERROR)
        if not isinstance(block.get(key), str) or not block[key]:
            self.broken(i, f"a {block['type']} block without its {key}", "guide to extended thinking")

    def end(self, messages: Sequence[Any]) -> None:
        """Check what only the end of the messages tells: open calls, trailing white space, the number of marks."""
        if self.waiting:
            self.broken(self.asked_at, f"calls without a tool_result in the next message: {self.waiting}", _ERROR)
        last = len(messages) - 1
        if self.role == "assistant" and _ends_with_space(messages[last].get("content")):
            self.broken(last, "the last text must not end with white space if it is the assistant's", _ERROR)
        if len(self.marks) > MOST_MARKS:
            self.broken(last, f"{len(self.marks)} blocks with cache_control; at most {MOST_MARKS} may have it", _ERROR)
        if not is_in_order(self.marks):
            self.broken(last, "a block with a cache time of an hour follows one with a shorter cache time", _ERROR)


def _text(check: _Check, i: int, text: Any) -> None:
    if not isinstance(text, str) or not text or text.isspace():
        check.broken(i, "a text block must not be empty or only white space", _ERROR)


def _result(check: _Check, i: int, block: dict[str, Any]) -> None:
    content, failed = block.get("content"), block.get("is_error")
    if isinstance(content, list):
        for inner in content:
            if isinstance(inner, dict) and inner.get("type") == "text":
                _text(check, i, inner.get("text"))
            elif failed:
                check.broken(i, "a tool_result with is_error may have only text", _ERROR)
    elif content is not None and not isinstance(content, str):
        check.broken(i, "the content of a tool_result must be text or a list of blocks", _REFERENCE)
    if failed and (not content or (isinstance(content, str) and content.isspace())):
        check.broken(i, "a tool_result with is_error needs a text that says why", _ERROR)


def _ends_with_space(content: Any) -> bool:
    last = content[-1] if isinstance(content, list) and content else {"type": "text", "text": content}
    text = last.get("text") if isinstance(last, dict) and last.get("type") == "text" else None
    return isinstance(text, str) and text != text.rstrip()
