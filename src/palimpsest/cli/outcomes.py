"""What became of the keys of a declared memory: the errors and exit statuses of those that failed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import click

from palimpsest.cli.failing import Conflicting, Missing, OperationFailed, Unavailable
from palimpsest.cli.output import line, print_json
from palimpsest.resources.refusals import FLUSHES, Refusal
from palimpsest.resources.replies import FAILED
from palimpsest.types import CompactionResult

PENDING = FLUSHES["pending"][1]
"""The code of the error of a key of which another flush is under way."""
FAILURES = FAILED - {"pending"}
"""Why nothing was flushed, where something went wrong."""


def each(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the answer about each key of a pattern. Raises Unavailable, with the answers for the keys before, if the
    store fails amid them."""
    try:
        return ask()
    except Refusal as refusal:
        raise Unavailable(refusal.message, more={"details": refusal.details}) from refusal


def print_each(ask: Callable[[], dict[str, Any]]) -> None:
    """Print the answer about each key of a pattern as JSON, and raise for the keys that failed."""
    reply = each(ask)
    print_json(reply)
    raise_for_each(reply)


def raise_for_each(reply: dict[str, Any], undone: str = "nothing was changed under") -> None:
    """Raise OperationFailed, which says what is `undone`, if a key of a pattern failed, or else Conflicting if another
    flush of a key is under way."""
    errors = {result["key"]: result["error"] for result in reply["results"] if "error" in result}
    pending = [key for key, error in errors.items() if error["code"] == PENDING]
    failed = {key: error for key, error in errors.items() if key not in pending}
    if failed:
        first = next(iter(failed.values()))
        raise OperationFailed(
            f"{undone} {', '.join(map(line, failed))}: {first['details'].get('why') or first['message']}"
        )
    _raise_if_pending(pending)


def raise_if_failed(results: Mapping[str, CompactionResult]) -> None:
    """Raise OperationFailed if a key's flush failed, or else Conflicting if another flush of a key is under way."""
    failed = {flushed: done.why or str(done.reason) for flushed, done in results.items() if done.reason in FAILURES}
    if failed:
        raise OperationFailed(
            f"nothing was changed under {', '.join(map(line, failed))}: {next(iter(failed.values()))}"
        )
    _raise_if_pending([flushed for flushed, done in results.items() if done.reason == "pending"])


def _raise_if_pending(keys: Collection[str]) -> None:
    """Raise Conflicting if another flush of any of these keys is under way."""
    if keys:
        raise Conflicting(f"another flush is under way under {', '.join(map(line, keys))}")


def exit_if_any(failed: Collection[str]) -> None:
    """Exit with status 1 if any key failed. The library has logged which and why."""
    if failed:
        click.get_current_context().exit(1)


def expect(results: object, key: str) -> None:
    """Raise Missing if there are no results for a key that is no pattern."""
    if not results and "*" not in key:
        raise Missing(f"there is nothing under {line(key)}")
