"""Places within JSON values, and JSON with something else in one of them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place within a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield (*at, key)
        yield from places(held, (*at, key))


def damaged(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    """The value with something else at this place; it itself is left alone."""
    changed = holder = copy.deepcopy(value)
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = other
    return changed
