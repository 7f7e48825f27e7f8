"""The rules that every context of the Responses API must keep, checked independently of the library."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args, get_origin

Item = dict[str, Any]

OUTPUTS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "mcp_approval_request": "mcp_approval_response",
    "tool_search_call": "tool_search_output",
}
PAIRS = {
    "local_shell_call_output": "id",
    "mcp_approval_request": "id",
    "mcp_approval_response": "approval_request_id",
}
PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}


def _kind(item: Item) -> str:
    return str(item.get("type", "message"))


def _by_server(item: Item) -> bool:
    return _kind(item).startswith("tool_search") and (item.get("call_id") is None or item.get("execution") == "server")


def faults(items: Sequence[Item]) -> list[str]:
    """Return every rule of the Responses API that the items break."""
    found: list[str] = []
    waiting: dict[tuple[str, str], int] = {}
    called: set[str] = set()
    ids: set[str] = set()
    for i, item in enumerate(items):
        kind = _kind(item)
        if kind == "message":
            found.extend(f"{i}: {fault}" for fault in _message(item))
        if kind == "reasoning":
            after = items[i + 1] if i + 1 < len(items) else {"role": "nobody"}
            result = _kind(after) in OUTPUTS.values() and not _by_server(after)
            if _kind(after) == "reasoning" or result or after.get("role", "assistant") != "assistant":
                found.append(f"{i}: reasoning without what followed it")
        if kind in OUTPUTS and not _by_server(item):
            name = item[PAIRS.get(kind, "call_id")]
            if not name or len(name) > 64 or name in called:
                found.append(f"{i}: the call's id {name!r} is empty, too long or repeated")
            called.add(name)
            waiting[OUTPUTS[kind], name] = i
            if kind in ("function_call", "custom_tool_call") and not re.fullmatch(
                r"[\w-]{1,64}", item["name"], re.ASCII
            ):
                found.append(f"{i}: {item['name']!r} is no name of a function")
        answered = kind in OUTPUTS.values() and not _by_server(item)
        if answered and waiting.pop((kind, item[PAIRS.get(kind, "call_id")]), None) is None:
            found.append(f"{i}: a result that nobody asked for")
        id = item.get("id") if kind != "local_shell_call_output" else None
        if isinstance(id, str):
            if id in ids or not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", id) or not id.startswith(PREFIXES.get(kind, "")):
                found.append(f"{i}: the id {id!r} is repeated or not that of a {kind}")
            ids.add(id)
    found.extend(f"{i}: no result" for i in waiting.values())
    try:
        json.dumps(items, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        found.append("text that is not valid Unicode")
    return found


def _message(item: Item) -> list[str]:
    role, content = item.get("role"), item.get("content")
    if role not in ("user", "assistant", "system", "developer"):
        return [f"unknown role {role!r}"]
    if not content:
        return [f"{role} says nothing"]
    parts = content if isinstance(content, list) else []
    found = [f"{role} has an empty part" for part in parts if part.get("text", part.get("refusal")) == ""]
    wrong = ("input_text", "input_image", "input_file") if role == "assistant" else ("output_text", "refusal")
    return found + [f"{role} has {part['type']}" for part in parts if part["type"] in wrong]


# --- the vendor's own types


@cache
def _types() -> dict[str, Any]:
    """Return a validator for each type of item, by the vendor's types, which refuses keys that they do not declare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from openai.types.responses import ResponseInputAudioParam, ToolParam
        from openai.types.responses import response_input_item_param as published
    from pydantic import ConfigDict, TypeAdapter
    from typing_extensions import get_type_hints

    def strict(kind: Any) -> Any:
        return TypeAdapter(list[kind], config=ConfigDict(extra="forbid"))

    found: dict[str, Any] = {"tool": strict(ToolParam), "input_audio": strict(ResponseInputAudioParam)}
    for kind in get_args(published.ResponseInputItemParam):
        named = get_args(get_type_hints(kind)["type"])
        literal = named[0] if isinstance(named[0], str) else get_args(named[0])[0]
        key = {"ResponseOutputMessageParam": "answer", "Message": "given"}.get(kind.__name__, literal)
        found[key] = strict(kind)
    return found


def shapes() -> dict[str, tuple[set[str], set[str]]]:
    """Return the keys that the vendor's types require, and all that they declare, for each type but messages."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from openai.types.responses import response_input_item_param as published
    from typing_extensions import get_type_hints

    found = {}
    for kind in get_args(published.ResponseInputItemParam):
        hints = get_type_hints(kind, include_extras=True)
        named = get_args(get_type_hints(kind)["type"])
        literal = named[0] if isinstance(named[0], str) else get_args(named[0])[0]
        required = {key for key, hint in hints.items() if str(get_origin(hint)).endswith("Required")}
        found[literal] = (required, set(hints))
    del found["message"]
    return found


def sdk_faults(request: Mapping[str, Any]) -> list[str]:
    """Return what the vendor's published types refuse in the arguments of a request.

    Items and parts of types that they do not declare are not checked.
    """
    found = [f"unknown argument {key!r}" for key in request.keys() - {"input", "instructions", "tools"}]
    if not isinstance(request.get("instructions", ""), str):
        found.append("instructions that are no text")
    for i, tool in enumerate(request.get("tools", ())):
        found.extend(_judged("tool", tool, f"tools[{i}]"))
    for i, item in enumerate(request["input"]):
        found.extend(_item_faults(item, f"input[{i}]"))
    return found


def _item_faults(item: Item, where: str) -> list[str]:
    kind = _kind(item)
    found: list[str] = []
    if kind == "message":
        kind = "answer" if "id" in item else "message"
    for key in ("content", "output"):
        if isinstance(item.get(key), list) and kind not in ("reasoning", "shell_call_output"):
            parts = [part for part in item[key] if _is_known(part)]
            for part in item[key]:
                if part.get("type") == "input_audio":
                    found.extend(_judged("input_audio", part, where))
            item = {**item, key: parts}
    return found + (_judged(kind, item, where) if kind in _types() else [])


def _is_known(part: Item) -> bool:
    return part["type"] in ("input_text", "input_image", "input_file", "output_text", "refusal")


def _judged(kind: str, value: Any, where: str) -> list[str]:
    from pydantic import ValidationError

    try:
        _drain(_types()[kind].validate_python([value]))
    except ValidationError as fault:
        return [f"{where}: {error['loc']}: {error['msg']}" for error in fault.errors()[:5]]
    return []


def _drain(value: Any) -> None:
    """Iterate over every value: pydantic validates the elements of a type `Iterable` only then."""
    if isinstance(value, str | bytes):
        return
    if isinstance(value, Mapping):
        value = list(value.values())
    if hasattr(value, "__iter__"):
        for inner in value:
            _drain(inner)


# --- what a request says


def texts(request: Mapping[str, Any]) -> list[str]:
    """Return every readable text of the request, in order."""
    found = [request["instructions"]] if request.get("instructions") else []
    for tool in request.get("tools", ()):
        found.extend(tool[key] for key in ("name", "description") if key in tool)
    for item in request["input"]:
        found.extend(_said(item))
    return found


def _said(item: Item) -> Iterator[str]:
    kind = _kind(item)
    content = item.get("output" if kind.endswith("_output") else "content")
    if isinstance(content, str):
        yield content
    elif kind in ("message", "function_call_output", "custom_tool_call_output") and isinstance(content, list):
        for part in content:
            if _is_known(part):
                yield from (part[key] for key in ("text", "refusal") if key in part)
            elif part["type"] != "input_audio":
                yield _json(part)
    elif kind == "reasoning":
        yield from (piece["text"] for key in ("summary", "content") for piece in item.get(key, ()))
    elif kind in ("function_call", "custom_tool_call", "mcp_approval_request"):
        yield item["name"]
        yield item["input" if kind == "custom_tool_call" else "arguments"]
    else:
        unsaid = ("id", "type", "status", "call_id", "encrypted_content", "result", "image_url")
        body = {key: value for key, value in item.items() if key not in unsaid}
        if kind != "computer_call_output" and body:
            yield _json(body)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def blocks(items: Sequence[Item]) -> list[bytes]:
    """Return each item, or each part of its content, with its role, as the bytes that a provider's cache compares."""
    found: list[bytes] = []
    for item in items:
        content = item.get("content")
        parts = content if isinstance(content, list) and "role" in item else [item]
        found.extend(json.dumps([item.get("role"), part], ensure_ascii=False).encode() for part in parts)
    return found
