"""The problems of a resource, each with its path: collected, so that a file's mistakes are reported together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias

from palimpsest.errors import ConfigError, nearest, shorten
from palimpsest.errors.secret import hidden, shown
from palimpsest.errors.wording import bounded

Path: TypeAlias = tuple[str | int, ...]
"""Keys and indexes from the root of a resource to a value in it."""


class Place(NamedTuple):
    """A line and a column of a file, both from 1."""

    line: int
    column: int


class Problem(Exception):
    """One mistake: the path of its key, what was found, what is allowed instead, the nearest valid name, and the
    position within the value, such as the column in a condition (`within`)."""

    def __init__(
        self,
        path: Path,
        found: object,
        allowed: str,
        *,
        nearest: str | None = None,
        place: Place | None = None,
        within: str = "",
    ) -> None:
        self.path, self.found, self.allowed, self.nearest, self.place = path, shown(found), allowed, nearest, place
        self.within = within
        super().__init__(path, allowed)

    @property
    def key(self) -> str:
        """The path as text: `flushing.summarize_threshold`, `redact_patterns[0]`."""
        return bounded(hidden(spelled(self.path)))

    def told(self) -> str:
        """Return the problem in a line, without its file."""
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        return f"{self.key or 'the file'}: {shorten(self.found)} is not accepted; allowed: {self.allowed}{hint}"


def spelled(path: Path) -> str:
    """Return a path as text."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


class Problems:
    """The problems of one file."""

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.inside: dict[str, tuple[str, ...]] = {}
        """Keys that the file has under another key, by that key, while their paths begin at the root."""
        self.bare: Path = ()
        """If the file is only a strategy, or a list of them: the beginning of their paths, which is not in the file."""

    def add(self, path: Path, found: object, allowed: str, *, nearest: str | None = None) -> None:
        """Note a problem."""
        self.found.append(Problem(path, found, allowed, nearest=nearest))

    def check_keys(self, given: Iterable[object], path: Path, known: Sequence[str]) -> None:
        """Note each key of a mapping that is not one of the `known` ones."""
        for key in given:
            if key not in known:
                self.add((*path, str(key)), key, ", ".join(known), nearest=nearest(key, known))

    @contextmanager
    def at(self, *path: str | int, named: str | None = None) -> Iterator[None]:
        """Note a ConfigError that the block raises, as `problem_of` does. The code behind the block goes on."""
        try:
            yield
        except ConfigError as fault:
            self.found.append(problem_of(fault, path, named))


def problem_of(fault: ConfigError, path: Path, named: str | None) -> Problem:
    """Return a ConfigError as a problem at this path, or beneath it if the error names something inside of `named`."""
    inner, within = fault.where, ""
    if named is not None and inner.startswith(named):
        key, _, within = inner[len(named) :].partition(", ")  # behind the comma: the column in a condition
        path = (*path, *_parts(key))
    return Problem(path, fault.found, fault.allowed, nearest=fault.nearest, within=within)


def _parts(text: str) -> Path:
    """Return the path that a text such as `.redact_patterns[0]` spells."""
    parts: list[str | int] = []
    for piece in text.replace("[", ".[").split("."):
        if piece.startswith("[") and piece[1:-1].isdigit():
            parts.append(int(piece[1:-1]))
        elif piece:
            parts.append(piece)
    return tuple(parts)
