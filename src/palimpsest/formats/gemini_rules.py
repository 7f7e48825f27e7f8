"""The rules of Google's Gen AI API for a list of contents, each with its source. Pure.

Sources: Google's Gemini API reference ("Content", "Part", "FunctionCall", "FunctionDeclaration") and its guide to
function calling. The source "API error 400" means that a rule is only known from the API's error messages.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from palimpsest.formats import Message, Problem
from palimpsest.formats.gemini_parts import DATA, is_signed

NAME_LENGTH = 64
"""The most characters of a function's name. The newest reference allows more, models and the older service do not."""

CALLABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.:-]{0,63}")
"""The function names that the API accepts (API reference, "FunctionDeclaration")."""

_REFERENCE = "API reference, Content"
_CALLING = "guide to function calling"


def broken_rules(contents: Sequence[Any]) -> list[Problem]:
    """Return every rule that the contents break, in the order of the contents."""
    problems: list[Problem] = []
    asked: list[Message] = []  # the calls of the content before
    before: object = None
    for i, content in enumerate(contents):
        role, parts = content.get("role"), content.get("parts")
        if role not in ("user", "model"):
            problems.append(Problem(i, f"unknown role {role!r}", _REFERENCE))
        if i == 0 and role == "model":
            problems.append(Problem(i, "the first content must have the role user", "API error 400"))
        elif i and role == before:
            problems.append(
                Problem(
                    i, "two contents of one role in a row; the roles user and model must alternate", "API error 400"
                )
            )
        before = role
        if not isinstance(parts, list) or not parts:
            problems.append(Problem(i, "a content needs parts", "API error 400"))
            parts = []
        for part in parts:
            problems.extend(Problem(i, rule, _REFERENCE) for rule in _broken_part(part))
        calls, responses = _bodies(parts, "function_call"), _bodies(parts, "function_response")
        problems.extend(Problem(i, rule, _CALLING) for rule in _broken_pairs(role, asked, parts, responses))
        if calls and role != "model":
            problems.append(Problem(i, "a function_call in a content whose role is not model", _CALLING))
        asked = calls
    if asked:
        problems.append(Problem(len(contents) - 1, "calls without a function_response after them", "API error 400"))
    return problems


def _bodies(parts: Sequence[Any], kind: str) -> list[Any]:
    """Return the bodies of the parts of this kind, in their order."""
    return [part[key] for part in parts for key in _kinds(part) if DATA[key] == kind]


def _kinds(part: Any) -> list[str]:
    return [key for key in part if key in DATA and part[key] is not None] if isinstance(part, dict) else []


def _broken_part(part: Any) -> list[str]:
    kinds = _kinds(part)
    if len(kinds) != 1:
        return ["a part must have exactly one kind of data, such as text or function_call"]
    kind, body = DATA[kinds[0]], part[kinds[0]]
    if kind == "text":
        return (
            []
            if isinstance(body, str) and (body or is_signed(part))
            else ["a text without a signature must not be empty"]
        )
    if not isinstance(body, dict):
        return [f"{kind} must be a mapping"]
    if kind not in ("function_call", "function_response"):
        return []
    broken = []
    if not isinstance(body.get("name"), str) or not CALLABLE.fullmatch(body["name"]):
        broken.append(f"{body.get('name')!r} is not a valid function name")
    field = "args" if kind == "function_call" else "response"
    if not isinstance(body.get(field), dict):
        broken.append(f"{field} must be an object")
    return broken


def _broken_pairs(role: object, asked: Sequence[Any], parts: Sequence[Any], responses: Sequence[Any]) -> list[str]:
    """Return the rules that a content's responses break, given the calls of the content before it."""
    if len(responses) != len(asked):
        return [f"{len(asked)} calls need {len(asked)} responses in the next content, not {len(responses)}"]
    if not responses:
        return []
    broken = ["a function_response in a content whose role is not user"] if role != "user" else []
    if _bodies(parts[: len(responses)], "function_response") != responses:
        broken.append("function_response parts must come before all other parts")
    for call, response in zip(asked, responses, strict=True):
        call_key, response_key = (
            (body.get("name"), body.get("id")) if isinstance(body, dict) else None for body in (call, response)
        )
        if call_key != response_key:
            broken.append(f"the response {response_key!r} does not answer the call {call_key!r}")
    return broken
