"""Decoding and encoding for Anthropic's Messages API: messages to entries and back, key for key. Pure.

A message becomes one or more entries, tied together by `continues`. Every `tool_use` and `tool_result` block is an
entry of its own, and the blocks between them are the parts of a message entry. So blocks keep their order. Keys that
entries have no field for are kept in `native.keep`: those of the message under "message" in its first entry, those of
a tool block under "block". The shapes are those of Anthropic's API reference, "Create a Message".
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from palimpsest.errors import InvalidEntry, shorten
from palimpsest.formats import ANTHROPIC, Message
from palimpsest.formats.anthropic_kinds import declined, unanswered
from palimpsest.formats.common import NAMELESS, data_address, is_own, own_native, replaced_by_text, split_address
from palimpsest.formats.wording import shown_text
from palimpsest.log.checks import check_json
from palimpsest.log.entry import Entry, File, Image, Native, Opaque, Part, Reasoning, Role, Text

Block = dict[str, Any]

PDF = "application/pdf"
_ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
_TOOL_BLOCKS = {"tool_use": "assistant", "tool_result": "user"}


# --- decoding


def decode_message(message: Message, where: str) -> list[Entry]:
    """Return one message as entries. Raises InvalidEntry naming the place of what is malformed."""
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _ROLES:
        hint = "the results of tools are tool_result blocks of a user message" if role == "tool" else "known"
        raise InvalidEntry(
            f"{where}.role", f"{shorten(role)} is not a role of Anthropic's messages; {hint}: {', '.join(_ROLES)}"
        )
    rest = {key: value for key, value in message.items() if key not in ("role", "content")}
    check_json(rest, where)
    absent: tuple[str, ...] = ()
    if isinstance(content, str):
        entries = [Entry(role=_ROLES[role], content=content)]
    elif isinstance(content, list):
        entries = _decode_blocks(content, _ROLES[role], f"{where}.content")
    elif role == "system" and rest and "content" not in message:  # its other keys say how to answer from here on
        entries, absent = [Entry(role="system")], ("content",)
    else:
        raise InvalidEntry(f"{where}.content", f"{shorten(content)} is neither text nor a list of content blocks")
    if rest or absent:
        kept = entries[0].native.keep if entries[0].native else None
        native = Native(
            format=ANTHROPIC,
            keep={**(kept or {}), "message": rest},
            absent=absent or (entries[0].native.absent if entries[0].native else ()),
        )
        entries[0] = msgspec.structs.replace(entries[0], native=native)
    return entries


def _decode_blocks(content: list[Any], role: Role, where: str) -> list[Entry]:
    entries: list[Entry] = []
    parts: list[Part] = []
    left = declined(content)
    for i, block in enumerate(content):
        place = f"{where}[{i}]"
        kind = _kind(block, place)
        if kind == "tool_use" and i in left:  # nobody answers the call of a model that has declined
            parts.append(Opaque(item=block))
        elif kind in _TOOL_BLOCKS:
            if role != _TOOL_BLOCKS[kind]:
                raise InvalidEntry(f"{place}.type", f"a {kind} block belongs in a message of role {_TOOL_BLOCKS[kind]}")
            if parts:
                entries.append(_spoken(role, parts))
                parts = []
            entries.append(_decode_call(block, place) if kind == "tool_use" else _decode_result(block, place))
        else:
            parts.append(_decode_part(block, role, place))
    if parts or not entries:
        entries.append(_spoken(role, parts))
    entries[1:] = [msgspec.structs.replace(entry, continues=True) for entry in entries[1:]]
    if role == "assistant" and unanswered(content):
        entries[-1] = msgspec.structs.replace(entries[-1], pauses=True)
    return entries


def _kind(block: Any, where: str) -> str:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise InvalidEntry(where, f"{shorten(block)} is not a content block: a mapping with a type is needed")
    check_json(block, where)
    kind: str = block["type"]
    return kind


def _spoken(role: Role, parts: Sequence[Part]) -> Entry:
    return Entry(role=role, content=tuple(parts), native=Native(format=ANTHROPIC) if _are_specific(parts) else None)


def _are_specific(parts: Sequence[Part]) -> bool:
    """Whether parts hold something that only this format understands."""
    return any(part.extra is not None or isinstance(part, Opaque) for part in parts)


def _decode_call(block: Block, where: str) -> Entry:
    call_id, name = block.get("id"), block.get("name")
    for key, value in (("id", call_id), ("name", name)):
        if not isinstance(value, str):
            raise InvalidEntry(
                f"{where}.{key}", f"{shorten(value)} is not text; a tool_use block needs an id and a name"
            )
    if "input" not in block:
        raise InvalidEntry(f"{where}.input", "a tool_use block needs an input: an object, which may be empty")
    rest = {key: value for key, value in block.items() if key not in ("type", "id", "name", "input")}
    native = Native(format=ANTHROPIC, keep={"block": rest}) if rest else None
    text = _json_text(block["input"])
    return Entry(kind="tool_call", role="assistant", content=text, name=name, call_id=call_id, native=native)


def _decode_result(block: Block, where: str) -> Entry:
    call_id, content, failed = block.get("tool_use_id"), block.get("content"), block.get("is_error")
    if not isinstance(call_id, str):
        raise InvalidEntry(
            f"{where}.tool_use_id", f"{shorten(call_id)} is not text; a tool_result needs the id of its tool_use block"
        )
    field_keys = {"type", "tool_use_id", "content"} | ({"is_error"} if failed is True else set())
    rest = {key: value for key, value in block.items() if key not in field_keys}
    parts: str | tuple[Part, ...] = ""
    if isinstance(content, str):
        parts = content
    elif isinstance(content, list):
        place = f"{where}.content"
        for i, inner in enumerate(content):
            _kind(inner, f"{place}[{i}]")
        parts = tuple(_decode_part(inner, "tool", f"{place}[{i}]") for i, inner in enumerate(content))
    elif content is not None:
        raise InvalidEntry(f"{where}.content", f"{shorten(content)} is neither text nor a list of content blocks")
    elif "content" in block:
        rest["content"] = None
    absent = () if "content" in block else ("content",)
    native = None
    if rest or absent or (not isinstance(parts, str) and _are_specific(parts)):
        native = Native(format=ANTHROPIC, keep={"block": rest} if rest else None, absent=absent)
    return Entry(
        kind="tool_result",
        role="tool",
        content=parts,
        call_id=call_id,
        status="error" if failed is True else None,
        native=native,
    )


def _decode_part(block: Block, role: str, where: str) -> Part:
    kind = block["type"]
    if kind == "text" and isinstance(block.get("text"), str):
        return Text(text=block["text"], extra=_extra(block, "text"))
    if kind == "thinking" and role == "assistant" and isinstance(block.get("thinking"), str):
        return Reasoning(text=block["thinking"], extra=_extra(block, "thinking"))
    if kind in ("image", "document"):
        _check_source(block.get("source"), f"{where}.source")
        address = _address(block.get("source"))
        if address is not None and kind == "image":
            return Image(source=address, extra=_extra(block, "source"))
        if address is not None and (split_address(address) or ("",))[0] == PDF:
            has_title = isinstance(block.get("title"), str)
            extra = _extra(block, "source", *(("title",) if has_title else ()))
            return File(data=address, filename=block["title"] if has_title else None, extra=extra)
    return Opaque(item=block)


_SOURCES = {
    "base64": ("media_type", "data"),
    "url": ("url",),
    "text": ("media_type", "data"),
    "file": ("file_id",),
}
"""The keys that sources of each type hold as text."""


def _check_source(source: Any, where: str) -> None:
    """Raise InvalidEntry unless this is a source of an image or a document. Unknown types of source are accepted."""
    kind = source.get("type") if isinstance(source, dict) else None
    if not isinstance(kind, str):
        reason = 'is not a source: a mapping such as {"type": "url", "url": "https://..."} is needed'
        raise InvalidEntry(where, f"{shorten(source)} {reason}")
    for key in _SOURCES.get(kind, ()):
        if not isinstance(source.get(key), str) or not source[key]:
            raise InvalidEntry(
                f"{where}.{key}", f"{shorten(source.get(key))} is not text; a source of type {kind} needs it"
            )


def _extra(block: Block, *fields: str) -> Block | None:
    return {key: value for key, value in block.items() if key != "type" and key not in fields} or None


def _address(source: Any) -> str | None:
    """Return the address for the source of an image or a document; None if that could not be turned back into it."""
    if not isinstance(source, dict) or not all(isinstance(value, str) for value in source.values()):
        return None
    if source.keys() == {"type", "media_type", "data"} and source["type"] == "base64":
        type_and_data = (source["media_type"], source["data"])
        address = data_address(*type_and_data)
        return address if split_address(address) == type_and_data else None
    if source.keys() == {"type", "url"} and source["type"] == "url" and split_address(source["url"]) is None:
        url: str = source["url"]
        return url
    return None


def source_of(address: str) -> Block:
    """Return the source of an image or a document for this address."""
    type_and_data = split_address(address)
    if type_and_data is None:
        return {"type": "url", "url": address}
    return {"type": "base64", "media_type": type_and_data[0], "data": type_and_data[1]}


# --- encoding


def encode_entries(entries: Sequence[Entry]) -> list[Message]:
    """Return entries as messages, as they came in; nothing is repaired."""
    messages: list[Message] = []
    run: list[Entry] = []
    for entry in entries:
        if run and not (entry.continues and role_of(run[0]) == role_of(entry)):
            messages.append(_message(run))
            run = []
        run.append(entry)
    if run:
        messages.append(_message(run))
    return messages


def role_of(entry: Entry) -> str:
    """Return the role of the entry's message: `user` for all that is neither the assistant's nor the system's."""
    if entry.kind == "tool_call":
        return "assistant"
    return entry.role if entry.kind == "message" and entry.role in _ROLES else "user"


def _message(run: Sequence[Entry]) -> Message:
    first = run[0]
    message: Message = {"role": role_of(first)}
    native = own_native(first, ANTHROPIC)
    if len(run) == 1 and first.kind in ("context", "summary"):
        message["content"] = shown_text(first)
    elif len(run) == 1 and first.kind == "message" and isinstance(first.content, str):
        if native is None or "content" not in native.absent:
            message["content"] = first.content
    else:
        message["content"] = [block for entry in run for block in _blocks(entry)]
    if native is not None and native.keep:
        message.update(native.keep.get("message", {}))
    return message


def _blocks(entry: Entry) -> list[Block]:
    """Return the entry's content blocks, for a message with a list of blocks."""
    if entry.kind == "tool_call":
        call_id = entry.call_id if entry.call_id is not None else f"call_{entry.seq}"
        name = entry.name if entry.name is not None else NAMELESS
        return [{"type": "tool_use", "id": call_id, "name": name, "input": _input(entry.text), **kept_keys(entry)}]
    if entry.kind == "tool_result":
        return [_encode_result(entry)]
    if isinstance(entry.content, str):
        return [{"type": "text", "text": entry.content}] if entry.content else []
    return _encode_parts(entry, entry.content)


def _encode_result(entry: Entry) -> Block:
    call_id = entry.call_id if entry.call_id is not None else f"call_{entry.answers}"
    block: Block = {"type": "tool_result", "tool_use_id": call_id}
    native = own_native(entry, ANTHROPIC)
    if native is None or "content" not in native.absent:
        parts = entry.content
        block["content"] = parts if isinstance(parts, str) else _encode_parts(entry, parts)
    if entry.status == "error":
        block["is_error"] = True
    return {**block, **kept_keys(entry)}


def _encode_parts(entry: Entry, parts: Sequence[Part]) -> list[Block]:
    own = is_own(entry, ANTHROPIC)
    blocks = []
    for part in parts:
        block = block_of(part)
        if block is None or (isinstance(part, Opaque) and not own):
            if text := replaced_by_text(entry, part, None):
                blocks.append({"type": "text", "text": text})
        else:
            blocks.append({**block, **part.extra} if own and part.extra else block)
    return blocks


def block_of(part: Part) -> Block | None:
    """Return the block for a part, without the keys in its `extra`; None if the API has no such block."""
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Reasoning):
        return {"type": "thinking", "thinking": part.text}
    if isinstance(part, Image):
        return {"type": "image", "source": source_of(part.source)}
    if isinstance(part, Opaque):
        return part.item
    if isinstance(part, File) and part.data is not None and (split_address(part.data) or ("",))[0] == PDF:
        block: Block = {"type": "document", "source": source_of(part.data)}
        return block if part.filename is None else {**block, "title": part.filename}
    return None


def kept_keys(entry: Entry) -> Block:
    """Return the keys of a tool block that the entry has no field for."""
    native = own_native(entry, ANTHROPIC)
    kept: Block = (native.keep or {}).get("block", {}) if native is not None else {}
    return kept


def _json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _input(text: str) -> Any:
    """Return a call's text as its input; text that is no JSON is wrapped in an object."""
    try:
        value = json.loads(text)
        check_json(value, "input")
    except (ValueError, RecursionError):
        return {"input": text}
    return value
