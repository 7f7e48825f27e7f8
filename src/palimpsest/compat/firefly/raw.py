"""Raw messages: what a program supplies with a turn, how the log stores it, and how it is handed out again.

Messages that have a form in JSON are stored: mappings, messages of Pydantic AI, other models and dataclasses. This
process hands out the objects themselves again. After a restart, messages of Pydantic AI are rebuilt from their stored
form, and other objects come back as the mappings that they were stored as. Messages without a form in JSON are kept in
this process only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, is_dataclass
from datetime import datetime
from importlib import import_module
from typing import Any, Literal, NamedTuple, TypeAlias

from palimpsest.compat.firefly.entries import portable, restored
from palimpsest.errors import ConfigError
from palimpsest.runtime.logs import warn

Form: TypeAlias = Literal["texts", "plain", "json", "pydantic_ai", "opaque"]
"""Kinds of raw messages.

"texts": there are none; "plain": just the two texts of the turn, as mappings; "json": anything else that has a form in
JSON; "pydantic_ai": messages of Pydantic AI; "opaque": objects without a form in JSON.
"""

MessageForm: TypeAlias = Literal["auto", "dict", "pydantic_ai"]
"""The form of messages that the program did not supply; "auto": that of the conversation's other messages."""

DEEPEST = 80
"""How deep a message may be nested. A deeper one is kept as an object, since no store takes much more."""
MOST = 2**63
"""A message with an integer of more than 64 bits is kept as an object, too."""


class Raw(NamedTuple):
    """Raw messages as they are handed out, and as they are stored (None: they are not stored)."""

    form: Form
    messages: list[Any]
    stored: list[Any] | None = None


def taken(given: Iterable[Any] | None, user: str, response: str) -> Raw:
    """Return the raw messages of a turn as a program supplied them. Raises ConfigError for anything but a list."""
    if given is None:
        return Raw("texts", [])
    if isinstance(given, str | bytes | Mapping):
        raise ConfigError("raw_messages", type(given).__name__, "a list of messages, or None")
    try:
        messages = list(given)
    except TypeError:
        raise ConfigError("raw_messages", type(given).__name__, "a list of messages, or None") from None
    if not messages:
        return Raw("texts", [])
    if type(messages[0]) is dict and messages == (plain := spoken(user, response)) and type(messages[-1]) is dict:
        return Raw("plain", plain)
    try:
        copies = [copied(message) for message in messages]
    except _NotJson:
        return _of_objects(messages)
    return Raw("json", copies, copies)


def brought(given: list[Any], user: str, response: str) -> Raw:
    """Return the raw messages of an imported turn, which are in their stored form or objects.

    Raises ValueError for objects that have no form in JSON.
    """
    try:
        stored: list[Any] = copied(given, tagged=True)
    except _NotJson:
        raw = taken(given, user, response)
        if raw.form == "opaque":
            raise ValueError("has messages that cannot be written as JSON") from None
        return raw
    if not stored:
        return Raw("texts", [])
    if stored == (plain := spoken(user, response)):
        return Raw("plain", plain)
    is_pydantic = all(
        isinstance(item, dict) and isinstance(item.get("parts"), list) and "kind" in item for item in stored
    )
    return Raw("pydantic_ai" if is_pydantic else "json", stored, stored)


def spoken(user: str, response: str) -> list[dict[str, Any]]:
    """Return the two texts of a turn as messages, which are mappings."""
    return [{"role": "user", "content": user}, {"role": "assistant", "content": response}]


def _of_objects(messages: list[Any]) -> Raw:
    if all(map(is_pydantic_ai, messages)):
        try:
            return Raw("pydantic_ai", messages, _stored(pydantic_ai().dumped(messages)))
        except (_NotJson, ValueError, TypeError):
            return Raw("opaque", messages)
    try:
        return Raw("json", messages, _stored([_dumped(message) for message in messages]))
    except (_NotJson, ConfigError, ValueError, TypeError, RecursionError):
        return Raw("opaque", messages)


def _stored(value: list[Any]) -> list[Any]:
    """Return tagged values as the log keeps them.

    Raises _NotJson if they are nested too deep or have too large a number.
    """
    copies: list[Any] = copied(value, tagged=True)
    return copies


def _dumped(message: Any) -> Any:
    """Return a message as values of JSON, tagged where they stand for other types."""
    if callable(dump := getattr(message, "model_dump", None)) and not isinstance(message, type):
        message = dump(mode="json")
    elif is_dataclass(message) and not isinstance(message, type):
        message = asdict(message)
    return portable(message, "raw_messages")


def is_pydantic_ai(message: Any) -> bool:
    """Return whether the message is an object of Pydantic AI."""
    return type(message).__module__.partition(".")[0] == "pydantic_ai"


def pydantic_ai() -> Any:
    """Return the module that converts messages of Pydantic AI.

    Loading it takes a second. Raises ImportError without Pydantic AI.
    """
    return import_module("palimpsest.compat.firefly.pydantic_messages")


def read(form: Form, stored: list[Any] | None, user: str, response: str) -> Raw:
    """Return the raw messages that were stored with a turn."""
    if form == "plain":
        return Raw("plain", spoken(user, response))
    if stored is None or form not in ("json", "pydantic_ai"):
        return Raw("texts", [])
    if form == "json":
        return Raw("json", [restored(message) for message in stored], stored)
    try:
        return Raw("pydantic_ai", pydantic_ai().loaded(stored), stored)
    except ImportError:
        return Raw("json", stored, stored)
    except ValueError as fault:
        warn(
            "stored messages of Pydantic AI cannot be read, and are rebuilt from the texts of the turn: %s",
            type(fault).__name__,
        )
        return Raw("texts", [])


def handed_out(raw: Raw) -> list[Any]:
    """Return the messages for a program. Mappings are copies, which it may change."""
    if raw.form == "plain":
        return [{**message} for message in raw.messages]
    return [_copy(message) if type(message) is dict else message for message in raw.messages]


def _copy(message: dict[str, Any]) -> Any:
    """Return a copy of a mapping, in which lists and mappings are copied and other objects shared."""
    try:
        return copied(message, tagged=True)
    except _NotJson:
        return {name: _part(value) for name, value in message.items()}


def _part(value: Any) -> Any:
    if type(value) is dict:
        return _copy(value)
    return [_part(item) for item in value] if type(value) is list else value


_TURN = frozenset(("message", "user", "assistant"))
_SAY_KIND = ("role", "type", "kind", "part_kind", "tags")
"""Keys of messages whose values say what they are."""
_KINDS = {
    **dict.fromkeys(("tool-return", "tool_result", "function_call_output", "functionResponse", "tool"), "tool_result"),
    **dict.fromkeys(("tool-call", "tool_calls", "tool_use", "function_call", "functionCall"), "tool_call"),
    **dict.fromkeys(("system-prompt", "developer"), "system"),
}
"""What Palimpsest calls kinds of messages and parts, by what messages call them, and by keys that hold them."""


def kinds_in(stored: Any) -> set[str]:
    """Return what a turn with these stored raw messages consists of, as a policy may name it: roles, kinds, types and
    tags."""
    found, pending = set(_TURN), [stored]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            found.update(name for name in value if name in _KINDS)
            for name in _SAY_KIND:
                said = value.get(name)
                found.update(one for one in (said if isinstance(said, list) else [said]) if isinstance(one, str))
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    return found | {_KINDS[name] for name in found if name in _KINDS}


def form_of(newest_first: Iterable[Raw], wanted: MessageForm) -> Literal["dict", "pydantic_ai"]:
    """Return in which form to make messages that the program did not supply."""
    if wanted != "auto":
        return wanted
    for raw in newest_first:
        if raw.form == "pydantic_ai":
            return "pydantic_ai"
        if raw.messages and type(raw.messages[0]) is dict:
            return "dict"
    return "pydantic_ai" if "pydantic_ai" in sys.modules else "dict"


def made(user: str | None, response: str | None, form: Literal["dict", "pydantic_ai"], at: datetime) -> list[Any]:
    """Make the messages of texts that were said at this time; None: that side says nothing."""
    if form == "dict":
        return [
            message
            for message, text in zip(spoken(user or "", response or ""), (user, response), strict=True)
            if text is not None
        ]
    messages: list[Any] = pydantic_ai().spoken(user, response, at)
    return messages


# --- copies


class _NotJson(Exception):
    """A value that JSON would not give back unchanged."""


def copied(value: Any, depth: int = 0, *, tagged: bool = False) -> Any:
    """Return a copy of a value of JSON. Raises _NotJson for any other value.

    Mappings with keys that begin with "$" are accepted only if the value is `tagged`: else they would be read back as
    tags.
    """
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return value
    if depth <= DEEPEST:
        if kind is dict:
            if all(type(key) is str and (tagged or key[:1] != "$") for key in value):
                return {key: copied(item, depth + 1, tagged=tagged) for key, item in value.items()}
        elif kind is list:
            return [copied(item, depth + 1, tagged=tagged) for item in value]
        elif (kind is int and -MOST <= value < MOST) or (kind is float and value - value == 0):
            return value
    raise _NotJson
