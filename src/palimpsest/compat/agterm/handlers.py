"""Event handlers: the documented arguments of each event, and "config:changed", the one event that a memory does not
have."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable, iscoroutine
from typing import Any

from palimpsest import Entry
from palimpsest.compat.agterm.records import CompressionResult, MemoryEntry
from palimpsest.errors import ConfigError
from palimpsest.runtime.events import left_once
from palimpsest.runtime.logs import Redact, log_failure
from palimpsest.runtime.threads import awaited

CONFIG_CHANGED = "config:changed"
"""The event of a changed configuration, which the manager emits itself."""

EntryCost = Callable[[str, Entry], int]
"""Returns the tokens of an entry in the session of this id."""


def joined(handlers: list[Callable[..., Any]], handler: Callable[..., Any]) -> Callable[[], None]:
    """Add a handler of "config:changed" to `handlers`, and return a function that removes it."""
    if not callable(handler):
        raise ConfigError("handler", handler, "a function or coroutine function of session id and configuration")
    handlers.append(handler)
    return left_once(handlers, handler)


@contextmanager
def watched(redact: Redact | None) -> Iterator[None]:
    """Log what a handler of "config:changed" raises. `redact` removes private data from that."""
    try:
        yield
    except Exception as fault:  # noqa: BLE001 (the boundary: what observes must not break what it observes)
        log_failure(redact, fault, "a handler of %s failed", CONFIG_CHANGED)


async def completed(outcome: object) -> None:
    """Await what a handler returned, if it is awaitable."""
    if isawaitable(outcome):
        await awaited(outcome)


def ended(outcome: object) -> None:
    """Raise ConfigError if a handler of the synchronous manager returned a coroutine, which nothing would await."""
    if iscoroutine(outcome):
        outcome.close()
        raise ConfigError("handler", "a coroutine function", f"a plain function, for {CONFIG_CHANGED} in MemoryManager")


def shaped(
    event: str, handler: Callable[..., Any], cost: EntryCost
) -> Callable[[str, dict[str, Any]], Awaitable[None] | None]:
    """Return a handler for events of a memory that calls this one with the documented arguments."""
    if not callable(handler):
        raise ConfigError("handler", handler, "a function or coroutine function")

    def documented(session_id: str, facts: dict[str, Any]) -> Awaitable[None] | None:
        outcome = handler(session_id, *_arguments(event, session_id, facts, cost))
        return outcome if isawaitable(outcome) else None

    return documented


def _arguments(event: str, session_id: str, facts: dict[str, Any], cost: EntryCost) -> tuple[Any, ...]:
    """Return the documented arguments of an event that follow the session's id."""
    if event == "entry:added":
        return (MemoryEntry(facts["entry"], lambda entry: cost(session_id, entry)),)
    if event == "compressed":
        result = CompressionResult(
            summary_id=facts["summary_id"],
            entry_ids=tuple(facts["covered"]),
            tokens_saved=facts["tokens_saved"],
            method=facts["method"],
        )
        return (result,)
    return () if event == "session:cleared" else (facts,)
