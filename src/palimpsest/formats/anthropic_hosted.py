"""Calls of tools that Anthropic runs itself, and what they gave: in a request each result follows its call. Pure.

A long turn may pause between the two: then the call ends one message of the assistant and the result begins the next,
and the API wants both. Where one of them is gone, by an erasure or a cut, or because the user spoke first, the other
is shown so that the API takes it. Looking back only, so that what is added changes nothing of what was sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.formats import Message
from palimpsest.formats.anthropic_blocks import Block, is_hosted_call, is_hosted_result
from palimpsest.formats.fences import fenced
from palimpsest.formats.wording import stand_in
from palimpsest.log.entry import Opaque

FAILED_TOKENS = 96
"""What stands for the result of one call that was never given costs at most; own count."""

_FAMILIES = (
    "web_search",
    "web_fetch",
    "code_execution",
    "bash_code_execution",
    "text_editor_code_execution",
    "tool_search",
)


def paired(messages: Sequence[Message]) -> list[Message]:
    """Return merged messages in which each such result has its call, and each call its result, or that it failed.

    A result without a call is shown as text. The call at the end may still be answered, as may one beside calls of
    the client's tools, whose results come first.
    """
    found: list[Message] = []
    waiting: dict[str, Block] = {}
    for message in messages:
        content = message["content"]
        blocks: list[Block] = [] if isinstance(content, str) else content
        if message["role"] == "assistant":
            if waiting and not (blocks and is_hosted_result(blocks[0]["type"])):  # the model has gone on without it
                blocks = [*_failures(waiting), *(blocks or [{"type": "text", "text": content}])]
                waiting = {id: call for id, call in waiting.items() if _failure(call) is not None}
            hosted = any(is_hosted_call(block["type"]) or is_hosted_result(block["type"]) for block in blocks)
            found.append({**message, "content": [_placed(block, waiting) for block in blocks]} if hosted else message)
            continue
        if waiting and not (blocks and blocks[0]["type"] == "tool_result"):
            found[-1] = {**found[-1], "content": [*found[-1]["content"], *_failures(waiting)]}
            waiting = {}
        found.append(message)
    return found


def _failures(waiting: dict[str, Block]) -> list[Block]:
    return [failure for block in waiting.values() if (failure := _failure(block)) is not None]


def _placed(block: Block, waiting: dict[str, Block]) -> Block:
    """The block; text in the place of a result whose call is not there."""
    kind = block["type"]
    if is_hosted_call(kind):
        waiting[str(block.get("id"))] = block
    elif is_hosted_result(kind) and waiting.pop(str(block.get("tool_use_id")), None) is None:
        return {"type": "text", "text": stand_in(Opaque(item=block)) or fenced("provider_item", "", type=kind)}
    return block


def _failure(call: Block) -> Block | None:
    """The result of a call that was never given, as the API says that a tool has failed; None for an unknown tool."""
    if call["type"] == "mcp_tool_use":
        return {"type": "mcp_tool_result", "tool_use_id": call.get("id"), "is_error": True, "content": []}
    name = str(call.get("name"))
    family = "tool_search" if name.startswith("tool_search") else name
    if family not in _FAMILIES:
        return None
    kind = f"{family}_tool_result"
    content = {"type": f"{kind}_error", "error_code": "unavailable"}
    return {"type": kind, "tool_use_id": call.get("id"), "content": content}
