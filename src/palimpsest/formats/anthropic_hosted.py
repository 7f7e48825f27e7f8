"""Pairing of calls and results of hosted tools, which Anthropic runs itself: each result has to follow its call. Pure.

A long turn may pause between the two: then the call ends one message of the assistant and the result begins the next,
and the API wants both. If one of them is gone, through an erasure or a cut, or because the user spoke first, the other
is changed so that the API accepts it. This depends only on earlier messages, so that added messages do not change
those that were sent before.
"""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.formats import Message
from palimpsest.formats.anthropic_kinds import Block, is_hosted_call, is_hosted_result
from palimpsest.formats.fences import fenced
from palimpsest.formats.wording import stand_in
from palimpsest.log.entry import Opaque

FAILED_TOKENS = 96
"""The most tokens of a result that stands for a missing one; own count."""

_FAMILIES = (
    "advisor",
    "web_search",
    "web_fetch",
    "code_execution",
    "bash_code_execution",
    "text_editor_code_execution",
    "tool_search",
)


def paired(messages: Sequence[Message]) -> list[Message]:
    """Return merged messages in which each hosted result has its call, and each hosted call a result.

    A missing result is replaced by one that says that the tool failed, and a result without a call is shown as text. A
    call at the end may still be answered, and so may one beside calls of the client's tools, whose results come first.
    """
    paired_messages: list[Message] = []
    waiting: dict[str, Block] = {}
    for message in messages:
        content = message["content"]
        blocks: list[Block] = [] if isinstance(content, str) else content
        if message["role"] == "assistant":
            if waiting and not (blocks and is_hosted_result(blocks[0]["type"])):  # the model went on without a result
                blocks = [*_failures(waiting), *(blocks or [{"type": "text", "text": content}])]
                waiting = {id: call for id, call in waiting.items() if _failure(call) is not None}
            hosted = any(is_hosted_call(block["type"]) or is_hosted_result(block["type"]) for block in blocks)
            checked = {**message, "content": [_checked(block, waiting) for block in blocks]} if hosted else message
            paired_messages.append(checked)
            continue
        if waiting and not (blocks and blocks[0]["type"] == "tool_result"):
            last = paired_messages[-1]
            paired_messages[-1] = {**last, "content": [*last["content"], *_failures(waiting)]}
            waiting = {}
        paired_messages.append(message)
    return paired_messages


def _failures(waiting: dict[str, Block]) -> list[Block]:
    return [failure for block in waiting.values() if (failure := _failure(block)) is not None]


def _checked(block: Block, waiting: dict[str, Block]) -> Block:
    """Return the block, or text in place of a result without a call; update the calls that wait for a result."""
    kind = block["type"]
    if is_hosted_call(kind):
        waiting[str(block.get("id"))] = block
    elif is_hosted_result(kind) and waiting.pop(str(block.get("tool_use_id")), None) is None:
        return {"type": "text", "text": stand_in(Opaque(item=block)) or fenced("provider_item", "", type=kind)}
    return block


def _failure(call: Block) -> Block | None:
    """Return a result that says that the called tool failed, in the API's words; None for an unknown tool."""
    if call["type"] == "mcp_tool_use":
        return {"type": "mcp_tool_result", "tool_use_id": call.get("id"), "is_error": True, "content": []}
    name = str(call.get("name"))
    family = "tool_search" if name.startswith("tool_search") else name
    if family not in _FAMILIES:
        return None
    kind = f"{family}_tool_result"
    content = {"type": f"{kind}_error", "error_code": "unavailable"}
    return {"type": kind, "tool_use_id": call.get("id"), "content": content}
