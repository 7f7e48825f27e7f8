"""Reading a resource file: its value, and the line and column of each key. Pure.

YAML is read by the rules of version 1.2: `no` and `12:30:00` are texts. Features that a declaration does not need are
refused, since they can be an attack or hide a mistake: anchors, aliases, merges, tags, keys that come twice, and deeper
or larger files than any declaration is. Each of these ends the reading, except for a key that comes twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from palimpsest.errors import MissingExtra
from palimpsest.resources.problems import Path, Place, Problem
from palimpsest.resources.reading_json import DEEPEST, Again, read_json

LONGEST = 200_000
"""The most characters of a file: a hundred times what a large declaration has."""


class Document(NamedTuple):
    """The content of a file: its value, and the place of each key and item."""

    value: Any
    places: dict[Path, Place]


def read_document(text: str, found: list[Problem], *, is_json: bool = False) -> Document:
    """Return the content of a YAML or JSON text. A key that comes twice is noted in `found`; the first one counts.

    Raises Problem, with its place, for what cannot be read, and MissingExtra if the YAML library is missing.
    """
    if len(text) > LONGEST:
        raise Problem((), f"{len(text):,} characters", f"a file of at most {LONGEST:,} characters")
    if not text.strip():
        return Document(None, {})
    return Document(*read_json(text, found)) if is_json else _Builder(_events(text), found).document()


def _events(text: str) -> Iterator[Any]:
    """Yield the events of the YAML library's parser. Raises Problem, and MissingExtra."""
    try:
        import yaml  # type: ignore[import-untyped]  # 41 milliseconds, only when YAML is read
    except ImportError as cause:
        raise MissingExtra("the declaration of a memory in YAML", "config") from cause
    try:
        yield from yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as fault:
        mark = fault.problem_mark or fault.context_mark
        place = Place(mark.line + 1, mark.column + 1) if mark is not None else None
        if "nesting depth" in (fault.problem or ""):  # the library looks ahead, and meets its own limit before ours
            raise Problem((), "deeper nesting", f"at most {DEEPEST} levels", place=place) from fault
        raise Problem((), fault.problem or str(fault), "YAML", place=place) from fault
    except (yaml.YAMLError, ValueError) as fault:
        raise Problem((), str(fault).partition("\n")[0], "YAML") from fault


class _Builder:
    """Builds the value of a document from the parser's events.

    It does not recurse: a document that is nested too deeply is refused, and does not exhaust the stack. `_open` has
    the open mappings and lists with their paths; `_key` the current key of each, None if a key comes next.
    """

    def __init__(self, events: Iterator[Any], found: list[Problem]) -> None:
        self._events, self._found = events, found
        self._places: dict[Path, Place] = {}
        self._open: list[tuple[Any, Path]] = []
        self._key: list[str | None] = []
        self._value: Any = None
        self._documents = 0

    def document(self) -> Document:
        """Return the whole document. Raises Problem."""
        for event in self._events:
            kind = type(event).__name__
            handler: Callable[[Any], None] | None = getattr(self, f"_{kind}", None)
            if handler is not None:
                handler(event)
        return Document(self._value, self._places)

    def _DocumentStartEvent(self, event: Any) -> None:  # noqa: N802 (as the library calls it)
        self._documents += 1
        if self._documents > 1:
            raise Problem((), "a second document", "one document in a file", place=_place(event))
        if event.tags:
            raise Problem((), "%TAG", "no tags", place=_place(event))

    def _AliasEvent(self, event: Any) -> None:  # noqa: N802
        raise Problem(
            self._path(),
            f"*{event.anchor}",
            "the value itself: anchors and aliases are not supported",
            place=_place(event),
        )

    def _check(self, event: Any) -> None:
        """Raise Problem for an anchor or a tag."""
        if event.anchor is not None:
            raise Problem(
                self._path(),
                f"&{event.anchor}",
                "the value itself: anchors and aliases are not supported",
                place=_place(event),
            )
        if event.tag is not None and event.tag != "!":
            raise Problem(self._path(), event.tag, "a value without a tag", place=_place(event))

    def _MappingStartEvent(self, event: Any) -> None:  # noqa: N802
        self._begin(event, {})

    def _SequenceStartEvent(self, event: Any) -> None:  # noqa: N802
        self._begin(event, [])

    def _begin(self, event: Any, value: Any) -> None:
        """Open a mapping or a list."""
        self._check(event)
        if self._awaits_key():
            raise Problem(self._path(), "a mapping or a list as a key", "a text as a key", place=_place(event))
        if len(self._open) >= DEEPEST:
            raise Problem(self._path(), "deeper nesting", f"at most {DEEPEST} levels", place=_place(event))
        path = self._path()
        self._put(value, event)
        self._open.append((value, path))
        self._key.append(None)

    def _MappingEndEvent(self, _: Any) -> None:  # noqa: N802
        self._open.pop()
        self._key.pop()

    _SequenceEndEvent = _MappingEndEvent

    def _ScalarEvent(self, event: Any) -> None:  # noqa: N802
        self._check(event)
        if not self._awaits_key():
            self._put(event.value if event.style or event.tag == "!" else _plain(event.value), event)
            return
        key, (mapping, path) = event.value, self._open[-1]
        if key == "<<" and not event.style:
            raise Problem(path, key, "the keys themselves: merge keys are not supported", place=_place(event))
        if key in mapping:
            allowed = f"each key only once: this one is also in line {self._places[(*path, key)].line}"
            self._found.append(Problem((*path, key), key, allowed, place=_place(event)))
            key = Again(key)
        else:
            self._places[(*path, key)] = _place(event)
        self._key[-1] = key

    def _awaits_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1][0], dict) and self._key[-1] is None

    def _path(self) -> Path:
        """Return the path of the next value."""
        if not self._open:
            return ()
        holder, path = self._open[-1]
        if isinstance(holder, list):
            return (*path, len(holder))
        key = self._key[-1]
        return path if key is None else (*path, key)

    def _put(self, value: Any, event: Any) -> None:
        """Put a value into the innermost open mapping or list; without one it is the document's value."""
        if not self._open:
            self._value = value
            return
        holder, path = self._open[-1]
        if isinstance(holder, list):
            self._places[(*path, len(holder))] = _place(event)
            holder.append(value)
        else:
            key, self._key[-1] = self._key[-1], None
            if not isinstance(key, Again):
                holder[key] = value


def _place(event: Any) -> Place:
    return Place(event.start_mark.line + 1, event.start_mark.column + 1)


_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= dict.fromkeys(("true", "True", "TRUE"), True) | dict.fromkeys(("false", "False", "FALSE"), False)
_WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?(\.[0-9]{1,18}|[0-9]{1,18}(\.[0-9]{0,18})?)([eE][-+]?[0-9]{1,3})?")


def _plain(text: str) -> Any:
    """Return the value of an unquoted scalar, by the core schema of YAML 1.2; numbers of over 18 digits are texts."""
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
