"""Raw messages: what a program gives with a turn, as the log keeps it and as it comes back.

What has a form in JSON is stored: mappings, messages of Pydantic AI, and other models and dataclasses. The objects
themselves are handed out again in this process; after a restart messages of Pydantic AI are made anew of what was
stored, and other objects are the mappings that they were stored as. What has none is known in this process alone.
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
"""What raw messages are: none; those that the texts alone make, as mappings; JSON; Pydantic AI's; other objects."""

MessageForm: TypeAlias = Literal["auto", "dict", "pydantic_ai"]
"""What messages are made as that nobody gave: as those of the conversation, mappings, or Pydantic AI's."""

DEEPEST = 80
"""Levels of lists and mappings in a message: what is deeper is an object to us, since no store takes much more."""
MOST = 2**63


class Raw(NamedTuple):
    """Raw messages as they are handed out, and as they are stored (None: they are not)."""

    form: Form
    messages: list[Any]
    stored: list[Any] | None = None


def taken(given: Iterable[Any] | None, user: str, response: str) -> Raw:
    """The raw messages of a turn. Raises ConfigError for what is no list."""
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
        own = [copied(message) for message in messages]
    except _Odd:
        return _of_objects(messages)
    return Raw("json", own, own)


def brought(given: list[Any], user: str, response: str) -> Raw:
    """The raw messages of a turn that comes in, as `stored` had them or as objects. Raises ValueError for others."""
    try:
        stored: list[Any] = copied(given, tagged=True)
    except _Odd:
        raw = taken(given, user, response)
        if raw.form == "opaque":
            raise ValueError("has messages without a form in JSON") from None
        return raw
    if not stored:
        return Raw("texts", [])
    if stored == (plain := spoken(user, response)):
        return Raw("plain", plain)
    is_theirs = all(isinstance(one, dict) and isinstance(one.get("parts"), list) and "kind" in one for one in stored)
    return Raw("pydantic_ai" if is_theirs else "json", stored, stored)


def spoken(user: str, response: str) -> list[dict[str, Any]]:
    """The messages that two texts make, as mappings."""
    return [{"role": "user", "content": user}, {"role": "assistant", "content": response}]


def _of_objects(messages: list[Any]) -> Raw:
    if all(map(is_pydantic_ai, messages)):
        try:
            return Raw("pydantic_ai", messages, _stored(pydantic_ai().dumped(messages)))
        except (_Odd, ValueError, TypeError):
            return Raw("opaque", messages)
    try:
        return Raw("json", messages, _stored([_dumped(message) for message in messages]))
    except (_Odd, ConfigError, ValueError, TypeError, RecursionError):
        return Raw("opaque", messages)


def _stored(value: list[Any]) -> list[Any]:
    """Tagged values as a log takes them. Raises _Odd for what is too deep, or too large a number."""
    found: list[Any] = copied(value, tagged=True)
    return found


def _dumped(message: Any) -> Any:
    """A message in types of JSON, tagged where it has others."""
    if callable(dump := getattr(message, "model_dump", None)) and not isinstance(message, type):
        message = dump(mode="json")
    elif is_dataclass(message) and not isinstance(message, type):
        message = asdict(message)
    return portable(message, "raw_messages")


def is_pydantic_ai(message: Any) -> bool:
    """Whether this is an object of Pydantic AI."""
    return type(message).__module__.partition(".")[0] == "pydantic_ai"


def pydantic_ai() -> Any:
    """What knows the messages of Pydantic AI, which takes a second to load. Raises ImportError where it is missing."""
    return import_module("palimpsest.compat.firefly.pydantic_messages")


def read(form: Form, stored: list[Any] | None, user: str, response: str) -> Raw:
    """The raw messages that are stored with a turn."""
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
            "stored messages of Pydantic AI cannot be read, and are made of the turn's texts: %s", type(fault).__name__
        )
        return Raw("texts", [])


def handed_out(raw: Raw) -> list[Any]:
    """The messages for a program, which may change what of them is a mapping."""
    if raw.form == "plain":
        return [{**one} for one in raw.messages]
    return [_own(one) if type(one) is dict else one for one in raw.messages]


def _own(message: dict[str, Any]) -> Any:
    """A copy of a mapping, as far as it is one of values."""
    try:
        return copied(message, tagged=True)
    except _Odd:
        return {name: _part(one) for name, one in message.items()}


def _part(value: Any) -> Any:
    if type(value) is dict:
        return _own(value)
    return [_part(one) for one in value] if type(value) is list else value


def form_of(newest_first: Iterable[Raw], wanted: MessageForm) -> Literal["dict", "pydantic_ai"]:
    """What messages are made as that nobody gave."""
    if wanted != "auto":
        return wanted
    for raw in newest_first:
        if raw.form == "pydantic_ai":
            return "pydantic_ai"
        if raw.messages and type(raw.messages[0]) is dict:
            return "dict"
    return "pydantic_ai" if "pydantic_ai" in sys.modules else "dict"


def made(user: str | None, response: str | None, form: Literal["dict", "pydantic_ai"], at: datetime) -> list[Any]:
    """Messages of texts that were said then; None is a side that says nothing."""
    if form == "dict":
        return [
            one for one in spoken(user or "", response or "") if (user, response)[one["role"] != "user"] is not None
        ]
    found: list[Any] = pydantic_ai().spoken(user, response, at)
    return found


# --- copies


class _Odd(Exception):
    """A value that JSON would not give back as it is."""


def copied(value: Any, depth: int = 0, *, tagged: bool = False) -> Any:
    """A copy of a value of JSON. Raises _Odd for anything else, and unless it is `tagged` for what tags would hide."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return value
    if depth <= DEEPEST:
        if kind is dict:
            if all(type(key) is str and (tagged or key[:1] != "$") for key in value):
                return {key: copied(one, depth + 1, tagged=tagged) for key, one in value.items()}
        elif kind is list:
            return [copied(one, depth + 1, tagged=tagged) for one in value]
        elif (kind is int and -MOST <= value < MOST) or (kind is float and value - value == 0):
            return value
    raise _Odd
