"""The rules that every context for Gemini must keep, checked independently of the library."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

Content = dict[str, Any]

KINDS = (
    *("text", "inlineData", "fileData", "functionCall", "functionResponse", "executableCode"),
    *("codeExecutionResult", "toolCall", "toolResponse"),
)
MEDIA = ("inlineData", "fileData")


def camel(key: str) -> str:
    """Return a key in camel case, as JSON spells it."""
    head, *rest = key.split("_")
    return head + "".join(word.capitalize() for word in rest)


def held(part: Content) -> dict[str, Any]:
    """Return the contents of a part by kind, with kinds as JSON spells them."""
    return {camel(key): value for key, value in part.items() if camel(key) in KINDS and value is not None}


def signature(part: Content) -> str | None:
    """Return a part's thought signature, or None. A stream may end with one on an empty text.

    Source: the guide "Thought signatures".
    """
    return next((value for key, value in part.items() if camel(key) == "thoughtSignature"), None)


def faults(contents: Sequence[Content]) -> list[str]:
    """Return every rule that the contents break."""
    found: list[str] = []
    if contents and contents[0].get("role") != "user":
        found.append("0: the user does not come first")
    waiting: list[Content] = []
    for i, content in enumerate(contents):
        if content.keys() != {"role", "parts"} or content["role"] not in ("user", "model"):
            found.append(f"{i}: keys {sorted(content)}, role {content.get('role')!r}")
        if i and content["role"] == contents[i - 1]["role"]:
            found.append(f"{i}: two contents of one role in a row")
        parts = [held(part) for part in content["parts"]]
        unsigned = [held(part) for part in content["parts"] if not signature(part)]
        if not parts or any(len(part) != 1 for part in parts) or {"text": ""} in unsigned:
            found.append(f"{i}: no parts, an empty part, or a part of two kinds")
        calls = [part["functionCall"] for part in parts if "functionCall" in part]
        results = [part["functionResponse"] for part in parts[: len(waiting)] if "functionResponse" in part]
        late = sum("functionResponse" in part for part in parts[len(waiting) :])
        if [(call["name"], call.get("id")) for call in waiting] != [(one["name"], one.get("id")) for one in results]:
            found.append(f"{i}: does not begin with the results of the calls before it, in their order")
        if calls and not any(map(signature, [part for part in content["parts"] if "functionCall" in held(part)][:1])):
            found.append(f"{i}: the first call without a signature, which Gemini 3 refuses")
        if late:
            found.append(f"{i}: results that nobody asked for")
        if (calls and content["role"] != "model") or (results and content["role"] != "user"):
            found.append(f"{i}: a call or a result of the wrong role")
        for body in (*calls, *results):
            found.extend(f"{i}: {fault}" for fault in _body(body))
        waiting = calls
    if waiting:
        found.append("the end: calls without results")
    try:
        json.dumps(contents, ensure_ascii=False, allow_nan=False).encode()
    except (UnicodeEncodeError, ValueError):
        found.append("what is no valid JSON")
    return found


def _body(body: Content) -> list[str]:
    named = isinstance(body.get("name"), str) and re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_.:\-]{0,63}", body["name"])
    found = [] if named else [f"the name {body.get('name')!r}"]
    return found if isinstance(body.get("args", body.get("response")), dict) else [*found, "no object"]


def sdk_faults(request: dict[str, Any]) -> list[str]:
    """Return what Google's own client refuses in these arguments of `generate_content`."""
    from google.genai import types

    found: list[str] = []
    for content in request["contents"]:
        try:
            types.Content.model_validate(content)
        except ValueError as error:
            found.append(str(error))
    try:
        types.GenerateContentConfig.model_validate(request.get("config", {}))
    except ValueError as error:
        found.append(str(error))
    return [*found, *(f"unknown argument {key}" for key in request.keys() - {"contents", "config"})]


def texts(request: dict[str, Any]) -> list[str]:
    """Return every readable text of the request in order: system, texts, names, arguments and results as JSON, code."""
    found: list[str] = [request.get("config", {}).get("system_instruction") or ""]
    for content in request["contents"]:
        for part in content["parts"]:
            for kind, body in held(part).items():
                found.extend([body] if kind == "text" else [] if kind in MEDIA else _readable(kind, body))
    return [text for text in found if text]


def _readable(kind: str, body: Content) -> list[str]:
    if kind not in ("functionCall", "functionResponse"):
        return [json.dumps(body, ensure_ascii=False, separators=(",", ":"))]
    said = body["args"] if kind == "functionCall" else body["response"]
    if kind == "functionResponse" and len(said) == 1:
        ((key, value),) = said.items()
        if isinstance(value, str):
            return [body["name"], key, value]
    return [body["name"], json.dumps(said, ensure_ascii=False, separators=(",", ":"))]


def blocks(contents: Sequence[Content]) -> list[bytes]:
    """Return the parts of all contents with their roles, as bytes, to which a later context may only add."""
    return [
        json.dumps([content["role"], part], ensure_ascii=False).encode()
        for content in contents
        for part in content["parts"]
    ]
