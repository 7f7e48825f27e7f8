"""All that is wrong with a block, where what checks it says only the first. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.resources.problems import Path, Problems, problem_of, spelled

MOST = 64
"""Faults of one block that are told."""


def each_fault(problems: Problems, path: Path, block: object, load: Callable[[Any], object]) -> bool:
    """Note everything in a block that `load` refuses: what it names is left out, and it is asked again.

    `load` names what is wrong beneath the path as it is spelled. Return whether there was nothing.
    """
    name, rest, gone = spelled(path), block, dict[Path, list[int]]()
    seen = set[Path]()
    for _ in range(MOST):
        try:
            load(rest)
            return not seen
        except ConfigError as fault:
            problem = problem_of(fault, path, name)
            inner = problem.path[len(path) :]
            problem.path = (*path, *_first_told(inner, gone))
            if problem.path in seen:
                return False
            seen.add(problem.path)
            problems.found.append(problem)
            smaller = without(rest, inner)
            if smaller is None:
                return False
            if isinstance(inner[-1], int):
                *before, index = problem.path[len(path) :]
                gone.setdefault(tuple(before), []).append(int(index))
            rest = smaller
    return False


def _first_told(path: Path, gone: Mapping[Path, list[int]]) -> Path:
    """The path in what was given, of one in what is left of it."""
    told: list[str | int] = []
    for part in path:
        index = part
        if isinstance(index, int):
            for left_out in sorted(gone.get(tuple(told), ())):
                index += left_out <= index
        told.append(index)
    return tuple(told)


def without(value: object, path: Path) -> object | None:
    """A mapping or a list without what stands at a path; None where nothing does."""
    if not path:
        return None
    first, rest = path[0], path[1:]
    if isinstance(value, Mapping) and first in value:
        inner = without(value[first], rest)
        kept = {key: each for key, each in value.items() if key != first}
        return kept if inner is None else {**value, first: inner}
    if isinstance(value, Sequence) and not isinstance(value, str) and isinstance(first, int) and first < len(value):
        inner = without(value[first], rest)
        return [*value[:first], *([] if inner is None else [inner]), *value[first + 1 :]]
    return None
