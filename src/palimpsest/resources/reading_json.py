"""Reading a resource that is written in JSON: what it says, and at which line and column each key stands. Pure.

The places are found beside the reading, by the marks that JSON has: no reader of YAML is needed for them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from palimpsest.resources.problems import Path, Place, Problem

DEEPEST = 32
"""How deep a mapping or a list may stand."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{},:]|[^\[\]{},:"\s]+', re.DOTALL)
"""A text, a mark, or a word. A text without an end goes on to that of the file, and is not begun again."""


class Again(str):
    """A key that was there before: what stands under it is looked through, and is no part of the value."""

    __slots__ = ()
    __eq__, __hash__ = object.__eq__, object.__hash__  # so its paths are other ones than those of the first


class _Token(NamedTuple):
    text: str
    place: Place


def read_json(text: str, found: list[Problem]) -> tuple[Any, dict[Path, Place]]:
    """Return what a JSON text says, and the place of each key and item, and note in `found` each key that comes twice:
    the first one is read. Raises Problem for what cannot be read, with its place."""
    _check_depth(text)
    try:
        value = json.loads(text, object_pairs_hook=_first, parse_constant=_refused)
    except json.JSONDecodeError as fault:
        raise Problem((), fault.msg, "JSON", place=Place(fault.lineno, fault.colno)) from fault
    except _NoNumber as fault:
        place = next((token.place for token in _tokens(text) if token.text == fault.args[0]), None)
        raise Problem((), fault.args[0], "a number that JSON has", place=place) from fault
    except (ValueError, RecursionError) as fault:  # a number of thousands of digits
        raise Problem((), str(fault), "JSON") from fault
    return value, _places(text, found)


class _NoNumber(Exception):
    """A word that stands for a number in JSON of Python's."""


def _refused(name: str) -> Any:
    raise _NoNumber(name)


def _first(found: list[tuple[str, Any]]) -> dict[str, Any]:
    known = dict[str, Any]()
    for key, value in found:
        known.setdefault(key, value)
    return known


def _check_depth(text: str) -> None:
    depth = 0
    for token in _tokens(text):
        depth += (token.text in ("[", "{")) - (token.text in ("]", "}"))
        if depth > DEEPEST:
            raise Problem((), "what is nested deeper", f"at most {DEEPEST} levels", place=token.place)


def _tokens(text: str) -> Iterator[_Token]:
    line, begin, end = 1, 0, 0
    for found in _TOKEN.finditer(text):
        start = found.start()
        if breaks := text.count("\n", end, start):
            line, begin = line + breaks, text.rindex("\n", end, start) + 1
        end = start
        yield _Token(found[0], Place(line, start - begin + 1))


class _Open:
    """A mapping or a list that is being read: its path, and `at` which key or index; None: a key comes next."""

    __slots__ = ("at", "path")

    def __init__(self, path: Path, at: str | int | None) -> None:
        self.path, self.at = path, at


def _places(text: str, found: list[Problem]) -> dict[Path, Place]:
    """The place of each key and item of what is JSON. A key that comes twice is noted."""
    places, around = dict[Path, Place](), [_Open((), None)]
    for mark, place in _tokens(text):
        inner = around[-1]
        if mark in ("]", "}"):
            around.pop()
        elif mark == ",":
            inner.at = inner.at + 1 if isinstance(inner.at, int) else None
        elif inner.at is None and len(around) > 1:
            inner.at = _key(json.loads(mark), place, inner.path, places, found)
        elif mark != ":":
            path = inner.path if inner.at is None else (*inner.path, inner.at)
            places.setdefault(path, place)
            if mark in ("[", "{"):
                around.append(_Open(path, 0 if mark == "[" else None))
    places.pop(())
    return places


def _key(key: str, place: Place, path: Path, places: dict[Path, Place], found: list[Problem]) -> str:
    first = places.setdefault((*path, key), place)
    if first is place:
        return key
    found.append(Problem((*path, key), key, f"each key once: it stands in line {first.line}, too", place=place))
    return Again(key)
