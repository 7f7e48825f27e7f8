"""Helpers that formats share: checks of input, names and ids, `data:` addresses, text in place of parts. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from palimpsest.errors import InvalidEntry
from palimpsest.formats import CHAT, Adapted, Format, Message, Shown
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
from palimpsest.log.checks import check
from palimpsest.log.entry import Entry, File, Native, Opaque, Part, Reasoning, Text, digest

_HOLDERS = frozenset(
    ("message", "block", "content", "part", "function", "custom", "function_call", "function_response")
)
"""Keys of a kept item whose values contain further keys of the item."""

_WORDLESS = frozenset(
    (
        *("id", "type", "role", "name", "status", "model", "object", "stop_reason", "stop_sequence", "usage", "phase"),
        *("cache_control", "caller", "toolset_name", "place", "places", "shape", "mime_type", "mimeType", "detail"),
        BESIDE,
        *("data", "file_uri", "call_id", "namespace", "logprobs", "created_by", "prompt_cache_breakpoint"),
        *("input", "arguments", "args", *_HOLDERS),
    )
)
"""Keys of items whose values hold no text for a reader, or only what the entry's fields hold; and `_HOLDERS`."""

_DIGITS = 8
"""Digits of the hash that `fitting` appends to a changed name, so that different names stay different."""

NAMELESS = "unknown"
"""The tool's name in a call that has none: providers refuse an empty name."""


NO_NAME = "document"
"""The name of a document that has none, for providers that need one."""


def mappings(messages: object, where: str, what: str = "message") -> Sequence[dict[str, Any]]:
    """Return `messages`, checked to be a list of mappings. Raises InvalidEntry with the place of what is not.

    `what` names the items in the error.
    """
    if type(messages) is not list and (
        isinstance(messages, str | bytes | dict) or not isinstance(messages, Sequence)
    ):  # the type is compared first: `isinstance` with an abstract class costs as much as all other checks
        hint = "; to add one text, use add_user_message" if what == "message" and type(messages) is str else ""
        raise InvalidEntry(where, f"a list of {what}s is needed, not {type(messages).__name__}{hint}")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            hint = f"not {type(message).__name__}; model_dump() turns objects of a provider's library into mappings"
            raise InvalidEntry(f"{where}[{i}]", f"every {what} must be a mapping, {hint}")
    return messages


def fitting(name: str, refused: str | None, most: int) -> str:
    """Return the name as a provider accepts it: unchanged, or cleaned, cut to `most` characters, with a hash appended.

    `refused` is a pattern of characters that the provider does not accept. The result depends on the name alone, so
    that it stays the same when other names are added. The hash keeps different names different.
    """
    plain = name if refused is None else re.sub(refused, "_", name)
    if plain == name and len(name) <= most:
        return name
    return f"{plain[: most - 1 - _DIGITS]}_{digest(name)[:_DIGITS]}"


def is_fitted(name: str, original: str) -> bool:
    """Return whether a name is the `original`, or what `fitting` makes of it for any provider."""
    return name == original or name.endswith(f"_{digest(original)[:_DIGITS]}")


def renamed_tokens(name: str | None, most: int) -> int:
    """Return how many tokens a name that `fitting` changes may cost at most: a token is at least one byte."""
    return min(len((name or NAMELESS).encode("utf-8", "surrogatepass")) + 1 + _DIGITS, 4 * most)


def unused(name: str, number: int, taken: Container[str], most: int = 1000) -> str:
    """Return the name, or if it is taken, the name with the first free number from `number` on."""
    candidate = name
    while candidate in taken:
        candidate, number = fitting(f"{name}_{number}", None, most), number + 1
    return candidate


def numbered(name: str, taken: Container[str], counts: dict[str, int], most: int = 1000) -> str:
    """Return the name with a free number appended.

    `counts` keeps, for each name, where the last search stopped: so a name that occurs many times takes linear, not
    quadratic, time.
    """
    while True:
        count = counts[name] = counts.get(name, 1) + 1
        candidate = f"{name[: most - 1 - len(str(count))]}_{count}"
        if candidate not in taken:
            return candidate


ALIASES = {"human": "user", "ai": "assistant"}
"""Names of two roles in other libraries, and the providers' names for them."""


def canonical(messages: Any, format: Format) -> Any:
    """Return the messages with the role names of other libraries replaced; the same object if there are none.

    Those libraries write messages with `content`.
    """
    if format.content != "content" or type(messages) is not list:
        return messages
    for message in messages:
        if type(message) is dict and message.get("role") in ("human", "ai"):
            return [_canonical(message) for message in messages]
    return messages


def _canonical(message: Any) -> Any:
    role = message.get("role") if isinstance(message, dict) else None
    return {**message, "role": ALIASES[role]} if role in ("human", "ai") else message


def parted(message: Any) -> tuple[Any, Mapping[str, Any] | None]:
    """Return a message without its `metadata`, if they are a mapping or None, and them.

    They are the program's own values: no provider takes them.
    """
    own = message.get("metadata", "") if isinstance(message, Mapping) else ""
    if not isinstance(own, Mapping | None):
        return message, None
    return {key: value for key, value in message.items() if key != "metadata"}, own


def noted(entries: Iterable[Entry], metadata: Mapping[str, Any] | None, where: str) -> list[Entry]:
    """Return the entries of a message with its metadata. Raises InvalidEntry, naming the place, for what is no JSON."""
    if not metadata:
        return [*entries]
    with_metadata = [
        msgspec.structs.replace(entry, metadata={**(entry.metadata or {}), **metadata}) for entry in entries
    ]
    for entry in with_metadata:
        check(entry, where)
    return with_metadata


def is_own(entry: Entry, name: str) -> bool:
    """Whether unknown keys (`extra`) and opaque parts of the entry belong to the format `name`.

    Those of an entry without `native` belong to chat completions.
    """
    return (entry.native.format if entry.native is not None else CHAT) == name


def own_native(entry: Entry, name: str) -> Native | None:
    """Return the entry's `native` if it came in the format `name`, else None."""
    return entry.native if entry.native is not None and entry.native.format == name else None


def said_beside(entry: Entry, name: str) -> list[str]:
    """Return the texts that a message of chat completions says outside its content, for use in another format `name`.

    These are a refusal, thoughts, sound, or a call of the older kind: keys that only chat completions and compatible
    APIs have.
    """
    native = entry.native
    if native is None or native.format == name or native.format != CHAT or entry.role != "assistant":
        return []
    keep = native.keep or {}
    return [_key_text(key, keep[key]) for key in (*THOUGHTS, *SPEAKING) if keep.get(key)]


def _key_text(key: str, value: Any) -> str:
    """Return the text that stands for the value of one of these keys."""
    if isinstance(value, str):
        return fenced("thinking", value) if key in THOUGHTS else value
    if key == "audio" and isinstance(value, dict):
        return said_in_sound(value)
    return stand_in(Opaque(item={"type": key, key: value}))


def said_beside_overhead(entry: Entry, name: str) -> int:
    """Return the tokens of the fences around the texts of `said_beside`, whose words are counted with the entry."""
    return FENCE_TOKENS * len(said_beside(entry, name)) if entry.native is not None else 0


def unsaid(entry: Entry, name: str) -> list[Adapted]:
    """Return which keys of another format's item are shown as text, or left out, in the format `name`."""
    if is_own(entry, name):
        return []
    native = entry.native or Native(format=CHAT)
    speaking_keys = (*THOUGHTS, *SPEAKING) if said_beside(entry, name) else ()
    outcomes = {key: "as text" for key in speaking_keys if (native.keep or {}).get(key)}
    extras = () if isinstance(entry.content, str) else (part.extra for part in entry.content if part.extra)
    for holder in (native.keep or {}, native.call or {}, *extras):
        for key in _worded_keys(holder):
            outcomes.setdefault(key, "left out")
    return [Adapted(entry.seq, f"{key} {outcome}") for key, outcome in outcomes.items()]


def _worded_keys(holder: dict[str, Any]) -> Iterator[str]:
    """Yield the keys of a kept item whose values hold text for a reader."""
    for key, value in holder.items():
        if key in _HOLDERS:
            for inner in value if isinstance(value, list) else [value]:
                yield from _worded_keys(inner) if isinstance(inner, dict) else ()
        elif has_words(key, value):
            yield key


def has_words(key: str, value: Any) -> bool:
    """Whether the item's value under this key holds text for a reader, at any depth."""
    if key in _WORDLESS or key.startswith(UNREADABLE):
        return False
    if isinstance(value, dict):
        return any(has_words(inner_key, inner) for inner_key, inner in value.items())
    if isinstance(value, list):
        return any(has_words("", inner) for inner in value)
    return isinstance(value, str) and bool(value.strip())


def replaced_by_text(entry: Entry, part: Part, adapted: list[Adapted] | None) -> str:
    """Return the text that stands for a part which the format cannot take, and note that in `adapted`."""
    text = stand_in(part)
    if adapted is not None and not isinstance(part, Text):
        adapted.append(Adapted(entry.seq, f"{_kind(part)} {'as text' if text else 'left out'}"))
    return text


def background(
    shown: Shown, encode: Callable[[Part], Message | None], adapted: list[Adapted] | None
) -> tuple[str, list[Message]]:
    """Return the fenced text of an entry that is only data, and its media, which follow the fence.

    `encode` returns a part as a user's message of the format may hold it, or None if it has to become text.
    """
    entry = shown.entry
    if shown.text is not None or isinstance(entry.content, str):
        return shown_text(entry) if shown.text is None else shown.text, []
    lines, media = list[str](), list[Message]()
    for part in entry.content:
        if isinstance(part, Text | Reasoning):
            lines.append(guard(part.text))
        elif (encoded := encode(part)) is not None:
            media.append(encoded)
            lines.append(pointer(part))
        elif text := replaced_by_text(entry, part, adapted):
            lines.append(text)
    return shown_text(entry, "\n".join(lines)), media


def _kind(part: Part) -> str:
    return str(part.item.get("type", "item")) if isinstance(part, Opaque) else type(part).__name__.lower()


def stand_in_overhead(entry: Entry, name: str) -> int:
    """Return the most tokens that stand-ins add to the entry in the format `name`, beside its counted texts."""
    if isinstance(entry.content, str) or (is_own(entry, name) and entry.kind == "message"):
        return 0
    return sum(map(stand_in_tokens, entry.content))


def stand_in_tokens(part: Part | str) -> int:
    """Return the most tokens that a part's stand-in costs beside the counted texts. A document's contains its name."""
    if isinstance(part, Text | str):
        return 0
    name = part.filename or part.file_id or "" if isinstance(part, File) else ""
    return FENCE_TOKENS + len(name.encode("utf-8", "surrogatepass"))


def split_address(source: str) -> tuple[str, str] | None:
    """Return the media type and the base64 text of a `data:` address, or None for any other address.

    Only for addresses that `data_address` rebuilds exactly: those with parameters, for example, return None.
    """
    head, comma, data = source.partition(";base64,")
    if not comma or not head.startswith("data:") or not head[5:] or ";" in head or "," in head:
        return None
    return head[5:], data


def data_address(media_type: str, data: str) -> str:
    """Return the `data:` address of base64 text."""
    return f"data:{media_type};base64,{data}"


def is_blank(content: object) -> bool:
    """Whether content is empty, white space, or consists of parts that are."""
    if isinstance(content, str):
        return not content or content.isspace()
    return isinstance(content, tuple) and all(map(_says_nothing, content))


def _says_nothing(part: Part) -> bool:
    if isinstance(part, Opaque):  # an empty item, or a text part without text: no context would show it
        text = part.item.get("text")
        return not part.item or (part.item.get("type") in _TEXTS and not (isinstance(text, str) and text))
    return type(part) is Text and is_blank(part.text)


_TEXTS = ("text", "input_text")
"""Types of parts that hold only a text."""
