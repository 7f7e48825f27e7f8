"""Records of what was recognised. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class Reported(msgspec.Struct, frozen=True):
    """What a provider reported for one call, in tokens.

    `response` is a fingerprint of the response's id and input tokens; empty if it has no id. A response that was broken
    off has the same fingerprint as the whole one. `looped` says that the input is more, or other, than what was sent:
    tools that the provider runs have brought some of it, or it is the sum of several passes of the model.
    """

    input_tokens: int
    output_tokens: int = 0
    cached_tokens: int = 0
    response: str = ""
    looped: bool = False


class Run(msgspec.Struct, frozen=True):
    """Consecutive messages of one format, and for each the index of the given thing that it came from.

    `cut_off` says that they hold only the text of an answer that its provider broke off.
    """

    format: str
    messages: list[dict[str, Any]]
    places: list[int]
    cut_off: bool = False


class Received(msgspec.Struct, frozen=True):
    """What was given, as runs of messages in order, and the usage of the responses in it, by their indexes."""

    runs: list[Run]
    usages: dict[int, Reported]
