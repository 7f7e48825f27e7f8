"""What a call of a vendor's client asks for, as the log needs it: the seam to the vendors' modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_origin

import msgspec

from palimpsest.errors import ConfigError, InvalidEntry, shorten
from palimpsest.log import values

Kind: TypeAlias = Literal["create", "whole", "stream", "helper"]
"""How a method answers: as its `stream=` argument says, whole, in pieces, or by a helper around a stream."""


class Asked(NamedTuple):
    """What a call asks for: new messages for the log, and what is for this call alone.

    `system` text, `tools` and `model` are the call's; `answer` is the most tokens that the answer may have. `marks`
    says whether the request may carry marks for the provider's cache. `where` is the argument that holds the messages,
    of which the new ones begin at index `first`. `forms` are the schemas that the answer must follow; they cost tokens
    like tools.
    """

    messages: Sequence[Any]
    system: str | None
    tools: Sequence[Mapping[str, Any]]
    model: str | None
    answer: int | None
    marks: bool = True
    where: str = "messages"
    first: int = 0
    forms: Sequence[Mapping[str, Any]] = ()

    def place(self, place: str) -> str:
        """Return a place in the new messages as the place in the call's arguments."""
        number, bracket, rest = place.removeprefix("messages[").partition("]")
        return f"{self.where}[{int(number) + self.first}]{rest}" if bracket and number.isdecimal() else place


class Dialect(ABC):
    """One way in which a client asks a model."""

    format: str

    @abstractmethod
    def read(self, given: Mapping[str, Any]) -> Asked:
        """Return what a call's arguments ask for.

        Raises ConfigError for a call that would go around the log, InvalidEntry for a message that is not the caller's.
        """

    @abstractmethod
    def build(self, given: Mapping[str, Any], request: Mapping[str, Any], *, streams: bool) -> dict[str, Any]:
        """Return the arguments to call the client with: those given, changed by what `Context.request` returned."""

    def hides(self, given: Mapping[str, Any], event: object) -> bool:
        """Return whether an event of the stream comes from an option that the caller has not given."""
        return False


def part_of(thing: object, *names: str) -> Any:
    """Return what a mapping or an object has under the first of these names that is not None; None if there is none."""
    for name in names:
        value = thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
        if value is not None:
            return value
    return None


NO_LISTS = (str, bytes, bytearray, memoryview, range)
"""Sequences that never hold messages or parts; a range may have a billion numbers."""


def listed(value: object, where: str, allowed: str = "a list of the messages that are new") -> list[Any]:
    """Return the value as a list of messages, or of what else is allowed. Raises ConfigError if it is no list."""
    if value is None:
        return []
    if isinstance(value, (*NO_LISTS, Mapping)) or not hasattr(value, "__iter__"):
        raise ConfigError(where, value, allowed)
    return list(value)


SAYS_NEW = (
    "give only new messages. The log has everything that was said before, and answers of the model are added as they "
    "come. session.add(…) adds what the log does not have yet"
)


def only_new(messages: Sequence[Any], roles: Collection[str], where: str, first: int = 0) -> None:
    """Raise InvalidEntry, naming its place, for a message of another role than these."""
    for i, message in enumerate(messages, first):
        role = part_of(message, "role")
        if role not in roles:
            whose = "has no role" if role is None else f"is of the role {shorten(role)}"
            raise InvalidEntry(f"{where}[{i}]", f"{whose}: {SAYS_NEW}")


def without_system(messages: Sequence[Any], where: str) -> tuple[list[str], Sequence[Any]]:
    """Return the system texts that a list of messages begins with, and the messages after them."""
    texts = list[str]()
    for i, message in enumerate(messages):
        if part_of(message, "role") not in ("system", "developer"):
            break
        texts += texts_of(part_of(message, "content"), f"{where}[{i}].content")
    else:
        return texts, ()
    return texts, messages[i:]


def texts_of(value: object, where: str) -> list[str]:
    """Return system text in any form that clients take: text, blocks or parts of text, or lists of these.

    Raises ConfigError for anything else.
    """
    if value is None or isinstance(value, str):
        return [value] if value else []
    if isinstance(value, Sequence):
        return [text for i, item in enumerate(value) for text in texts_of(item, f"{where}[{i}]")]
    parts = part_of(value, "parts")
    text = part_of(value, "text")
    if parts is not None:
        return texts_of(parts, f"{where}.parts")
    if isinstance(text, str):
        return [text]
    raise ConfigError(where, value, "text, since a system message can have nothing else")


def system_of(texts: Sequence[str]) -> str | None:
    """Return system texts joined into one, or None."""
    return "\n\n".join(texts) or None


_TOOLS = "a list of declarations of tools"


def with_tools_listed(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a call's arguments with its tools as a list: an iterator could not be read twice, to count and to send
    them.

    Raises ConfigError for what is no list of tools.
    """
    config = given.get("config")
    if given.get("tools") is not None:
        given = {**given, "tools": listed(given["tools"], "tools", _TOOLS)}
    if isinstance(config, Mapping) and config.get("tools") is not None:
        given = {**given, "config": {**config, "tools": listed(config["tools"], "config.tools", _TOOLS)}}
    return given


def tools_of(value: object, where: str) -> list[Mapping[str, Any]]:
    """Return tools as mappings, to be counted.

    Raises ConfigError for functions and the like, which a client might run itself.
    """
    tools = list[Mapping[str, Any]]()
    for i, tool in enumerate(listed(value, where, _TOOLS)):
        plain = tool if isinstance(tool, Mapping) else _dumped(tool)
        if plain is None:
            raise ConfigError(
                f"{where}[{i}]",
                tool,
                "the declaration of a tool: functions are not run here, so run yours when the model calls it",
            )
        tools.append(plain)
    return tools


def forms_of(*values: object) -> list[Mapping[str, Any]]:
    """Return the schemas that the answer must follow, to be counted: mappings, objects of a client, or types.

    What only names a form, such as JSON, costs nothing. What is no schema is left for the client to refuse.
    """
    schemas = list[Mapping[str, Any]]()
    for value in values:
        schema = value if isinstance(value, Mapping) else _dumped(value) or _schema_of(value)
        if schema and not schema.keys() <= {"type"}:
            schemas.append(schema)
    return schemas


def _schema_of(kind: object) -> Mapping[str, Any] | None:
    """Return the JSON Schema of a type; None for what is no type or has none."""
    if not isinstance(kind, type) and get_origin(kind) is None:
        return None

    def described(model: Any) -> dict[str, Any]:
        schema: dict[str, Any] = model.model_json_schema()
        return schema

    try:
        return msgspec.json.schema(kind, schema_hook=described)
    except Exception:  # noqa: BLE001 (the caller's class builds its own schema, and may raise anything)
        return None


def _dumped(tool: object) -> Mapping[str, Any] | None:
    dump = getattr(tool, "model_dump", None)
    if dump is None or isinstance(tool, type):
        return None
    plain: Mapping[str, Any] = dump(mode="json", exclude_none=True)
    return plain


def streams_of(given: Mapping[str, Any]) -> bool:
    """Return whether a call asks for the answer in pieces. Raises ConfigError if `stream` is neither true nor false."""
    value = given.get("stream")
    if not (value is None or isinstance(value, bool | int)):
        raise ConfigError("stream", value, "True or False")
    return bool(value)


def tokens_of(given: object, *names: str, where: str = "") -> int | None:
    """Return the most tokens that the answer may have, or None if the call does not say.

    Raises ConfigError for no number.
    """
    for name in names:
        value = part_of(given, name)
        if value is not None and not values.is_whole(value):
            raise ConfigError(f"{where}{name}", value, "a whole number of tokens, or nothing")
        if value is not None:
            return int(value)
    return None


def refuse(given: object, *refused: str, why: str) -> None:
    """Raise ConfigError for an option that makes the provider remember, too, or deliver the answer elsewhere."""
    for name in refused:
        value = part_of(given, name)
        if not (value is None or (isinstance(value, bool | int) and not value)):  # an array has no truth value
            raise ConfigError(name, value, f"nothing: leave it out, since {why}")


def one_answer(given: object, *names: str, where: str = "") -> None:
    """Raise ConfigError if several answers are asked for."""
    for name in names:
        value = part_of(given, name)
        if not (value is None or (values.is_whole(value) and value == 1)):
            raise ConfigError(f"{where}{name}", value, "1, since a conversation continues with one answer")
