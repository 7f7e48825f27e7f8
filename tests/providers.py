"""Every format with its rules, its vendor's types, a function that returns a request's texts, and conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from hypothesis import strategies as st

import rules
import rules_anthropic
import rules_gemini
import rules_openai_responses
import strategies
import strategies_anthropic
import strategies_gemini
import strategies_openai_responses

Message = dict[str, Any]


class Provider(NamedTuple):
    """A format and the functions that check it.

    `batches` is a strategy for conversations in the format, or None for a format that no provider uses.
    """

    format: str
    faults: Callable[[Sequence[Message]], list[str]]
    sdk_faults: Callable[[dict[str, Any]], list[str]]
    texts: Callable[[dict[str, Any]], list[str]]
    blocks: Callable[[Sequence[Message]], list[bytes]]
    batches: st.SearchStrategy[list[Message]] | None


# --- chat completions


_PARTS = ("text", "image_url", "input_audio", "file", "refusal")


def _chat_sdk_faults(request: dict[str, Any]) -> list[str]:
    from pydantic import ValidationError

    known = []
    for message in request["messages"]:
        content = message.get("content")
        if isinstance(content, list):  # parts that the types do not declare yet cannot be validated
            content = [part for part in content if part["type"] in _PARTS] or "newer"
        known.append({**message, "content": content})
    try:
        _drain(_chat_adapter().validate_python(known))
    except ValidationError as fault:
        return [str(fault.errors()[:3])]
    return []


@lru_cache
def _chat_adapter() -> Any:
    from openai.types.chat import ChatCompletionMessageParam
    from pydantic import TypeAdapter

    return TypeAdapter(list[ChatCompletionMessageParam])


def _drain(value: Any) -> None:
    """Iterate over every value: pydantic validates the elements of an iterable only then."""
    if isinstance(value, dict):
        value = list(value.values())
    if hasattr(value, "__iter__") and not isinstance(value, str | bytes):
        for inner in value:
            _drain(inner)


def _chat_texts(request: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for message in request["messages"]:
        content = message.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content or ()
        found += [
            part["text"] if part["type"] == "text" else json.dumps(part, ensure_ascii=False, separators=(",", ":"))
            for part in parts
        ]
        for call in message.get("tool_calls") or ():
            body = call[call["type"]]
            found += [body["name"], body.get("arguments", body.get("input"))]
    return found


# --- plain text


def _no_faults(_: object) -> list[str]:
    return []


def _text_blocks(pieces: Sequence[Message]) -> list[bytes]:
    return [json.dumps(piece, ensure_ascii=False).encode() for piece in pieces]


PROVIDERS = {
    one.format: one
    for one in (
        Provider(
            "openai",
            rules.faults,
            _chat_sdk_faults,
            _chat_texts,
            rules.packed,
            strategies.provider_batches().map(lambda batch: batch.messages),
        ),
        Provider(
            "openai-responses",
            rules_openai_responses.faults,
            rules_openai_responses.sdk_faults,
            rules_openai_responses.texts,
            rules_openai_responses.blocks,
            strategies_openai_responses.batches(),
        ),
        Provider(
            "anthropic",
            rules_anthropic.faults,
            rules_anthropic.sdk_faults,
            rules_anthropic.texts,
            rules_anthropic.blocks,
            strategies_anthropic.batches(),
        ),
        Provider(
            "gemini",
            rules_gemini.faults,
            rules_gemini.sdk_faults,
            rules_gemini.texts,
            rules_gemini.blocks,
            strategies_gemini.batches(),
        ),
        Provider("text", _no_faults, _no_faults, lambda request: [request["prompt"]], _text_blocks, None),
    )
}
"""The providers, by the format's name."""

FORMATS = tuple(PROVIDERS)
SPOKEN = tuple(name for name, one in PROVIDERS.items() if one.batches is not None)
"""The formats that providers use."""
