"""What a provider has signed or encrypted in an entry, and what becomes of it when something else is redacted. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from palimpsest.formats import RESPONSES, known_format
from palimpsest.formats.fences import UNREADABLE
from palimpsest.log.entry import Entry, Native, Opaque, Part, Reasoning

_replace = msgspec.structs.replace

SIGNED = "signed_reasoning"
"""The kind under which dropped signed reasoning is counted."""

NO_REASONING = (Reasoning(text=""),)
"""Remains if nothing else does, so that what follows is linked as before; no context shows it."""

_SEALED_ITEMS = ("redacted_thinking", "compaction", "reasoning")


def settled(before: Entry, after: Entry) -> Entry:
    """Return a cleaned entry without token counts and signatures that no longer fit its content."""
    if after.content == before.content and after.native == before.native:
        return after
    native = after.native
    if native is not None and native.format == RESPONSES and after.content == NO_REASONING:
        native = Native(format=native.format, keep={"type": "reasoning"})
    elif native is not None and native.call is not None and (call := unsealed(native.call)) is not native.call:
        format = known_format(native.format)
        # Without `native` the call counts as another provider's.
        native = None if format is not None and format.signs_calls else _replace(native, call=call)
    return _replace(after, native=native, tokens=None)


def without_sealed_reasoning(entry: Entry) -> Entry:
    """Return the entry without signed reasoning, which is accepted only together with all of its message's."""
    if isinstance(entry.content, str) or not any(map(is_sealed_reasoning, entry.content)):
        return entry
    kept = tuple(part for part in entry.content if not is_sealed_reasoning(part))
    return _replace(entry, content=kept or NO_REASONING)


def has_sealed_reasoning(entry: Entry) -> bool:
    """Return whether a part of the entry is reasoning that its provider has signed or encrypted."""
    return not isinstance(entry.content, str) and any(map(is_sealed_reasoning, entry.content))


def is_sealed_reasoning(part: Part) -> bool:
    """Return whether this is reasoning that its provider has signed or encrypted."""
    if isinstance(part, Reasoning):
        return any(key.startswith(UNREADABLE) for key in part.extra or ())
    return isinstance(part, Opaque) and part.item.get("type") in _SEALED_ITEMS


def is_reasoning_item(entry: Entry) -> bool:
    """Return whether all the entry's parts are one encrypted item of its provider."""
    keep = entry.native.keep if entry.native is not None else None
    return has_sealed_reasoning(entry) and entry.is_reasoning and (keep or {}).get("type") == "reasoning"


def unsealed(item: Mapping[str, Any]) -> Any:
    """Return the item without signatures, at any depth; the item itself if it has none."""
    kept = {
        key: unsealed(value) if isinstance(value, dict) else value
        for key, value in item.items()
        if not key.startswith(UNREADABLE)
    }
    return item if len(kept) == len(item) and all(kept[key] is value for key, value in item.items()) else kept
