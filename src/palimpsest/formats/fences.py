"""Fences around data in a context, and guards that keep other texts from forging a fence. Pure.

A fence is a line `<tag …>`, the content, and a line `</tag>`. In every text of the log that a context shows, a `<` that
would begin one of these tags is written as `&lt;`, whoever said the text. So every such tag in a context was written by
Palimpsest. The log itself keeps the texts unchanged.

    guard     returns a text as it may be shown; guarding twice is the same as once
    guarded   returns an entry with all its texts guarded, except those that must return to their provider unchanged
    fenced    returns a text, guarded, between the tags of a fence
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

import msgspec

from palimpsest.log.entry import Entry, File, Opaque, Part, Reasoning, Text

_Record = TypeVar("_Record", bound=msgspec.Struct)

FENCES = (
    "context",
    "summary",
    "system_message",
    "late_result",
    "unmatched_result",
    "thinking",
    "provider_item",
)
"""Every tag that Palimpsest writes into a context."""

GUARD_TOKENS = 3
"""The most tokens that one guard adds to a text: `&lt;` in place of `<`."""

UNREADABLE = ("encrypted", "signature", "thought_signature", "thoughtSignature")
"""Prefixes of keys whose values only their provider can read: signatures and encrypted content."""

_EXACT = (*UNREADABLE, "citations")
"""Prefixes of keys in a provider's item whose values are sent back unchanged."""

_SPOKEN = (*_EXACT, "input", "args", "arguments")
"""The same for items of the model. They may hold arguments of calls, which are sent inside a call, without fences."""

_BINDING = "anthropic"
"""The format of the provider that binds a thought to what comes before it."""

_SEALS = ("signature", "encrypted_content")
"""Keys of a provider's own summary that tell that it has to come back unchanged."""

_SIGNATURES = frozenset(("signature", "thought_signature", "thoughtSignature"))

# Invisible characters: controls, marks of direction, joiners, variation selectors, fillers and tags of Unicode.
HIDDEN = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
HIDDEN += "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff"


def _spelled(tag: str) -> str:
    """Return a pattern for all spellings that look like the tag: with invisible characters in it, and with spaces,
    hyphens or nothing between its words."""
    words = (f"[{HIDDEN}]*".join(word) for word in tag.split("_"))
    return f"[{HIDDEN} \t\xa0_-]*".join(words)


@cache
def _tag_start() -> re.Pattern[str]:
    """Return a pattern for a `<` that begins one of our tags, or that ends a text and could begin one with the next.

    Compiled when a text first contains a `<`: that takes as long as a third of the imports of a cold start.
    """
    tags = "|".join(map(_spelled, FENCES))
    return re.compile(rf"<(?=[\s{HIDDEN}/]*(?:\Z|(?:{tags})(?![\w]|[.:-]\w)))", re.IGNORECASE)


def guard(text: str) -> str:
    """Return the text with `&lt;` for every `<` that would begin one of our tags."""
    return _tag_start().sub("&lt;", text) if "<" in text else text


def guards(text: str) -> int:
    """Return how many places `guard` changes in the text."""
    return len(_tag_start().findall(text)) if "<" in text else 0


def fence(tag: str, text: str, **attributes: str | None) -> str:
    """Return `text`, not guarded, between `<tag …>` and `</tag>`. Attributes without a value are left out."""
    rendered = "".join(f' {name}="{attribute(value)}"' for name, value in attributes.items() if value)
    return f"<{tag}{rendered}>\n{text}\n</{tag}>"


def fenced(tag: str, text: str, **attributes: str | None) -> str:
    """Return `text`, guarded, between `<tag …>` and `</tag>`."""
    return fence(tag, guard(text), **attributes)


def attribute(value: str) -> str:
    """Return the value escaped for an attribute, on one line."""
    value = " ".join(value.split())
    return value.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def guarded(entry: Entry) -> Entry:
    """Return the entry as formats show it, with every text guarded; the same object if nothing changes.

    Arguments of calls stay unchanged, and so do thoughts that their provider wants back as they were. For another
    provider `stand_in` guards those.
    """
    content, name, call_id, native = entry.content, entry.name, entry.call_id, entry.native
    if type(content) is str and native is None and "<" not in content:
        if (name is None or "<" not in name) and (call_id is None or "<" not in call_id):
            return entry  # the common case
    elif entry.is_reasoning and native is not None:
        return entry
    shown: str | tuple[Part, ...]
    if entry.kind == "tool_call":
        shown = content
    elif isinstance(content, str):
        shown = guard(content)
    else:
        shown = tuple(_guarded_part(part, entry) for part in content)
        if native is not None and native.format == _BINDING and shown != content:
            shown = _without_bound(content, shown)
    if entry.kind in ("message", "tool_call"):  # of other kinds they are in attributes, which escape them, and labels
        name, call_id = guard(name) if name else name, guard(call_id) if call_id else call_id
    if native is not None and native.keep:
        native = _changed(native, keep=_leaves(native.keep, _exact(entry)))
    return _changed(entry, content=shown, name=name, call_id=call_id, native=native)


def _changed(value: _Record, **fields: Any) -> _Record:
    """Return the record with these values; the same object if they are equal to its own."""
    same = all(getattr(value, name) == new for name, new in fields.items())
    return value if same else msgspec.structs.replace(value, **fields)


def _exact(entry: Entry) -> tuple[str, ...]:
    return _SPOKEN if entry.role == "assistant" else _EXACT


def _guarded_part(part: Part, entry: Entry) -> Part:
    guarded, exact = part, _exact(entry)
    if isinstance(part, Text):
        text, extra = guard(part.text), _leaves(part.extra, exact)
        if text != part.text and extra:  # the signature is of the unguarded text, so it no longer fits
            extra = {key: value for key, value in extra.items() if key not in _SIGNATURES} or None
        guarded = _changed(part, text=text, extra=extra)
    elif isinstance(part, Reasoning):
        # A null stands for an absent key, such as a signature.
        has_extra = part.extra is not None and any(value is not None for value in part.extra.values())
        guarded = part if has_extra and entry.native is not None else _changed(part, text=guard(part.text))
    elif isinstance(part, Opaque):
        is_sealed = part.item.get("type") == "compaction" and any(part.item.get(key) for key in _SEALS)
        guarded = part if is_sealed else _changed(part, item=_leaves(part.item, exact))
    elif isinstance(part, File):
        name = guard(part.filename) if part.filename else part.filename
        guarded = _changed(part, filename=name, extra=_leaves(part.extra, exact))
    return guarded


def _without_bound(parts: tuple[Part, ...], shown: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the guarded parts without thoughts behind the first changed one: their provider takes a thought only
    behind exactly what it was made behind."""
    changed = next(i for i, part in enumerate(parts) if shown[i] is not part)
    return (*shown[: changed + 1], *(part for part in shown[changed + 1 :] if not _is_thought(part)))


def _is_thought(part: Part) -> bool:
    return isinstance(part, Reasoning) or (isinstance(part, Opaque) and part.item.get("type") == "redacted_thinking")


def _leaves(value: Any, exact: tuple[str, ...]) -> Any:
    """Return the provider's item with its texts guarded, except under keys that begin with one of `exact`."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, dict):
        return {key: inner if key.startswith(exact) else _leaves(inner, exact) for key, inner in value.items()}
    return [_leaves(inner, exact) for inner in value] if isinstance(value, list) else value
