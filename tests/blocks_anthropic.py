"""Short forms for blocks and messages of Anthropic's API, and the context of a session of them."""

from __future__ import annotations

from typing import Any

import strategies
import strategies_anthropic
from palimpsest import Memory
from palimpsest.context.result import Context
from palimpsest.types import FormatName

Message = dict[str, Any]

TEXT: Message = {"type": "text", "text": "hi"}
CALL: Message = {"type": "tool_use", "id": "toolu_1", "name": "find", "input": {"what": "x"}}
RESULT: Message = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "found"}
THOUGHT: Message = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
REDACTED: Message = {"type": "redacted_thinking", "data": "eA=="}
SEARCH: Message = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}}
FOUND: Message = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [], "caller": None}
PIXEL: Message = {"type": "base64", "media_type": "image/png", "data": strategies_anthropic.PIXEL}
PDF: Message = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjQ="}
MARK: Message = {"type": "ephemeral"}


def user(*content: Any) -> Message:
    """Return a message of the user."""
    return {"role": "user", "content": list(content)}


def assistant(*content: Any) -> Message:
    """Return a message of the assistant."""
    return {"role": "assistant", "content": list(content)}


def context(*messages: Message, format: FormatName = "anthropic", **call: Any) -> Context:
    """Return the context of a session of these messages, rendered for this API."""
    with Memory.open("memory://") as memory:
        session = memory.session("s", format=format)
        strategies.taken_in(session, messages)
        return session.context(format="anthropic", **call)
