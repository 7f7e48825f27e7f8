"""Decoding of OpenAI's chat completions: one message becomes entries. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from palimpsest.errors import InvalidEntry, shorten
from palimpsest.formats import CHAT, Message
from palimpsest.formats.media_types import is_hollow
from palimpsest.log.checks import check_json
from palimpsest.log.entry import Audio, Entry, File, Image, Native, Opaque, Part, Role, Text

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def decode_message(message: Message, where: str) -> list[Entry]:
    """Return one message as entries. Raises InvalidEntry naming the place of what is malformed."""
    role = message.get("role")
    if role == "tool" or role == "function":
        return [_decode_result(message, where, role)]
    if not isinstance(role, str) or role not in _ROLES:
        known = ", ".join([*_ROLES, "tool", "function"])
        raise InvalidEntry(f"{where}.role", f"{shorten(role)} is not a role of chat completions; known roles: {known}")
    content, calls, name = message.get("content"), message.get("tool_calls"), message.get("name")
    if calls is not None and role != "assistant":
        raise InvalidEntry(
            f"{where}.tool_calls", f"only a message of role assistant may have tool calls, not one of role {role}"
        )
    if calls is not None and not isinstance(calls, list):
        raise InvalidEntry(f"{where}.tool_calls", f"{shorten(calls)} is not a list")
    if name is not None and not isinstance(name, str):
        raise InvalidEntry(f"{where}.name", f"{shorten(name)} is not text")
    if content is None and role != "assistant":
        raise InvalidEntry(f"{where}.content", f"a {role} message needs content: text or a list of parts")
    entries: list[Entry] = []
    if content is not None or not calls:
        parts = _decode_content(content, f"{where}.content")
        entries.append(Entry(role=_ROLES[role], content=parts, name=name or None))
    for j, call in enumerate(calls or ()):
        entry = _decode_call(call, f"{where}.tool_calls[{j}]")
        entries.append(msgspec.structs.replace(entry, continues=True) if entries else entry)
    first = entries[0]
    keep = _unfielded(message, first)
    absent = ("content",) if "content" not in message else ()
    if keep or absent:
        check_json(keep, where)
        call_shape = first.native.call if first.native else None
        entries[0] = msgspec.structs.replace(
            first, native=Native(format=CHAT, keep=keep or None, absent=absent, call=call_shape)
        )
    return entries


def _unfielded(message: Message, first: Entry) -> Message:
    """Return the keys of a message that encoding its entries would not write, or not as they came."""
    keep = {key: value for key, value in message.items() if key not in ("role", "content", "name", "tool_calls")}
    if message["role"] == "developer":
        keep["role"] = "developer"
    if "name" in message and (not message["name"] or first.kind == "tool_call"):
        keep["name"] = message["name"]
    if not message.get("tool_calls"):
        if "tool_calls" in message:
            keep["tool_calls"] = message["tool_calls"]
        if message.get("content") is None and "content" in message:
            keep["content"] = None
    return keep


def _decode_result(message: Message, where: str, role: str) -> Entry:
    content, call_id, name = message.get("content"), message.get("tool_call_id"), message.get("name")
    if role == "tool" and not isinstance(call_id, str):
        raise InvalidEntry(
            f"{where}.tool_call_id", f"{shorten(call_id)} is not text; a tool message needs the id of its call"
        )
    if role == "function" and not isinstance(name, str):
        raise InvalidEntry(
            f"{where}.name", f"{shorten(name)} is not text; a function message needs the name of its function"
        )
    if name is not None and not isinstance(name, str):
        raise InvalidEntry(f"{where}.name", f"{shorten(name)} is not text")
    if content is None and role == "tool":
        raise InvalidEntry(f"{where}.content", "a tool message needs content: text or a list of text parts")
    keep = {key: value for key, value in message.items() if key not in ("role", "content", "tool_call_id")}
    if role == "function":
        keep["role"] = role
        if content is None and "content" in message:
            keep["content"] = None
        if call_id is not None:
            keep["tool_call_id"] = call_id
    check_json(keep, where)
    absent = tuple(
        key for key, missing in (("content", "content" not in message), ("tool_call_id", role == "function")) if missing
    )
    absent = tuple(key for key in absent if key not in keep)
    return Entry(
        kind="tool_result",
        role="tool",
        content=_decode_content(content, f"{where}.content"),
        name=name,
        call_id=call_id if role == "tool" else None,
        native=Native(format=CHAT, keep=keep or None, absent=absent) if keep or absent else None,
    )


def _decode_call(call: Any, where: str) -> Entry:
    if not isinstance(call, dict):
        raise InvalidEntry(where, f"a tool call must be a mapping, not {type(call).__name__}")
    call_id, kind = call.get("id"), call.get("type", "function")
    if not isinstance(call_id, str):
        raise InvalidEntry(f"{where}.id", f"{shorten(call_id)} is not text; every tool call needs an id")
    body = call.get(kind) if isinstance(kind, str) else None
    text = body.get("arguments" if kind == "function" else "input") if isinstance(body, dict) else None
    if not isinstance(body, dict) or not isinstance(body.get("name"), str) or not isinstance(text, str):
        wanted = "function with a name and arguments as JSON text" if kind == "function" else "name and input"
        raise InvalidEntry(f"{where}.{kind}", f"{shorten(body)} is not a {wanted}")
    native = None
    plain = call.keys() == {"id", "type", "function"} and body.keys() == {"name", "arguments"} and kind == "function"
    if not plain or not call_id or not body["name"]:
        check_json(call, where)
        native = Native(format=CHAT, call=call)
    return Entry(kind="tool_call", role="assistant", content=text, name=body["name"], call_id=call_id, native=native)


def _decode_content(content: Any, where: str) -> str | tuple[Part, ...]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidEntry(where, f"{shorten(content)} is neither text nor a list of parts")
    return tuple(_decode_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _decode_part(part: Any, where: str) -> Part:
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidEntry(where, f"{shorten(part)} is not a content part: a mapping with a type is needed")
    check_json(part, where)
    kind = part["type"]
    extra = {key: value for key, value in part.items() if key not in ("type", kind)} or None
    body = part.get(kind)
    if kind == "text" and isinstance(body, str):
        return Text(text=body, extra=extra)
    wanted = lacking(part)
    if wanted is not None:
        raise InvalidEntry(f"{where}.{kind}", f"{shorten(body)} is not {wanted}")
    if isinstance(body, dict):
        keys, values = body.keys(), all(isinstance(value, str) for value in body.values())
        if kind == "image_url" and values and keys <= {"url", "detail"}:
            return Image(source=body["url"], detail=body.get("detail"), extra=extra)
        if kind == "input_audio" and values and keys == {"data", "format"}:
            return Audio(data=body["data"], format=body["format"], extra=extra)
        if kind == "file" and values and keys <= {"file_id", "file_data", "filename"}:
            return File(
                file_id=body.get("file_id"), data=body.get("file_data"), filename=body.get("filename"), extra=extra
            )
    return Opaque(item=part)


_NEEDED: dict[str, tuple[tuple[str, ...], str]] = {
    "image_url": (("url",), 'an address in a mapping: {"url": "https://..."}'),
    "input_audio": (("data", "format"), 'sound in a mapping: {"data": "...", "format": "wav"}'),
    "file": ((), 'a file in a mapping: {"file_id": "..."} or {"file_data": "data:..."}'),
}


def lacking(part: Message) -> str | None:
    """Return what a part of a known kind lacks, in words; None if it is complete, or of another kind.

    The API would refuse every request with an incomplete part.
    """
    kind = part.get("type")
    if kind not in _NEEDED:
        return None
    needed, wanted = _NEEDED[kind]
    body = part.get(kind)
    if not isinstance(body, dict):
        return wanted
    values = ((key, body.get(key)) for key in needed or ("file_id", "file_data"))
    present = [key for key, value in values if isinstance(value, str) and value and not is_hollow(value)]
    return wanted if len(present) < max(len(needed), 1) else None
