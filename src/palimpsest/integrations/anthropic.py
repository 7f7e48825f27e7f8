"""`remember(Anthropic(), session)`: the Messages API of the `anthropic` client, with memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from palimpsest import AsyncSession, Session
from palimpsest.formats.anthropic_cache import MOST_MARKS, behind_own
from palimpsest.integrations.asking import (
    Asked,
    Dialect,
    forms_of,
    listed,
    only_new,
    part_of,
    refuse,
    system_of,
    texts_of,
    tokens_of,
    tools_of,
)
from palimpsest.integrations.base import Vendor, remembered
from palimpsest.types import CutOff

C = TypeVar("C")


class _Messages(Dialect):
    """The Messages API."""

    format = "anthropic"

    def read(self, given: Mapping[str, Any]) -> Asked:
        """Return what a call asks for.

        If the caller marks the system text for the cache, or lets the API set marks, no further marks are set; except
        at the ends of the last messages, if the new messages are marked, too.
        """
        refuse(given, "compaction", why="the log is summarised by session.compact()")
        messages = _results_in_messages(listed(given.get("messages"), "messages"))
        only_new(messages, ("user", "system"), "messages")
        system = system_of(texts_of(given.get("system"), "system"))
        marks_only_system = _marks_in(given.get("system")) and not _marks_in(messages)
        tools, marks = (
            tools_of(given.get("tools"), "tools"),
            given.get("cache_control") is None and not marks_only_system,
        )
        forms = forms_of(part_of(given.get("output_config"), "format"), given.get("output_format"))
        answer = tokens_of(given, "max_tokens")
        return Asked(messages, system, tools, given.get("model"), answer, marks, forms=forms)

    def build(self, given: Mapping[str, Any], request: Mapping[str, Any], *, streams: bool) -> dict[str, Any]:
        """Return the arguments to send.

        System blocks that the caller has marked are sent unchanged if nothing else comes before the log, and if their
        marks and those of the tools leave room for the API's limit.
        """
        system, whole, built = given.get("system"), given.get("cache_control"), {**given, **request}
        marked, before = _marks_in(system), _marks_in(given.get("tools"), system)
        if marked and len(before) <= MOST_MARKS and _system_text(system) == _system_text(request.get("system")):
            built |= {name: given[name] for name in ("system", "tools") if name in given}
        elif whole is None:
            return built
        built["messages"] = behind_own(built["messages"], _marks_in(built.get("tools"), built.get("system")), whole)
        return built


def _marks_in(*lists: object) -> list[Any]:
    """Return the cache marks of these blocks and of their contents."""
    marks = list[Any]()
    for blocks in lists:
        for block in blocks if isinstance(blocks, list | tuple) else ():
            marks += _marks_in(part_of(block, "content"))
            mark = part_of(block, "cache_control")
            marks += [] if mark is None else [mark]
    return marks


def _system_text(system: object) -> str | None:
    """Return the system text of a request."""
    return system_of(texts_of(system, "system"))


def _results_in_messages(messages: list[Any]) -> list[Any]:
    """Return the messages with adjacent tool results that stand by themselves gathered into one user message."""
    gathered = list[Any]()
    results: list[Any] | None = None
    for message in messages:
        if part_of(message, "role") is not None or part_of(message, "type") != "tool_result":
            gathered.append(message)
            results = None
            continue
        if results is None:
            results = list[Any]()
            gathered.append({"role": "user", "content": results})
        results.append(message)
    return gathered


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
        (
            *("beta.messages.tool_runner", "beta.messages.thread", "beta.sessions", "beta.agents", "beta.deployments"),
            *("post", "request"),
        ),
        "client.messages",
    ),
    again=frozenset({"with_options", "copy", "with_middleware"}),
)


def remember(client: C, session: Session | AsyncSession, *, cut_off: CutOff = "keep") -> C:
    """Return an object that is used like this Anthropic client, and remembers.

    `messages.create`, `.parse` and `.stream`, and those of `beta.messages`, take the new messages. These are added to
    the session; the request is built from its log within the budget, with marks for the prompt cache; the client sends
    it; and the answer, its calls and what it cost are recorded. The client's return value is returned unchanged, and
    the events of a stream pass through as they come. `system` and `tools` are of that call: sent, not stored. Blocks of
    the type `tool_result` need no message around them.

    An asynchronous client needs an AsyncSession. Each call is a `turn()` of the session, unless one is open. `cut_off`
    is as in `session.stream()`. Raises ConfigError if this is no such client, and, when they are used, for ways to a
    model that would go around the log.
    """
    return remembered(client, session, ANTHROPIC, cut_off)
