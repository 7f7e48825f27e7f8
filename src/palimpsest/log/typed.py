"""Values of Python as JSON that gives them back with their types: what a fact, or an item of a program, may be. Pure.

Beside JSON's own values these are datetime, date, bytes, tuple, set, frozenset, Decimal, UUID, and mappings whose keys
are text or whole numbers. What JSON has no form for stands in an object of one key, such as {"$tuple": [1, 2]}; a
mapping that has a key like these is written as pairs, so no value can pass for another.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID

from palimpsest.errors import ConfigError
from palimpsest.log.late import dumps, loads

DEEPEST = 100
"""Lists and mappings that may stand in each other."""
BITS = 13_000
"""Bits that a whole number may have: Python reads back few more in digits."""

LARGEST = f"whole numbers of at most {BITS:,} bits; a larger one may be given as text"
ALLOWED = (
    "None, True or False, text, finite numbers, bytes, date, datetime, Decimal, UUID, and lists, tuples, sets and "
    "mappings of them, with keys that are text or whole numbers"
)


def to_json(value: object, where: str) -> str:
    """The JSON of a value, in one line of ASCII.

    Raises ConfigError for what is none of those values, naming the place in it: `where`, and what leads there.
    """
    return dumps(_plain(value, where, 0), separators=(",", ":"))


def from_json(text: str | bytes) -> Any:
    """The value that `to_json` wrote, with its types; JSON of others is taken as it is. Raises ValueError.

    Where there is another text in the place of a date or the like, such as what a policy has written there, it is that.
    """
    try:
        value = loads(text)
        return _whole(value) if _may_have_tags(text) else value  # most values are JSON's own
    except (ArithmeticError, TypeError, RecursionError) as cause:
        raise ValueError(f"a value is not written as it should be ({type(cause).__name__})") from cause


def _may_have_tags(text: str | bytes) -> bool:
    """Whether a key in this JSON may begin with the character that tags do, however it is written."""
    if isinstance(text, bytes):
        return b'"$' in text or b"\\u0024" in text
    return '"$' in text or "\\u0024" in text


def text_of(value: object) -> str:
    """What a value that is neither a number nor holds others says, as a text: bytes as UTF-8, dates as they are
    written."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.isoformat() if isinstance(value, date) else str(value)


def _plain(value: object, where: str, depth: int) -> Any:
    """The value in JSON's own types."""
    kind = type(value)
    if _is_plain(value):
        return value
    if kind in _TEXTS and not (isinstance(value, Decimal) and value.is_nan()):
        tag, write = _TEXTS[kind]
        return {tag: write(value)}
    if depth < DEEPEST:
        if isinstance(value, dict) and kind is dict:
            return _mapping(value, where, depth)
        if isinstance(value, list | tuple) and kind in (list, tuple):
            plain = [_plain(one, f"{where}[{i}]", depth + 1) for i, one in enumerate(value)]
            return plain if kind is list else {"$tuple": plain}
        if isinstance(value, set | frozenset) and kind in (set, frozenset):
            plain = sorted((_plain(one, f"{where}{{}}", depth + 1) for one in value), key=dumps)
            return {"$set" if kind is set else "$frozenset": plain}
    raise ConfigError(where, value if kind in (float, Decimal) else kind.__name__, _allowed(kind, depth))


def _is_plain(value: object) -> bool:
    """Whether JSON has the value, and the type."""
    kind = type(value)
    if isinstance(value, int):
        return kind is bool or (kind is int and value.bit_length() <= BITS)
    if isinstance(value, float):
        return kind is float and isfinite(value)
    return value is None or kind is str


def _mapping(value: dict[Any, Any], where: str, depth: int) -> Any:
    for key in value:
        if type(key) not in (str, int) or not _is_plain(key):
            allowed = "keys that are text or whole numbers" if type(key) is not int else LARGEST
            raise ConfigError(f"{where}, a key", type(key).__name__, allowed)
    plain = [(key, _plain(one, f"{where}[{key!r}]", depth + 1)) for key, one in value.items()]
    if all(type(key) is str and not key.startswith("$") for key, _ in plain):
        return dict(plain)
    return {"$dict": plain}


def _allowed(kind: type, depth: int) -> str:
    if depth >= DEEPEST:
        return f"values in each other no deeper than {DEEPEST} times"
    if kind is int:
        return LARGEST
    dumped = " (what `model_dump()` or `asdict()` makes of an object is one)" if kind.__module__ != "builtins" else ""
    return ALLOWED + dumped


def _whole(value: Any) -> Any:
    """The value that stands for this one in JSON's types."""
    if isinstance(value, list):
        return [_whole(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((key, held),) = value.items()
        if key in _READ:
            return _READ[key](held)
        if key in _READ_TEXTS and isinstance(held, str):
            try:
                return _READ_TEXTS[key](held)
            except (ValueError, ArithmeticError):
                return held  # a policy has put something else in its place
    return {key: _whole(one) for key, one in value.items()}


def _sixty_four(value: bytes) -> str:
    return b64encode(value).decode()


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


_TEXTS: dict[type, tuple[str, Callable[[Any], str]]] = {
    datetime: ("$datetime", datetime.isoformat),
    date: ("$date", date.isoformat),
    bytes: ("$bytes", _sixty_four),
    Decimal: ("$decimal", str),
    UUID: ("$uuid", str),
}
"""Types that are written as a text, each with its key."""

_READ_TEXTS: dict[str, Callable[[str], Any]] = {
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$bytes": _bytes,
    "$decimal": Decimal,
    "$uuid": UUID,
}

_READ: dict[str, Callable[[Any], Any]] = {
    "$tuple": lambda held: tuple(map(_whole, held)),
    "$set": lambda held: set(map(_whole, held)),
    "$frozenset": lambda held: frozenset(map(_whole, held)),
    "$dict": lambda held: {key: _whole(one) for key, one in held},
}
