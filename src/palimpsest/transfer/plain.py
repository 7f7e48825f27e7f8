"""Checking and reading the plain JSON values of an export. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from palimpsest.errors import ImportFailed, shorten
from palimpsest.log.checks import unfit
from palimpsest.log.entry import LAST_MOMENT, microseconds_of

DEEPEST = 32
"""The most levels of Palimpsest's own values in an export. Values of programs, such as metadata, may be deeper."""


def check_plain(value: object, where: str, *, names: bool = False, depth: int = 0) -> None:
    """Raise ImportFailed for a value that Palimpsest never writes into an export, even if its type is right.

    Every number is a count or a time, so it is finite, at least 0 (or -1, for all of a text) and at most the last time
    that an entry can have. With `names` texts are checked as names of views, strategies or sessions.
    """
    if depth > DEEPEST:
        raise ImportFailed(where, f"is more than {DEEPEST} levels deep")
    if isinstance(value, int | float):
        if not -1 <= value <= LAST_MOMENT:
            raise ImportFailed(
                where, f"{shorten(value)} is out of range: counts and times are from -1 to {LAST_MOMENT}"
            )
    elif isinstance(value, str):
        if names and (reason := unfit(value)) is not None:
            raise ImportFailed(where, reason)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            if not isinstance(key, str) or unfit(key) is not None:
                raise ImportFailed(where, f"the key {shorten(key)} is not a valid name")
            check_plain(inner, f"{where}.{key}", names=names, depth=depth + 1)
    elif isinstance(value, Sequence):
        for i, inner in enumerate(value):
            check_plain(inner, f"{where}[{i}]", names=names, depth=depth + 1)
    elif value is not None:
        raise ImportFailed(where, f"{shorten(value)} ({type(value).__name__}) is not plain JSON")


def list_of(data: Mapping[str, Any], name: str, where: str) -> Sequence[Any]:
    """Return the list under this name (empty if it is missing). Raises ImportFailed for anything but a list."""
    value = data.get(name) or ()
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ImportFailed(f"{where}.{name}", f"{shorten(value)} is not a list")
    return value


def instant(text: object, where: str) -> int:
    """Return a time in ISO 8601 as microseconds since 1970; 0 for None. Raises ImportFailed."""
    if text is None:
        return 0
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        if moment is not None and moment.tzinfo is not None:
            moment = moment.astimezone(UTC)
    except (ValueError, OverflowError) as fault:
        raise ImportFailed(where, f"{shorten(text)} is not a time in ISO 8601") from fault
    if moment is None or moment.tzinfo is None:
        raise ImportFailed(where, f"{shorten(text)} is not a time in ISO 8601 with a time zone")
    if moment.year < 1970:
        raise ImportFailed(where, f"{shorten(text)} is before 1970, the earliest time that an entry can have")
    return microseconds_of(moment)
