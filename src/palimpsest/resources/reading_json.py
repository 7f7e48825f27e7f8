"""Reading a resource file in JSON: its value, and the line and column of each key. Pure.

The value is read by the standard library, and the places by a tokenizer here, so that JSON needs no YAML library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from palimpsest.resources.problems import Path, Place, Problem

DEEPEST = 32
"""The most levels of mappings and lists."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{},:]|[^\[\]{},:"\s]+', re.DOTALL)
"""A string, a punctuation mark, or a word. A string that is not closed reaches to the end of the file, so that the
search takes linear time."""


class Again(str):
    """A key that was in the mapping before. What is under it is checked, too, but is no part of the value."""

    __slots__ = ()
    __eq__, __hash__ = object.__eq__, object.__hash__  # so that paths with it differ from those with the first key


class _Token(NamedTuple):
    text: str
    place: Place


def read_json(text: str, found: list[Problem]) -> tuple[Any, dict[Path, Place]]:
    """Return the value of a JSON text, and the place of each key and item.

    A key that comes twice is noted in `found`; the first one counts. Raises Problem, with its place, for what cannot be
    read.
    """
    _check_depth(text)
    try:
        value = json.loads(text, object_pairs_hook=_first, parse_constant=_refused)
    except json.JSONDecodeError as fault:
        raise Problem((), fault.msg, "JSON", place=Place(fault.lineno, fault.colno)) from fault
    except _NoNumber as fault:
        place = next((token.place for token in _tokens(text) if token.text == fault.args[0]), None)
        raise Problem((), fault.args[0], "a number that JSON allows", place=place) from fault
    except (ValueError, RecursionError) as fault:  # such as a number of thousands of digits
        raise Problem((), str(fault), "JSON") from fault
    return value, _places(text, found)


class _NoNumber(Exception):
    """Raised for NaN and Infinity, which Python's reader takes but JSON does not have."""


def _refused(name: str) -> Any:
    raise _NoNumber(name)


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a mapping of pairs in which the first value of a key counts."""
    mapping = dict[str, Any]()
    for key, value in pairs:
        mapping.setdefault(key, value)
    return mapping


def _check_depth(text: str) -> None:
    """Raise Problem for a text that is nested too deeply, before the library's reader recurses into it."""
    depth = 0
    for token in _tokens(text):
        depth += (token.text in ("[", "{")) - (token.text in ("]", "}"))
        if depth > DEEPEST:
            raise Problem((), "deeper nesting", f"at most {DEEPEST} levels", place=token.place)


def _tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens of a text with their places."""
    line, line_start, last_start = 1, 0, 0
    for match in _TOKEN.finditer(text):
        start = match.start()
        if breaks := text.count("\n", last_start, start):
            line, line_start = line + breaks, text.rindex("\n", last_start, start) + 1
        last_start = start
        yield _Token(match[0], Place(line, start - line_start + 1))


class _Open:
    """A mapping or a list that is being read: its path, and the key or index it is `at`; None: a key comes next."""

    __slots__ = ("at", "path")

    def __init__(self, path: Path, at: str | int | None) -> None:
        self.path, self.at = path, at


def _places(text: str, found: list[Problem]) -> dict[Path, Place]:
    """Return the place of each key and item of valid JSON. A key that comes twice is noted in `found`."""
    places, open_ = dict[Path, Place](), [_Open((), None)]
    for mark, place in _tokens(text):
        inner = open_[-1]
        if mark in ("]", "}"):
            open_.pop()
        elif mark == ",":
            inner.at = inner.at + 1 if isinstance(inner.at, int) else None
        elif inner.at is None and len(open_) > 1:
            inner.at = _key(json.loads(mark), place, inner.path, places, found)
        elif mark != ":":
            path = inner.path if inner.at is None else (*inner.path, inner.at)
            places.setdefault(path, place)
            if mark in ("[", "{"):
                open_.append(_Open(path, 0 if mark == "[" else None))
    places.pop(())
    return places


def _key(key: str, place: Place, path: Path, places: dict[Path, Place], found: list[Problem]) -> str:
    """Note the place of a key, and return it; as `Again`, with a problem, if it was there before."""
    first = places.setdefault((*path, key), place)
    if first is place:
        return key
    found.append(Problem((*path, key), key, f"each key only once: this one is also in line {first.line}", place=place))
    return Again(key)
