"""What vendors give: objects of their clients, dumps of those, mappings. The seam; nothing of a vendor is imported.

`recognise` finds out what was given, by its shape. Most of what is added is plain, and needs nothing of that.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palimpsest.formats.received.stream import AnswerStream
    from palimpsest.formats.received.values import Received, Reported

_LEAST = {"role", "content"}
_PLAIN = _LEAST | {"tool_call_id", "name"}
"""Keys of messages that nothing has to be recognised in: at least, and at most."""

_CHATS_ALONE = ("tool", "function", "developer")
"""Roles that chat completions have; of the others' formats only responses have one of them."""

_CALLING, _CALL, _FUNCTION = {"role", "content", "tool_calls"}, {"id", "type", "function"}, {"name", "arguments"}
"""The keys of a message with calls as a request of chat completions has it, of a call, and of its function."""


def is_plain(messages: object, format: str) -> bool:
    """Whether these are messages of a format that nothing has to be recognised in, as most are. Gemini's have parts."""
    if type(messages) is not list:
        return False
    for message in messages:
        if type(message) is not dict:
            return False
        if (
            format != "gemini"
            and type(message.get("content")) is str
            and (len(message) == len(_LEAST) or message.keys() <= _PLAIN)
            and (format == "openai" or message.get("role") not in _CHATS_ALONE)
        ):
            continue  # one of two keys has a role beside it, or is told what it lacks
        if format != "openai" or not _is_calling(message):
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
    """Return what was given as messages. `format` is that of those which may be anybody's; of all, if it is `settled`.

    Raises InvalidEntry, naming the place, for what nobody knows.
    """
    found: Received = _vendors().recognise(given, format, settled=settled)
    return found


def reported_by(given: object) -> Reported:
    """Return what a response, or its usage, reports. Raises ConfigError for what tells none, or no numbers."""
    found: Reported = _vendors().reported_by(given)
    return found


def answer_stream() -> AnswerStream:
    """Return what gathers the events of one answer."""
    made: AnswerStream = _vendors().AnswerStream()
    return made


def _vendors() -> ModuleType:
    from palimpsest.formats.received import vendors  # three milliseconds, which plain messages do without

    return vendors
