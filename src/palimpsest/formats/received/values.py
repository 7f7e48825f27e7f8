"""What was given, recognised. Pure."""

from __future__ import annotations

from typing import NamedTuple

from palimpsest.formats import Message
from palimpsest.formats.received.usage import Reported


class Run(NamedTuple):
    """Messages in a row of one format, and for each which of those that were given it came from."""

    format: str
    messages: list[Message]
    places: list[int]


class Received(NamedTuple):
    """What was given, in its order, and what the responses in it cost."""

    runs: list[Run]
    usages: list[Reported]
