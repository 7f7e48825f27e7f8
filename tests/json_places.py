"""Places within JSON values, and copies of values with something else in one place."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every place within a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        yield (*at, key)
        yield from places(held, (*at, key))


def damaged(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    """Return a copy of the value with something else at this place."""
    changed = holder = copy.deepcopy(value)
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = other
    return changed
