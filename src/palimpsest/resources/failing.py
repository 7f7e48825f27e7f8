"""Keys of a pattern that fail, while the others of it are done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from palimpsest.errors import Conflict, ErasureFailed, LockTimeout, PalimpsestError, SessionNotFound, StoreCorrupt
from palimpsest.runtime.logs import warn

OF_ONE_KEY = (Conflict, ErasureFailed, LockTimeout, SessionNotFound, StoreCorrupt)
"""Errors of a single key, after which the other keys of a pattern are still worth trying."""


@contextmanager
def noted(key: str, failed: dict[str, PalimpsestError]) -> Iterator[None]:
    """Note an error of this key in `failed` instead of raising it, so that the other keys have their turn."""
    try:
        yield
    except OF_ONE_KEY as fault:
        failed[key] = fault


def raise_or_warn(failed: Mapping[str, PalimpsestError], key: str) -> None:
    """Raise the error of a single key; for the failed keys of a pattern, log a warning each."""
    for fault in () if "*" in key else failed.values():
        raise fault
    for failed_key, fault in failed.items():
        warn("the key %s failed, and the other keys of the pattern went on: %s", failed_key, fault)


def reasons(failed: Mapping[str, PalimpsestError]) -> dict[str, str]:
    """Return the texts of errors, by key."""
    return {key: str(fault) for key, fault in failed.items()}
