"""How providers bill their prompt caches, and what requests cost: for `cache_bill.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from palimpsest.tokens.counter import encoding
from palimpsest.tokens.models import find_model

Message = dict[str, Any]


class Vendor(NamedTuple):
    """How a provider bills its prompt cache.

    Prices are in units of that of fresh input. `least` is the shortest prefix that is cached, `step` the steps in which
    it grows, and `seconds` the life of the cache after the last call.
    """

    name: str
    cached: float
    written: float
    least: int
    step: int
    seconds: float


def _vendor(name: str, model: str, *, written: float = 1.0, least: int = 1024, step: int = 1, life: float) -> Vendor:
    """Return a vendor whose price of cached input is that of this model in the package's table."""
    priced = find_model(model)
    fresh, cached = (priced.input_price, priced.cached_input_price) if priced is not None else (None, None)
    assert fresh is not None, model
    assert cached is not None, model
    return Vendor(name, cached / fresh, written, least, step, life)


@cache
def vendors() -> tuple[Vendor, ...]:
    """Return five prices of three providers.

    What Anthropic's cache does not serve is written to it, for a quarter more.
    """
    return (
        _vendor("Anthropic", "claude-sonnet-4-5", written=1.25, life=300),
        _vendor("OpenAI, gpt-5", "gpt-5", step=128, life=3600),
        _vendor("OpenAI, gpt-4.1", "gpt-4.1", step=128, life=3600),
        _vendor("OpenAI, gpt-4o", "gpt-4o", step=128, life=3600),
        _vendor("Gemini 2.5", "gemini-2.5-pro", least=2048, life=3600),
    )


TENTH, HALF = 1, 3
"""Indexes of the vendor that the targets are for, and of the one that charges half of the price for a cached token."""


class Tokens:
    """The token ids of messages. Each message is encoded once."""

    def __init__(self) -> None:
        self._encode = encoding("o200k_base").encode
        self._known: dict[str, tuple[int, ...]] = {}

    def of(self, message: Message) -> tuple[int, ...]:
        """Return the message's ids: three marks and its role, then its texts."""
        key = json.dumps(message, sort_keys=True)
        if key not in self._known:
            ids = [-1, -2, -3, *self._encode(message["role"])[:1], *self._encode(message.get("content") or "")]
            for call in message.get("tool_calls") or ():
                ids += self._encode(call["function"]["name"]) + self._encode(call["function"]["arguments"])
            self._known[key] = tuple(ids)
        return self._known[key]


class Call(NamedTuple):
    """One request: its tokens, those in common with the request before, those of dialogue; whether it opens a
    conversation."""

    size: int
    common: int
    dialogue: int
    opens: bool


class Calls(list[Call]):
    """All requests of one policy."""

    def __init__(self, tokens: Tokens) -> None:
        super().__init__()
        self._tokens, self._before = tokens, list[tuple[int, ...]]()
        self.compactions = 0
        self.cuts: list[tuple[int, int | None]] = []
        """The indexes of the calls that made a cut, each with the first seq of its window."""

    def send(self, messages: Sequence[Message], *, opens: bool) -> None:
        """Account for one request."""
        token_ids = [self._tokens.of(message) for message in messages]
        pairs = zip(messages, token_ids, strict=True)
        dialogue = sum(len(ids) for message, ids in pairs if message["role"] not in ("tool", "system"))
        self.append(Call(sum(map(len, token_ids)), _common(self._before, token_ids), dialogue, opens))
        self._before = token_ids

    def restart(self) -> None:
        """Begin a new session: the cache has nothing of the one before."""
        self._before = []

    @property
    def sent(self) -> int:
        return sum(call.size for call in self)

    @property
    def dialogue(self) -> int:
        return sum(call.dialogue for call in self)

    def cached(self, vendor: Vendor, pause: float) -> int:
        """Return the tokens that this provider's cache served, if conversations are `pause` seconds apart."""
        return sum(
            call.common - call.common % vendor.step
            for call in self
            if call.common >= vendor.least and not (call.opens and pause > vendor.seconds)
        )

    def bill(self, vendor: Vendor, pause: float) -> float:
        """Return the cost, in tokens at the price of fresh input."""
        cached = self.cached(vendor, pause)
        return vendor.written * (self.sent - cached) + vendor.cached * cached


def _common(earlier: Sequence[tuple[int, ...]], later: Sequence[tuple[int, ...]]) -> int:
    """Return the length of the longest common token prefix."""
    total = 0
    for left, right in zip(earlier, later, strict=False):
        if left == right:
            total += len(left)
            continue
        for a, b in zip(left, right, strict=False):
            if a != b:
                break
            total += 1
        break
    return total


def by_turn(system: Message, log: Sequence[Message], budget: int, tokens: Tokens) -> list[Message]:
    """Return the newest whole turns that fit, and always the newest."""
    used, start, kept = len(tokens.of(system)) + 3, len(log), len(log)
    for i in range(len(log) - 1, -1, -1):
        used += len(tokens.of(log[i]))
        start = i
        if used > budget and kept < len(log):
            break
        if log[i]["role"] == "user":
            kept = i
    return [system, *log[kept if kept < len(log) else start :]]


def by_message(system: Message, log: Sequence[Message], budget: int, tokens: Tokens) -> list[Message]:
    """Return the newest messages that fit, whatever they are: a tool result without its call, too."""
    used, start = len(tokens.of(system)) + 3, len(log)
    while start and used + len(tokens.of(log[start - 1])) <= budget:
        start -= 1
        used += len(tokens.of(log[start]))
    return [system, *log[start:]]
