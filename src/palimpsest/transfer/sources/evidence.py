"""Recognising the provider of messages, by keys, roles and types that only one provider has. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from palimpsest.formats.received.shapes import RESPONSES_PARTS, is_block

DEFAULT = "openai"
"""The format of messages without a sign of any: a role and a text are valid there, and in most other formats, too."""

_PARTS = {"openai": {"image_url", "input_audio"}, "openai-responses": {*RESPONSES_PARTS, "reasoning_text"}}
"""Types of content that only one provider's messages have, besides Anthropic's blocks. `text`, `file` and `refusal`
belong to several."""

_ITEMS = {"reasoning", "item_reference", "compaction", "image_generation_call", "additional_tools"}


class Evidence:
    """The signs of formats in the messages of one file."""

    def __init__(self) -> None:
        self._signs: dict[str, str] = {}

    @property
    def format(self) -> str:
        """The format that the signs point to, or `DEFAULT` if there are no signs."""
        return next(iter(self._signs), DEFAULT)

    @property
    def conflict(self) -> str | None:
        """Why the signs do not tell one format; None if they do, or if there are none."""
        if len(self._signs) < 2:
            return None
        listed = "; ".join(f"{name} because of {sign}" for name, sign in sorted(self._signs.items()))
        return f"the messages could be in more than one format: {listed}. Give one as `format`, or with --format"

    def take_object(self, value: Any) -> None:
        """Note the signs among the keys of an object that holds messages."""
        for name, sign in _object_signs(value):
            self._signs.setdefault(name, sign)

    def take(self, message: Any, where: str) -> None:
        """Note the signs of one message. `where` says for errors which message it is."""
        if isinstance(message, dict):
            for name, sign in _signs(message):
                self._signs.setdefault(name, f"{sign} in {where}")


def is_provider_message(value: Mapping[str, Any]) -> bool:
    """Return whether an object looks like a message, or an item, of any provider."""
    if isinstance(value.get("role"), str):
        return True
    return (isinstance(value.get("parts"), list) and "kind" not in value) or _is_item(value)


def _object_signs(value: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict):
        return
    if isinstance(value.get("contents"), list):
        yield "gemini", "`contents`"
    elif isinstance(value.get("messages"), list) and isinstance(value.get("system"), str | list):
        yield "anthropic", "`system` beside `messages`"
    elif isinstance(value.get("input"), list) and not isinstance(value.get("messages"), list):
        yield "openai-responses", "`input`"


def _is_item(message: Mapping[str, Any]) -> bool:
    kind = message.get("type")
    if not isinstance(kind, str) or isinstance(message.get("data"), dict):
        return False
    return kind in _ITEMS or kind.endswith(("_call", "_call_output")) or kind.startswith("mcp_")


def _signs(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the signs in a message: a format, and what in the message points to it."""
    role = message.get("role")
    if isinstance(message.get("parts"), list):
        yield "gemini", "`parts`"
    elif role == "model":
        yield "gemini", "the role model"
    if _is_item(message):
        yield "openai-responses", f"an item of type {message['type']}"
    if isinstance(message.get("tool_calls"), list) or isinstance(message.get("function_call"), dict):
        yield "openai", "`tool_calls`"
    if role == "tool" or role == "function":
        yield "openai", f"the role {role}"
    if message.get("type") == "message":
        is_answer = "stop_reason" in message or "usage" in message
        yield ("anthropic", "`stop_reason`") if is_answer else ("openai-responses", "an item of type message")
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict):
            yield from _block_signs(block)


def _block_signs(block: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kind = block.get("type")
    if is_block(kind):
        yield "anthropic", f"content of type {kind}"
    for name, kinds in _PARTS.items():
        if isinstance(kind, str) and kind in kinds:
            yield name, f"content of type {kind}"
    if kind == "image" and isinstance(block.get("source"), dict):
        yield "anthropic", "an image with a `source`"
    for key in ("cache_control", "citations"):
        if key in block:
            yield "anthropic", f"`{key}`"
    if kind == "file" and isinstance(block.get("file"), dict):
        yield "openai", "content of type file"
