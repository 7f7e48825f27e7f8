"""What was given, recognised. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class Reported(msgspec.Struct, frozen=True):
    """What a provider reported for one call, in tokens. `response` is a fingerprint of the response's id and
    input, or empty where it has no id: of an answer that was broken off it is that of the whole one."""

    input_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0
    response: str = ""


class Run(msgspec.Struct, frozen=True):
    """Messages in a row of one format, and for each which of those that were given it came from. `cut_off` says that
    they are the text of an answer that its provider broke off."""

    format: str
    messages: list[dict[str, Any]]
    places: list[int]
    cut_off: bool = False


class Received(msgspec.Struct, frozen=True):
    """What was given, in its order, and what the responses in it cost, by their places."""

    runs: list[Run]
    usages: dict[int, Reported]
