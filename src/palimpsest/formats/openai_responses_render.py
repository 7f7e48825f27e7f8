"""Rendering for OpenAI's Responses API: one group of a context as items that the API accepts. Pure.

The API knows its own items by their ids, and which reasoning item each was made with. It refuses a reasoning item
without the item that followed it, and that item without the reasoning. So an item keeps its id only if it is unchanged
and no reasoning item before it in its group is missing ("linked"). Otherwise it is sent without its id, as if somebody
else had written it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palimpsest.formats import CHAT, RESPONSES, Adapted, Message, Shown
from palimpsest.formats.common import (
    NAMELESS,
    background,
    fitting,
    is_own,
    own_native,
    replaced_by_text,
    said_beside,
    unused,
)
from palimpsest.formats.fences import fenced
from palimpsest.formats.openai_responses_encode import beside, exact_item, is_reasoning_item, kind_of, whole_item
from palimpsest.formats.openai_responses_items import (
    ASKING,
    ID_LENGTH,
    NAME_LENGTH,
    NOT_IN_NAME,
    SHAPES,
    is_id,
    is_name,
    is_status,
    pair_key,
    sendable,
)
from palimpsest.formats.openai_responses_parts import input_part, input_parts, is_newer
from palimpsest.log.entry import Entry, Opaque, Part, Text

_TEXTUAL = ("function_call", "custom_tool_call")
"""Types of calls whose results may be any text. A call of another type becomes a function call if its result is
replaced by a text."""

Results = Mapping[int, Shown]


def render_group(group: Sequence[Shown], adapted: list[Adapted] | None) -> list[Message]:
    """Return the group's items: the model's texts and calls, then the results, then background data."""
    speaking = [shown for shown in group if not shown.data and shown.entry.kind in ("message", "tool_call")]
    results = {shown.entry.answers: shown for shown in group if not shown.data and shown.entry.kind == "tool_result"}
    present = {shown.entry.seq for shown in group}
    ids = _call_ids(speaking)
    items: list[Message] = []
    kinds: dict[int, str] = {}
    linked, before = True, (group[0].entry.group or group[0].entry.seq) - 1
    for i, shown in enumerate(speaking):
        entry = shown.entry
        linked = linked and _adjoin(before, entry.seq, present)
        before = entry.seq
        if entry.kind == "tool_call":
            kind = kinds[entry.seq] = _shown_kind(shown, results, ids, linked=linked)
            items.append(_call(shown, kind, ids[entry.seq], linked, adapted))
        elif is_reasoning_item(entry):
            item = _reasoning(shown) if _is_followed(speaking[i : i + 2], present, results, ids) else None
            linked = item is not None
            items.extend([item] if item is not None else _thought_as_text(shown, adapted))
        else:
            items.extend(message_items(shown, adapted, linked=linked))
    for shown in group:
        entry = shown.entry
        if entry.kind == "tool_result" and not shown.data and entry.answers in kinds:
            items.append(result_item(shown, kinds[entry.answers], ids[entry.answers], adapted))
        elif shown.data or entry.kind == "tool_result":
            items.append(_data(shown, adapted))
    return items


def _adjoin(before: int, seq: int, present: set[int]) -> bool:
    """Whether no entry of the group is missing between these two: a missing one might be reasoning that an id needs."""
    return all(other in present for other in range(before + 1, seq))


def _call_ids(speaking: Sequence[Shown]) -> dict[int, str]:
    """Return the ids of the group's calls by `seq`: their own, unless these are empty, too long or taken."""
    ids: dict[int, str] = {}
    for shown in speaking:
        entry = shown.entry
        if entry.kind == "tool_call":
            call_id = entry.call_id or ""
            call_id = fitting(call_id, None, ID_LENGTH) or f"call_{entry.seq}"
            ids[entry.seq] = unused(call_id, entry.seq, ids.values(), ID_LENGTH)
    return ids


# --- reasoning


def _is_followed(pair: Sequence[Shown], present: set[int], results: Results, ids: Mapping[int, str]) -> bool:
    """Whether the second of the pair is the item that the first, a reasoning item, was made with, and is unchanged."""
    if len(pair) < 2:
        return False
    shown, entry = pair[1], pair[1].entry
    if shown.text is not None or is_reasoning_item(entry) or not _adjoin(pair[0].entry.seq, entry.seq, present):
        return False
    if entry.kind == "tool_call":
        return _shown_kind(shown, results, ids, linked=True) == kind_of(entry)
    items = message_items(shown, None, linked=True)
    whole = whole_item(entry)
    return bool(items) and (whole is None or items[0].get("type") == whole.get("type", "item_reference"))


def _reasoning(shown: Shown) -> Message | None:
    """Return the reasoning item, or None if the API would not recognise it as its own."""
    item = sendable(exact_item(shown.entry)) if shown.text is None else None
    if item is None or not all(_are_texts(item.get(key, [])) for key in ("summary", "content")):
        return None
    return item if is_status(item.get("status", "completed")) else None


def _are_texts(pieces: Any) -> bool:
    if not isinstance(pieces, list):
        return False
    return all(isinstance(piece, dict) and piece.keys() == {"type", "text"} for piece in pieces)


def _thought_as_text(shown: Shown, adapted: list[Adapted] | None) -> list[Message]:
    text = _all_text(shown.entry, adapted) if shown.text is None else fenced("thinking", shown.text)
    return [{"role": "assistant", "content": text}] if text else []


# --- calls and results


def _shown_kind(shown: Shown, results: Results, ids: Mapping[int, str], *, linked: bool) -> str:
    """Return the type of item that a call is shown as: its own, if its result can have the type that answers it."""
    entry = shown.entry
    kind = kind_of(entry)
    if kind not in ASKING or kind in _TEXTUAL:
        native = entry.native
        is_custom = native is not None and native.format == CHAT and (native.call or {}).get("type") == "custom"
        return "custom_tool_call" if kind == "custom_tool_call" or is_custom else "function_call"
    result = results.get(entry.seq)
    if result is None or result.text is not None or shown.text is not None:
        return "function_call"
    if own_native(result.entry, RESPONSES) is None or kind_of(result.entry) != ASKING[kind].answer:
        return "function_call"
    if not linked and "id" in SHAPES[kind].needed:
        return "function_call"
    if any(isinstance(part, Opaque) for part in result.entry.content):
        return "function_call"  # a screenshot of an unknown shape
    are_valid = all(sendable(_with_call_id(side.entry, ids[entry.seq])) is not None for side in (shown, result))
    return kind if are_valid else "function_call"


def _with_call_id(entry: Entry, call_id: str) -> Message:
    return {**exact_item(entry), pair_key(kind_of(entry)): call_id}


def _call(shown: Shown, kind: str, call_id: str, linked: bool, adapted: list[Adapted] | None) -> Message:
    entry = shown.entry
    own_kind = kind_of(entry)
    item = (sendable(_with_call_id(entry, call_id)) if own_kind == kind and is_own(entry, RESPONSES) else None) or {}
    if kind in _TEXTUAL:
        if own_kind not in _TEXTUAL and adapted is not None:
            adapted.append(Adapted(entry.seq, f"{own_kind} as {kind}"))
        text = entry.text if shown.text is None else shown.text
        name = fitting(entry.name or NAMELESS, NOT_IN_NAME, NAME_LENGTH)
        if adapted is not None and name != (entry.name or NAMELESS):
            adapted.append(Adapted(entry.seq, f"tool name as {name}"))
        item |= {"type": kind, "call_id": call_id, "name": name}
        item[ASKING[kind].text] = text or ("{}" if kind == "function_call" else "")
    if (not linked or shown.text is not None) and "id" not in SHAPES[kind].needed:
        item.pop("id", None)
    return item


def result_item(shown: Shown, kind: str, call_id: str, adapted: list[Adapted] | None) -> Message:
    """Return the result of a call that is shown as an item of type `kind`."""
    entry, answer = shown.entry, ASKING[kind].answer
    own = is_own(entry, RESPONSES) and kind_of(entry) == answer
    item = (sendable(_with_call_id(entry, call_id)) if own else None) or {}
    if kind not in _TEXTUAL:
        return item
    if shown.text is not None:
        item.pop("id", None)
    if not is_name(item.get("name", NAMELESS)):
        del item["name"]
    output = _output(entry, adapted, kind) if shown.text is None else shown.text
    return {**item, "type": answer, "call_id": call_id, "output": output}


def _output(entry: Entry, adapted: list[Adapted] | None, kind: str) -> str | list[Message]:
    """Return a result's content: as parts if some are not text, or if it came as parts in this format; else as text."""
    if isinstance(entry.content, str):
        return entry.content
    parts = input_parts(entry, adapted, in_result=kind == "function_call")
    if is_own(entry, RESPONSES) or any(part["type"] != "input_text" for part in parts):
        return parts or ""
    return "\n".join(part["text"] for part in parts)


def _data(shown: Shown, adapted: list[Adapted] | None) -> Message:
    """Return background data as a user message: text in a fence, then the images and documents that belong to it."""
    entry, own = shown.entry, is_own(shown.entry, RESPONSES)

    def encode(part: Part) -> Message | None:
        return None if isinstance(part, Opaque) else input_part(part, entry, own=own)

    text, media = background(shown, encode, adapted)
    return {"role": "user", "content": [{"type": "input_text", "text": text}, *media] if media else text}


# --- messages


def message_items(shown: Shown, adapted: list[Adapted] | None, *, linked: bool) -> list[Message]:
    """Return the items for a message, or for an item that is kept whole; an empty list if they would say nothing."""
    entry, native = shown.entry, own_native(shown.entry, RESPONSES)
    whole = whole_item(entry)
    if whole is not None:
        return _whole(shown, whole, adapted, linked=linked)
    if entry.name and adapted is not None:
        adapted.append(Adapted(entry.seq, "name left out"))
    keep = (native.keep if native is not None else None) or {}
    if entry.role == "assistant":
        return _assistant(shown, keep, adapted, linked=linked)
    item: Message = {"role": _role(entry)}
    item["content"] = shown.text if shown.text is not None else entry.content
    if shown.text is None and not isinstance(entry.content, str):
        item["content"] = input_parts(entry, adapted)
    if keep.get("type") == "message":
        item["type"] = "message"
    return [item] if item["content"] else []


def _role(entry: Entry) -> str:
    """Return the role in OpenAI's formats. The log stores `developer` messages as `system` ones."""
    native = entry.native
    kept = native.keep if native is not None and native.format in (RESPONSES, CHAT) else None
    return "developer" if kept and kept.get("role") == "developer" else entry.role


def _whole(shown: Shown, whole: Message, adapted: list[Adapted] | None, *, linked: bool) -> list[Message]:
    """Return the items for an item that is kept whole: itself if the API accepts it, or else its text."""
    entry, kind = shown.entry, whole.get("type")
    if shown.text is not None:
        return [{"role": entry.role, "content": shown.text}]
    if kind == "compaction_trigger":  # a request for one compaction, valid only as the last item
        if adapted is not None:
            adapted.append(Adapted(entry.seq, "compaction_trigger left out"))
        return []
    item = sendable(whole if kind is not None else {**whole, "type": "item_reference"})
    if item is not None and not linked and isinstance(kind, str) and kind in SHAPES and kind != "item_reference":
        item = {key: value for key, value in item.items() if key != "id"} if "id" not in SHAPES[kind].needed else None
    if item is not None:
        return [item]
    text = _all_text(entry, adapted)
    return [{"role": entry.role, "content": text}] if text else []


def _assistant(shown: Shown, keep: Mapping[str, Any], adapted: list[Adapted] | None, *, linked: bool) -> list[Message]:
    """Return an answer of the model: with its id as the API made it, or as text that anybody may have written."""
    entry = shown.entry
    item: Message = {"role": "assistant"}
    if shown.text is None and linked and is_id(keep.get("id"), "message"):
        status = keep.get("status")
        item |= {"id": keep["id"], "type": "message", "status": status if is_status(status) else "completed"}
        item["content"] = _output_parts(entry, adapted)
    else:
        item["content"] = _all_text(entry, adapted) if shown.text is None else shown.text
        if keep.get("type") == "message":
            item["type"] = "message"
    if keep.get("phase") in ("commentary", "final_answer"):
        item["phase"] = keep["phase"]
    return [item] if item["content"] else []


def _all_text(entry: Entry, adapted: list[Adapted] | None) -> str:
    """Return the entry's content as one text."""
    if isinstance(entry.content, str):
        texts = [entry.content]
    else:
        texts = [replaced_by_text(entry, part, adapted) for part in entry.content]
    texts += said_beside(entry, RESPONSES)
    return "\n".join(filter(None, texts))


def _output_parts(entry: Entry, adapted: list[Adapted] | None) -> list[Message]:
    """Return the content of the model's own message as output parts."""
    if isinstance(entry.content, str):
        return [{"type": "output_text", "text": entry.content, "annotations": []}] if entry.content else []
    parts: list[Message] = []
    for part, more in zip(entry.content, beside(entry), strict=True):
        assert not isinstance(part, str), "content of parts"
        extra = part.extra or {}
        if isinstance(part, Opaque) and is_newer(part):
            parts.append(part.item)
        elif isinstance(part, Text) and extra.get("type") == "refusal":
            parts.extend([{"type": "refusal", "refusal": part.text}] if part.text else [])
        elif text := replaced_by_text(entry, part, adapted):
            annotations = more.get("annotations")
            annotations = annotations if isinstance(annotations, list) else []
            parts.append({"type": "output_text", "text": text, "annotations": annotations})
    return parts
