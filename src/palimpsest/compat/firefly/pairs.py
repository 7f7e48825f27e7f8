"""The inside of raw messages: which tool calls and results belong together, and which texts may be shortened. Pure.

Understood are messages of OpenAI's two APIs and of Anthropic's as mappings, and of Pydantic AI as objects or mappings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, NamedTuple

from palimpsest.tokens.counter import compact

# --- calls and results


class Link(NamedTuple):
    """A tool call, or a result, in a message.

    `held` names the list of the message that it is in, and `place` its index there; "": the whole message is the call
    or result.
    """

    id: str
    answers: bool
    held: str = ""
    place: int = 0


def links(message: Any) -> list[Link]:
    """Return the tool calls and results of a message."""
    if type(message) is dict:
        if len(message) == 2 and type(message.get("content")) is str:
            return []  # the most frequent shape
        kind = str(message.get("type") or "")
        if message.get("role") == "tool":
            return _linked(message.get("tool_call_id"), answers=True)
        if kind.endswith("_call_output"):
            return _linked(message.get("call_id"), answers=True)
        if kind.endswith("_call") and "call_id" in message:
            return _linked(message.get("call_id"), answers=False)
    return [link for held in ("tool_calls", "content", "parts") for link in _in_list(message, held)]


def _in_list(message: Any, held: str) -> Iterator[Link]:
    """Yield the calls and results in the list `held` of a message."""
    parts = _get(message, held)
    if not isinstance(parts, list | tuple):
        return
    for i, part in enumerate(parts):
        kind = str(_get(part, "part_kind") or _get(part, "type") or "")
        if held == "tool_calls":
            part_links = _linked(_get(part, "id"), answers=False)
        elif kind in ("tool-call", "tool_use"):
            part_links = _linked(_get(part, "tool_call_id") or _get(part, "id"), answers=False)
        elif kind in ("tool-return", "tool_result") or (kind == "retry-prompt" and _get(part, "tool_name")):
            part_links = _linked(_get(part, "tool_call_id") or _get(part, "tool_use_id"), answers=True)
        else:
            continue
        yield from (link._replace(held=held, place=i) for link in part_links)


def _linked(id: object, *, answers: bool) -> list[Link]:
    return [Link(id, answers)] if isinstance(id, str) and id else []


def _get(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def paired(turns: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return the messages of these turns, which come oldest first, without calls and results that have no counterpart.

    Calls of the newest turn stay, since their results may still come.
    """
    unpaired = _unpaired(turns)
    if not unpaired:
        return [list(messages) for messages in turns]
    kept = [
        [
            _without(message, unpaired[turn, i]) if (turn, i) in unpaired else message
            for i, message in enumerate(messages)
        ]
        for turn, messages in enumerate(turns)
    ]
    return [[message for message in messages if message is not None] for messages in kept]


def _unpaired(turns: Sequence[Sequence[Any]]) -> dict[tuple[int, int], list[Link]]:
    """Return the results without a call, and the calls without a result in all turns but the newest.

    The keys are the index of the turn and the index of the message in it.
    """
    unpaired: dict[tuple[int, int], list[Link]] = {}
    waiting: dict[str, list[tuple[int, tuple[int, int], Link]]] = {}
    for run, place, link in _placed(turns):
        open_calls = waiting.setdefault(link.id, [])
        if link.answers and open_calls:
            open_calls.pop(0)  # results of one id come in the order of their calls
        elif link.answers:
            unpaired.setdefault(place, []).append(link)
        else:
            if open_calls and open_calls[0][0] != run:  # the id is used again: nothing answered the earlier calls
                for _, earlier, call in open_calls:
                    unpaired.setdefault(earlier, []).append(call)
                open_calls.clear()
            open_calls.append((run, place, link))
    for _, place, link in (call for open_calls in waiting.values() for call in open_calls):
        if place[0] < len(turns) - 1:
            unpaired.setdefault(place, []).append(link)
    return unpaired


def _placed(turns: Sequence[Sequence[Any]]) -> Iterator[tuple[int, tuple[int, int], Link]]:
    """Yield the calls and results, each as `(run, (turn, message), link)`.

    A run is a sequence of messages with calls, so the calls of one run are parallel.
    """
    run = 0
    for turn, messages in enumerate(turns):
        for i, message in enumerate(messages):
            message_links = links(message)
            run += all(link.answers for link in message_links)
            for link in message_links:
                yield run, (turn, i), link


def _without(message: Any, gone: Sequence[Link]) -> Any:
    """Return the message without these calls and results; None if nothing is left of it."""
    for held in {link.held for link in gone}:
        if not held:
            return None
        places = {link.place for link in gone if link.held == held}
        remaining = [part for i, part in enumerate(_get(message, held)) if i not in places]
        if remaining:
            message = _put(message, (held,), remaining)
        elif held == "tool_calls" and isinstance(message, dict) and message.get("content"):
            message = {name: value for name, value in message.items() if name != held}
        else:
            return None
    return message


# --- shortening


class Spot(NamedTuple):
    """A text in a message that may be shortened.

    `way` is its path in the message. `rank` says what goes first: 0 is a tool's result, 1 a text of the model.
    """

    rank: int
    way: tuple[str | int, ...]
    text: str


def _spots(message: Any) -> Iterator[Spot]:
    """Yield the texts of a message that may be shortened."""
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
            part_kind = str(_get(part, "part_kind") or _get(part, "type") or "")
            if part_kind in ("tool-return", "tool_result"):
                for spot in _texts(part, "content", 0):
                    yield spot._replace(way=(held, i, *spot.way))
            elif part_kind == "text" and held == "parts":
                yield from (spot._replace(way=(held, i, *spot.way)) for spot in _texts(part, "content", 1))


def _texts(value: Any, name: str, rank: int) -> Iterator[Spot]:
    """Yield the texts in the field `name` of a message or a part of one."""
    field = _get(value, name)
    if isinstance(field, str):
        yield Spot(rank, (name,), field)
    elif isinstance(field, list) and any(isinstance(_get(part, "text"), str) for part in field):
        for i, part in enumerate(field):
            if isinstance(text := _get(part, "text"), str):
                yield Spot(rank, (name, i, "text"), text)
    elif field is not None and rank == 0:
        yield Spot(rank, (name,), compact(field))


def clamped(
    messages: Sequence[Any], room: int, cost: Callable[[Sequence[Any]], int], count: Callable[[str], int], handle: str
) -> list[Any] | None:
    """Return the messages with texts shortened until they cost at most `room`; None if that is not possible.

    Tools' results are shortened first, then what the model said, both oldest first. What the user said is never
    changed. `handle` is named in each shortened text: it says where the full text is.
    """
    result, total = list(messages), cost(messages)
    spots = [(spot, i) for i, message in enumerate(messages) for spot in _spots(message)]
    for spot, i in sorted(spots, key=lambda item: item[0].rank):
        if total <= room:
            break
        size = count(spot.text)
        short = shortened(spot.text, max(size - (total - room), 0), size, count, handle)
        if count(short) < size:
            result[i] = _put(result[i], spot.way, short)
            total = cost(result)
    return result if total <= room else None


def shortened(text: str, room: int, size: int, count: Callable[[str], int], handle: str) -> str:
    """Return the head and the tail of a text around a note of what is left out, within `room` tokens.

    `size` is the length of the text in tokens. The note alone is returned if there is no room for more.
    """
    text_room = room - count(_note(size, handle))
    characters = len(text) * text_room // size if text_room > 0 else 0
    while characters > 0:
        head = text[: characters - characters // 3].rstrip()
        tail = text[len(text) - characters // 3 :].lstrip() if characters // 3 else ""
        note = _note(max(size - count(head) - count(tail), 0), handle)
        short = "\n".join(piece for piece in (head, note, tail) if piece)
        if count(short) <= room:
            return short
        characters = characters * 9 // 10
    return _note(size, handle)


def _note(tokens: int, handle: str) -> str:
    return f"[{tokens} tokens left out: {handle}]"


def _put(value: Any, way: Sequence[str | int], new: Any) -> Any:
    """Return the value with `new` at the end of the path `way`. Whatever is not on the path is shared, not copied."""
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
