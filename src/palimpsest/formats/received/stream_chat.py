"""Gathering of streamed chunks of chat completions. Pure.

A chunk holds, for each choice, a delta to its message: texts are appended, items of lists such as calls are identified
by `index`, and keys such as ids and names come once.
"""

from __future__ import annotations

from typing import Any

from palimpsest.errors import InvalidEntry
from palimpsest.formats import Message

_ONCE = frozenset({"role", "id", "type", "name", "index", "object", "format"})
"""Keys whose values are not appended: some services repeat them in every chunk."""

_UNKEPT = frozenset({"delta", "message", "logprobs"})


class ChatAnswer:
    """The message of a stream's only choice, and the keys around it."""

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
                raise InvalidEntry("event.choices", "the stream has more than one answer; ask for one (n=1)")
            self._take(choice)

    def _take(self, choice: Message) -> None:
        delta = choice.get("delta", choice.get("message")) or {}  # a server may send the whole answer as one chunk
        if not isinstance(delta, dict):
            raise InvalidEntry("event.choices[0].delta", "is not a mapping")
        for key in ("content", "refusal"):
            if isinstance(delta.get(key), str):
                self.text += delta[key]
        _extend(self._message, delta)
        rest = {key: value for key, value in choice.items() if key not in _UNKEPT and value is not None}
        self._choice |= rest
        self.is_complete = self.is_complete or rest.get("finish_reason") is not None

    def whole(self) -> Message:
        """Return the completion as it would look without streaming."""
        message = dict(self._message)
        if isinstance(message.get("tool_calls"), list):
            message["tool_calls"] = [_without_index(call) for call in message["tool_calls"]]
        return {**self._around, "object": "chat.completion", "choices": [{**self._choice, "message": message}]}


def _without_index(call: Any) -> Any:
    return {key: value for key, value in call.items() if key != "index"} if isinstance(call, dict) else call


def _extend(message: Message, delta: Message) -> None:
    """Add a delta to a mapping, in place."""
    for key, value in delta.items():
        present = message.get(key)
        if value is None or present is None:
            message[key] = _copied(value) if value is not None else present
        elif isinstance(value, str) and isinstance(present, str):
            message[key] = (present or value) if key in _ONCE else present + value
        elif isinstance(value, dict) and isinstance(present, dict):
            _extend(present, value)
        elif isinstance(value, list) and isinstance(present, list):
            _merge(present, value)
        else:
            message[key] = value


def _copied(value: Any) -> Any:
    """Return a copy, which can be extended without changing the event that the value came in."""
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        copied: list[Any] = []
        _merge(copied, value)
        return copied
    return value


def _merge(items: list[Any], deltas: list[Any]) -> None:
    """Add deltas to a list of items, in place: each extends the item that it continues, or else is appended."""
    for delta in deltas:
        continued = _continued(items, delta)
        if continued is not None:
            _extend(continued, delta)
        else:
            items.append(_copied(delta))


def _continued(items: list[Any], delta: Any) -> Message | None:
    """Return the newest item with the delta's index; None if the delta begins another item.

    Some services number all calls of an answer 0. There a delta with a name and a new id begins another call. A new id
    alone does not: other services give each piece of a call its own id.
    """
    index = delta.get("index") if isinstance(delta, dict) else None
    if index is None:
        return None
    same = [item for item in reversed(items) if isinstance(item, dict) and item.get("index") == index]
    if delta.get("id") and _is_named(delta):
        return next((item for item in same if not item.get("id") or item["id"] == delta["id"]), None)
    return next(iter(same), None)


def _is_named(call: Message) -> bool:
    bodies = (call.get("function"), call.get("custom"))
    return any(isinstance(body, dict) and bool(body.get("name")) for body in bodies)
