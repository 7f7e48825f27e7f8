"""Marks for Anthropic's prompt cache: setting them, and keeping within the API's limits on them. Pure.

A mark is a `cache_control` key of a tool, of a block of the system text or of a block of a message. It lives five
minutes, or with `"ttl": "1h"` an hour. The rules are those of Anthropic's guide "Prompt caching".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from palimpsest.formats import Message

MOST_MARKS = 4
"""The most marks that the API takes in one request."""

_MARKABLE = frozenset({"text", "image", "document", "tool_result", "search_result"})
_MARK = {"type": "ephemeral"}

Block = dict[str, Any]


class Arranged(NamedTuple):
    """The parts of a request that may hold marks, in the order in which the provider reads them."""

    tools: list[Block]
    system: list[Block]
    messages: list[Message]


def marks(block: Any) -> int:
    """Return how many marks a block holds, including those of the blocks inside it."""
    return sum(1 for _ in _marks_of(block))


def is_in_order(marks_found: Sequence[Any]) -> bool:
    """Whether no mark that lives an hour comes behind one that lives shorter, which the API refuses."""
    hours = [_is_hour(mark) for mark in marks_found]
    return hours == sorted(hours, reverse=True)


def marks_in(blocks: Sequence[Any]) -> list[Any]:
    """Return the marks of all these blocks, in the order in which the provider reads them."""
    return [mark for block in blocks for mark in _marks_of(block)]


def limited(tools: list[Block], system: list[Block], messages: list[Message]) -> Arranged:
    """Return these with at most `MOST_MARKS` valid marks.

    The first marks stay, so that messages added later do not change earlier ones. For the same reason a mark that lives
    an hour behind one that lives shorter is shortened.
    """
    block_lists = (message["content"] for message in messages if not isinstance(message["content"], str))
    present = [mark for blocks in (tools, system, *block_lists) for mark in marks_in(blocks)]
    if len(present) <= MOST_MARKS and _are_alike(present):
        return Arranged(tools, system, messages)
    sections = _sections(tools, system, messages)
    kept: list[Any] = []
    for section in sections:
        for i, block in enumerate(section):
            own_marks = marks_in([block])
            if len(kept) + len(own_marks) > MOST_MARKS:
                section[i] = _with_marks(block, _none)
                continue
            if not (_are_alike(own_marks) and is_in_order([*kept, *own_marks])):
                section[i] = _with_marks(block, _short)
            kept += marks_in([section[i]])
    return _arranged(sections, messages)


def behind_own(messages: list[Message], before: Sequence[Any], behind: Any) -> list[Message]:
    """Return messages for a request that has marks of the caller's own: `before` the messages, and one `behind` them.

    All marks together are at most `MOST_MARKS`. Marks of the newest messages stay. Marks that are invalid beside the
    caller's are shortened or removed.
    """
    contents = _sections([], [], messages)
    free = MOST_MARKS - len(before) - (behind is not None)
    for section in reversed(contents):
        for i in reversed(range(len(section))):
            own_marks = marks_in([section[i]])
            if not (_are_alike(own_marks) and is_in_order([*before, *own_marks])):
                section[i] = _with_marks(section[i], _short)
                own_marks = marks_in([section[i]])
            if len(own_marks) > free or not is_in_order([*own_marks, behind]):
                section[i] = _with_marks(section[i], _none)
            else:
                free -= len(own_marks)
    return _arranged(contents, messages).messages


def with_breakpoints(tools: list[Block], system: list[Block], messages: list[Message]) -> Arranged:
    """Return these with marks at the last two user messages, the end of the system text and the last tool.

    Marks are set in this order, as far as the limit allows; marks of older messages make way for those of the last two.
    None is set before a mark that lives an hour, or around one: the API refuses that, and the long mark covers all
    before it anyway. So the last long mark stays.
    """
    sections = _sections(tools, system, messages)
    free = MOST_MARKS - sum(marks(block) for section in sections for block in section)
    last_long = max((i for i, section in enumerate(sections) if any(map(_is_long, section))), default=0)
    users = [i + 2 for i, message in enumerate(messages) if message["role"] == "user"]
    for place in (*users[:-3:-1], 1, 0):
        section = sections[place]
        at = next((i for i in reversed(range(len(section))) if _is_markable(section[i], place)), None)
        if place < last_long or at is None or section[at].get("cache_control") or any(map(_is_long, section[at:])):
            continue
        if free <= 0:
            free += _make_way(sections[2:place])
        if free > 0:
            section[at] = {**section[at], "cache_control": dict(_MARK)}
            free -= 1
    return _arranged(sections, messages)


def _make_way(sections: Sequence[list[Block]]) -> int:
    """Remove the marks of one block, and return how many they were; 0 if none can be removed.

    The first block goes first, and blocks with short marks before those with long ones. The last long mark stays.
    """
    marked = [(_is_long(block), section, i) for section in sections for i, block in enumerate(section) if marks(block)]
    marked.sort(key=lambda candidate: candidate[0])
    if not marked or (marked[0][0] and len(marked) == 1):
        return 0
    _, section, i = marked[0]
    removed = marks(section[i])
    section[i] = _with_marks(section[i], _none)
    return removed


def _sections(tools: list[Block], system: list[Block], messages: list[Message]) -> list[list[Block]]:
    """Return the blocks of the tools, of the system text and of each message, as new lists."""
    contents = (message["content"] for message in messages)
    blocks = ([{"type": "text", "text": content}] if isinstance(content, str) else content for content in contents)
    return [list(section) for section in (tools, system, *blocks)]


def _arranged(sections: Sequence[list[Block]], messages: Sequence[Message]) -> Arranged:
    """Put the sections together again. The content of a message that is only text stays a text."""
    tools, system, *contents = sections
    arranged = []
    for message, content in zip(messages, contents, strict=True):
        plain = isinstance(message["content"], str) and content[0].keys() == {"type", "text"}
        arranged.append(message if plain else {"role": message["role"], "content": content})
    return Arranged(tools, system, arranged)


def _is_markable(block: Block, place: int) -> bool:
    return not block.get("defer_loading") if place == 0 else block["type"] in _MARKABLE


def _inside(block: Block) -> list[Any]:
    """Return the blocks inside a block, such as a result, a search result, or a document made of blocks."""
    content, source = block.get("content"), block.get("source")
    blocks = content if isinstance(content, list) else []
    inner = source.get("content") if isinstance(source, dict) else None
    return [*blocks, *inner] if isinstance(inner, list) else blocks


def _marks_of(block: Any) -> Iterator[Any]:
    """Yield the marks of a block: those of the blocks inside it, then its own."""
    if isinstance(block, dict):
        for inner in _inside(block):
            yield from _marks_of(inner)
        if block.get("cache_control") is not None:
            yield block["cache_control"]


def _is_hour(mark: Any) -> bool:
    return isinstance(mark, dict) and mark.get("ttl") == "1h"


def _are_alike(marks_found: Sequence[Any]) -> bool:
    """Whether all marks live equally long. Marks of a block and of those inside it have to be alike, as it is not
    documented which of them the provider reads first."""
    return len({_is_hour(mark) for mark in marks_found}) < 2


def _is_long(block: Any) -> bool:
    return any(map(_is_hour, _marks_of(block)))


def _none(_: Any) -> None:
    """Replace a mark by none, for `_with_marks`."""


def _short(mark: Any) -> Any:
    """Replace a mark by one that lives five minutes, for `_with_marks`."""
    return {key: value for key, value in mark.items() if key != "ttl"} if isinstance(mark, dict) else mark


def _with_marks(block: Any, change: Callable[[Any], Any]) -> Any:
    """Return the block with each of its marks, and of the blocks inside it, replaced by what `change` returns."""
    if not isinstance(block, dict):
        return block
    mark = change(block.get("cache_control"))
    changed = {key: mark if key == "cache_control" else value for key, value in block.items()}
    if mark is None:
        changed.pop("cache_control", None)
    if isinstance(changed.get("content"), list):
        changed["content"] = [_with_marks(inner, change) for inner in changed["content"]]
    source = changed.get("source")
    if isinstance(source, dict) and isinstance(source.get("content"), list):
        changed["source"] = {**source, "content": [_with_marks(inner, change) for inner in source["content"]]}
    return changed
