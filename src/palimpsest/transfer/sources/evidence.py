"""Recognising the provider of messages, by keys, roles and types that only one provider has. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from palimpsest.errors import ImportFailed

DEFAULT = "openai"
"""The format of messages without a sign of any: a role and a text are valid there, and in most other formats, too."""

_BLOCKS = {
    "anthropic": {
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
        "document",
        "search_result",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "container_upload",
    },
    "openai": {"image_url", "input_audio"},
    "openai-responses": {"input_text", "output_text", "input_image", "input_file", "summary_text", "reasoning_text"},
}
"""Types of content that only one provider's messages have. `text`, `file` and `refusal` belong to several."""

_ITEMS = {"reasoning", "item_reference", "compaction", "image_generation_call", "additional_tools"}


def format_of(messages: list[Any], objects: list[Any], place: str) -> str:
    """Return the format that signs in the messages point to, or `DEFAULT` if there are no signs.

    `objects` are the objects that the messages came in; their keys are signs, too. Raises ImportFailed, naming the
    signs, if they point to more than one format.
    """
    signs: dict[str, str] = {}
    for value in objects:
        for name, sign in _object_signs(value):
            signs.setdefault(name, sign)
    for i, message in enumerate(messages):
        if isinstance(message, dict):
            for name, sign in _signs(message):
                signs.setdefault(name, f"{sign} in message {i + 1}")
    if len(signs) > 1:
        listed = "; ".join(f"{name} because of {sign}" for name, sign in sorted(signs.items()))
        raise ImportFailed(
            place, f"the messages could be in more than one format: {listed}. Give one as `format`, or with --format"
        )
    return next(iter(signs), DEFAULT)


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
    if message.get("type") == "message" and "stop_reason" in message:
        yield "anthropic", "`stop_reason`"
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict):
            yield from _block_signs(block)


def _block_signs(block: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    kind = block.get("type")
    for name, kinds in _BLOCKS.items():
        if isinstance(kind, str) and kind in kinds:
            yield name, f"content of type {kind}"
    if kind == "image" and isinstance(block.get("source"), dict):
        yield "anthropic", "an image with a `source`"
    if "cache_control" in block:
        yield "anthropic", "`cache_control`"
    if kind == "file" and isinstance(block.get("file"), dict):
        yield "openai", "content of type file"
