"""Rendering for Anthropic's Messages API: one group of a context as messages that the API accepts. Pure.

Rules that are not in the API reference are known from the API's error messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from palimpsest.formats import ANTHROPIC, Adapted, Message, Shown
from palimpsest.formats.anthropic_blocks import (
    Block,
    block_of,
    kept_keys,
    role_of,
)
from palimpsest.formats.anthropic_kinds import declined, is_hosted_call, is_hosted_result
from palimpsest.formats.anthropic_rules import NAME_LENGTH, THINKING
from palimpsest.formats.common import (
    NAMELESS,
    background,
    fitting,
    is_own,
    replaced_by_text,
    said_beside,
    split_address,
    unused,
)
from palimpsest.formats.media_types import IMAGES, renamed
from palimpsest.formats.wording import NO_MESSAGE, stand_in
from palimpsest.log.entry import Audio, Entry, File, Image, Opaque, Part, Reasoning, Text

MAX_TITLE = 500
"""The most characters of a document's title that the API takes."""

_KEYS = {
    "text": frozenset({"type", "text", "cache_control", "citations"}),
    "image": frozenset({"type", "source", "cache_control", "transformations"}),
    "document": frozenset({"type", "source", "title", "context", "cache_control", "citations"}),
    "search_result": frozenset({"type", "source", "title", "content", "cache_control", "citations"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "redacted_thinking": frozenset({"type", "data"}),
    "tool_use": frozenset({"type", "id", "name", "input", "cache_control", "caller", "toolset_name"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error", "cache_control", "toolset_name"}),
}
"""The keys that the API takes in each type of block. It refuses others, such as those that clients add to answers."""

_OPTIONAL = frozenset({"cache_control", "caller", "citations", "toolset_name"})
"""Keys that are null in answers, and that requests have to leave out then."""

_NOT_IN_ID = r"[^a-zA-Z0-9_-]"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def render_group(group: Sequence[Shown], adapted: list[Adapted] | None) -> list[Message]:
    """Return one group as messages: texts and calls, then one message of results, then background data."""
    if adapted is not None:
        named = (shown.entry for shown in group if shown.entry.kind == "message" and shown.entry.name)
        adapted.extend(Adapted(entry.seq, "name left out") for entry in named)
    if len(group) == 1 and (plain := _plain(group[0])) is not None:
        return plain
    spoken = [shown for shown in group if not shown.data and shown.entry.kind in ("message", "tool_call")]
    ids = _tool_ids([shown.entry for shown in spoken if shown.entry.kind == "tool_call"])
    messages: list[Message] = []
    for role, run in groupby(spoken, key=lambda shown: role_of(shown.entry)):
        blocks = [block for shown in run for block in _spoken(shown, role, ids, adapted)]
        if role == "assistant":
            blocks = _with_valid_end(blocks, spoken[-1].entry, adapted)
        if blocks:
            messages.append({"role": role, "content": blocks})
    answers = (shown for shown in group if not shown.data and shown.entry.kind == "tool_result")
    results = [_result(shown, ids[shown.entry.answers], adapted) for shown in answers if shown.entry.answers in ids]
    if results:
        messages.append({"role": "user", "content": results})
    data = (shown for shown in group if shown.data or shown.entry.kind in ("context", "summary"))
    return [*messages, *(_data(shown, adapted) for shown in data)]


def _data(shown: Shown, adapted: list[Adapted] | None) -> Message:
    """Return background data as a user message: text in a fence, then the images and documents that belong to it."""
    entry = shown.entry

    def encode(part: Part) -> Block | None:
        is_medium = not isinstance(part, Opaque) or part.item.get("type") in ("image", "document", "search_result")
        return _native(entry, part, "user") if is_medium else None

    text, media = background(shown, encode, adapted)
    return {"role": "user", "content": [*_text_blocks(text), *media] if media else text}


# --- what is said and called


def _plain(shown: Shown) -> list[Message] | None:
    """Return the messages of an entry that is only text, the common case; None for any other entry."""
    entry = shown.entry
    if entry.kind != "message" or shown.data or (type(entry.content) is not str and shown.text is None):
        return None
    if entry.role == "system" or said_beside(entry, ANTHROPIC):
        return None
    text = entry.text if shown.text is None else shown.text
    if entry.role == "assistant":
        text = text.rstrip()
    return [{"role": role_of(entry), "content": text}] if text and not text.isspace() else []


def _spoken(shown: Shown, role: str, ids: dict[int, str], adapted: list[Adapted] | None) -> list[Block]:
    entry = shown.entry
    if entry.kind == "tool_call":
        return [_tool_use(shown, ids[entry.seq], adapted)]
    if role == "system" and entry.turn and adapted is not None:
        adapted.append(Adapted(entry.seq, "system message said by the user, unless the context begins with it"))
    if shown.text is not None:
        return _text_blocks(shown.text)
    beside = [block for text in said_beside(entry, ANTHROPIC) for block in _text_blocks(text)]
    if isinstance(entry.content, str):
        return [*_text_blocks(entry.content), *beside]
    return [*_parts(entry, entry.content, role, adapted), *beside]


def _with_valid_end(blocks: list[Block], entry: Entry, adapted: list[Adapted] | None) -> list[Block]:
    """Return the assistant's blocks without thinking or white space at their end, which the API refuses.

    White space is refused only in the last message, but which message that will be is not known here.
    """
    blocks = list(blocks)
    while blocks and blocks[-1]["type"] in THINKING:
        thought = blocks.pop()
        if adapted is not None:
            adapted.append(Adapted(entry.seq, f"{thought['type']} that nothing follows as text or left out"))
        blocks.extend(_text_blocks(stand_in(Reasoning(text=thought.get("thinking", "")))))
    if blocks and blocks[-1]["type"] == "text":
        blocks[-1] = {**blocks[-1], "text": blocks[-1]["text"].rstrip()}
    return blocks


def without_thinking(entry: Entry) -> Entry:
    """Return the message without the thinking that its provider has signed or encrypted; the same entry if none."""
    if entry.kind != "message" or isinstance(entry.content, str):
        return entry
    parts = tuple(part for part in entry.content if not _is_signed_thought(entry, part))
    return entry if len(parts) == len(entry.content) else msgspec.structs.replace(entry, content=parts, tokens=None)


def _is_signed_thought(entry: Entry, part: Part) -> bool:
    is_thought = isinstance(part, Reasoning) or (isinstance(part, Opaque) and part.item.get("type") in THINKING)
    return is_thought and _is_accepted(entry, part, "assistant")


def _text_blocks(text: str) -> list[Block]:
    """Return the text as one block, or no block if the API would refuse it as empty."""
    return [{"type": "text", "text": text}] if text and not text.isspace() else []


def _parts(entry: Entry, parts: Sequence[Part], role: str, adapted: list[Adapted] | None) -> list[Block]:
    """Return the parts as blocks that a message of this role may hold; the role "tool" stands for a tool's result."""
    blocks: list[Block] = []
    left = declined([block_of(part) for part in parts]) if is_own(entry, ANTHROPIC) else ()
    for i, part in enumerate(parts):
        if i in left:
            if adapted is not None:
                adapted.append(Adapted(entry.seq, "what a declined model has left unfinished left out"))
            continue
        block = _native(entry, part, role)
        blocks.extend([block] if block is not None else _text_blocks(replaced_by_text(entry, part, adapted)))
    return blocks


def _native(entry: Entry, part: Part, role: str) -> Block | None:
    """Return the part as a block that the API takes from this role, or None if it takes none."""
    part = renamed(part)
    block = block_of(part) if _is_accepted(entry, part, role) else None
    if block is None:
        return None
    if isinstance(part, File):
        block = {**block, "title": (part.filename or "")[:MAX_TITLE] or None}
    return _sent(block, part.extra if is_own(entry, ANTHROPIC) else None)


def _sent(block: Block, extra: Block | None) -> Block:
    """Return the block with its extra keys, reduced to what the API accepts."""
    accepted_keys = _KEYS.get(block["type"])
    both = {**(extra or {}), **block}
    if block["type"] == "fallback":  # Python clients write `from` like this in their dumps
        both = {("from" if key == "from_" else key): value for key, value in both.items()}
    if block["type"] == "text" and isinstance(both.get("citations"), list):
        both["citations"] = [_sent_citation(citation) for citation in both["citations"]]
    if accepted_keys is None:  # an unknown type, newer than this code
        return {key: value for key, value in both.items() if value is not None or key not in _OPTIONAL}
    return {key: value for key, value in both.items() if value is not None and key in accepted_keys}


def _sent_citation(citation: Any) -> Any:
    """Return an answer's citation as requests have it: with a title, which may be null, and without the file's id."""
    if not isinstance(citation, dict) or not str(citation.get("type")).endswith("_location"):
        return citation
    title = "title" if str(citation["type"]).endswith("search_result_location") else "document_title"
    return {title: None, **{key: value for key, value in citation.items() if key != "file_id"}}


def _is_accepted(entry: Entry, part: Part, role: str) -> bool:
    """Whether the API takes this part from this role."""
    own = is_own(entry, ANTHROPIC)
    if isinstance(part, Text):
        return bool(part.text) and not part.text.isspace()
    if isinstance(part, Reasoning):
        signature = (part.extra or {}).get("signature")
        return own and role == "assistant" and isinstance(signature, str) and bool(signature) and not entry.lone
    if isinstance(part, Opaque):
        return own and _is_allowed(part.item, role)
    if role not in ("user", "tool") or isinstance(part, Audio):
        return False
    if isinstance(part, Image):
        kind, data = split_address(part.source) or ("", "")
        return bool(data) and kind in IMAGES if kind else part.source.startswith("https://")
    return bool(part.data) and not str(part.data).endswith(",")


def _is_allowed(item: Block, role: str) -> bool:
    """Whether an opaque block may be sent by this role. Blocks of unknown types may."""
    kind = item.get("type", "")
    if role == "system" or kind in ("text", "thinking", "tool_use", "tool_result"):
        return False  # a block of these types is opaque only if it is malformed
    if kind in ("image", "document", "search_result"):
        return role != "assistant" and (kind == "search_result" or isinstance(item.get("source"), dict))
    if kind in ("tool_reference", "browser_state"):
        return role == "tool"
    if kind == "redacted_thinking":
        return role == "assistant" and isinstance(item.get("data"), str) and bool(item["data"])
    if kind == "compaction" or is_hosted_call(kind) or is_hosted_result(kind):
        return role == "assistant"
    return True


# --- calls and results


def _tool_ids(calls: Sequence[Entry]) -> dict[int, str]:
    """Return a valid id for each call, by the call's `seq`: its own, unless that is empty, invalid or taken."""
    ids: dict[int, str] = {}
    taken: set[str] = set()
    for entry in calls:
        id = re.sub(_NOT_IN_ID, "_", entry.call_id or "") or f"call_{entry.seq}"
        ids[entry.seq] = id = unused(id, entry.seq, taken)
        taken.add(id)
    return ids


def _tool_use(shown: Shown, id: str, adapted: list[Adapted] | None) -> Block:
    entry = shown.entry
    text = entry.text if shown.text is None else shown.text
    own_name, name = entry.name or NAMELESS, _tool_name(entry)
    value = _as_object(text)
    if adapted is not None and name != own_name:
        adapted.append(Adapted(entry.seq, f"tool name as {name}"))
    if adapted is not None and value is None:
        adapted.append(Adapted(entry.seq, "input that is no JSON object wrapped in one"))
    block = {"type": "tool_use", "id": id, "name": name, "input": _wrapped(text) if value is None else value}
    return _sent(block, kept_keys(entry))


def _tool_name(entry: Entry) -> str:
    return fitting(entry.name or NAMELESS, _NOT_IN_ID, NAME_LENGTH)


def is_object(text: str) -> bool:
    """Whether the text is a JSON object, or blank, which stands for an empty one."""
    try:
        _members(text)
    except UnicodeEncodeError:  # lone surrogates, which are replaced later, when the context is finished
        return is_object(text.encode("utf-8", "replace").decode())
    except (msgspec.DecodeError, RecursionError):
        return not text or text.isspace()
    return True


def _as_object(text: str) -> Block | None:
    """Return the text as a JSON object, or None if it is none."""
    if not is_object(text):
        return None
    try:
        value: Block = json.loads(text, parse_float=_finite) if text.strip() else {}
    except (ValueError, RecursionError):  # more digits or levels than Python reads
        return None
    return value


def _finite(digits: str) -> float | str:
    """Return the number, or its digits if it is too large for a float: JSON has no infinity."""
    number = float(digits)
    return number if number - number == 0 else digits


def _wrapped(text: str) -> Block:
    """Return an object around the text, or around its value if it is JSON."""
    try:
        value = msgspec.json.decode(text)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        value = text
    return {"input": value}


def _result(shown: Shown, id: str, adapted: list[Adapted] | None) -> Block:
    entry = shown.entry
    failed = entry.status == "error"
    if shown.text is not None or isinstance(entry.content, str):
        text = entry.text if shown.text is None else shown.text
        content: str | list[Block] = "" if text.isspace() else text
    else:
        # From a failed tool the API takes only text, so media become stand-ins, as in a system message.
        content = _parts(entry, entry.content, "system" if failed else "tool", adapted)
    sent = content or (NO_MESSAGE if failed else None)
    block = {"type": "tool_result", "tool_use_id": id, "content": sent, "is_error": True if failed else None}
    return _sent(block, kept_keys(entry))
