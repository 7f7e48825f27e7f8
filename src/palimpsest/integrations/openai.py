"""`remember(OpenAI(), session)`: chat completions and responses of the `openai` client, with memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from palimpsest import AsyncSession, Session
from palimpsest.errors import InvalidEntry
from palimpsest.integrations.asking import (
    SAYS_NEW,
    Asked,
    Dialect,
    forms_of,
    listed,
    one_answer,
    only_new,
    part_of,
    refuse,
    system_of,
    texts_of,
    tokens_of,
    tools_of,
    without_system,
)
from palimpsest.integrations.base import Vendor, remembered
from palimpsest.types import CutOff

C = TypeVar("C")


class _Chat(Dialect):
    """The Chat Completions API."""

    format = "openai"

    def read(self, given: Mapping[str, Any]) -> Asked:
        """Return what a call asks for."""
        one_answer(given, "n")
        texts, messages = without_system(every := listed(given.get("messages"), "messages"), "messages")
        first = len(every) - len(messages)
        only_new(messages, ("user", "tool", "system", "developer"), "messages", first)
        answer, tools = tokens_of(given, "max_completion_tokens", "max_tokens"), tools_of(given.get("tools"), "tools")
        forms = forms_of(given.get("response_format"))
        return Asked(messages, system_of(texts), tools, given.get("model"), answer, first=first, forms=forms)

    def build(self, given: Mapping[str, Any], request: Mapping[str, Any], *, streams: bool) -> dict[str, Any]:
        """Return the arguments to send.

        A stream is asked to report its usage, unless the caller gives options of its own.
        """
        usage = {"stream_options": {"include_usage": True}} if streams and "stream_options" not in given else {}
        return {**given, **usage, "messages": request["messages"]}

    def hides(self, given: Mapping[str, Any], event: object) -> bool:
        """Return whether this is the last chunk, with the usage and no choice, which the caller has not asked for."""
        asked = "stream_options" in given
        return not asked and part_of(event, "choices") == [] and part_of(event, "usage") is not None


class _Responses(Dialect):
    """The Responses API."""

    format = "openai-responses"

    def read(self, given: Mapping[str, Any]) -> Asked:
        """Return what a call asks for."""
        refuse(given, "previous_response_id", "conversation", why="what was said before comes from the session's log")
        refuse(given, "background", "response_id", "starting_after", why="the answer is added to the log when it comes")
        value = given.get("input")
        every = [{"role": "user", "content": value}] if isinstance(value, str) else listed(value, "input")
        texts, items = without_system(every, "input")
        first = len(every) - len(items)
        for i, item in enumerate(items, first):
            kind = part_of(item, "type")
            if part_of(item, "role") is not None or not isinstance(kind, str):
                only_new([item], ("user", "system", "developer"), "input", i)
            elif not kind.endswith(("_output", "_response")):
                raise InvalidEntry(f"input[{i}]", f"is of the model ({kind}): {SAYS_NEW}")
        system = system_of([*texts_of(given.get("instructions"), "instructions"), *texts])
        tools = tools_of(given.get("tools"), "tools")
        answer = tokens_of(given, "max_output_tokens")
        forms = forms_of(part_of(given.get("text"), "format"), given.get("text_format"))
        return Asked(items, system, tools, given.get("model"), answer, where="input", first=first, forms=forms)

    def build(self, given: Mapping[str, Any], request: Mapping[str, Any], *, streams: bool) -> dict[str, Any]:
        """Return the arguments to send."""
        own = {name: request[name] for name in ("input", "instructions") if name in request}
        return {**given, **own}


_chat, _responses = _Chat(), _Responses()
_BESIDE = ("agents", "assistants", "threads", "realtime", "responses", "chatkit")
_NO_ASSISTANTS = "client.chat.completions or client.responses"

OPENAI = Vendor(
    name="openai",
    probe="create",
    ways={
        "chat.completions.create": (_chat, "create"),
        "chat.completions.parse": (_chat, "whole"),
        "chat.completions.stream": (_chat, "helper"),
        "beta.chat.completions.create": (_chat, "create"),
        "beta.chat.completions.parse": (_chat, "whole"),
        "beta.chat.completions.stream": (_chat, "helper"),
        "responses.create": (_responses, "create"),
        "responses.parse": (_responses, "whole"),
        "responses.stream": (_responses, "helper"),
    },
    refused={
        **dict.fromkeys(
            ("completions", "realtime", "live", "responses.compact", "responses.connect", "post", "request"),
            _NO_ASSISTANTS,
        ),
        **{f"beta.{name}": _NO_ASSISTANTS for name in _BESIDE},
    },
    again=frozenset({"with_options", "copy"}),
)


def remember(client: C, session: Session | AsyncSession, *, cut_off: CutOff = "keep") -> C:
    """Return an object that is used like this OpenAI client, and remembers.

    `chat.completions.create`, `.parse` and `.stream`, and those of `responses`, take the new messages. These are added
    to the session; the request is built from its log within the budget; the client sends it; and the answer, its calls
    and what it cost are recorded. The client's return value is returned unchanged, and the events of a stream pass
    through as they come. System messages at the beginning of the list, and `instructions`, are of that call: sent, not
    stored.

    An asynchronous client needs an AsyncSession. Each call is a `turn()` of the session, unless one is open. `cut_off`
    is as in `session.stream()`. Raises ConfigError if this is no such client, and, when they are used, for ways to a
    model that would go around the log.
    """
    return remembered(client, session, OPENAI, cut_off)
