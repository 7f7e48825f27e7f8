"""The arithmetic of the demo: what different ways of sending a conversation cost. No output, no store.

The baselines are:

    send everything   the whole log every time, which at some point fits no budget
    slide by message  the newest messages that fit, not beginning with a tool result
    slide by turn     the newest whole human turns that fit

Palimpsest's own contexts come from a real `Memory` (`palimpsest.cli.demo_run`). All are measured alike: the exact o200k
ids of every message, the tokens that the provider adds around it, the system prompt and the tool schemas. Cached is the
longest common prefix with the call before, from 1,024 tokens on in steps of 128, as OpenAI documents it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from palimpsest.tokens.counter import MESSAGE_OVERHEAD, REPLY_OVERHEAD, ROLE_TOKENS, Encoding, tool_schema_tokens

Message = dict[str, Any]
Ids = tuple[int, ...]
CACHE_FROM, CACHE_STEP = 1_024, 128
CALL_OVERHEAD = 3
"""Tokens around each tool call: the figure that the library counts with."""


class Tokens:
    """Token ids of messages, each message encoded once. Negative ids stand for tokens that the provider adds."""

    def __init__(self, encoding: Encoding, tools: Sequence[Message]) -> None:
        self._encode = encoding.encode
        self._cache: dict[str, Ids] = {}
        # Schemas come first and never change, so only their number of tokens matters: any distinct ids will do.
        size = tool_schema_tokens(tools, encoding, gpt4o_family=True) + REPLY_OVERHEAD
        self.tools: Ids = tuple(range(-100, -100 - size, -1))

    def of(self, message: Message) -> Ids:
        """Return the ids of a message: of its role, its text and its calls."""
        key = json.dumps(message)
        ids = self._cache.get(key)
        if ids is None:
            ids = self._cache[key] = tuple(self._ids(message))
        return ids

    def _ids(self, message: Message) -> list[int]:
        ids = [-1] * (MESSAGE_OVERHEAD + ROLE_TOKENS - 1) + [-2 - len(message["role"])]
        ids += self._encode(message.get("content") or "")
        for call in message.get("tool_calls") or ():
            ids += [-3] * CALL_OVERHEAD
            ids += self._encode(call["function"]["name"]) + self._encode(call["function"]["arguments"])
        return ids


class Bill:
    """The account of one way of sending, over all calls. `last` has the tokens sent and cached of the newest call."""

    def __init__(self, name: str, tokens: Tokens) -> None:
        self.name, self._tokens = name, tokens
        self.calls = self.sent = self.cached = self.breaks = self.largest = 0
        self.last = (0, 0)
        self._before: list[Ids] = []

    def call(self, messages: Sequence[Message]) -> tuple[int, int]:
        """Account for one request; return its tokens, sent and cached."""
        request = [self._tokens.tools, *map(self._tokens.of, messages)]
        size, common = sum(map(len, request)), common_prefix(self._before, request)
        cached = common - common % CACHE_STEP if common >= CACHE_FROM else 0
        if self._before and request[: len(self._before)] != self._before:
            self.breaks += 1
        self.calls, self.sent, self.cached = self.calls + 1, self.sent + size, self.cached + cached
        self.largest, self._before, self.last = max(self.largest, size), request, (size, cached)
        return self.last

    @property
    def cached_share(self) -> float:
        """The share of the sent tokens that the provider had cached."""
        return self.cached / self.sent if self.sent else 0.0

    def cost(self, input_price: float, cached_price: float) -> float:
        """Return the US dollars per call; prices are per million tokens."""
        return ((self.sent - self.cached) * input_price + self.cached * cached_price) / 1e6 / max(self.calls, 1)


def common_prefix(one: Sequence[Ids], other: Sequence[Ids]) -> int:
    """Return how many tokens two requests have in common at their start."""
    total = 0
    for left, right in zip(one, other, strict=False):
        if left is right or left == right:
            total += len(left)
            continue
        for a, b in zip(left, right, strict=False):
            if a != b:
                break
            total += 1
        break
    return total


class Windows:
    """The three baselines over one growing log, each with its bill."""

    def __init__(self, system: Message, tokens: Tokens, budget: int) -> None:
        self._system, self._tokens = system, tokens
        self._room = budget - len(tokens.tools) - len(tokens.of(system))
        self._log: list[Message] = []
        self._sizes: list[int] = []
        self.everything = Bill("send everything", tokens)
        self.by_message = Bill("slide by message", tokens)
        self.by_turn = Bill("slide by turn", tokens)

    @property
    def bills(self) -> tuple[Bill, Bill, Bill]:
        """The bills, each named after its way of sending."""
        return self.everything, self.by_message, self.by_turn

    def add(self, messages: Sequence[Message]) -> None:
        """Append messages to the log."""
        self._log.extend(messages)
        self._sizes.extend(len(self._tokens.of(message)) for message in messages)

    def call(self) -> None:
        """Account for a call of the model with the log as it is, in all three ways."""
        self.everything.call([self._system, *self._log])
        self.by_message.call([self._system, *self._log[self._newest_messages() :]])
        self.by_turn.call([self._system, *self._log[self._newest_turns() :]])

    def _newest_messages(self) -> int:
        start, used = len(self._log), 0
        while start and used + self._sizes[start - 1] <= self._room:
            start -= 1
            used += self._sizes[start]
        while start < len(self._log) and self._log[start]["role"] == "tool":
            start += 1
        return start

    def _newest_turns(self) -> int:
        kept, used = len(self._log), 0
        for i in range(len(self._log) - 1, -1, -1):
            used += self._sizes[i]
            if used > self._room and kept < len(self._log):
                break
            if self._log[i]["role"] == "user":
                kept = i
        return kept
