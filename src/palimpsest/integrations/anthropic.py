"""`remember(Anthropic(), session)`: messages of the `anthropic` client, with memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from palimpsest import AsyncSession, Session
from palimpsest.integrations.asking import Asked, listed, only_new, part_of, system_of, texts_of, tokens_of, tools_of
from palimpsest.integrations.base import Vendor, remembered
from palimpsest.types import CutOff

C = TypeVar("C")

MARKS = 4
"""Marks for the prompt cache that the API takes in one request."""


class _Messages:
    """Messages."""

    format = "anthropic"

    def read(self, given: Mapping[str, Any]) -> Asked:
        """What is asked for. Where the caller has the API mark what is cached, no marks are set beside its own."""
        messages = _results_in_messages(listed(given.get("messages"), "messages"))
        only_new(messages, ("user", "system"), "messages")
        system = system_of(texts_of(given.get("system"), "system"))
        tools, marks = tools_of(given.get("tools"), "tools"), given.get("cache_control") is None and not _marked(given)
        return Asked(messages, system, tools, given.get("model"), tokens_of(given, "max_tokens"), marks)

    def build(self, given: Mapping[str, Any], request: Mapping[str, Any], *, streams: bool) -> dict[str, Any]:
        """The arguments. System blocks that the caller has marked go out as they are, where nothing comes before the
        log but them, and the marks are no more than the API takes."""
        own = _marked(given)
        if own and own + _marks_in(request.get("messages"), request.get("tools")) <= MARKS:
            said, sent = (system_of(texts_of(one.get("system"), "system")) for one in (given, request))
            request = {**request, "system": given["system"]} if said == sent else request
        return {**given, **request}

    def hides(self, given: Mapping[str, Any], event: object) -> bool:
        """Nothing."""
        return False


def _marked(given: Mapping[str, Any]) -> int:
    """How many of its system blocks the caller has marked as the end of what is cached."""
    return _marks_in(given.get("system"))


def _marks_in(*lists: object) -> int:
    """How many blocks of these, and in their contents, have such a mark."""
    found = 0
    for blocks in lists:
        for block in blocks if isinstance(blocks, list | tuple) else ():
            found += part_of(block, "cache_control") is not None
            found += _marks_in(part_of(block, "content"))
    return found


def _results_in_messages(messages: list[Any]) -> list[Any]:
    """Messages, where results of tools may stand by themselves: those in a row are one message of the user's."""
    found = list[Any]()
    results: list[Any] | None = None
    for message in messages:
        if part_of(message, "role") is not None or part_of(message, "type") != "tool_result":
            found.append(message)
            results = None
            continue
        if results is None:
            results = list[Any]()
            found.append({"role": "user", "content": results})
        results.append(message)
    return found


_messages = _Messages()

ANTHROPIC = Vendor(
    name="anthropic",
    probe="create",
    ways={
        "messages.create": (_messages, "create"),
        "messages.parse": (_messages, "whole"),
        "messages.stream": (_messages, "helper"),
        "beta.messages.create": (_messages, "create"),
        "beta.messages.parse": (_messages, "whole"),
        "beta.messages.stream": (_messages, "helper"),
    },
    refused=dict.fromkeys(
        ("beta.messages.tool_runner", "beta.messages.thread", "beta.sessions", "beta.agents", "post", "request"),
        "client.messages",
    ),
    again=frozenset({"with_options", "copy", "with_middleware"}),
)


def remember(client: C, session: Session | AsyncSession, *, cut_off: CutOff = "keep") -> C:
    """Return an object that is used like this client of Anthropic's, and remembers.

    `messages.create`, `.parse` and `.stream`, and those of `beta.messages`, take the messages that are new. These are
    added to the session, the request is built from its log within the budget, with marks for the prompt cache, the
    client sends it, and the answer, its calls and what it cost are recorded. What the client returns is returned as it
    is; what a stream gives passes through as it comes. `system` and `tools` are of that call: sent, not stored. Blocks
    of the type `tool_result` need no message around them.

    An asynchronous client needs an AsyncSession. Each call is a `turn()` of the session, unless one is open. `cut_off`
    is as in `session.stream()`. Raises ConfigError for what is no such client, and, where they are used, for ways to a
    model that would go around the log.
    """
    return remembered(client, session, ANTHROPIC, cut_off)
