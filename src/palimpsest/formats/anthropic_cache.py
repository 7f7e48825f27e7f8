"""Marks for Anthropic's prompt cache: where a request has them, and how many of them it may have. Pure.

A mark is a `cache_control` key of a tool, of a block of the system text or of a block of a message. The rules are
those of Anthropic's guide "Prompt caching".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
    return sum(1 for _ in _marks_of(block))


def is_in_order(found: Sequence[Any]) -> bool:
    """Whether no mark that lives for an hour comes behind a shorter one, which the API refuses."""
    hours = [_is_hour(mark) for mark in found]
    return hours == sorted(hours, reverse=True)


def marks_in(blocks: Sequence[Any]) -> list[Any]:
    """The marks of all these blocks, in the order in which the provider reads them."""
    return [mark for block in blocks for mark in _marks_of(block)]


def limited(tools: list[Block], system: list[Block], messages: list[Message]) -> Arranged:
    """Return these with at most `MOST_MARKS` marks: the first stay, so that what comes later changes nothing.

    For the same reason one that lives for an hour becomes short behind a shorter one.
    """
    listed = (message["content"] for message in messages if not isinstance(message["content"], str))
    there = [mark for blocks in (tools, system, *listed) for mark in marks_in(blocks)]
    if len(there) <= MOST_MARKS and _are_alike(there):
        return Arranged(tools, system, messages)
    sections = _sections(tools, system, messages)
    kept: list[Any] = []
    for section in sections:
        for i, block in enumerate(section):
            held = marks_in([block])
            if len(kept) + len(held) > MOST_MARKS:
                section[i] = _changed(block, _none)
                continue
            if not (_are_alike(held) and is_in_order([*kept, *held])):
                section[i] = _changed(block, _short)
            kept += marks_in([section[i]])
    return _arranged(sections, messages)


def behind_own(messages: list[Message], before: Sequence[Any], behind: Any) -> list[Message]:
    """Return messages that stand between marks of the caller's own: `before` them, and the API's at the end, `behind`.

    There are at most `MOST_MARKS` in all. Those of the newest messages stay, and none that its neighbours forbid.
    """
    contents = _sections([], [], messages)
    free = MOST_MARKS - len(before) - (behind is not None)
    for section in reversed(contents):
        for i in reversed(range(len(section))):
            held = marks_in([section[i]])
            if not (_are_alike(held) and is_in_order([*before, *held])):
                section[i] = _changed(section[i], _short)
                held = marks_in([section[i]])
            if len(held) > free or not is_in_order([*held, behind]):
                section[i] = _changed(section[i], _none)
            else:
                free -= len(held)
    return _arranged(contents, messages).messages


def with_breakpoints(tools: list[Block], system: list[Block], messages: list[Message]) -> Arranged:
    """Return these with marks at the last two user messages, the end of the system text and the last tool.

    In this order, as far as the limit allows; older marks of messages make way for those of the last two. None comes
    before one that lives for an hour: the API refuses it, and that one keeps all before it; so the last of these stays.
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
    """Take the marks off the first block that has any, and return how many; the last that lives for an hour stays."""
    marked = [(_is_long(block), section, i) for section in sections for i, block in enumerate(section) if marks(block)]
    marked.sort(key=lambda one: one[0])  # those that live shorter go first
    if not marked or (marked[0][0] and len(marked) == 1):
        return 0
    _, section, i = marked[0]
    held = marks(section[i])
    section[i] = _changed(section[i], _none)
    return held


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


def _marks_of(block: Any) -> Iterator[Any]:
    """The marks of a block: those of the blocks inside it, then its own."""
    if isinstance(block, dict):
        for one in _inside(block):
            yield from _marks_of(one)
        if block.get("cache_control") is not None:
            yield block["cache_control"]


def _is_hour(mark: Any) -> bool:
    return isinstance(mark, dict) and mark.get("ttl") == "1h"


def _are_alike(found: Sequence[Any]) -> bool:
    """Whether they live equally long; which is read first, a block or one inside it, is not documented."""
    return len({_is_hour(mark) for mark in found}) < 2


def _is_long(block: Any) -> bool:
    return any(map(_is_hour, _marks_of(block)))


def _none(_: Any) -> None:
    """No mark in the place of one."""


def _short(mark: Any) -> Any:
    """A mark that lives for five minutes in the place of one."""
    return {key: value for key, value in mark.items() if key != "ttl"} if isinstance(mark, dict) else mark


def _changed(block: Any, change: Callable[[Any], Any]) -> Any:
    """The block with the marks that `change` makes of those that it holds."""
    if not isinstance(block, dict):
        return block
    mark = change(block.get("cache_control"))
    made = {key: mark if key == "cache_control" else value for key, value in block.items()}
    if mark is None:
        made.pop("cache_control", None)
    if isinstance(made.get("content"), list):
        made["content"] = [_changed(one, change) for one in made["content"]]
    source = made.get("source")
    if isinstance(source, dict) and isinstance(source.get("content"), list):
        made["source"] = {**source, "content": [_changed(one, change) for one in source["content"]]}
    return made
