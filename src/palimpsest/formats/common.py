"""What formats share: whose an item is, addresses of data, what stands in for parts without a counterpart. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from palimpsest.errors import InvalidEntry
from palimpsest.formats import Adapted, Message, Shown
from palimpsest.formats.fences import UNREADABLE, fenced, guard
from palimpsest.formats.wording import (
    BESIDE,
    FENCE_TOKENS,
    SPEAKING,
    THOUGHTS,
    pointer,
    said_in_sound,
    shown_text,
    stand_in,
)
from palimpsest.log.entry import Entry, File, Native, Opaque, Part, Reasoning, Text, digest

DEFAULT = "openai"
"""The format that unknown keys and opaque parts of an entry belong to where its `native` names none."""

CACHE_SECONDS = 3600.0
"""How long a prompt cache is taken to live of which nothing else is known. OpenAI's ends 5 to 10 minutes after the last
call, an hour after it at the latest, unless a request asks for 24 hours or the model's is another
(learn.microsoft.com/azure/foundry/openai/how-to/prompt-caching). Google names no time for its implicit cache, and an
hour for the one that is asked for (ai.google.dev/gemini-api/docs/caching). Both as of 2026-11."""

_HOLDERS = frozenset(
    ("message", "block", "content", "part", "function", "custom", "function_call", "function_response")
)
"""Keys of what is kept of an item under which more keys of it stand."""

_WORDLESS = frozenset(
    (
        *("id", "type", "role", "name", "status", "model", "object", "stop_reason", "stop_sequence", "usage", "phase"),
        *("cache_control", "caller", "toolset_name", "place", "places", "shape", "mime_type", "mimeType", "detail"),
        BESIDE,
        *("data", "file_uri", "call_id", "namespace", "logprobs", "created_by", "prompt_cache_breakpoint"),
        *("input", "arguments", "args", *_HOLDERS),
    )
)
"""Keys of items that say nothing to a reader, or what the entry itself says: how it came about, and its holders."""

_DIGITS = 8
"""Of the hash behind a name that was changed, so that what was different stays so."""

NAMELESS = "unknown"
"""The name of a tool that a call does not name: providers refuse an empty one."""


NO_NAME = "document"
"""The name of a document that has none, where a provider wants one."""


def mappings(messages: object, where: str, what: str = "message") -> Sequence[dict[str, Any]]:
    """Return what was handed in, checked to be a list of mappings. Raises InvalidEntry naming what is not."""
    if type(messages) is not list and (
        isinstance(messages, str | bytes | dict) or not isinstance(messages, Sequence)
    ):  # to ask what is a list for an abstract class costs as much as the rest
        told = (
            "; for what somebody says there is add_user_message" if what == "message" and type(messages) is str else ""
        )
        raise InvalidEntry(where, f"a list of {what}s is needed, not {type(messages).__name__}{told}")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            hint = f"not {type(message).__name__}; objects of a provider's library become mappings by model_dump()"
            raise InvalidEntry(f"{where}[{i}]", f"{what}s are mappings, {hint}")
    return messages


def fitting(name: str, refused: str | None, most: int) -> str:
    """The name as a provider takes it, of at most so many characters: itself, or one that no other name becomes.

    `refused` is a pattern of the characters that it does not take. Which names there are beside it is no matter, so
    that a name stays what it was when others come.
    """
    plain = name if refused is None else re.sub(refused, "_", name)
    if plain == name and len(name) <= most:
        return name
    return f"{plain[: most - 1 - _DIGITS]}_{digest(name)[:_DIGITS]}"


def renamed_tokens(name: str | None, most: int) -> int:
    """What a name may cost more when `fitting` changes it: a token is a byte of it or more."""
    return min(len((name or NAMELESS).encode("utf-8", "surrogatepass")) + 1 + _DIGITS, 4 * most)


def unused(name: str, number: int, taken: Container[str], most: int = 1000) -> str:
    """The name, with a number behind it where it is taken."""
    found = name
    while found in taken:
        found, number = fitting(f"{name}_{number}", None, most), number + 1
    return found


def numbered(name: str, taken: Container[str], counts: dict[str, int], most: int = 1000) -> str:
    """The name with a number behind it that is free; `counts` says, for each name, where the last search stopped.

    So a name that comes again and again is looked for as often as it comes.
    """
    while True:
        count = counts[name] = counts.get(name, 1) + 1
        other = f"{name[: most - 1 - len(str(count))]}_{count}"
        if other not in taken:
            return other


ALIASES = {"human": "user", "ai": "assistant"}
"""What other libraries call two roles, by which no provider knows them."""


def canonical(messages: Any, name: str) -> Any:
    """Return messages of a format with roles as that format has them, where some bear other libraries' names."""
    if name == "gemini" or type(messages) is not list:
        return messages
    for message in messages:
        if type(message) is dict and message.get("role") in ("human", "ai"):
            return [_canonical(one) for one in messages]
    return messages


def _canonical(message: Any) -> Any:
    role = message.get("role") if isinstance(message, dict) else None
    return {**message, "role": ALIASES[role]} if role in ("human", "ai") else message


def is_own(entry: Entry, name: str) -> bool:
    """Whether unknown keys (`extra`) and opaque parts of the entry are of the format `name`."""
    return (entry.native.format if entry.native is not None else DEFAULT) == name


def own_native(entry: Entry, name: str) -> Native | None:
    """What was kept of the provider's item, where it was one of the format `name`."""
    return entry.native if entry.native is not None and entry.native.format == name else None


def said_beside(entry: Entry, name: str) -> list[str]:
    """What a message of another format says beside its content, as texts: a refusal, thoughts, an older kind of call.

    They stand in the place of keys that only chat completions and what is compatible with it have.
    """
    native = entry.native
    if native is None or native.format == name or native.format != DEFAULT or entry.role != "assistant":
        return []
    keep = native.keep or {}
    return [_as_said(key, keep[key]) for key in (*THOUGHTS, *SPEAKING) if keep.get(key)]


def _as_said(key: str, value: Any) -> str:
    if isinstance(value, str):
        return fenced("thinking", value) if key in THOUGHTS else value
    if key == "audio" and isinstance(value, dict):
        return said_in_sound(value)
    return stand_in(Opaque(item={"type": key, key: value}))


def said_beside_overhead(entry: Entry, name: str) -> int:
    """Tokens around what `said_beside` adds, whose words are counted with the entry."""
    return FENCE_TOKENS * len(said_beside(entry, name)) if entry.native is not None else 0


def unsaid(entry: Entry, name: str) -> list[Adapted]:
    """Which keys of another format's item are shown as text, or not at all, in the format `name`."""
    if is_own(entry, name):
        return []
    native = entry.native or Native(format=DEFAULT)
    said = (*THOUGHTS, *SPEAKING) if said_beside(entry, name) else ()
    found = {key: "as text" for key in said if (native.keep or {}).get(key)}
    extras = () if isinstance(entry.content, str) else (part.extra for part in entry.content if part.extra)
    for holder in (native.keep or {}, native.call or {}, *extras):
        for key in _worded(holder):
            found.setdefault(key, "left out")
    return [Adapted(entry.seq, f"{key} {what}") for key, what in found.items()]


def _worded(holder: dict[str, Any]) -> Iterator[str]:
    """The keys of what is kept of an item under which there are words."""
    for key, value in holder.items():
        if key in _HOLDERS:
            for inner in value if isinstance(value, list) else [value]:
                yield from _worded(inner) if isinstance(inner, dict) else ()
        elif has_words(key, value):
            yield key


def has_words(key: str, value: Any) -> bool:
    """Whether a reader would miss what the item holds under this key, at any depth."""
    if key in _WORDLESS or key.startswith(UNREADABLE):
        return False
    if isinstance(value, dict):
        return any(has_words(inner, one) for inner, one in value.items())
    if isinstance(value, list):
        return any(has_words("", one) for one in value)
    return isinstance(value, str) and bool(value.strip())


def replaced_by_text(entry: Entry, part: Part, adapted: list[Adapted] | None) -> str:
    """The text that stands for a part that the format at hand cannot take; noted in `adapted`."""
    text = stand_in(part)
    if adapted is not None and not isinstance(part, Text):
        adapted.append(Adapted(entry.seq, f"{_kind(part)} {'as text' if text else 'left out'}"))
    return text


def background(
    shown: Shown, taken: Callable[[Part], Message | None], adapted: list[Adapted] | None
) -> tuple[str, list[Message]]:
    """What an entry that is only data says, in its fence, and what of it stands behind that: its images and the like.

    `taken` gives a part as a user may have it in the format at hand, or None where it has to become text.
    """
    entry = shown.entry
    if shown.text is not None or isinstance(entry.content, str):
        return shown_text(entry) if shown.text is None else shown.text, []
    lines, media = list[str](), list[Message]()
    for part in entry.content:
        if isinstance(part, Text | Reasoning):
            lines.append(guard(part.text))
        elif (made := taken(part)) is not None:
            media.append(made)
            lines.append(pointer(part))
        elif text := replaced_by_text(entry, part, adapted):
            lines.append(text)
    return shown_text(entry, "\n".join(lines)), media


def _kind(part: Part) -> str:
    return str(part.item.get("type", "item")) if isinstance(part, Opaque) else type(part).__name__.lower()


def stand_in_overhead(entry: Entry, name: str) -> int:
    """Tokens that stand-ins may add to the entry in the format `name`, beside the texts that are counted."""
    if isinstance(entry.content, str) or (is_own(entry, name) and entry.kind == "message"):
        return 0
    return sum(map(stand_in_tokens, entry.content))


def stand_in_tokens(part: Part | str) -> int:
    """The most that the text in a part's place costs beside the texts that are counted; a document's has its name."""
    if isinstance(part, Text | str):
        return 0
    name = part.filename or part.file_id or "" if isinstance(part, File) else ""
    return FENCE_TOKENS + len(name.encode("utf-8", "surrogatepass"))


def split_address(source: str) -> tuple[str, str] | None:
    """The media type and the base64 text of a `data:` address; None for any other address.

    `data_address` makes the equal address of them again: others, such as those with parameters, give None.
    """
    head, comma, data = source.partition(";base64,")
    if not comma or not head.startswith("data:") or not head[5:] or ";" in head or "," in head:
        return None
    return head[5:], data


def data_address(media_type: str, data: str) -> str:
    """The `data:` address of base64 text."""
    return f"data:{media_type};base64,{data}"


def is_blank(content: object) -> bool:
    """Whether content is nothing, white space, or parts of nothing but that."""
    if isinstance(content, str):
        return not content or content.isspace()
    return isinstance(content, tuple) and all(map(_says_nothing, content))


def _says_nothing(part: Part) -> bool:
    if isinstance(part, Opaque):  # a part of text without one, which no context would show
        text = part.item.get("text")
        return not part.item or (part.item.get("type") in _TEXTS and not (isinstance(text, str) and text))
    return type(part) is Text and is_blank(part.text)


_TEXTS = ("text", "input_text")
"""Types of parts that are nothing but a text."""
