"""Python values as JSON that restores their types: the values that facts and items of programs may have. Pure.

Beside JSON's own values these are datetime, date, bytes, tuple, set, frozenset, Decimal, UUID, and mappings whose keys
are text or whole numbers. A value that JSON cannot express is written as an object with one key, such as {"$tuple": [1,
2]}. A mapping that has a key of this form itself is written as pairs, so that no value can be mistaken for another.
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
from palimpsest.log.lazy_imports import dumps, loads

DEEPEST = 100
"""How deep lists and mappings may be nested."""
BITS = 13_000
"""Most bits of a whole number: Python does not parse many more digits."""

LARGEST = f"whole numbers of at most {BITS:,} bits; a larger one may be given as text"
ALLOWED = (
    "None, True or False, text, finite numbers, bytes, date, datetime, Decimal, UUID, and lists, tuples, sets and "
    "mappings of them, with keys that are text or whole numbers"
)


def to_json(value: object, where: str) -> str:
    """Return the JSON of a value, as one line of ASCII.

    Raises ConfigError for any other value, naming its place: `where`, and the path from there.
    """
    return dumps(_plain(value, where, 0), separators=(",", ":"))


def from_json(text: str | bytes) -> Any:
    """Return the value that `to_json` wrote, with its types. Other JSON is returned as it is. Raises ValueError.

    If a date or the like holds another text, such as one that a policy has put there, that text is returned.
    """
    try:
        value = loads(text)
        return _restored(value) if _may_have_tags(text) else value  # most values are JSON's own
    except (ArithmeticError, TypeError, RecursionError) as cause:
        raise ValueError(f"a stored value has the wrong form ({type(cause).__name__})") from cause


def _may_have_tags(text: str | bytes) -> bool:
    """Whether this JSON may have a key that begins with `$`, escaped or not."""
    if isinstance(text, bytes):
        return b'"$' in text or b"\\u0024" in text
    return '"$' in text or "\\u0024" in text


def text_of(value: object) -> str:
    """Return a value that is no number and no container as text: bytes decoded as UTF-8, dates in ISO format."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value.isoformat() if isinstance(value, date) else str(value)


def _plain(value: object, where: str, depth: int) -> Any:
    """Return the value in JSON's own types."""
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
            plain = [_plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
            return plain if kind is list else {"$tuple": plain}
        if isinstance(value, set | frozenset) and kind in (set, frozenset):
            plain = sorted((_plain(item, f"{where}{{}}", depth + 1) for item in value), key=dumps)
            return {"$set" if kind is set else "$frozenset": plain}
    raise ConfigError(where, value if kind in (float, Decimal) else kind.__name__, _allowed(kind, depth))


def _is_plain(value: object) -> bool:
    """Whether JSON can express the value with its type."""
    kind = type(value)
    if isinstance(value, int):
        return kind is bool or (kind is int and value.bit_length() <= BITS)
    if isinstance(value, float):
        return kind is float and isfinite(value)
    return value is None or kind is str


def _mapping(value: dict[Any, Any], where: str, depth: int) -> Any:
    """Write a mapping as an object, or as pairs if a key could be taken for a tag."""
    for key in value:
        if type(key) not in (str, int) or not _is_plain(key):
            allowed = "keys that are text or whole numbers" if type(key) is not int else LARGEST
            raise ConfigError(f"{where}, a key", type(key).__name__, allowed)
    pairs = [(key, _plain(item, f"{where}[{key!r}]", depth + 1)) for key, item in value.items()]
    if all(type(key) is str and not key.startswith("$") for key, _ in pairs):
        return dict(pairs)
    return {"$dict": pairs}


def _allowed(kind: type, depth: int) -> str:
    """Return what a ConfigError says is allowed."""
    if depth >= DEEPEST:
        return f"values nested at most {DEEPEST} levels deep"
    if kind is int:
        return LARGEST
    hint = " (such as the result of `model_dump()` or `asdict()`)" if kind.__module__ != "builtins" else ""
    return ALLOWED + hint


def _restored(value: Any) -> Any:
    """Return the value that this one stands for in JSON's types."""
    if isinstance(value, list):
        return [_restored(item) for item in value]
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
                return held  # a policy has replaced the text
    return {key: _restored(item) for key, item in value.items()}


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _from_base64(text: str) -> bytes:
    return b64decode(text, validate=True)


_TEXTS: dict[type, tuple[str, Callable[[Any], str]]] = {
    datetime: ("$datetime", datetime.isoformat),
    date: ("$date", date.isoformat),
    bytes: ("$bytes", _base64),
    Decimal: ("$decimal", str),
    UUID: ("$uuid", str),
}
"""Types that are written as text, with their tag and writer."""

_READ_TEXTS: dict[str, Callable[[str], Any]] = {
    "$datetime": datetime.fromisoformat,
    "$date": date.fromisoformat,
    "$bytes": _from_base64,
    "$decimal": Decimal,
    "$uuid": UUID,
}

_READ: dict[str, Callable[[Any], Any]] = {
    "$tuple": lambda held: tuple(map(_restored, held)),
    "$set": lambda held: set(map(_restored, held)),
    "$frozenset": lambda held: frozenset(map(_restored, held)),
    "$dict": lambda held: {key: _restored(one) for key, one in held},
}
