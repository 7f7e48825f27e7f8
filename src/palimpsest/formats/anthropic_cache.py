"""Marks for Anthropic's prompt cache: where a request has them, and how many of them it may have. Pure.

A mark is a `cache_control` key of a tool, of a block of the system text or of a block of a message. The rules are
those of Anthropic's guide "Prompt caching".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from palimpsest.formats import Message

MOST_MARKS = 4
"""Marks that the API takes in one request."""

_MARKABLE = frozenset({"text", "image", "document", "tool_result", "search_result"})
_MARK = {"type": "ephemeral"}

Block = dict[str, Any]


class Arranged(NamedTuple):
    """What may hold marks, in the order in which the provider reads it: tools, system text, messages."""

    tools: list[Block]
    system: list[Block]
    messages: list[Message]


def marks(block: Any) -> int:
    """How many marks a block holds, those of the blocks inside it counted."""
    if not isinstance(block, dict):
        return 0
    return (block.get("cache_control") is not None) + sum(map(marks, _inside(block)))


def limited(tools: list[Block], system: list[Block], messages: list[Message]) -> Arranged:
    """Return these with at most `MOST_MARKS` marks: the first stay, so that what comes later changes nothing."""
    listed = (message["content"] for message in messages if not isinstance(message["content"], str))
    if sum(sum(map(marks, blocks)) for blocks in (tools, system, *listed)) <= MOST_MARKS:
        return Arranged(tools, system, messages)
    sections = _sections(tools, system, messages)
    free = MOST_MARKS
    for section in sections:
        for i, block in enumerate(section):
            held = marks(block)
            if held > free:
                section[i] = _unmarked(block)
            else:
                free -= held
    return _arranged(sections, messages)


def with_breakpoints(tools: list[Block], system: list[Block], messages: list[Message]) -> Arranged:
    """Return these with marks at the last two user messages, the end of the system text and the last tool.

    In this order, as far as the limit allows; older marks of messages make way for those of the last two. None comes
    before one that lives for an hour: the API refuses it, and that one keeps all before it.
    """
    sections = _sections(tools, system, messages)
    free = MOST_MARKS - sum(marks(block) for section in sections for block in section)
    first = max((i for i, section in enumerate(sections) if any(map(_is_long, section))), default=0)
    users = [i + 2 for i, message in enumerate(messages) if message["role"] == "user"]
    for place in (*users[:-3:-1], 1, 0):
        section = sections[place]
        at = next((i for i in reversed(range(len(section))) if _is_markable(section[i], place)), None)
        if place < first or at is None or section[at].get("cache_control"):
            continue
        if free <= 0:
            free += _make_way(sections[2:place])
        if free > 0:
            section[at] = {**section[at], "cache_control": dict(_MARK)}
            free -= 1
    return _arranged(sections, messages)


def _make_way(sections: Sequence[list[Block]]) -> int:
    """Take the marks off the first block that has any, but for one that lives for an hour; return how many."""
    for section in sections:
        for i, block in enumerate(section):
            if (held := marks(block)) and not _is_long(block):
                section[i] = _unmarked(block)
                return held
    return 0


def _sections(tools: list[Block], system: list[Block], messages: list[Message]) -> list[list[Block]]:
    """The blocks of each, in lists of their own."""
    contents = (message["content"] for message in messages)
    blocks = ([{"type": "text", "text": content}] if isinstance(content, str) else content for content in contents)
    return [list(section) for section in (tools, system, *blocks)]


def _arranged(sections: Sequence[list[Block]], messages: Sequence[Message]) -> Arranged:
    """The sections put together again; a message that is nothing but text stays that."""
    tools, system, *contents = sections
    made = []
    for message, content in zip(messages, contents, strict=True):
        plain = isinstance(message["content"], str) and content[0].keys() == {"type", "text"}
        made.append(message if plain else {"role": message["role"], "content": content})
    return Arranged(tools, system, made)


def _is_markable(block: Block, place: int) -> bool:
    return not block.get("defer_loading") if place == 0 else block["type"] in _MARKABLE


def _inside(block: Block) -> list[Any]:
    """The blocks inside a block: of a result, of a page that was found, of a document made of blocks."""
    content, source = block.get("content"), block.get("source")
    found = content if isinstance(content, list) else []
    inner = source.get("content") if isinstance(source, dict) else None
    return [*found, *inner] if isinstance(inner, list) else found


def _is_long(block: Any) -> bool:
    if not isinstance(block, dict):
        return False
    mark = block.get("cache_control")
    return (isinstance(mark, dict) and mark.get("ttl") == "1h") or any(map(_is_long, _inside(block)))


def _unmarked(block: Any) -> Any:
    """The block without the marks that it holds."""
    if not isinstance(block, dict):
        return block
    bare = {key: value for key, value in block.items() if key != "cache_control"}
    if isinstance(bare.get("content"), list):
        bare["content"] = [_unmarked(one) for one in bare["content"]]
    source = bare.get("source")
    if isinstance(source, dict) and isinstance(source.get("content"), list):
        bare["source"] = {**source, "content": [_unmarked(one) for one in source["content"]]}
    return bare
