"""What formats share: whose an item is, addresses of data, what stands in for parts without a counterpart. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.entries import Entry, Native, Opaque, Part, Text
from palimpsest.errors import InvalidEntry
from palimpsest.formats import Adapted
from palimpsest.notes import FENCE_TOKENS, stand_in

DEFAULT = "openai"
"""The format that unknown keys and opaque parts of an entry belong to where its `native` names none."""

NAMELESS = "unknown"
"""The name of a tool that a call does not name: providers refuse an empty one."""


def mappings(messages: object, where: str, what: str = "message") -> Sequence[dict[str, Any]]:
    """Return what was handed in, checked to be a list of mappings. Raises InvalidEntry naming what is not."""
    if type(messages) is not list and (
        isinstance(messages, str | bytes | dict) or not isinstance(messages, Sequence)
    ):  # to ask what is a list for an abstract class costs as much as the rest
        raise InvalidEntry(where, f"a list of {what}s is needed, not {type(messages).__name__}")
    for i, message in enumerate(messages):
        if not isinstance(message, dict):
            hint = f"not {type(message).__name__}; objects of a provider's library become mappings by model_dump()"
            raise InvalidEntry(f"{where}[{i}]", f"{what}s are mappings, {hint}")
    return messages


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


def replaced_by_text(entry: Entry, part: Part, adapted: list[Adapted] | None) -> str:
    """The text that stands for a part that the format at hand cannot take; noted in `adapted`."""
    text = stand_in(part)
    if adapted is not None and not isinstance(part, Text):
        adapted.append(Adapted(entry.seq, f"{_kind(part)} {'as text' if text else 'left out'}"))
    return text


def _kind(part: Part) -> str:
    return str(part.item.get("type", "item")) if isinstance(part, Opaque) else type(part).__name__.lower()


def stand_in_overhead(entry: Entry, name: str) -> int:
    """Tokens that stand-ins may add to the entry in the format `name`, beside the texts that are counted."""
    if isinstance(entry.content, str) or is_own(entry, name):
        return 0
    return FENCE_TOKENS * sum(not isinstance(part, Text) for part in entry.content)


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
