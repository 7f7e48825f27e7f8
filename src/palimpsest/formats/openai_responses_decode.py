"""Decoding of items of OpenAI's Responses API to entries. Pure.

Each item is one entry. The items of one answer, from a reasoning item on, are tied together by `continues`: the API
accepts an item that was made with a reasoning item only together with that. So is what the model says behind a call,
before the results of the answer's calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from palimpsest.errors import InvalidEntry, shorten
from palimpsest.formats import RESPONSES, Message
from palimpsest.formats.common import data_address, mappings
from palimpsest.formats.media_types import is_hollow
from palimpsest.formats.openai_responses_items import ANSWERING, ASKING, answers, asks, pair_key
from palimpsest.log.checks import check_json
from palimpsest.log.entry import Audio, Entry, File, Image, Native, Opaque, Part, Reasoning, Role, Status, Text

_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_SIMPLE = {"role", "content"}
_CALL = {"type", "call_id", "name", "arguments"}
_RESULT = {"type", "call_id", "output"}
_BY_DEVELOPER = ("additional_tools", "configuration_update")

_PICTURES = ("png", "webp", "jpeg", "gif")

WHOLE = ("role", "content")
"""The value of `Native.absent` for an item that is kept whole, as the first part of its entry."""


def decode_items(items: Sequence[Any], where: str) -> list[Entry]:
    """Return the items as entries. Raises InvalidEntry naming the place of what is malformed."""
    entries: list[Entry] = []
    asked = False  # whether a call came since the last item that is not the model's
    tied = False  # whether such an item came that the model's next ones are tied to
    for i, item in enumerate(mappings(items, where, "item")):
        entry = _plain(item) or _decode(item, f"{where}[{i}]")
        if entry.role != "assistant":
            asked = tied = False
        elif tied or (asked and entry.kind == "message"):
            entry, tied = msgspec.structs.replace(entry, continues=True), True
        elif entry.is_reasoning:
            tied = True
        asked = asked or entry.kind == "tool_call"
        entries.append(entry)
    return entries


def _plain(item: Message) -> Entry | None:
    """Return the entry of an item that holds only text, the common case; None for any other item."""
    keys = item.keys()
    if keys == _SIMPLE:
        role, content = item["role"], item["content"]
        if type(content) is str and (role == "user" or role == "assistant" or role == "system"):
            return Entry(role=role, content=content)
    elif keys == _CALL and item["type"] == "function_call":
        call_id, name, text = item["call_id"], item["name"], item["arguments"]
        if type(call_id) is str and type(name) is str and type(text) is str:
            return Entry(kind="tool_call", role="assistant", content=text, name=name, call_id=call_id)
    elif keys == _RESULT and item["type"] == "function_call_output":
        call_id, output = item["call_id"], item["output"]
        if type(call_id) is str and type(output) is str:
            return Entry(kind="tool_result", role="tool", content=output, call_id=call_id)
    return None


def _decode(item: Message, where: str) -> Entry:
    kind = item.get("type")
    if kind is not None and not isinstance(kind, str):
        raise InvalidEntry(f"{where}.type", f"{shorten(kind)} is not text")
    check_json(item, where)
    is_reference = item.keys() <= {"id", "type"} and isinstance(item.get("id"), str)  # whose type may be left out
    if kind == "message" or (kind is None and not is_reference):
        return _decode_message(item, where)
    if asks(item):
        return _decode_call(item, where)
    if answers(item):
        return _decode_result(item, where)
    if kind == "reasoning":
        return _decode_reasoning(item)
    role: Role = "system" if kind in _BY_DEVELOPER else "assistant"
    return Entry(role=role, content=_whole(item), native=Native(format=RESPONSES, absent=WHOLE))


def _whole(item: Message) -> tuple[Part, ...]:
    """Return the item as one opaque part. A picture that the model made becomes a part of its own, as it is no text."""
    picture = item.get("result")
    if item.get("type") != "image_generation_call" or not isinstance(picture, str) or not picture:
        return (Opaque(item=item),)
    rest = {key: value for key, value in item.items() if key != "result"}
    kind = item.get("output_format")
    return (Opaque(item=rest), Image(source=data_address(f"image/{kind if kind in _PICTURES else 'png'}", picture)))


def _decode_message(item: Message, where: str) -> Entry:
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidEntry(
            f"{where}.role", f"{shorten(role)} is not a role of an input item; known roles: {', '.join(_ROLES)}"
        )
    if not isinstance(content, str | list):
        raise InvalidEntry(f"{where}.content", f"{shorten(content)} is neither text nor a list of parts")
    keep = {key: value for key, value in item.items() if key not in _SIMPLE}
    if role == "developer":
        keep["role"] = role
    parts = content if isinstance(content, str) else _decode_parts(content, f"{where}.content", text_type(_ROLES[role]))
    if isinstance(content, list) and any(_beside(part) for part in content):
        keep["content"] = [_beside(part) for part in content]
    native = Native(format=RESPONSES, keep=keep or None) if keep or not isinstance(content, str) else None
    return Entry(role=_ROLES[role], content=parts, native=native)


def _decode_call(item: Message, where: str) -> Entry:
    kind: str = item["type"]
    asking = ASKING[kind]
    texts = [pair_key(kind), *([asking.text] if asking.text else ()), *(() if asking.tool else ("name",))]
    for key in texts:
        if not isinstance(item.get(key), str):
            raise InvalidEntry(f"{where}.{key}", f"{shorten(item.get(key))} is not text; a {kind} needs it")
    keep = _keep(item, {*texts, *asking.body}, "function_call")
    return Entry(
        kind="tool_call",
        role="assistant",
        content=item[asking.text] if asking.text else _json_of(item, asking.body),
        name=asking.tool or item["name"],
        call_id=item[pair_key(kind)],
        native=Native(format=RESPONSES, keep=keep) if keep else None,
    )


def _decode_result(item: Message, where: str) -> Entry:
    kind: str = item["type"]
    key = usual = pair_key(kind)
    if kind == "local_shell_call_output" and isinstance(item.get("call_id"), str):
        key = "call_id"  # the published types have `id`, the guide to the local shell has `call_id`
    call_id, name = item.get(key), item.get("name")
    nameless = kind == "function_call_output" and call_id is None
    if not nameless and not isinstance(call_id, str):
        raise InvalidEntry(f"{where}.{key}", f"{shorten(call_id)} is not text; a {kind} needs the id of its call")
    body = ANSWERING[kind]
    content = _json_of(item, body) if body else _decode_output(item, where)
    keep = _keep(item, {usual, *(body or ("output",))}, "function_call_output")
    if (nameless or key != usual) and usual in item:
        keep[usual] = item[usual]
    if not body and item.get("output", "") is None:
        keep["output"] = None
    absent = tuple(field for field in (usual, *(() if body else ("output",))) if field not in item)
    plain = not keep and not absent and isinstance(content, str)
    return Entry(
        kind="tool_result",
        role="tool",
        content=content,
        call_id=call_id,
        name=name if nameless and isinstance(name, str) else None,
        status=_status(item),
        native=None if plain else Native(format=RESPONSES, keep=keep or None, absent=absent),
    )


def _keep(item: Message, own: set[str], usual: str) -> dict[str, Any]:
    """Return the keys that the entry has no field for, including the type unless it is the usual one."""
    keep = {key: value for key, value in item.items() if key not in own}
    if keep["type"] == usual:
        del keep["type"]
    return keep


def _decode_output(item: Message, where: str) -> str | tuple[Part, ...]:
    """Return the content of a result whose `output` is text, parts or a screenshot."""
    kind, output = item["type"], item.get("output")
    if kind == "computer_call_output":
        if not isinstance(output, dict):
            raise InvalidEntry(f"{where}.output", f"{shorten(output)} is not a screenshot: a mapping is needed")
        return (_decode_picture(output, "computer_screenshot"),)
    if isinstance(output, str) or (output is None and kind == "apply_patch_call_output"):
        return output or ""
    if not isinstance(output, list) or kind not in ("function_call_output", "custom_tool_call_output"):
        raise InvalidEntry(
            f"{where}.output", f"{shorten(output)} is not the output of a {kind}: text or a list of parts is needed"
        )
    return _decode_parts(output, f"{where}.output", text_type("tool"))


def _status(item: Message) -> Status | None:
    """Return a result's status, if the item itself says that the tool failed or was refused; else None."""
    if item["type"] == "apply_patch_call_output" and item.get("status") == "failed":
        return "error"
    return "denied" if item["type"] == "mcp_approval_response" and item.get("approve") is False else None


def _json_of(item: Message, keys: Sequence[str]) -> str:
    return json.dumps({key: item[key] for key in keys if key in item}, ensure_ascii=False)


def _decode_reasoning(item: Message) -> Entry:
    """Return a reasoning item as an entry: each summary and content becomes a part.

    Keys that only the provider can use go into the first part's `extra`. There is at least one part, so that the log
    recognises the entry as reasoning.
    """
    keep = {key: value for key, value in item.items() if key not in ("summary", "content")}
    parts: list[Reasoning] = []
    for key, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        value = item.get(key)
        pieces = value if isinstance(value, list) else []
        texts = [piece["text"] for piece in pieces if isinstance(piece, dict) and isinstance(piece.get("text"), str)]
        extra = {"type": kind} if key == "content" else None
        parts.extend(Reasoning(text=text, extra=extra) for text in texts)
        if key in item and not (pieces and pieces == [{"type": kind, "text": text} for text in texts]):
            keep[key] = value
    private = {key: keep.pop(key) for key in ("id", "encrypted_content") if isinstance(keep.get(key), str)}
    first = parts[0] if parts else Reasoning(text="")
    parts[:1] = [msgspec.structs.replace(first, extra={**(first.extra or {}), **private} or None)]
    absent = () if "summary" in item else ("summary",)
    return Entry(role="assistant", content=tuple(parts), native=Native(format=RESPONSES, keep=keep, absent=absent))


# --- parts


def text_type(role: Role) -> str:
    """Return the type of text parts in a message of this role, or in a result."""
    return "output_text" if role == "assistant" else "input_text"


def _decode_parts(parts: list[Any], where: str, default: str) -> tuple[Part, ...]:
    return tuple(_decode_part(part, f"{where}[{i}]", default) for i, part in enumerate(parts))


def _decode_part(part: Any, where: str, default: str) -> Part:
    """Return one part. Keys without a field go to `extra`, and so does a type other than the `default` of the role."""
    if not isinstance(part, dict) or not isinstance(part.get("type"), str):
        raise InvalidEntry(where, f"{shorten(part)} is not a content part: a mapping with a type is needed")
    kind = part["type"]
    if kind in (
        "input_text",
        "output_text",
        "refusal",
        "text",
    ):  # the last belongs to chat completions: a common mistake
        key = "refusal" if kind == "refusal" else "text"
        if not isinstance(part.get(key), str) or (key == "refusal" and "text" in part):
            return Opaque(item=part)
        field_keys = {key, *_beside(part), *(("type",) if kind == default else ())}
        return Text(text=part[key], extra=_extra(part, field_keys))
    _check_held(part, kind, where)
    if kind == "input_image":
        return _decode_picture(part, kind)
    if kind == "input_file":
        fields = {key: part[key] for key in ("file_id", "file_data", "filename") if isinstance(part.get(key), str)}
        extra = _extra(part, {"type", *fields})
        return File(
            file_id=fields.get("file_id"), data=fields.get("file_data"), filename=fields.get("filename"), extra=extra
        )
    sound = part.get("input_audio")
    if kind == "input_audio" and isinstance(sound, dict) and sound.keys() == {"data", "format"}:
        data, format = sound["data"], sound["format"]
        if isinstance(data, str) and isinstance(format, str):
            return Audio(data=data, format=format, extra=_extra(part, {"type", "input_audio"}))
    return Opaque(item=part)


_HELD = {
    "input_image": (("image_url", "file_id"), "an address as text"),
    "input_file": (("file_id", "file_data", "file_url"), "text"),
}


def _check_held(part: Message, kind: str, where: str) -> None:
    """Raise InvalidEntry for an image, file or sound without data, which the API would refuse."""
    if kind == "input_audio":
        sound = part.get(kind)
        if not isinstance(sound, dict) or not all(isinstance(sound.get(key), str) for key in ("data", "format")):
            reason = 'is not sound in a mapping: {"data": "...", "format": "wav"}'
            raise InvalidEntry(f"{where}.{kind}", f"{shorten(sound)} {reason}")
    if kind not in _HELD:
        return
    keys, wanted = _HELD[kind]
    present = {key: part[key] for key in keys if part.get(key) is not None}
    for key, value in present.items():
        if not isinstance(value, str) or not value or is_hollow(value):
            raise InvalidEntry(f"{where}.{key}", f"{shorten(value)} is not {wanted}")
    if not present:
        raise InvalidEntry(f"{where}.{keys[0]}", f"is missing; an {kind} needs {' or '.join(keys)}")


def _decode_picture(part: Message, kind: str) -> Part:
    """Return an image by its address, or by the id of a file; of the latter the type stays in `extra`."""
    if part.get("type") == kind and isinstance(part.get("image_url"), str):
        field_keys = {"image_url"} if kind != "input_image" else {"image_url", "type"}
        detail = part.get("detail")
        if isinstance(detail, str):
            field_keys.add("detail")
        extra = _extra(part, field_keys)
        return Image(source=part["image_url"], detail=detail if isinstance(detail, str) else None, extra=extra)
    if (
        part.get("type") == kind
        and isinstance(part.get("file_id"), str)
        and not part.keys() & {"filename", "file_data"}
    ):
        return File(file_id=part["file_id"], extra=_extra(part, {"file_id"}))
    return Opaque(item=part)


def _beside(part: Message) -> Message:
    """Return the annotations and log probabilities of an answer's text.

    They are kept with the message, so that they are not counted as text.
    """
    if part["type"] != "output_text" or not isinstance(part.get("text"), str):
        return {}
    return {key: part[key] for key in ("annotations", "logprobs") if key in part}


def _extra(part: Message, field_keys: set[str]) -> dict[str, Any] | None:
    return {key: value for key, value in part.items() if key not in field_keys} or None
