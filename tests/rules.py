"""The rules that every context has to keep, checked independently: nothing here asks the library what is right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from palimpsest.context.groups import CostedEntry
from palimpsest.context.result import Context
from palimpsest.log.entry import Entry

Message = dict[str, Any]
BESIDE = ("refusal", "audio", "function_call")
ROLES = {"system", "developer", "user", "assistant", "tool", "function"}


def faults(messages: Sequence[Message]) -> list[str]:
    """Return every rule of chat completions that the messages break."""
    found: list[str] = []
    waiting: dict[str, int] = {}
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            found.append(f"{i}: unknown role {role!r}")
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                found.append(f"{i}: answers {message.get('tool_call_id')!r}, which nobody directly before asked for")
            waiting.pop(str(message.get("tool_call_id")), None)
            if not isinstance(content, str | list):
                found.append(f"{i}: a result without content")
            found.extend(_listed(i, content, {"text"}))
            continue
        if waiting:
            found.append(f"{i}: comes before the results of {sorted(waiting)}")
        waiting = {}
        found.extend(_listed(i, content))
        if message.get("name") is not None and not re.fullmatch(r"[^\s<|\\/>]{1,64}", message["name"]):
            found.append(f"{i}: the name {message['name']!r}")
        calls = message.get("tool_calls")
        if calls:
            found.extend(_calling(i, role, calls))
            waiting = {call.get("id"): i for call in calls}
        elif "tool_calls" in message and calls is not None:
            found.append(f"{i}: an empty list of calls")
        elif says_nothing(content) and not (role == "assistant" and any(map(message.get, BESIDE))):
            found.append(f"{i}: {role} says nothing")
    if waiting:
        found.append(f"the end: no result of {sorted(waiting)}")
    try:
        json.dumps(messages, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        found.append("text that is not valid Unicode")
    return found


def _calling(i: int, role: str | None, calls: Sequence[Message]) -> list[str]:
    found = []
    ids = [call.get("id") for call in calls]
    if role != "assistant":
        found.append(f"{i}: {role} calls tools")
    if len(set(ids)) < len(ids) or not all(isinstance(id, str) and id for id in ids):
        found.append(f"{i}: call ids {ids} are empty or repeated")
    if any(isinstance(id, str) and len(id) > 40 for id in ids):
        found.append(f"{i}: a call id of more than 40 characters in {ids}")
    for call in calls:
        name = call.get(call.get("type", ""), {}).get("name")
        if not re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name or ""):
            found.append(f"{i}: a call of the tool {name!r}")
    return found


def _listed(i: int, content: Any, types: set[str] | None = None) -> list[str]:
    if not isinstance(content, list):
        return []
    found = [] if content else [f"{i}: an empty list"]
    for part in content:
        if types is not None and part["type"] not in types:
            found.append(f"{i}: a part of type {part['type']}")
        if part["type"] == "text" and not part["text"]:
            found.append(f"{i}: an empty text part")
    return found


def says_nothing(content: Any) -> bool:
    """Whether content, of a message or of an entry, holds neither text nor any other part."""
    if not content or isinstance(content, str):
        return not content
    texts = [part.get("text") if isinstance(part, dict) else getattr(part, "text", None) for part in content]
    return all(text == "" for text in texts)


def honest(messages: Sequence[Message], count: Callable[[str], int], per_message: int = 0, per_call: int = 0) -> int:
    """Count the tokens of contents, names and calls: no token count of the messages may be lower."""
    total = 0
    for message in messages:
        total += per_message + sum(map(count, _texts(message))) + per_call * len(message.get("tool_calls") or ())
    return total


def _texts(message: Message) -> list[str]:
    content = message.get("content")
    found = [content] if isinstance(content, str) else []
    if isinstance(content, list):
        found.extend(part["text"] for part in content if part.get("type") == "text")
    if message.get("name") and message["role"] != "tool":
        found.append(message["name"])
    for call in message.get("tool_calls") or ():
        body = call[call["type"]]
        found.extend((body["name"], body.get("arguments", body.get("input"))))
    return found


def shown_calls(messages: Sequence[Message], entries: Sequence[Entry]) -> set[int]:
    """Return the seqs of the calls that the messages hold, identified by their arguments or a clamped call's handle."""
    places = {scrubbed(entry.text): entry.seq for entry in entries if entry.kind == "tool_call"}
    seqs = set()
    for message in messages:
        for call in message.get("tool_calls") or ():
            body = call[call["type"]]
            text = body.get("arguments", body.get("input"))
            handle = re.search(r"left out: entry (\d+), ", text)
            seqs.add(places[text] if text in places else int(handle.group(1)) if handle else -1)
    return seqs


def half_groups(messages: Sequence[Message], entries: Sequence[Entry]) -> list[set[int]]:
    """Return the groups, with none of their calls erased, of which only some calls are shown."""
    shown = shown_calls(messages, entries)
    groups: dict[int, set[int]] = {}
    for entry in entries:
        if entry.kind == "tool_call" and not entry.erased:
            groups.setdefault(entry.group, set()).add(entry.seq)
    return [seqs for seqs in groups.values() if seqs & shown and seqs - shown]


def parted(ctx: Context, entries: Sequence[Entry]) -> list[str]:
    """Return how a context splits groups: its cut begins inside one, or it shows a recorded result as missing.

    A late result is shown at its own place, so a stand-in for it beside its call is right.
    """
    found = []
    cut, rewound = ctx._outcome.cut, ctx._outcome.head.rewound
    visible = [entry for entry in entries if not any(first <= entry.seq <= last for first, last in rewound)]
    sides: dict[int, set[bool]] = {}
    for entry in visible:
        if not entry.erased:
            sides.setdefault(entry.group, set()).add(entry.seq < cut.start)
    found += [f"the cut begins at {cut.start}, in group {group}" for group, both in sides.items() if len(both) > 1]
    answered = {entry.answers: entry.seq for entry in visible if not entry.erased and not entry.late}
    for item in shown_items(ctx):
        if item.form == "placeholder" and item.entry.answers in answered:
            result = answered[item.entry.answers]
            found.append(f"call {item.entry.answers} is shown without its result, which is entry {result}")
    return found


def unshown_pins(ctx: Context, entries: Sequence[Entry]) -> list[int]:
    """Return the seqs of entries in groups with a pin that the context should show and does not.

    Left out are entries that say nothing, may have expired, are held back until their group is complete, or are the
    result of an erased call.
    """
    head = ctx._outcome.head
    alive = {entry.seq: entry for entry in entries if not entry.erased}
    groups = {alive[seq].group for seq in head.pinned}
    held = {entry.seq for group in ctx._window.pending for entry in group.entries}
    shown = {item.entry.seq for item in shown_items(ctx)}
    passing = {entry.group for entry in alive.values() if entry.expires_at is not None or entry.kind == "context"}
    return [
        entry.seq
        for entry in alive.values()
        if entry.group in groups - passing
        and entry.seq not in shown | held
        and not says_nothing(entry.content)
        and not (entry.kind == "tool_result" and entry.answers and entry.answers not in alive)
    ]


def shown_items(ctx: Context) -> list[CostedEntry]:
    """Return every item of which the context was made."""
    return [item for group in (*ctx._head, *ctx._window.groups) for item in group.items]


def scrubbed(text: str) -> str:
    """Replace lone surrogates by U+FFFD, since no provider takes them."""
    return "".join("\ufffd" if 0xD800 <= ord(character) < 0xE000 else character for character in text)


def plain(text: str) -> str:
    """Undo what a context may change in a text: surrogates, and `&lt;` for the `<` of what looks like a fence."""
    return scrubbed(text).replace("&lt;", "<")


def shows(messages: Sequence[Message], entry: Entry) -> bool:
    """Whether the messages hold this human message whole and unaltered, apart from parts without text."""
    own = [message["content"] for message in messages if message["role"] == "user"]
    if isinstance(entry.content, str):
        return plain(entry.content) in [plain(content) for content in own if isinstance(content, str)]
    wanted = [plain(part.text) if hasattr(part, "text") else None for part in entry.content]
    for content in own:
        if isinstance(content, list):
            said = [plain(part["text"]) if part.get("type") == "text" else None for part in content]
            if [text for text in said if text != ""] == [text for text in wanted if text != ""]:
                return True
    return False


def packed(messages: Sequence[Message]) -> list[bytes]:
    """Return each message as the bytes that a provider's prompt cache compares."""
    return [json.dumps(message, ensure_ascii=False).encode() for message in messages]


def is_prefix(earlier: Sequence[bytes], later: Sequence[bytes]) -> bool:
    """Whether the later messages begin with the earlier ones, byte for byte."""
    return list(later[: len(earlier)]) == list(earlier)


_UNREAD = frozenset(
    {
        *(
            "signature",
            "data",
            "encrypted_content",
            "thought_signature",
            "id",
            "type",
            "role",
            "tool_use_id",
            "call_id",
        ),
        *("media_type", "mime_type", "file_id", "status", "is_error", "cache_control", "url", "image_url", "file_data"),
        *("file_uri", "detail"),
    }
)


def least(request: Any, count: Callable[[str], int]) -> int:
    """Count the tokens of every text in a request that a model reads, in any format: no ids, signatures or media."""
    if isinstance(request, str):
        return count(request)
    if isinstance(request, dict):
        return sum(least(value, count) for key, value in request.items() if key not in _UNREAD)
    return sum(least(value, count) for value in request) if isinstance(request, list) else 0
