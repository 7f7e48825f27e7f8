"""Recognition of vendors' mappings by their keys: what kind of thing one is, and in which format. Pure.

Only shapes that a single vendor has decide on a format. A message with only a role and content may be of any format.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from palimpsest.formats import ANTHROPIC, CHAT, GEMINI, RESPONSES, Message
from palimpsest.formats.gemini_parts import DATA as GEMINI_DATA
from palimpsest.formats.gemini_parts import PART_KEYS
from palimpsest.formats.openai_responses_items import ANSWERING, ASKING, SHAPES

Shape = Literal["response", "choice", "message", "piece", "event", "usage", "unknown"]

_ANTHROPIC_BLOCKS = frozenset(
    {
        *("thinking", "redacted_thinking", "tool_use", "tool_result", "document", "search_result", "container_upload"),
        *("compaction", "fallback", "connector_text", "mcp_tool_listing"),
    }
)
"""Types of content blocks that only Anthropic has, besides those of hosted tools."""

_BY_USER = frozenset({"tool_result", "image", "document", "search_result"})
RESPONSES_PARTS = frozenset({"input_text", "output_text", "input_image", "input_file", "summary_text"})
_CHAT_PARTS = frozenset({"image_url", "file"})
_CHAT_KEYS = frozenset(
    {"tool_calls", "tool_call_id", "function_call", "refusal", "annotations", "audio", "reasoning_content"}
)
_ANSWERED = frozenset({"stop_reason", "stop_sequence", "usage"})
"""Keys of Anthropic's answers, which are both messages and responses."""

_RESPONSES_ITEMS = frozenset({*ASKING, *ANSWERING, *SHAPES})
_EVENTS = frozenset(
    {
        *("message_start", "message_delta", "message_stop", "ping"),
        *("content_block_start", "content_block_delta", "content_block_stop"),
    }
)
"""Events of Anthropic's streams."""


def shape_of(item: Message) -> tuple[Shape, str]:
    """Return what a mapping is, and its format; the format is empty if the mapping does not tell it."""
    kind = item.get("type")
    if isinstance(kind, str) and kind in _RESPONSES_ITEMS and not _is_summary_block(item, kind):
        return "message", RESPONSES
    if "role" in item or "parts" in item or kind == "message":
        return "message", _speaker(item)
    if isinstance(kind, str):
        return _typed(item, kind)
    if item.get("object") == "chat.completion.chunk":
        return "event", CHAT
    matches = ((shape, format) for key, type_, shape, format in _BY_KEYS if isinstance(item.get(key), type_))
    return next(matches, ("unknown", ""))


_BY_KEYS: tuple[tuple[str, type, Shape, str], ...] = (
    ("choices", list, "response", CHAT),
    ("candidates", list, "response", GEMINI),
    *(
        (key, dict, "response", GEMINI)
        for key in ("usage_metadata", "usageMetadata", "prompt_feedback", "promptFeedback")
    ),
    ("output", list, "response", RESPONSES),
    ("message", dict, "choice", CHAT),
    *((key, str, "choice", GEMINI) for key in ("finish_reason", "finishReason")),
    *((key, str if key == "text" else dict, "piece", GEMINI) for key in GEMINI_DATA),
    *((key, int, "usage", "") for key in ("prompt_tokens", "input_tokens", "prompt_token_count", "promptTokenCount")),
)
"""The shape and format of a mapping without role and type: those of the first key here whose value has this type."""


def _typed(item: Message, kind: str) -> tuple[Shape, str]:
    """Return the shape and format of a mapping with a type and no role: a block, a call or an event."""
    if kind in _EVENTS or kind.startswith("response."):
        return "event", ANTHROPIC if kind in _EVENTS else RESPONSES
    if kind in ("function", "custom") and isinstance(item.get(kind), Mapping):
        return "piece", CHAT
    if is_block(kind) or (kind in ("text", "image") and (kind in item or "source" in item)):
        return "piece", ANTHROPIC
    return "unknown", ""


def _is_summary_block(item: Message, kind: str) -> bool:
    """Whether this is Anthropic's block of type "compaction", and not OpenAI's item of that type, which has an id, or
    nothing but encrypted content."""
    if kind != "compaction" or "id" in item:
        return False
    return "encrypted_content" not in item or not item.keys().isdisjoint(("content", "signature"))


def is_block(kind: object) -> bool:
    """Whether only Anthropic's messages have content of this type."""
    return isinstance(kind, str) and (kind in _ANTHROPIC_BLOCKS or kind.endswith(("_tool_use", "_tool_result")))


def _speaker(message: Message) -> str:
    """Return a message's format, or an empty text if it may be of several."""
    role = message.get("role")
    if role == "model" or ("parts" in message and "content" not in message):
        return GEMINI
    if _ANSWERED & message.keys() or message.get("type") == "message":
        return ANTHROPIC if _ANSWERED & message.keys() else RESPONSES
    if role in ("tool", "function") or _CHAT_KEYS & message.keys():
        return CHAT
    content = message.get("content")
    formats = map(_format_of_part, content if isinstance(content, list) else ())
    return next(filter(None, formats), "")


def _format_of_part(part: object) -> str:
    """Return the only format whose messages hold such a part, or an empty text if several do."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    is_anthropic = isinstance(part, Mapping) and (
        (kind == "image" and "source" in part) or (kind == "text" and "citations" in part)
    )
    if is_anthropic or is_block(kind):
        return ANTHROPIC
    if not isinstance(kind, str):
        return ""
    return RESPONSES if kind in RESPONSES_PARTS else CHAT if kind in _CHAT_PARTS else ""


def taken_as(message: Message, format: str) -> str:
    """Return the format of a message that may be of several, given the session's `format`.

    It is the session's, unless that has no such role or content: no role `developer`, no parts of type `text`, or no
    `content` at all. Then it is that of chat completions.
    """
    content = message.get("content")
    if format == ANTHROPIC and message.get("role") == "developer":
        return CHAT
    if format == RESPONSES and isinstance(content, list):
        texts = (isinstance(part, Mapping) and part.get("type") == "text" for part in content)
        return CHAT if any(texts) else format
    return CHAT if format == GEMINI and content is not None else format


def holder_of(piece: Message, format: str) -> Message:
    """Return a message that holds this piece, which was given alone. Its role is empty if the piece tells none."""
    if format == CHAT:
        return {"role": "assistant", "content": None, "tool_calls": [piece]}
    if format == GEMINI:
        keys = {PART_KEYS.get(key) for key, value in piece.items() if value is not None}
        role = "user" if "function_response" in keys else "model" if keys & _BY_MODEL else ""
        return {"role": role, "parts": [piece]}
    return {"role": "user" if piece["type"] in _BY_USER else "assistant", "content": [piece]}


_BY_MODEL = frozenset(
    {"function_call", "executable_code", "code_execution_result", "thought", "thought_signature", "tool_call"}
)
"""Keys of parts that only a model makes. Text and media may be of any role."""


def joined(message: Message, other: Message) -> bool:
    """Add the pieces of another message to this one, if both can have one role, and return whether that was so."""
    if message["role"] != other["role"] and message["role"] and other["role"]:
        return False
    message["role"] = message["role"] or other["role"]
    key = next(key for key in ("tool_calls", "parts", "content") if message.get(key))
    message[key].extend(other[key])
    return True
