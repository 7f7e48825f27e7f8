"""Encoding of entries as items of OpenAI's Responses API, as they came in. Pure; it never raises."""

from __future__ import annotations

import json
from typing import Any

from palimpsest.formats import RESPONSES, Message
from palimpsest.formats.common import is_own, own_native, split_address
from palimpsest.formats.openai_responses_decode import WHOLE, text_type
from palimpsest.formats.openai_responses_items import ANSWERING, ASKING, FUNCTION, pair_key
from palimpsest.log.entry import Audio, Entry, File, Image, Opaque, Reasoning, Text


def kind_of(entry: Entry) -> str:
    """Return the type of the item that the entry came from, or would become."""
    usual = {"tool_call": "function_call", "tool_result": "function_call_output"}.get(entry.kind, "message")
    native = own_native(entry, RESPONSES)
    kind = native.keep.get("type") if native is not None and native.keep is not None else None
    return kind if isinstance(kind, str) else usual


def whole_item(entry: Entry) -> Message | None:
    """Return the item that the entry keeps whole, or None."""
    native, parts = own_native(entry, RESPONSES), entry.content
    if native is None or native.absent != WHOLE or isinstance(parts, str) or not parts:
        return None
    first, *rest = parts
    if not isinstance(first, Opaque):
        return None
    picture = split_address(rest[0].source) if rest and isinstance(rest[0], Image) else None
    return first.item if picture is None else {**first.item, "result": picture[1]}


def is_reasoning_item(entry: Entry) -> bool:
    """Whether the entry came as a reasoning item of this API."""
    return entry.is_reasoning and kind_of(entry) == "reasoning"


def exact_item(entry: Entry) -> Message:
    """Return the item that an entry of this format came from, key for key."""
    whole = whole_item(entry)
    if whole is not None:
        return whole
    native = own_native(entry, RESPONSES)
    if entry.kind == "tool_call":
        item = _call(entry)
    elif entry.kind == "tool_result":
        item = _result(entry)
    elif is_reasoning_item(entry):
        item = _reasoning(entry)
    else:
        item = {"role": entry.role, "content": entry.content if isinstance(entry.content, str) else exact_parts(entry)}
    if native is not None:
        for key in native.absent:
            item.pop(key, None)
        spoken = "role" in item  # then the kept `content` is not the item's, but what `beside` returns
        item.update({key: value for key, value in (native.keep or {}).items() if key != "content" or not spoken})
    return item


def _call(entry: Entry) -> Message:
    kind = kind_of(entry)
    asking = ASKING.get(kind, FUNCTION)
    item: Message = {"type": kind, pair_key(kind): f"call_{entry.seq}" if entry.call_id is None else entry.call_id}
    if not asking.tool:
        item["name"] = entry.name or ""
    if asking.text:
        item[asking.text] = entry.text
    else:
        item.update(body_of(entry) or {})
    return item


def _result(entry: Entry) -> Message:
    kind = kind_of(entry)
    item: Message = {"type": kind, pair_key(kind): f"call_{entry.answers}" if entry.call_id is None else entry.call_id}
    if ANSWERING.get(kind):
        item.update(body_of(entry) or {})
    elif kind == "computer_call_output" and not isinstance(entry.content, str) and entry.content:
        item["output"] = exact_part(entry.content[0], "input_text")
    else:
        item["output"] = entry.content if isinstance(entry.content, str) else exact_parts(entry)
    return item


def body_of(entry: Entry) -> Message | None:
    """Return the entry's content as a JSON object, or None if it is none (it may be redacted)."""
    try:
        body = json.loads(entry.text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _reasoning(entry: Entry) -> Message:
    item: Message = {"type": "reasoning", "summary": []}
    for i, part in enumerate(entry.content):
        assert isinstance(part, Reasoning), "an entry of nothing but reasoning"
        extra = dict(part.extra or {})
        kind = extra.pop("type", "summary_text")
        item.setdefault("summary" if kind == "summary_text" else "content", []).append(
            {"type": kind, "text": part.text}
        )
        if i == 0:
            item.update(extra)
    return item


def exact_parts(entry: Entry) -> list[Message]:
    """Return the entry's parts as they came."""
    own, default = is_own(entry, RESPONSES), text_type(entry.role)
    pairs = zip(entry.content, beside(entry), strict=True)
    return [{**exact_part(part, default, keep=own), **more} for part, more in pairs]


def beside(entry: Entry) -> list[Message]:
    """Return, for each part of the entry, its annotations and log probabilities, which are not counted as text."""
    native = own_native(entry, RESPONSES)
    spoken = entry.kind == "message" and not is_reasoning_item(entry)
    kept = (native.keep or {}).get("content") if native is not None and spoken else None
    fits = isinstance(kept, list) and len(kept) == len(entry.content) and all(isinstance(keys, dict) for keys in kept)
    return kept if isinstance(kept, list) and fits else [{} for _ in entry.content]


def exact_part(part: Any, default: str, *, keep: bool = True) -> Message:
    """Return the part as it came; `extra` is included with `keep`. `default` is the type of a text that names none."""
    extra: dict[str, Any] = part.extra if keep and part.extra else {}
    if isinstance(part, Opaque):
        return part.item
    if isinstance(part, Text | Reasoning):
        return {"type": default, "refusal" if extra.get("type") == "refusal" else "text": part.text, **extra}
    if isinstance(part, Image):
        detail = {} if part.detail is None else {"detail": part.detail}
        return {"type": "input_image", "image_url": part.source, **detail, **extra}
    if isinstance(part, Audio):
        return {"type": "input_audio", "input_audio": {"data": part.data, "format": part.format}, **extra}
    assert isinstance(part, File), "the last kind of part"
    fields = {"file_id": part.file_id, "file_data": part.data, "filename": part.filename}
    return {"type": "input_file", **{key: value for key, value in fields.items() if value is not None}, **extra}
