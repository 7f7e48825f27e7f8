"""The items of OpenAI's Responses API: which types are calls and results, and which keys each type may hold. Pure.

Source: the API reference, "Create a model response" (input), and the types that OpenAI's Python library publishes
for input items. A type that is not listed here is newer, or another vendor's: it is kept and sent unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from palimpsest.formats import Message

ID_LENGTH = 64
"""The most characters of an item's id and of a call's id; longer ones are API error 400."""

NAME_LENGTH = 64
"""The most characters of a function's name."""


class Asking(NamedTuple):
    """A type of item that is a call: the type of its result, and where its arguments are.

    The arguments are the text under the key `text`, or the values under the keys `body`. `tool` is the tool's name for
    types that hold none.
    """

    answer: str
    text: str = ""
    body: tuple[str, ...] = ()
    tool: str = ""


FUNCTION = Asking("function_call_output", text="arguments")

ASKING: Mapping[str, Asking] = {
    "function_call": FUNCTION,
    "custom_tool_call": Asking("custom_tool_call_output", text="input"),
    "mcp_approval_request": Asking("mcp_approval_response", text="arguments"),
    "computer_call": Asking("computer_call_output", body=("action", "actions"), tool="computer"),
    "local_shell_call": Asking("local_shell_call_output", body=("action",), tool="local_shell"),
    "shell_call": Asking("shell_call_output", body=("action",), tool="shell"),
    "apply_patch_call": Asking("apply_patch_call_output", body=("operation",), tool="apply_patch"),
    "tool_search_call": Asking("tool_search_output", body=("arguments",), tool="tool_search"),
}
"""Calls by type. `program` is not one: the server answers it, after the calls that the program makes."""

ANSWERING: Mapping[str, tuple[str, ...]] = {
    "function_call_output": (),
    "custom_tool_call_output": (),
    "local_shell_call_output": (),
    "apply_patch_call_output": (),
    "computer_call_output": (),
    "shell_call_output": ("output",),
    "mcp_approval_response": ("approve", "reason"),
    "tool_search_output": ("tools",),
}
"""Results by type, each with the keys whose values are its content. If there are none, `output` is the content."""

_PAIR_KEYS = {
    "mcp_approval_request": "id",
    "mcp_approval_response": "approval_request_id",
    "local_shell_call_output": "id",
}


def pair_key(kind: str) -> str:
    """Return the key whose value ties a call or result of this type to its counterpart."""
    return _PAIR_KEYS.get(kind, "call_id")


def asks(item: Message) -> bool:
    """Whether the item is a call whose result the client has to give."""
    kind = item.get("type")
    return isinstance(kind, str) and kind in ASKING and (kind != "tool_search_call" or _by_client(item))


def answers(item: Message) -> bool:
    """Whether the item is the result of such a call."""
    kind = item.get("type")
    return isinstance(kind, str) and kind in ANSWERING and (kind != "tool_search_output" or _by_client(item))


def _by_client(item: Message) -> bool:
    return isinstance(item.get("call_id"), str) and item.get("execution") != "server"


def own_id(item: Message) -> Any:
    """Return the id of the item itself, or None: in a `local_shell_call_output` the key holds the id of the call."""
    return None if item.get("type") == "local_shell_call_output" else item.get("id")


def is_assistant_side(item: Message) -> bool:
    """Whether the model made the item, so that a reasoning item may come before it."""
    if "role" in item:
        return bool(item["role"] == "assistant")
    return not answers(item) and item.get("type") != "compaction_trigger"


class Shape(NamedTuple):
    """The keys that a type of item must hold, and all that it may hold."""

    needed: frozenset[str]
    known: frozenset[str]


def _shape(needed: str, optional: str = "") -> Shape:
    return Shape(frozenset(needed.split()), frozenset(f"type {needed} {optional}".split()))


SHAPES: Mapping[str, Shape] = {
    "function_call": _shape("call_id name arguments", "async caller id namespace status"),
    "function_call_output": _shape("output", "call_id caller id name namespace status"),
    "custom_tool_call": _shape("call_id name input", "async caller id namespace"),
    "custom_tool_call_output": _shape("call_id output", "caller id"),
    "computer_call": _shape("id call_id pending_safety_checks status", "action actions"),
    "computer_call_output": _shape("call_id output", "acknowledged_safety_checks id status"),
    "local_shell_call": _shape("id call_id action status"),
    "local_shell_call_output": _shape("id output", "status"),
    "shell_call": _shape("call_id action", "caller environment id status"),
    "shell_call_output": _shape("call_id output", "caller id max_output_length status"),
    "apply_patch_call": _shape("call_id operation status", "caller id"),
    "apply_patch_call_output": _shape("call_id status", "caller id output"),
    "mcp_approval_request": _shape("id name arguments server_label"),
    "mcp_approval_response": _shape("approval_request_id approve", "id reason"),
    "tool_search_call": _shape("arguments", "call_id execution id status"),
    "tool_search_output": _shape("tools", "call_id execution id status"),
    "reasoning": _shape("id summary", "content encrypted_content status"),
    "web_search_call": _shape("id action status"),
    "file_search_call": _shape("id queries status", "results"),
    "code_interpreter_call": _shape("id code container_id outputs status"),
    "image_generation_call": _shape(
        "id result status", "action background error output_format quality revised_prompt size svg_usage"
    ),
    "mcp_call": _shape("id name arguments server_label", "approval_request_id error output status"),
    "mcp_list_tools": _shape("id server_label tools", "error"),
    "program": _shape("id call_id code fingerprint"),
    "program_output": _shape("id call_id result status"),
    "additional_tools": _shape("role tools", "id"),
    "configuration_update": _shape("", "id reasoning text"),
    "compaction": _shape("encrypted_content", "id"),
    "compaction_trigger": _shape("", "id"),
    "item_reference": _shape("id"),
}
"""The keys of each type of item except messages. The API refuses any other ("Unknown parameter")."""

_NULLABLE = frozenset({"code", "input_schema", "keys", "outputs", "param", "parameters", "result", "strict"})
"""Keys that must be present even if their value is null. Any other null is the same as an absent key."""

_FREE = frozenset({"annotations", "arguments", "attributes", "content", "input_schema", "parameters", "schema"})
"""Keys that hold arbitrary JSON, in which nulls have to stay."""

PICTURES = frozenset({"input_image", "computer_screenshot"})
"""Types of parts that are images."""

_PREFIXES = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
_ID = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_STATUSES = frozenset({"in_progress", "completed", "incomplete"})


def is_id(value: object, kind: str) -> bool:
    """Whether the API accepts the value as the id of an item of this type ("Expected an ID that begins with …")."""
    if not isinstance(value, str) or len(value) > ID_LENGTH or _ID.fullmatch(value) is None:
        return False
    return value.startswith(_PREFIXES.get(kind, ""))


def is_status(value: object) -> bool:
    """Whether the value is the status of a message, a call or a result."""
    return isinstance(value, str) and value in _STATUSES


def is_name(value: object) -> bool:
    """Whether the API accepts the value as the name of a function ("does not match pattern")."""
    return isinstance(value, str) and len(value) <= NAME_LENGTH and _ID.fullmatch(value) is not None


NOT_IN_NAME = r"[^A-Za-z0-9_-]"
"""Characters that a function's name must not contain."""


def sendable(item: Message) -> Message | None:
    """Return the item as the API accepts it: without keys that its type does not have, nulls, and invalid ids.

    Returns None if a needed key is missing. An item of an unknown type stays as it is, except for an invalid id.
    """
    kind = item.get("type")
    shape = SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is None:
        is_valid = item.get("id") is None or is_id(item["id"], "")
        return item if is_valid else {key: value for key, value in item.items() if key != "id"}
    spelled = _spelled(item)
    kept = {
        key: value if key in _FREE or (key == "error" and kind == "mcp_call") else without_nulls(value)
        for key, value in spelled.items()
        if key in shape.known and (value is not None or key in _NULLABLE)
    }
    if isinstance(kept.get("tools"), list):
        kept["tools"] = [_tool(tool) for tool in kept["tools"]]
    if kind == "additional_tools" and "role" in kept:
        kept["role"] = "developer"  # answers may have another role here, which requests must not
    if "id" in kept and not is_id(kept["id"], str(kind)):
        del kept["id"]
    if "call_id" in kept and not isinstance(kept["call_id"], str):
        del kept["call_id"]
    if "status" in kept and "status" not in shape.needed and not isinstance(kept["status"], str):
        del kept["status"]
    return kept if shape.needed <= kept.keys() else None


def _spelled(item: Message) -> Message:
    """Return the item with the key `async_`, as Python clients spell it, renamed to `async`."""
    return {("async" if key == "async_" else key): value for key, value in item.items()} if "async_" in item else item


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    inner = tool.get("tools")
    return _spelled({**tool, "tools": [_tool(nested) for nested in inner]} if isinstance(inner, list) else tool)


def without_nulls(value: Any) -> Any:
    """Return the value without keys that are null, as dumps of the vendor's models contain."""
    if isinstance(value, dict):
        return {
            key: inner if key in _FREE else without_nulls(inner)
            for key, inner in value.items()
            if inner is not None or key in _NULLABLE
        }
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value
