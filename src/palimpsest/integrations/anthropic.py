"""`remember(Anthropic(), session)`: messages of the `anthropic` client, with memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from palimpsest import AsyncSession, Session
from palimpsest.formats.anthropic_cache import MOST_MARKS, behind_own
from palimpsest.integrations.asking import (
    Asked,
    forms_of,
    listed,
    only_new,
    part_of,
    system_of,
    texts_of,
    tokens_of,
    tools_of,
)
from palimpsest.integrations.base import Vendor, remembered
from palimpsest.types import CutOff

C = TypeVar("C")


class _Messages:
    """Messages."""

    format = "anthropic"

    def read(self, given: Mapping[str, Any]) -> Asked:
        """What is asked for. Where the caller marks its system text, or has the API mark, no marks are set beside it,
        but at the ends of the last messages, if those that are new are marked, too."""
        messages = _results_in_messages(listed(given.get("messages"), "messages"))
        only_new(messages, ("user", "system"), "messages")
        system = system_of(texts_of(given.get("system"), "system"))
        own = _marks_in(given.get("system")) and not _marks_in(messages)
        tools, marks = tools_of(given.get("tools"), "tools"), given.get("cache_control") is None and not own
        forms = forms_of(part_of(given.get("output_config"), "format"), given.get("output_format"))
        answer = tokens_of(given, "max_tokens")
        return Asked(messages, system, tools, given.get("model"), answer, marks, forms=forms)

    def build(self, given: Mapping[str, Any], request: Mapping[str, Any], *, streams: bool) -> dict[str, Any]:
        """The arguments. System blocks that the caller has marked go out as they are, where nothing comes before the
        log but them, and with the tools they leave the API room for their marks."""
        system, whole, built = given.get("system"), given.get("cache_control"), {**given, **request}
        marked, before = _marks_in(system), _marks_in(given.get("tools"), system)
        if marked and len(before) <= MOST_MARKS and _said(system) == _said(request.get("system")):
            built |= {name: given[name] for name in ("system", "tools") if name in given}
        elif whole is None:
            return built
        built["messages"] = behind_own(built["messages"], _marks_in(built.get("tools"), built.get("system")), whole)
        return built

    def hides(self, given: Mapping[str, Any], event: object) -> bool:
        """Nothing."""
        return False


def _marks_in(*lists: object) -> list[Any]:
    """The marks of the ends of what is cached that these blocks have, and those in their contents."""
    found = list[Any]()
    for blocks in lists:
        for block in blocks if isinstance(blocks, list | tuple) else ():
            found += _marks_in(part_of(block, "content"))
            mark = part_of(block, "cache_control")
            found += [] if mark is None else [mark]
    return found


def _said(system: object) -> str | None:
    return system_of(texts_of(system, "system"))


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
        (
            *("beta.messages.tool_runner", "beta.messages.thread", "beta.sessions", "beta.agents", "beta.deployments"),
            *("post", "request"),
        ),
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
