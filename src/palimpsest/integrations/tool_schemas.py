"""The tools for a model: their schemas in each provider's shape, and the check of arguments. Pure.

Arguments are written by a model. Each is checked here, by its name, its type and its bounds, before anything is done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from palimpsest.errors import ConfigError, nearest, shorten

ToolFormat: TypeAlias = Literal["openai", "openai-responses", "anthropic", "gemini", "mcp"]
"""The provider whose shape a tool's definition has."""

ARGUMENTS = 20_000
"""Characters that a call's arguments may have, as JSON."""

QUERY, KEY, VALUE = 1000, 256, 4000
"""Characters that a query, a fact's key and a fact's value may have."""

ANSWERS, ENTRIES = 20, 20
"""How many passages one search may return, and how many entries may be read at once."""

LAST = 2**53


class Refused(Exception):
    """A call that cannot be carried out. The message is for the model."""


class Param(NamedTuple):
    """One argument: its `type` in JSON ("time" is a text, "names" a list), and bounds: of characters, items, or the
    number."""

    name: str
    type: Literal["string", "integer", "number", "time", "names"]
    says: str
    low: int = 0
    high: int = LAST
    required: bool = False


class Tool(NamedTuple):
    """One tool: what it `says` to the model, and its arguments. `writes` says whether it changes anything."""

    name: str
    says: str
    params: tuple[Param, ...]
    writes: bool = False


SESSION = Param("session", "string", "The id of the conversation, as search_memory names it.", 1, 256)

TOOLS = (
    Tool(
        "search_memory",
        "Search everything that was said earlier, also what is no longer in this conversation. Returns the passages "
        "that answer best, each with its time, who said it, and the number of its entry. Use it before you say that "
        "you do not know something about the user or about earlier work.",
        (
            Param("query", "string", 'A question, or words; words in "double quotes" are a phrase.', 1, QUERY, True),
            Param("limit", "integer", "The most passages, 5 by default.", 1, ANSWERS),
            Param("since", "time", "Only what was said then or later: 2026-11-01 or 2026-11-01T12:00, UTC."),
            Param("until", "time", "Only what was said before then, UTC."),
        ),
    ),
    Tool(
        "read_entries",
        "Read entries of the log whole, by their numbers: those of search_memory, and those of notes such as "
        "[old result left out: entry 12].",
        (
            Param("entries", "names", "Numbers of entries, or their ids.", 1, ENTRIES, True),
            Param("start", "integer", "The character at which to go on with a long entry, 0 by default.", 0),
        ),
    ),
    Tool(
        "remember_fact",
        "Keep something that stays true beyond this conversation, such as a wish or a decision, under a short key. A "
        "fact of the same key is replaced.",
        (
            Param("key", "string", "A short name, such as home_airport.", 1, KEY, True),
            Param("value", "string", "What to remember, in one sentence.", 1, VALUE, True),
            Param("importance", "number", "From 0 to 1, 0.5 by default.", 0, 1),
        ),
        writes=True,
    ),
    Tool(
        "forget_fact",
        "Take away a fact that is not true any more, by its key.",
        (Param("key", "string", "The key under which it was remembered.", 1, KEY, True),),
        writes=True,
    ),
)

ToolName: TypeAlias = Literal["search_memory", "read_entries", "remember_fact", "forget_fact"]
"""The tools that a model may be offered."""


# --- schemas


def definition(tool: Tool, format: ToolFormat) -> dict[str, Any]:
    """Return a tool in the shape of a provider. Raises ConfigError for an unknown format."""
    schema = schema_of(tool)
    about = {"name": tool.name, "description": tool.says}
    if format == "openai":
        return {"type": "function", "function": {**about, "parameters": schema}}
    if format == "openai-responses":
        return {"type": "function", **about, "parameters": schema, "strict": False}
    if format == "anthropic":
        return {**about, "input_schema": schema}
    if format == "gemini":
        return {**about, "parameters_json_schema": schema}
    if format == "mcp":
        hints = {"readOnlyHint": not tool.writes, "destructiveHint": tool.name == "forget_fact", "openWorldHint": False}
        return {**about, "inputSchema": schema, "annotations": hints}
    formats = get_args(ToolFormat)
    raise ConfigError("format", format, ", ".join(formats), nearest=nearest(format, formats))


def schema_of(tool: Tool) -> dict[str, Any]:
    """Return the JSON Schema of a tool's arguments."""
    return {
        "type": "object",
        "properties": {param.name: _schema(param) for param in tool.params},
        "required": [param.name for param in tool.params if param.required],
        "additionalProperties": False,
    }


def _schema(param: Param) -> dict[str, Any]:
    if param.type == "names":
        items = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
        bounds: dict[str, Any] = {"items": items, "minItems": param.low, "maxItems": param.high}
        return {"type": "array", "description": param.says, **bounds}
    if param.type in ("string", "time"):
        bounds = {"minLength": param.low, "maxLength": param.high} if param.type == "string" else {}
        return {"type": "string", "description": param.says, **bounds}
    bounds = {"minimum": param.low, **({"maximum": param.high} if param.high < LAST else {})}
    return {"type": param.type, "description": param.says, **bounds}


# --- arguments


def checked(tool: Tool, given: object) -> dict[str, Any]:
    """Return the arguments of a call, checked, with times as datetimes. Raises Refused."""
    arguments = _object(given)
    names = [param.name for param in tool.params]
    for name in arguments:
        if name not in names:
            meant = nearest(name, names)
            hint = f"; did you mean {meant}?" if meant else f"; it takes {', '.join(names)}"
            raise Refused(f"{tool.name} takes no argument {shorten(name)}{hint}")
    values = dict[str, Any]()
    for param in tool.params:
        value = arguments.get(param.name)
        if value is not None:
            values[param.name] = _checked(param, value)
        elif param.required:
            raise Refused(f"{tool.name} needs the argument {param.name}: {param.says}")
    return values


def _object(given: object) -> Mapping[str, Any]:
    """Return a call's arguments as a mapping. Raises Refused."""
    if given is None or given == "":
        return {}
    if isinstance(given, str | bytes):
        if len(given) > ARGUMENTS:
            raise Refused(f"the arguments are too long: at most {ARGUMENTS:,} characters")
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise Refused("the arguments are no JSON: give one object, such as {}") from None
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise Refused("the arguments are no object: give names with values")
    return given


def _checked(param: Param, value: object) -> Any:
    """Return one argument, checked against its type and bounds. Raises Refused."""
    match param.type:
        case "string":
            return _text(param, value)
        case "time":
            return _time(param, value)
        case "names":
            return _names(param, value)
        case "integer" if (whole := _whole(value)) is not None:
            number: float = whole
        case "number" if type(value) in (int, float):
            number = value  # type: ignore[assignment]
        case kind:
            allowed = "a whole number" if kind == "integer" else "a number"
            raise Refused(f"{param.name} is {allowed}, not {shorten(value)}")
    if not param.low <= number <= param.high:
        raise Refused(f"{param.name} is {_bounds(param)}, not {shorten(value)}")
    return number


def _whole(value: object) -> int | None:
    """Return a whole number, which in JSON may be written as 3.0; None for anything else."""
    return int(value) if type(value) is int or (type(value) is float and value.is_integer()) else None


def _bounds(param: Param) -> str:
    return f"{param.low} or more" if param.high >= LAST else f"from {param.low} to {param.high}"


def _text(param: Param, value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise Refused(f"{param.name} is a text that is not blank, not {shorten(value)}")
    if len(value) > param.high:
        raise Refused(f"{param.name} is too long: {len(value):,} characters, and at most {param.high:,} are taken")
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Refused(f"{param.name} has half a character in it: give plain text")
    return value


def _time(param: Param, value: object) -> datetime:
    try:
        time = datetime.fromisoformat(value)  # type: ignore[arg-type]
        return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    except (ValueError, TypeError):
        problem = f"{param.name} is a day or a time, such as 2026-11-01 or 2026-11-01T12:00, not {shorten(value)}"
        raise Refused(problem) from None


def _names(param: Param, value: object) -> list[int | str]:
    given: Sequence[object] = value if isinstance(value, list | tuple) else [value]
    if not param.low <= len(given) <= param.high:
        raise Refused(f"{param.name} are {_bounds(param)} numbers, not {len(given):,}")
    names = list[int | str]()
    for item in given:
        if (number := _whole(item)) is not None and 0 < number < LAST:
            names.append(number)
        elif isinstance(item, str) and 0 < len(item) <= SESSION.high:
            names.append(int(item) if item.isdecimal() and len(item) < 16 else item)
        else:
            raise Refused(f"{param.name} are numbers of entries, or ids, not {shorten(item)}")
    return names
