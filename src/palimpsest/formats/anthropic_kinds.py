"""Kinds of Anthropic's content blocks: calls and results of hosted tools, a compaction, what a model has left. Pure.

If a model declines in the middle of an answer, another one may go on (`fallbacks`). A block of type `fallback` stands
between what the two have made. Of what stands before the last one the API takes back only texts, results and hosted
calls with a result (guide "Refusals and fallback", "Continuing the conversation").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Block = dict[str, Any]

_UNFINISHED = frozenset({"thinking", "redacted_thinking", "connector_text", "tool_use"})
"""Types of blocks that the API does not take back from a model that has declined."""


def is_hosted_call(kind: str) -> bool:
    """Whether a block of this type calls a hosted tool, which the provider runs itself."""
    return kind.endswith("_tool_use")


def is_hosted_result(kind: str) -> bool:
    """Whether a block of this type is the result of a hosted tool."""
    return kind.endswith("_tool_result")


def unanswered(content: Sequence[Block]) -> int:
    """Return how many calls of hosted tools have no result among these blocks, without those of a declined model."""
    declined_places = declined(content)
    called = [
        block.get("id")
        for i, block in enumerate(content)
        if is_hosted_call(str(block.get("type"))) and i not in declined_places
    ]
    return sum(id not in _answered(content) for id in called) if called else 0


def declined(content: Sequence[Any]) -> frozenset[int]:
    """Return the places of the blocks that a declined model has left and that the API does not take back."""
    kinds = [str(block.get("type")) if isinstance(block, dict) else "" for block in content]
    if "fallback" not in kinds:
        return frozenset()
    last = len(kinds) - 1 - kinds[::-1].index("fallback")
    answered = _answered(content)
    return frozenset(
        i
        for i, kind in enumerate(kinds[:last])
        if kind in _UNFINISHED or (is_hosted_call(kind) and content[i].get("id") not in answered)
    )


def _answered(content: Sequence[Any]) -> list[Any]:
    """Return the ids of the hosted calls whose results are among these blocks."""
    blocks = (block for block in content if isinstance(block, dict))
    return [block.get("tool_use_id") for block in blocks if is_hosted_result(str(block.get("type")))]


def is_signed_compaction(block: Any) -> bool:
    """Whether this is a summary of the API's own that it has signed: it takes that only as the very first block.

    Summaries that it makes at a threshold are not signed, and may stand anywhere.
    """
    return isinstance(block, dict) and block.get("type") == "compaction" and bool(block.get("signature"))


def begins_with_summary(message: Block) -> bool:
    """Whether a message begins with such a summary."""
    content = message["content"]
    return isinstance(content, list) and bool(content) and is_signed_compaction(content[0])
