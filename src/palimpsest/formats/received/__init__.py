"""The seam to what vendors' clients return: their objects, dumps of those, and mappings, as messages of a format.

No vendor's package is imported: `recognise` tells everything by its shape. Most messages are plain and need no
recognition, so the modules that know the vendors' shapes are imported late.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from palimpsest.formats import CHAT, Format

if TYPE_CHECKING:
    from palimpsest.formats.received.stream import AnswerStream
    from palimpsest.formats.received.values import Received, Reported

_LEAST = {"role", "content"}
_PLAIN = _LEAST | {"tool_call_id", "name"}
"""The fewest and the most keys of a plain message, which needs no recognition."""

_CHATS_ALONE = ("tool", "function", "developer")
"""Roles that only chat completions have, except that responses have `developer`, too."""

_CALLING, _CALL, _FUNCTION = {"role", "content", "tool_calls"}, {"id", "type", "function"}, {"name", "arguments"}
"""The keys of a message with calls in a request of chat completions, of a call, and of its function."""


def is_plain(messages: object, format: Format) -> bool:
    """Whether these are plain messages of the format, which need no recognition. Gemini's, with parts, never are."""
    is_chat = format.name == CHAT
    if type(messages) is not list:
        return False
    for message in messages:
        if type(message) is not dict:
            return False
        if (
            format.content == "content"
            and type(message.get("content")) is str
            and (len(message) == len(_LEAST) or message.keys() <= _PLAIN)
            and (is_chat or message.get("role") not in _CHATS_ALONE)
        ):
            continue  # of two keys the other one is `role`, or decoding reports what is missing
        if not is_chat or not _is_calling(message):
            return False
    return True


def _is_calling(message: dict[Any, Any]) -> bool:
    calls = message.get("tool_calls")
    if type(calls) is not list or message.keys() != _CALLING or not isinstance(message["content"], str | None):
        return False
    for call in calls:
        if type(call) is not dict or call.keys() != _CALL:
            return False
        function = call["function"]
        if type(function) is not dict or function.keys() != _FUNCTION:
            return False
    return True


def received(given: object, format: str, *, settled: bool = False) -> Received:
    """Return what a vendor's client gave, as messages.

    `format` is the format of messages that could be of several; with `settled` of all messages. Raises InvalidEntry,
    naming the place, for what is not recognised.
    """
    result: Received = _vendors().recognise(given, format, settled=settled)
    return result


def reported_by(given: object) -> Reported:
    """Return what a response or its usage reports. Raises ConfigError if it reports nothing, or no valid numbers."""
    report: Reported = _vendors().reported_by(given)
    return report


def answer_stream() -> AnswerStream:
    """Return a collector for the events of one answer."""
    stream: AnswerStream = _vendors().AnswerStream()
    return stream


def _vendors() -> ModuleType:
    from palimpsest.formats.received import vendors  # late: it takes three milliseconds, and plain messages need none

    return vendors
