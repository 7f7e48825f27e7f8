"""One JSON value: reading it within limits, and saying what is wrong with it."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from palimpsest.transfer.sources.limits import Limits

VALUE, VALUES = "bytes in one value", "objects, lists and items in one value"

LEVELS = 300
"""How deeply a value may be nested: no message is, and whatever looks at one goes down level by level."""

TOO_DEEP = f"nested too deeply: more than {LEVELS} levels"

BOM = b"\xef\xbb\xbf"


class Value(NamedTuple):
    """One value: at `place` (a line number from 1, an index of the list from 0), or what is wrong there.

    `end` is how many bytes were read with it.
    """

    place: int
    value: Any = None
    fault: str | None = None
    end: int = 0


class TooLarge(ValueError):
    """A value is beyond a limit, which the message names."""


def loads(text: bytes, limits: Limits) -> Any:
    """Read a JSON value.

    Raises ValueError for what is none, TooLarge for more than a limit allows, RecursionError for more than `LEVELS`
    levels.
    """
    count = text.count(b"[") + text.count(b"{")
    if len(text) > limits.values and count + text.count(b",") > limits.values:
        raise TooLarge(limits.told("values", VALUES))
    if count > LEVELS and _is_too_deep(text):
        raise RecursionError
    value = _decoded(text)
    if len(text) > limits.string and not _strings_fit(value, limits.string):
        raise TooLarge(limits.told("string", "characters in one string"))
    return value


def _decoded(text: bytes) -> Any:
    """What `json.loads` says of UTF-8. What msgspec reads, it reads alike, and holds no copy of the text meanwhile."""
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        return _decode(text)
    return json.loads(text.removeprefix(BOM).decode("utf-8", "surrogatepass"))  # of bytes it would guess what they are


def read(place: int, text: bytes, end: int, limits: Limits, *, whole: bool = False) -> Value:
    """Read a JSON value as the item of this place, or what is wrong with it; `whole` is one that has lines itself."""
    try:
        return Value(place, loads(text, limits), None, end)
    except json.JSONDecodeError as fault:
        at = fault.lineno if whole else place
        wrong = fault.msg.removesuffix(" at")  # "Unterminated string starting at"
        return Value(at, None, f"no JSON: {wrong} at column {fault.colno}", end)
    except UnicodeDecodeError as fault:
        return Value(place, None, f"no UTF-8: {fault.reason} at byte {fault.start}", end)
    except TooLarge as fault:
        return Value(place, None, str(fault), end)
    except RecursionError:
        return Value(place, None, TOO_DEEP, end)
    except ValueError as fault:
        return Value(place, None, f"no JSON: {fault}", end)


def _strings_fit(value: Any, most: int) -> bool:
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            if len(one) > most:
                return False
        elif isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one
    return True


def _is_too_deep(text: bytes) -> bool:
    """Whether there are more than `LEVELS` levels; each pass takes the innermost one away."""
    left, _, _ = brackets(text)
    for _ in range(LEVELS):
        left, before = left.replace(b"[]", b""), left
        if len(left) == len(before):
            break
    return left.count(b"[") > LEVELS or b"[]" in left


def brackets(text: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the brackets of a text that begins in no string, all of one kind, and what of a string has no end."""
    outside, quote, string = _STRING.sub(b"", text).partition(b'"')
    return outside.translate(_ONE_KIND, _NO_BRACKETS), quote, string


_decode = msgspec.json.Decoder().decode
_STRING = re.compile(rb'"(?>(?:[^"\\]++|\\.)*)"', re.DOTALL)
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
