"""What vendors give: objects of their clients, dumps of those, mappings. The seam; nothing of a vendor is imported.

`recognise` finds out what was given, by its shape. Most of what is added is plain, and needs nothing of that.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from palimpsest.formats.received.stream import AnswerStream
    from palimpsest.formats.received.values import Received, Reported

_PLAIN = frozenset({"role", "content", "tool_call_id", "name"})
"""Keys of messages that nothing has to be recognised in."""


def is_plain(messages: object) -> bool:
    """Whether these are messages that nothing has to be recognised in, as most are."""
    if type(messages) is not list:
        return False
    for message in messages:
        if type(message) is not dict or type(message.get("content")) is not str or not message.keys() <= _PLAIN:
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
