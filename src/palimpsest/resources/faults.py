"""Finding all mistakes in a block by a check that raises only the first one. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from palimpsest.errors import ConfigError
from palimpsest.resources.problems import Path, Problems, problem_of, spelled

MOST = 64
"""The most mistakes that are reported of one block."""


def each_fault(
    problems: Problems,
    path: Path,
    block: object,
    load: Callable[[Any], object],
    stand_in: Callable[[Path, ConfigError], object] | None = None,
) -> bool:
    """Note everything in a block that `load` refuses, and return whether there was nothing.

    `load` raises a ConfigError that names the faulty value, beneath `path` as `spelled` writes it. That value is left
    out, and `load` is called again with the rest. If the value is needed, `stand_in` returns another for its place, by
    its path in the block.
    """
    name, rest, removed = spelled(path), block, dict[Path, list[int]]()
    seen = set[Path]()
    for _ in range(MOST):
        try:
            load(rest)
            return not seen
        except ConfigError as fault:
            problem = problem_of(fault, path, name)
            inner = problem.path[len(path) :]
            problem.path = (*path, *_original(inner, removed))
            if problem.path in seen:
                return False
            seen.add(problem.path)
            problems.found.append(problem)
            other = stand_in(inner, fault) if stand_in is not None else None
            smaller = without(rest, inner, other)
            if smaller is None:
                return False
            if isinstance(inner[-1], int) and other is None:
                *before, index = problem.path[len(path) :]
                removed.setdefault(tuple(before), []).append(int(index))
            rest = smaller
    return False


def _original(path: Path, removed: Mapping[Path, list[int]]) -> Path:
    """Return the path in the original block for a path in the rest of it.

    `removed` has, by the path of each list, the original indexes of the items that were left out of it.
    """
    original: list[str | int] = []
    for part in path:
        index = part
        if isinstance(index, int):
            for removed_index in sorted(removed.get(tuple(original), ())):
                index += removed_index <= index
        original.append(index)
    return tuple(original)


def without(value: object, path: Path, other: object = None) -> object | None:
    """Return a copy of a mapping or a list without the value at a path, or with the `other` one in its place.

    None if there is no value at the path.
    """
    if not path:
        return other
    first, rest = path[0], path[1:]
    if isinstance(value, Mapping) and (first in value or (other is not None and not rest)):
        inner = without(value.get(first), rest, other)
        kept = {key: each for key, each in value.items() if key != first}
        return kept if inner is None else {**value, first: inner}
    if isinstance(value, Sequence) and not isinstance(value, str) and isinstance(first, int) and first < len(value):
        inner = without(value[first], rest, other)
        return [*value[:first], *([] if inner is None else [inner]), *value[first + 1 :]]
    return None
