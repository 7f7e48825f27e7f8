"""Fences around what a context shows as data, and why no text of others can write one. Pure.

A fence is a line `<tag …>`, what is inside, and a line `</tag>`. In every text of a log that a context shows, a `<`
with which one of these tags would begin is written `&lt;`, whoever said it and wherever it stands. So a tag of ours in
a context is one that Palimpsest has written. What is stored stays as it was said.

    guard     the text as it may be shown; guarding it again changes nothing
    guarded   an entry with all its texts guarded, but for what must come back to its provider letter by letter
    fenced    a text, guarded, between the tags of a fence
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
"""What one guard adds to a text at most: `&lt;` where there was a `<`."""

UNREADABLE = ("encrypted", "signature", "thought_signature", "thoughtSignature")
"""Beginnings of the keys whose values only their provider can read: there it signs or encrypts what is beside them."""

_EXACT = (*UNREADABLE, "citations")
"""Beginnings of keys in a provider's item whose values go back as they came."""

_SPOKEN = (*_EXACT, "input", "args", "arguments")
"""The same in an item of the model, which has given tools something: it stands inside a call, where no fences are."""

_SIGNATURES = frozenset(("signature", "thought_signature", "thoughtSignature"))

# What shows nothing: controls, marks of direction, joiners, variants, fillers and tags of Unicode.
HIDDEN = "\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
HIDDEN += "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff"


def _spelled(tag: str) -> str:
    """The tag in any spelling that reads alike: with what shows nothing in it, with other joints between its words."""
    words = (f"[{HIDDEN}]*".join(word) for word in tag.split("_"))
    return f"[{HIDDEN} \t\xa0_-]*".join(words)


@cache
def _like() -> re.Pattern[str]:
    """A `<` that begins a tag of ours, or that ends a text and would begin one with what comes next.

    Compiled where a text first has a `<`: that takes as long as a third of the imports of a cold start.
    """
    tags = "|".join(map(_spelled, FENCES))
    return re.compile(rf"<(?=[\s{HIDDEN}/]*(?:\Z|(?:{tags})(?![\w]|[.:-]\w)))", re.IGNORECASE)


def guard(text: str) -> str:
    """Return the text with `&lt;` for every `<` that would begin a tag of ours."""
    return _like().sub("&lt;", text) if "<" in text else text


def guards(text: str) -> int:
    """How many places `guard` changes in the text."""
    return len(_like().findall(text)) if "<" in text else 0


def fence(tag: str, text: str, **attributes: str | None) -> str:
    """Return `text`, as it is, between `<tag …>` and `</tag>`; attributes without a value are left out."""
    given = "".join(f' {name}="{attribute(value)}"' for name, value in attributes.items() if value)
    return f"<{tag}{given}>\n{text}\n</{tag}>"


def fenced(tag: str, text: str, **attributes: str | None) -> str:
    """Return `text`, guarded, between `<tag …>` and `</tag>`."""
    return fence(tag, guard(text), **attributes)


def attribute(value: str) -> str:
    """The value as it stands in an attribute: on one line, and unable to end it."""
    value = " ".join(value.split())
    return value.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def guarded(entry: Entry) -> Entry:
    """Return the entry as formats show it, every text of it guarded; the same entry where nothing is to be changed.

    As they are stay the arguments of calls, and thoughts that their provider wants back unchanged: they go to it as
    such, and `stand_in` guards them where another is told of them.
    """
    content, name, call_id, native = entry.content, entry.name, entry.call_id, entry.native
    if type(content) is str and native is None and "<" not in content:
        if (name is None or "<" not in name) and (call_id is None or "<" not in call_id):
            return entry  # as most are
    elif entry.is_reasoning and native is not None:
        return entry
    shown: str | tuple[Part, ...]
    if entry.kind == "tool_call":
        shown = content
    elif isinstance(content, str):
        shown = guard(content)
    else:
        shown = tuple(_guarded_part(part, entry) for part in content)
    if entry.kind in ("message", "tool_call"):  # elsewhere they stand in attributes and labels
        name, call_id = guard(name) if name else name, guard(call_id) if call_id else call_id
    if native is not None and native.keep:
        native = _changed(native, keep=_leaves(native.keep, _exact(entry)))
    return _changed(entry, content=shown, name=name, call_id=call_id, native=native)


def _changed(value: _Record, **fields: Any) -> _Record:
    """The record with other values; itself where they are equal."""
    same = all(getattr(value, name) == new for name, new in fields.items())
    return value if same else msgspec.structs.replace(value, **fields)


def _exact(entry: Entry) -> tuple[str, ...]:
    return _SPOKEN if entry.role == "assistant" else _EXACT


def _guarded_part(part: Part, entry: Entry) -> Part:
    guarded, exact = part, _exact(entry)
    if isinstance(part, Text):
        text, extra = guard(part.text), _leaves(part.extra, exact)
        if text != part.text and extra:  # a signature would be of another text
            extra = {key: value for key, value in extra.items() if key not in _SIGNATURES} or None
        guarded = _changed(part, text=text, extra=extra)
    elif isinstance(part, Reasoning):
        # A null says that it lacks what stands there, such as a signature.
        says = part.extra is not None and any(value is not None for value in part.extra.values())
        guarded = part if says and entry.native is not None else _changed(part, text=guard(part.text))
    elif isinstance(part, Opaque):
        guarded = _changed(part, item=_leaves(part.item, exact))
    elif isinstance(part, File):
        name = guard(part.filename) if part.filename else part.filename
        guarded = _changed(part, filename=name, extra=_leaves(part.extra, exact))
    return guarded


def _leaves(value: Any, exact: tuple[str, ...]) -> Any:
    """The provider's item with its texts guarded, but for those under the keys that begin with one of `exact`."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, dict):
        return {key: inner if key.startswith(exact) else _leaves(inner, exact) for key, inner in value.items()}
    return [_leaves(inner, exact) for inner in value] if isinstance(value, list) else value
