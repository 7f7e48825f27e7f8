"""The rules of OpenAI's chat completions for a list of messages, each with its source. Pure.

Sources: OpenAI's API reference, "Create chat completion" (messages), and its function calling guide. The source "API
error 400" means that a rule is only known from the API's error messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from palimpsest.formats import Message, Problem
from palimpsest.formats.wording import SPEAKING

NAME_LENGTH = 64
"""The most characters of a function's or speaker's name."""

ID_LENGTH = 40
"""The most characters of a call's id."""

SPEAKER_NAME = rf"[^\s<|\\/>]{{1,{NAME_LENGTH}}}"

_PLAIN = 2
"""The number of keys of a plain message: role and content."""

_SPEAKERS = ("user", "assistant", "system")

_REFERENCE = "API reference, chat completions"
_ERROR = "API error 400"


def is_function_name(name: str) -> bool:
    """Whether a function may have this name: 1 to `NAME_LENGTH` letters, digits, _ and -."""
    if len(name) > NAME_LENGTH or not name.isascii():
        return False
    return name.isidentifier() or name.replace("_", "a").replace("-", "a").isalnum()  # nearly all are identifiers


def broken_rules(messages: Sequence[Any]) -> list[Problem]:
    """Return every rule that the messages break, in the order of the messages."""
    problems: list[Problem] = []
    open_ids: set[str] = set()
    asked_at = -1
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not open_ids and len(message) == _PLAIN and type(content) is str and content and role in _SPEAKERS:
            continue  # the common case
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id not in open_ids:
                problems.append(
                    Problem(
                        i,
                        f"a tool message for the call {call_id!r}, which is not waiting for a result",
                        "API error 400",
                    )
                )
            open_ids.discard(call_id)
            if type(content) is not str:
                problems.extend(_broken_result(i, message))
            continue
        if open_ids:
            problems.append(
                Problem(asked_at, f"calls without a tool message after them: {sorted(open_ids)}", "API error 400")
            )
            open_ids = set()
        if isinstance(content, list):
            problems.extend(_broken_parts(i, message))
        calls = message.get("tool_calls")
        if not calls or "name" in message:
            problems.extend(_broken_fields(i, message))
        if calls and role == "assistant":
            asked_at, open_ids = i, _check_calls(calls, i, problems)
        else:
            problems.extend(_broken_speech(i, message))
    if open_ids:
        problems.append(
            Problem(asked_at, f"calls without a tool message after them: {sorted(open_ids)}", "API error 400")
        )
    return problems


def _check_calls(calls: Any, i: int, problems: list[Problem]) -> set[str]:
    ids: list[str] = []
    for call in calls:
        call_id = call.get("id")
        if not isinstance(call_id, str) or not call_id:
            problems.append(Problem(i, "every tool call needs an id", _REFERENCE))
            continue
        ids.append(call_id)
        if len(call_id) > ID_LENGTH:
            problems.append(
                Problem(i, f"the id of a call may have at most {ID_LENGTH} characters, not {len(call_id)}", _ERROR)
            )
        body = call.get(call.get("type", "function"))
        name = body.get("name") if isinstance(body, dict) else None
        if not isinstance(name, str) or not is_function_name(name):
            rule = f"the call {call_id!r} needs the name of its function: 1 to {NAME_LENGTH} letters, digits, _ and -"
            problems.append(Problem(i, f"{rule}, not {name!r}", _ERROR))
    if len(set(ids)) < len(ids):
        problems.append(Problem(i, "two calls of one message share an id", "API error 400"))
    return set(ids)


def _broken_fields(i: int, message: Message) -> list[Problem]:
    """Return the rules broken by the speaker's name, or by an empty list of calls."""
    name, calls = message.get("name"), message.get("tool_calls")
    broken = []
    speaks = name is not None and message.get("role") != "function"
    if speaks and not (isinstance(name, str) and re.fullmatch(SPEAKER_NAME, name)):
        rule = f"the name of a speaker must have 1 to {NAME_LENGTH} characters without spaces and <|\\/>, not {name!r}"
        broken.append(Problem(i, rule, _ERROR))
    if calls is not None and not calls:
        broken.append(Problem(i, "tool_calls must not be an empty list", _ERROR))
    return broken


def _broken_parts(i: int, message: Message) -> list[Problem]:
    content = message.get("content")
    if not isinstance(content, list):
        return []
    if not content:
        return [Problem(i, "a list of parts must not be empty", _ERROR)]
    empty = any(isinstance(part, dict) and part.get("type") == "text" and not part.get("text") for part in content)
    return [Problem(i, "a text part must not be empty", _ERROR)] if empty else []


def _broken_result(i: int, message: Message) -> list[Problem]:
    valid = _is_content(message.get("content"), allow_empty=True)
    broken = [] if valid else [Problem(i, "a tool message needs content: text or a list of text parts", _REFERENCE)]
    return [*broken, *_broken_parts(i, message)]


def _broken_speech(i: int, message: Message) -> list[Problem]:
    """Return the rule broken by the role or the content of a message without calls."""
    role = message.get("role")
    rule = None
    if role == "assistant":
        rule = None if _speaks(message) else "an assistant message needs content or tool calls"
    elif role not in ("user", "system", "developer", "function"):
        rule = f"unknown role {role!r}"
    elif role == "function" and not message.get("name"):
        rule = "a function message needs a name"
    elif not _is_content(message.get("content"), allow_empty=role == "function"):
        rule = f"a {role} message needs content that is not empty"
    return [] if rule is None else [Problem(i, rule, _REFERENCE)]


def _is_content(content: Any, *, allow_empty: bool) -> bool:
    if isinstance(content, str):
        return allow_empty or bool(content)
    return isinstance(content, list) and (bool(content) or allow_empty)


def _speaks(message: Message) -> bool:
    if _is_content(message.get("content"), allow_empty=False):
        return True
    return any(message.get(key) for key in SPEAKING)
