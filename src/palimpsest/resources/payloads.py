"""Payloads that are written to a declared memory by key, and their limits. Pure."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from palimpsest.errors import ConfigError, InvalidEntry, shorten
from palimpsest.formats.common import is_blank
from palimpsest.log import values
from palimpsest.log.checks import DEEPEST
from palimpsest.log.codec import escaped
from palimpsest.sessions.adding.decoding import BLANK

VARIABLES = {"content_bytes": "MAX_MESSAGE_CONTENT_LENGTH", "total_bytes": "MAX_TOTAL_CONTENT_SIZE"}
"""The environment variables of limits, which override what is declared, unless the program gives limits."""
KEYS = {
    "max_message_content": "content_bytes",
    "max_total_content_size": "total_bytes",
    "max_messages_per_request": "messages",
}
"""The keys of a resource's `limits`, and the field of `Limits` that each sets. The first two are Compozy's."""


SAYING = ("user", "human", "system", "developer")
"""The roles whose messages may not be empty."""

MEASURED = {"role", "content"}
"""The fields of a message that are not added to the total size: the content is counted already, a role is not counted.
"""


FIELDS = (
    *("role", "content", "metadata", "name", "tool_calls", "tool_call_id", "function_call"),
    *("refusal", "audio", "annotations", "reasoning", "reasoning_content", "reasoning_details"),
)
"""The fields that a message may have: ours, and those of chat completions. Any other would be sent to the model, and
providers refuse it."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much one call may write by key.

    Args:
        content_bytes: bytes of one message's text in UTF-8; 10,240 by default.
        messages: messages of one call; 100 by default.
        total_bytes: bytes of all that they hold, calls of tools included; 102,400 by default.
    """

    content_bytes: int = 10_240
    messages: int = 100
    total_bytes: int = 102_400

    @classmethod
    def of(cls, given: Limits | Mapping[str, int] | None, declared: Mapping[str, int] | None = None) -> Limits:
        """Return limits: those given, or those that a resource declares, overridden by the environment.

        Raises ConfigError, naming it, for an invalid one.

        Args:
            given: limits, or a mapping with their fields; None: the declared ones and the environment's.
            declared: fields that a resource declares.
        """
        if given is None:
            named = {name: _variable(variable) for name, variable in VARIABLES.items() if os.environ.get(variable)}
            given = {**(declared or {}), **named}
        if isinstance(given, Mapping):
            values.known("limits", given, cls.__struct_fields__, inside=True)
            given = cls(**given)
        if not isinstance(given, cls):
            raise ConfigError("limits", type(given).__name__, "Limits, or a mapping with their fields")
        for name in cls.__struct_fields__:
            values.whole(f"limits.{name}", getattr(given, name), 1)
        return given

    def checked(self, payload: object) -> list[dict[str, Any]]:
        """Return the messages of a payload. Raises InvalidEntry, naming the place, for one that is invalid, or
        over a limit (`too_large`).

        Args:
            payload: a text (a message of the user), a mapping with `content` (and `role`, "user" by default, and
                `metadata`, a mapping), or a list of these. Other fields are those of chat completions (`FIELDS`).
        """
        many = payload if isinstance(payload, Sequence) and not isinstance(payload, str | bytes) else [payload]
        if (given := _length(many)) > self.messages:
            raise InvalidEntry(
                "payload", f"has {given:,} messages; at most {self.messages:,} are accepted at once", too_large=True
            )
        total, messages = 0, []
        for i, item in enumerate(many):
            where = f"payload[{i}]" if many is payload else "payload"
            message = {"role": "user", "content": item} if isinstance(item, str) else item
            if not isinstance(message, Mapping) or "content" not in message:
                raise InvalidEntry(where, "is not a message: give a text, or a mapping with content and role")
            if not isinstance(message.get("metadata"), Mapping | None):
                raise InvalidEntry(f"{where}.metadata", "is not a mapping")
            size = _size(message["content"], where)
            if size > self.content_bytes:
                raise InvalidEntry(
                    where, f"has {size:,} bytes of content; at most {self.content_bytes:,} are accepted", too_large=True
                )
            total += size + sum(_size(value, where) for key, value in message.items() if key not in MEASURED)
            unknown = [key for key in message if key not in FIELDS]
            if unknown:
                known = ", ".join(FIELDS)
                raise InvalidEntry(where, f"has the unknown field {shorten(unknown[0])}; known are {known}")
            if message.get("role", "user") in SAYING and is_blank(message["content"]):
                raise InvalidEntry(f"messages[{i}].content", BLANK)
            messages.append({"role": "user", **message})
        if total > self.total_bytes:
            raise InvalidEntry(
                "payload", f"has {total:,} bytes in all; at most {self.total_bytes:,} are accepted", too_large=True
            )
        return messages


def _length(many: Sequence[Any]) -> int:
    try:
        return len(many)
    except OverflowError:  # `len` fails for a range of more than sys.maxsize items
        return sys.maxsize


def _size(content: object, where: str) -> int:
    """Return how many bytes a value of a message has. Raises InvalidEntry for one that is nested too deeply."""
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    if content is None:
        return 0
    try:
        try:
            return len(msgspec.json.encode(content, enc_hook=str))
        except UnicodeEncodeError:
            return len(escaped(content))
    except RecursionError:
        raise InvalidEntry(where, f"is more than {DEEPEST} levels deep") from None


def _variable(name: str) -> int:
    value = os.environ[name].strip()
    if not value.isdecimal() or len(value) > 18 or int(value) < 1:
        raise ConfigError(name, value, "a whole number of at least 1")
    return int(value)
