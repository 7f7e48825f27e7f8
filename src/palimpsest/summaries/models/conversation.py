"""Convert chat-completions messages to Pydantic AI's. Imported when a model is first asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.tools import ToolDefinition

Message = Mapping[str, Any]


def conversation(messages: Sequence[Message]) -> list[ModelMessage]:
    """Return the messages for a model. Parts that are neither text nor images are replaced by their name."""
    tools = dict(_calls(messages))
    requests: list[ModelMessage] = []
    for message in messages:
        if message["role"] == "assistant":
            requests.append(ModelResponse(parts=_response_parts(message)))
            continue
        part = _request_part(message, tools)
        previous = requests[-1] if requests else None
        if isinstance(previous, ModelRequest):
            requests[-1] = ModelRequest(parts=[*previous.parts, part])
        else:
            requests.append(ModelRequest(parts=[part]))
    return requests


def called_tools(messages: Sequence[Message]) -> list[ToolDefinition]:
    """Return a definition of each tool that the messages call, for providers that refuse calls of unknown tools."""
    names = dict.fromkeys(name for _, name in _calls(messages))
    return [ToolDefinition(name=name, description="Used earlier in this conversation.") for name in names]


def _calls(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield id and tool of every call."""
    for message in messages:
        for call in message.get("tool_calls") or ():
            yield call["id"], _function(call)["name"]


def _function(call: Message) -> Message:
    """Return the name and the arguments of a call of any type."""
    custom = call.get("custom")
    if custom:
        return {"name": custom["name"], "arguments": json.dumps({"input": custom["input"]})}
    function: Message = call["function"]
    return function


def _response_parts(message: Message) -> list[ModelResponsePart]:
    """Return the text and the calls of a message from the model."""
    text = _text(message.get("content")) or message.get("refusal") or ""
    parts: list[ModelResponsePart] = [TextPart(text)] if text else []
    for call in message.get("tool_calls") or ():
        function = _function(call)
        parts.append(ToolCallPart(function["name"], function["arguments"], call["id"]))
    return parts


def _request_part(message: Message, tools: Mapping[str, str]) -> ModelRequestPart:
    """Return a message to the model: system text, a tool's result, or the user's message."""
    content = message.get("content")
    if message["role"] in ("system", "developer"):
        return SystemPromptPart(_text(content))
    if message["role"] == "tool":
        id = message["tool_call_id"]
        return ToolReturnPart(tools.get(id, "tool"), _text(content), id)
    return UserPromptPart(content if isinstance(content, str) else list(_contents(content)))


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part for part in _contents(content) if isinstance(part, str))


def _contents(parts: Sequence[Message] | None) -> Iterator[UserContent]:
    for part in parts or ():
        kind = part.get("type")
        if kind == "text":
            yield part["text"]
        elif kind == "image_url":
            url = part["image_url"]["url"]
            yield BinaryContent.from_data_uri(url) if url.startswith("data:") else ImageUrl(url)
        elif kind == "refusal":
            yield part["refusal"]
        else:
            yield f"[{kind} is not shown here]"
        if part.get("cache_control"):
            yield CachePoint()
