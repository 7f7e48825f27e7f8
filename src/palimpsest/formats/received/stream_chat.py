"""Chunks of chat completions, joined. Pure.

A chunk holds for each choice what to add to its message: texts go on, calls are told by their place (`index`), what
says which or what something is comes once.
"""

from __future__ import annotations

from typing import Any

from palimpsest.errors import InvalidEntry
from palimpsest.formats import Message

_ONCE = frozenset({"role", "id", "type", "name", "index", "object", "format"})
"""Keys whose values do not go on: some services repeat them in every chunk."""

_UNKEPT = frozenset({"delta", "message", "logprobs"})


class ChatAnswer:
    """The message of a stream's first choice, with what the stream says around it."""

    def __init__(self) -> None:
        self.text, self.is_complete = "", False
        self._around: Message = {}
        self._choice: Message = {"index": 0, "finish_reason": None}
        self._message: Message = {"role": "assistant", "content": None}

    def take(self, event: Message) -> None:
        """Take one chunk."""
        self._around |= {key: value for key, value in event.items() if key != "choices" and value is not None}
        for choice in event.get("choices") or ():  # some servers send null with the usage, or none
            if not isinstance(choice, dict) or choice.get("index", 0) != 0:
                raise InvalidEntry("event.choices", "more than one answer in a stream; ask for one (n=1)")
            self._take(choice)

    def _take(self, choice: Message) -> None:
        delta = choice.get("delta", choice.get("message")) or {}  # a server may send the whole as its one chunk
        if not isinstance(delta, dict):
            raise InvalidEntry("event.choices[0].delta", "is no mapping")
        for key in ("content", "refusal"):
            if isinstance(delta.get(key), str):
                self.text += delta[key]
        _extend(self._message, delta)
        rest = {key: value for key, value in choice.items() if key not in _UNKEPT and value is not None}
        self._choice |= rest
        self.is_complete = self.is_complete or rest.get("finish_reason") is not None

    def whole(self) -> Message:
        """The completion, as it would have come at once."""
        message = dict(self._message)
        if isinstance(message.get("tool_calls"), list):
            message["tool_calls"] = [_without_place(call) for call in message["tool_calls"]]
        return {**self._around, "object": "chat.completion", "choices": [{**self._choice, "message": message}]}


def _without_place(call: Any) -> Any:
    return {key: value for key, value in call.items() if key != "index"} if isinstance(call, dict) else call


def _extend(message: Message, delta: Message) -> None:
    """Put to a mapping what a delta adds to it."""
    for key, value in delta.items():
        there = message.get(key)
        if value is None or there is None:
            message[key] = _copied(value) if value is not None else there
        elif isinstance(value, str) and isinstance(there, str):
            message[key] = (there or value) if key in _ONCE else there + value
        elif isinstance(value, dict) and isinstance(there, dict):
            _extend(there, value)
        elif isinstance(value, list) and isinstance(there, list):
            _place(there, value)
        else:
            message[key] = value


def _copied(value: Any) -> Any:
    """A value that can be extended, apart from the event that it came in."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        made: list[Any] = []
        _place(made, value)
        return made
    return value


def _place(there: list[Any], items: list[Any]) -> None:
    """Put items to a list: those with an `index` to the one that they go on with, where it is there."""
    for item in items:
        known = _begun(there, item)
        if known is not None:
            _extend(known, item)
        else:
            there.append(_copied(item))


def _begun(there: list[Any], item: Any) -> Message | None:
    """The newest of the item's index; None where it begins another.

    Some services number all calls of an answer 0: what brings a name, and an id that is not known there, is another
    call. An id alone tells nothing, for other services give each piece of a call one of its own.
    """
    index = item.get("index") if isinstance(item, dict) else None
    if index is None:
        return None
    same = [one for one in reversed(there) if isinstance(one, dict) and one.get("index") == index]
    if item.get("id") and _is_named(item):
        return next((one for one in same if not one.get("id") or one["id"] == item["id"]), None)
    return next(iter(same), None)


def _is_named(call: Message) -> bool:
    bodies = (call.get("function"), call.get("custom"))
    return any(isinstance(body, dict) and bool(body.get("name")) for body in bodies)
