"""The rules of OpenAI's chat completions that a list of messages has to meet, each with its source. Pure.

Sources: OpenAI's API reference, "Create chat completion" (messages), and its function calling guide; where a rule
is only known from the API's error messages ("API error 400") it says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.formats import Message, Problem
from palimpsest.notes import SPEAKING

_REFERENCE = "API reference, chat completions"


def broken_rules(messages: Sequence[Any]) -> list[Problem]:
    """Return every rule that the messages break, in their order."""
    problems: list[Problem] = []
    open_ids: set[str] = set()
    asked_at = -1
    for i, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in open_ids:
                problems.append(Problem(i, f"answers the call {call_id!r}, which is not open", "API error 400"))
            open_ids.discard(call_id)
            if not _sayable(message.get("content"), allow_empty=True):
                problems.append(Problem(i, "a tool message needs content, text or text parts", _REFERENCE))
            continue
        if open_ids:
            problems.append(Problem(asked_at, f"calls without a result: {sorted(open_ids)}", "API error 400"))
            open_ids = set()
        if role == "assistant":
            calls = message.get("tool_calls")
            if calls:
                asked_at, open_ids = i, _check_calls(calls, i, problems)
            elif not _speaks(message):
                problems.append(Problem(i, "an assistant message needs content or tool calls", _REFERENCE))
        elif role not in ("user", "system", "developer", "function"):
            problems.append(Problem(i, f"unknown role {role!r}", _REFERENCE))
        elif role == "function" and not message.get("name"):
            problems.append(Problem(i, "a function message needs a name", _REFERENCE))
        elif not _sayable(message.get("content"), allow_empty=role == "function"):
            problems.append(Problem(i, f"a {role} message needs content that is not empty", _REFERENCE))
    if open_ids:
        problems.append(Problem(asked_at, f"calls without a result: {sorted(open_ids)}", "API error 400"))
    return problems


def _check_calls(calls: Any, i: int, problems: list[Problem]) -> set[str]:
    ids: list[str] = []
    for call in calls:
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            problems.append(Problem(i, "every tool call needs an id", _REFERENCE))
            continue
        ids.append(call_id)
        body = call.get(call.get("type", "function"))
        if not isinstance(body, dict) or not body.get("name"):
            problems.append(Problem(i, f"the call {call_id!r} needs its function's name", _REFERENCE))
    if len(set(ids)) < len(ids):
        problems.append(Problem(i, "two calls of one message share an id", "API error 400"))
    return set(ids)


def _sayable(content: Any, *, allow_empty: bool) -> bool:
    if isinstance(content, str):
        return allow_empty or bool(content)
    return isinstance(content, list) and (bool(content) or allow_empty)


def _speaks(message: Message) -> bool:
    if _sayable(message.get("content"), allow_empty=False):
        return True
    return any(message.get(key) for key in SPEAKING)
