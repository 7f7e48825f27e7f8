"""Decoding and encoding of Gemini's contents: contents to entries and back. Pure.

What the fields of an entry cannot hold is kept as the item without these fields: of a call in `native.call`, of a
result in `native.keep` (`part`, `shape`), of a content in `native.keep` (`content`) of its first entry. Encoding puts
the fields back, which gives the equal content.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from palimpsest.errors import InvalidEntry, shorten
from palimpsest.formats import GEMINI, Message
from palimpsest.formats.common import is_own, own_native
from palimpsest.formats.gemini_parts import DATA, check_part, data_key, decode_part, encode_part, find
from palimpsest.formats.wording import said_by_system, shown_text, stand_in
from palimpsest.log.checks import check_json
from palimpsest.log.entry import Entry, Native, Part, Role, Status, Text

_KEYS = ("role", "parts")
_ANSWERING = ("function", "tool")
"""Roles besides `user` for contents with function responses: one from Google's older guides, one from its client. The
API wants `user`, so a context has that."""


def role_of(entry: Entry, data: bool = False) -> str:
    """Return the role of an entry's content. `system` occurs only in rendering: encoding replaces it."""
    if data or entry.kind in ("tool_result", "context", "summary"):
        return "user"
    return "model" if entry.role == "assistant" else "system" if entry.role == "system" else "user"


# --- decoding one content


def decode_content(content: Message, where: str) -> list[Entry]:
    """Return the entries of one content. Raises InvalidEntry naming the place of what is malformed."""
    role, parts = content.get("role"), content.get("parts")
    if role is not None and role not in ("user", "model", *_ANSWERING):
        reason = (
            "is not a role of contents; known roles: user, model, function, tool. Give system text beside the contents"
        )
        raise InvalidEntry(f"{where}.role", f"{shorten(role)} {reason}")
    if parts is not None and not isinstance(parts, list):
        raise InvalidEntry(f"{where}.parts", f"{shorten(parts)} is not a list of parts")
    entries = _decode_parts(parts or [], role, f"{where}.parts")
    keep = {key: value for key, value in content.items() if key not in _KEYS}
    if "parts" in content and parts is None:
        keep["parts"] = None
    if role in _ANSWERING or ("role" in content and role is None):
        keep["role"] = role
    absent = tuple(key for key in _KEYS if key not in content)
    if keep:
        check_json(keep, where)
    if keep or absent:
        entries[0] = _with_kept(entries[0], {"content": keep} if keep else {}, absent)
    for i in range(1, len(entries)):
        entries[i] = msgspec.structs.replace(entries[i], continues=True)
    return entries


def _decode_parts(parts: list[Any], role: str | None, where: str) -> list[Entry]:
    """Return the entries of a content's parts: a model's in their order, a user's with the results first."""
    entries: list[Entry] = []
    message_parts: list[tuple[int, Part]] = []  # parts of a message, with their indexes
    for j, part in enumerate(parts):
        key = data_key(part, f"{where}[{j}]")
        kind = DATA[key] if key is not None else None
        if key is not None and kind == "function_call":
            if role != "model":
                raise InvalidEntry(f"{where}[{j}].{key}", "only a content of role model may have a function call")
            if message_parts:
                entries.append(_message("assistant", message_parts))
                message_parts = []
            entries.append(decode_call(part, key, f"{where}[{j}]"))
        elif key is not None and kind == "function_response":
            if role == "model":
                raise InvalidEntry(f"{where}[{j}].{key}", "a content of role model must not have a function response")
            entries.append(decode_result(part, key, f"{where}[{j}]"))
        elif role in _ANSWERING:
            raise InvalidEntry(f"{where}[{j}]", f"a content of role {role} may have only function responses")
        else:
            message_parts.append((j, decode_part(part, key, f"{where}[{j}]", given=role != "model")))
    if message_parts or not entries:
        results = len(entries)
        message = _message("assistant" if role == "model" else "user", message_parts)
        moved = role != "model" and any(j < results for j, _ in message_parts)
        entries.append(_with_kept(message, {"places": [j for j, _ in message_parts]}) if moved else message)
    return entries


def _message(role: Role, message_parts: Sequence[tuple[int, Part]]) -> Entry:
    parts = tuple(part for _, part in message_parts)
    if len(parts) == 1 and isinstance(parts[0], Text) and not parts[0].extra:
        return Entry(role=role, content=parts[0].text)
    own = any(
        part.extra or not isinstance(part, Text) for part in parts
    )  # media are native, too, to be sent as they came
    return Entry(role=role, content=parts, native=Native(format=GEMINI) if own else None)


def _with_kept(entry: Entry, keep: Message, absent: tuple[str, ...] = ()) -> Entry:
    """Return the entry with further kept keys, and absent ones, in its `native`."""
    native = entry.native or Native(format=GEMINI)
    kept = {**(native.keep or {}), **keep} or None
    native = msgspec.structs.replace(native, keep=kept, absent=(*native.absent, *absent))
    return msgspec.structs.replace(entry, native=native)


# --- encoding one content


def encode_content(run: Sequence[Entry]) -> Message:
    """Return the content that these entries came from, as it came in."""
    parts: list[Message] = []
    for entry in run:
        native = own_native(entry, GEMINI)
        places = native.keep.get("places") if native is not None and native.keep else None
        if places:
            for place, part in zip(places, _encoded(entry), strict=False):
                parts.insert(place, part)
        else:
            parts.extend(_encoded(entry))
    role = role_of(run[0])
    content: Message = {"role": "user" if role == "system" else role, "parts": parts}
    native = own_native(run[0], GEMINI)
    if native is not None:
        for key in _KEYS:
            if key in native.absent:
                del content[key]
        content.update((native.keep or {}).get("content", {}))
    return content


def _encoded(entry: Entry) -> list[Message]:
    if entry.kind == "tool_call":
        return [encode_call(entry)]
    if entry.kind == "tool_result":
        return [encode_result(entry)]
    if entry.kind != "message" or isinstance(entry.content, str):
        text = entry.text if entry.kind == "message" else shown_text(entry)
        return [{"text": said_by_system(text) if entry.role == "system" else text}]
    own = is_own(entry, GEMINI)
    return [item for part in entry.content if (item := encode_part(part, own=own)) is not None]


# --- calls


def to_json(value: object) -> str:
    """Return the value as compact JSON text."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def object_of(text: str) -> tuple[Message, bool]:
    """Return a call's arguments as the object that Gemini wants, and whether they had to be wrapped in one."""
    if not text:
        return {}, False
    try:
        value = json.loads(text, parse_constant=_no_json, parse_float=_finite)
    except (ValueError, RecursionError):
        value = text
    return (value, False) if isinstance(value, dict) else ({"arguments": value}, True)


def sendable_object(text: str) -> tuple[Message, bool]:
    """Return the same with U+FFFD for lone surrogates, which JSON escapes may contain and no provider accepts."""
    value, wrapped = object_of(text)
    if "\\ud" in text.lower():
        value = json.loads(to_json(value).encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return value, wrapped


def _no_json(name: str) -> None:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError(text)
    return number


def decode_call(part: Message, key: str, where: str) -> Entry:
    """Return a function call as an entry. Its `native` is always set, to say that the call came from Gemini."""
    place = f"{where}.{key}"
    body, call_id = _named(part, key, where)
    args = body.get("args")
    if args is not None and not isinstance(args, dict):
        raise InvalidEntry(f"{place}.args", f"{shorten(args)} is not a mapping")
    absent = tuple(name for name, value in (("id", call_id), ("args", args)) if value is None)
    kept = _kept(part, key, {"id", "name", "args"} - {*absent})
    return Entry(
        kind="tool_call",
        role="assistant",
        content=to_json(args or {}),
        name=body["name"],
        call_id=call_id,
        native=Native(format=GEMINI, call=None if kept == {"function_call": {}} else kept, absent=absent),
    )


def _named(part: Message, key: str, where: str) -> tuple[Message, str | None]:
    """Return the body of a call or a result, and its id, with name and id checked."""
    check_part(part, where)
    body = part[key]
    if not isinstance(body, dict):
        raise InvalidEntry(f"{where}.{key}", f"{shorten(body)} is not a mapping")
    name, call_id = body.get("name"), body.get("id")
    if not isinstance(name, str):
        raise InvalidEntry(
            f"{where}.{key}.name", f"{shorten(name)} is not text; a call and its response need the name of the function"
        )
    if call_id is not None and not isinstance(call_id, str):
        raise InvalidEntry(f"{where}.{key}.id", f"{shorten(call_id)} is not text")
    return body, call_id


def _kept(part: Message, key: str, held: set[str]) -> Message:
    return {**part, key: {name: value for name, value in part[key].items() if name not in held}}


def encode_call(entry: Entry) -> Message:
    """Return a call as it came in, or one of another provider as Gemini writes it."""
    native = own_native(entry, GEMINI)
    kept = native.call if native is not None and native.call is not None else {"function_call": {}}
    absent = native.absent if native is not None else () if entry.call_id is not None else ("id",)
    fields = {"id": entry.call_id, "name": entry.name or "", "args": object_of(entry.text)[0]}
    return _filled(kept, "function_call", {name: value for name, value in fields.items() if name not in absent})


def _filled(kept: Message, kind: str, fields: Message) -> Message:
    key = find(kept, DATA, kind) or kind
    return {**kept, key: {**kept.get(key, {}), **fields}}


# --- results


def decode_result(part: Message, key: str, where: str) -> Entry:
    """Return a function response as an entry: its text, or its object as JSON text, and any media beside that."""
    place = f"{where}.{key}"
    body, call_id = _named(part, key, where)
    response, parts = body.get("response"), body.get("parts")
    if response is not None and not isinstance(response, dict):
        raise InvalidEntry(f"{place}.response", f"{shorten(response)} is not a mapping")
    if parts is not None and not isinstance(parts, list):
        raise InvalidEntry(f"{place}.parts", f"{shorten(parts)} is not a list of parts")
    text, shape, status = _text_of(response)
    media = tuple(_decode_media(inner, f"{place}.parts[{i}]") for i, inner in enumerate(parts or ()))
    # The log fills in an empty name or id from the call, so an empty one is kept in `native`, to be encoded as it came.
    fields = {"id": call_id or None, "name": body["name"] or None, "response": response}
    absent = tuple(name for name, value in fields.items() if value is None)
    kept = _kept(part, key, {"id", "name", "response", "parts"} - {*absent} - (set() if media else {"parts"}))
    keep: Message = {} if kept == {"function_response": {}} else {"part": kept}
    if shape not in ("result", "error"):
        keep["shape"] = shape
    return Entry(
        kind="tool_result",
        role="tool",
        content=(Text(text=text), *media) if media else text,
        name=body["name"],
        call_id=call_id,
        status=status,
        native=Native(format=GEMINI, keep=keep or None, absent=absent) if keep or absent or media else None,
    )


def _decode_media(part: Any, where: str) -> Part:
    return decode_part(part, data_key(part, where), where)


def _text_of(response: Message | None) -> tuple[str, str, Status | None]:
    """Return the text of a response, the shape of its object, from which `_response` rebuilds it, and its status."""
    if response is None:
        return "", "result", None
    if len(response) == 1:
        ((key, value),) = response.items()
        if key in ("result", "output", "error") and isinstance(value, str):
            return value, key, "error" if key == "error" else None
        if key == "error" and value is not None:
            return to_json(value), "error json", "error"
    return to_json(response), "json", None


def encode_result(entry: Entry) -> Message:
    """Return a result as it came in, or one of another provider as Gemini wants it."""
    native = own_native(entry, GEMINI)
    keep = native.keep if native is not None and native.keep is not None else {}
    absent = native.absent if native is not None else () if entry.call_id is not None else ("id",)
    content: tuple[Part, ...] = (Text(text=entry.content),) if isinstance(entry.content, str) else entry.content
    fields: Message = {"id": entry.call_id, "name": entry.name or ""}
    if native is not None:
        first, *media = content or (Text(text=""),)
        fields["response"] = _response(first.text if isinstance(first, Text) else "", keep.get("shape"), entry.status)
        if media:
            fields["parts"] = [item for part in media if (item := encode_part(part, own=True)) is not None]
    else:
        fields["response"] = _response("\n".join(filter(None, map(stand_in, content))), None, entry.status)
    present = {name: value for name, value in fields.items() if name not in absent}
    return _filled(keep.get("part") or {"function_response": {}}, "function_response", present)


def _response(text: str, shape: str | None, status: Status | None) -> Message:
    """Return the response's object for a text and the shape that `_text_of` returned."""
    if shape in ("json", "error json"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        if shape == "error json":
            return {"error": value}
        return value if isinstance(value, dict) else {"result": value}
    return {"output": text} if shape == "output" else response_of(text, status)


def response_of(text: str, status: Status | None) -> Message:
    """Return a result's text as the object that Gemini wants."""
    return {"error" if status == "error" else "result": text}
