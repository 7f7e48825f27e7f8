"""Inside raw messages: which calls and results belong together, and what may be shortened. Pure.

Known are messages of OpenAI's two APIs and of Anthropic's as mappings, and of Pydantic AI as objects or mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, NamedTuple

from palimpsest.tokens.counter import compact

# --- calls and results


class Link(NamedTuple):
    """A call, or a result, of this id: where in its message (`held` names a list in it; "": the whole message)."""

    id: str
    answers: bool
    held: str = ""
    place: int = 0


def links(message: Any) -> list[Link]:
    """The calls and results of a message."""
    if type(message) is dict:
        if len(message) == 2 and type(message.get("content")) is str:
            return []  # as most are
        kind = str(message.get("type") or "")
        if message.get("role") == "tool":
            return _linked(message.get("tool_call_id"), answers=True)
        if kind.endswith("_call_output"):
            return _linked(message.get("call_id"), answers=True)
        if kind.endswith("_call") and "call_id" in message:
            return _linked(message.get("call_id"), answers=False)
    return [link for held in ("tool_calls", "content", "parts") for link in _in_list(message, held)]


def _in_list(message: Any, held: str) -> Iterator[Link]:
    parts = _get(message, held)
    if not isinstance(parts, list | tuple):
        return
    for i, part in enumerate(parts):
        kind = str(_get(part, "part_kind") or _get(part, "type") or "")
        if held == "tool_calls":
            found = _linked(_get(part, "id"), answers=False)
        elif kind in ("tool-call", "tool_use"):
            found = _linked(_get(part, "tool_call_id") or _get(part, "id"), answers=False)
        elif kind in ("tool-return", "tool_result") or (kind == "retry-prompt" and _get(part, "tool_name")):
            found = _linked(_get(part, "tool_call_id") or _get(part, "tool_use_id"), answers=True)
        else:
            continue
        yield from (link._replace(held=held, place=i) for link in found)


def _linked(id: object, *, answers: bool) -> list[Link]:
    return [Link(id, answers)] if isinstance(id, str) and id else []


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def paired(turns: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """The messages of turns, oldest first, without results whose call is not there, and without calls that have no
    result, but for those of the newest turn, which may still get one."""
    lone = _lone(turns)
    if not lone:
        return [list(messages) for messages in turns]
    kept = [
        [_without(message, lone[at, i]) if (at, i) in lone else message for i, message in enumerate(messages)]
        for at, messages in enumerate(turns)
    ]
    return [[message for message in messages if message is not None] for messages in kept]


def _lone(turns: Sequence[Sequence[Any]]) -> dict[tuple[int, int], list[Link]]:
    """Results without their call, and calls without a result in turns before the newest, by the turn and the message
    in it that they are in."""
    found: dict[tuple[int, int], list[Link]] = {}
    waiting: dict[str, list[tuple[int, tuple[int, int], Link]]] = {}
    for run, place, link in _placed(turns):
        same = waiting.setdefault(link.id, [])
        if link.answers and same:
            same.pop(0)  # results come in the order of their calls
        elif link.answers:
            found.setdefault(place, []).append(link)
        else:
            if same and same[0][0] != run:  # another one of this id, and nothing has answered these
                for _, earlier, call in same:
                    found.setdefault(earlier, []).append(call)
                same.clear()
            same.append((run, place, link))
    for _, place, link in (call for same in waiting.values() for call in same):
        if place[0] < len(turns) - 1:
            found.setdefault(place, []).append(link)
    return found


def _placed(turns: Sequence[Sequence[Any]]) -> Iterator[tuple[int, tuple[int, int], Link]]:
    """Calls and results, with the turn and the message in it that they are in, and with the number of a run: messages
    that call follow each other in it, so its calls are parallel."""
    run = 0
    for at, messages in enumerate(turns):
        for i, message in enumerate(messages):
            held = links(message)
            run += all(link.answers for link in held)
            for link in held:
                yield run, (at, i), link


def _without(message: Any, gone: Sequence[Link]) -> Any:
    """The message without these; None where nothing is left of it."""
    for held in {link.held for link in gone}:
        if not held:
            return None
        places = {link.place for link in gone if link.held == held}
        left = [part for i, part in enumerate(_get(message, held)) if i not in places]
        if left:
            message = _put(message, (held,), left)
        elif held == "tool_calls" and isinstance(message, dict) and message.get("content"):
            message = {name: value for name, value in message.items() if name != held}
        else:
            return None
    return message


# --- shortening


class Spot(NamedTuple):
    """A text in messages that may be shortened: the way to it, and its rank (0: a tool's result, 1: the model's)."""

    rank: int
    way: tuple[str | int, ...]
    text: str


def _spots(message: Any) -> Iterator[Spot]:
    role, kind = _get(message, "role"), str(_get(message, "type") or "")
    if role == "tool":
        yield from _texts(message, "content", 0)
    elif kind.endswith("_call_output"):
        yield from _texts(message, "output", 0)
    elif role == "assistant":
        yield from _texts(message, "content", 1)
    for held in ("content", "parts"):
        parts = _get(message, held)
        for i, part in enumerate(parts if isinstance(parts, list | tuple) else ()):
            what = str(_get(part, "part_kind") or _get(part, "type") or "")
            if what in ("tool-return", "tool_result"):
                for spot in _texts(part, "content", 0):
                    yield spot._replace(way=(held, i, *spot.way))
            elif what == "text" and held == "parts":
                yield from (spot._replace(way=(held, i, *spot.way)) for spot in _texts(part, "content", 1))


def _texts(value: Any, name: str, rank: int) -> Iterator[Spot]:
    held = _get(value, name)
    if isinstance(held, str):
        yield Spot(rank, (name,), held)
    elif isinstance(held, list) and any(isinstance(_get(part, "text"), str) for part in held):
        for i, part in enumerate(held):
            if isinstance(text := _get(part, "text"), str):
                yield Spot(rank, (name, i, "text"), text)
    elif held is not None and rank == 0:
        yield Spot(rank, (name,), compact(held))


def clamped(
    messages: Sequence[Any], room: int, cost: Callable[[Sequence[Any]], int], count: Callable[[str], int], handle: str
) -> list[Any] | None:
    """The messages with their longest texts shortened until they cost no more than the room; None where that cannot be.

    Tools' results go first, then what the model said, oldest first. What the user said is never changed. `handle` says
    in the text where all of it is.
    """
    found, total = list(messages), cost(messages)
    spots = [(spot, i) for i, message in enumerate(messages) for spot in _spots(message)]
    for spot, i in sorted(spots, key=lambda one: one[0].rank):
        if total <= room:
            break
        size = count(spot.text)
        short = shortened(spot.text, max(size - (total - room), 0), size, count, handle)
        if count(short) < size:
            found[i] = _put(found[i], spot.way, short)
            total = cost(found)
    return found if total <= room else None


def shortened(text: str, room: int, size: int, count: Callable[[str], int], handle: str) -> str:
    """The head and the tail of a text of `size` tokens within so many, around a note of what is left out; where there
    is no room for either, the note."""
    left = room - count(_note(size, handle))
    characters = len(text) * left // size if left > 0 else 0
    while characters > 0:
        head = text[: characters - characters // 3].rstrip()
        tail = text[len(text) - characters // 3 :].lstrip() if characters // 3 else ""
        note = _note(max(size - count(head) - count(tail), 0), handle)
        made = "\n".join(piece for piece in (head, note, tail) if piece)
        if count(made) <= room:
            return made
        characters = characters * 9 // 10
    return _note(size, handle)


def _note(tokens: int, handle: str) -> str:
    return f"[{tokens} tokens left out: {handle}]"


def _put(value: Any, way: Sequence[str | int], new: Any) -> Any:
    """The value with something else at the end of the way; what is not on the way is shared."""
    if not way:
        return new
    first, rest = way[0], way[1:]
    if isinstance(first, int):
        items = list(value)
        items[first] = _put(items[first], rest, new)
        return items
    inner = _put(_get(value, first), rest, new)
    if isinstance(value, dict):
        return {**value, first: inner}
    return replace(value, **{first: inner}) if is_dataclass(value) and not isinstance(value, type) else value
