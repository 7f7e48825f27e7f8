"""Decoding one JSON value within limits, and describing what is wrong with it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from palimpsest.transfer.sources.limits import Limits

VALUE, VALUES = "bytes in one value", "objects, lists and items in one value"

LEVELS = 300
"""How deeply a value may be nested. No real message is, and code that handles values recurses into each level."""

TOO_DEEP = f"nested too deeply: more than {LEVELS} levels"

BOM = b"\xef\xbb\xbf"


class Value(NamedTuple):
    """One value at its `place` (a line number from 1, or an index of the list from 0), or the `fault` there.

    `end` is how many bytes of the file were read up to its end.
    """

    place: int
    value: Any = None
    fault: str | None = None
    end: int = 0


class TooLarge(ValueError):
    """A value is beyond a limit, which the error message names."""


def loads(text: bytes, limits: Limits) -> Any:
    """Decode a JSON value.

    Raises ValueError for invalid JSON, TooLarge if it is beyond a limit, RecursionError for more than `LEVELS` levels.
    """
    count = text.count(b"[") + text.count(b"{")
    if len(text) > limits.values and count + text.count(b",") > limits.values:
        raise TooLarge(limits.more_than("values", VALUES))
    if count > LEVELS and _is_too_deep(text):
        raise RecursionError
    value = _decoded(text)
    if len(text) > limits.string and not _strings_fit(value, limits.string):
        raise TooLarge(limits.more_than("string", "characters in one string"))
    return value


def _decoded(text: bytes) -> Any:
    """Decode like `json.loads`. msgspec is tried first: it decodes valid JSON alike, without a copy of the text."""
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        return _decode(text)
    return json.loads(
        text.removeprefix(BOM).decode("utf-8", "surrogatepass")
    )  # given bytes, it would guess their encoding


def read(place: int, text: bytes, end: int, limits: Limits, *, whole: bool = False) -> Value:
    """Return the JSON value at this place, or its fault. With `whole` a fault names a line within the value."""
    try:
        return Value(place, loads(text, limits), None, end)
    except json.JSONDecodeError as fault:
        at = fault.lineno if whole else place
        wrong = fault.msg.removesuffix(" at")  # "Unterminated string starting at"
        return Value(at, None, f"not valid JSON: {wrong} at column {fault.colno}", end)
    except UnicodeDecodeError as fault:
        return Value(place, None, f"not valid UTF-8: {fault.reason} at byte {fault.start}", end)
    except TooLarge as fault:
        return Value(place, None, str(fault), end)
    except RecursionError:
        return Value(place, None, TOO_DEEP, end)
    except ValueError as fault:
        return Value(place, None, f"not valid JSON: {fault}", end)


def _strings_fit(value: Any, most: int) -> bool:
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if len(item) > most:
                return False
        elif isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item
    return True


def _is_too_deep(text: bytes) -> bool:
    """Return whether there are more than `LEVELS` levels. Each pass removes the innermost one."""
    remaining, _, _ = brackets(text)
    for _ in range(LEVELS):
        remaining, before = remaining.replace(b"[]", b""), remaining
        if len(remaining) == len(before):
            break
    return remaining.count(b"[") > LEVELS or b"[]" in remaining


def brackets(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the brackets outside of strings, all turned into square ones, and a last string without an end.

    The text must not begin within a string. The unfinished string is returned as its quote and its text, both b"" if
    there is none.
    """
    outside, quote, string = _STRING.sub(b"", text).partition(b'"')
    return outside.translate(_ONE_KIND, _NO_BRACKETS), quote, string


_decode = msgspec.json.Decoder().decode
_STRING = re.compile(rb'"(?>(?:[^"\\]++|\\.)*)"', re.DOTALL)
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
