"""Events: what happened, told to whoever asked, after the commit. Handlers never break what they observe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal, TypeVar, get_args

from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.runtime.logs import Redact, log_failure

EventName = Literal[
    "entry:added",
    "cut",
    "compressed",
    "evicted",
    "erased",
    "restored",
    "compaction:skipped",
    "compaction:failed",
    "summarizer:failed",
    "session:cleared",
    "session:forked",
    "session:imported",
    "session:replaced",
    "session:rewound",
    "context:over_budget",
    "condition:error",
    "knowledge:deferred",
    "privacy:refused",
    "redacted",
    "usage:recorded",
    "turn:ended",
    "config:changed",
]
"""What handlers may be told of."""
EVENTS: tuple[str, ...] = get_args(EventName)

T = TypeVar("T")

Handler = Callable[[str, dict[str, Any]], Awaitable[None] | None]
"""Gets the session's id and the event's facts. It may be a coroutine function."""


class Observers:
    """The handlers of one memory, by event. Cheap when there are none. `redact` cleans what is logged."""

    def __init__(self, redact: Redact | None = None) -> None:
        self._redact = redact
        self._handlers: dict[str, list[Handler]] = {}
        self._failed: set[tuple[str, str]] = set()

    def on(self, event: str, handler: Handler) -> Callable[[], None]:
        """Call `handler` after each `event` and return a function that stops it.

        Handlers run in the order in which they came, after the commit. One that raises is logged and
        changes nothing. Raises ConfigError for a name that is no event.
        """
        values.choice("event", event, EVENTS)
        if not callable(handler):
            raise ConfigError("handler", handler, "a function or coroutine function of session id and facts")
        handlers = self._handlers.setdefault(event, [])
        handlers.append(handler)

        return left_once(handlers, handler)

    def first_failure(self, session: str, condition: str) -> bool:
        """Whether this condition fails for the first time in this session: its event is sent once."""
        before = len(self._failed)
        self._failed.add((session, condition))
        return len(self._failed) > before

    @property
    def handled(self) -> bool:
        """Whether anybody listens to anything."""
        return bool(self._handlers)

    def wants(self, event: EventName) -> bool:
        """Whether anybody listens to `event`: its facts need not be gathered otherwise."""
        return bool(self._handlers.get(event))

    async def emit(self, event: EventName, session: str, facts: dict[str, Any], run: RunAwaitable) -> None:
        """Tell every handler of `event`; `run` awaits what an asynchronous one returns."""
        for handler in tuple(self._handlers.get(event, ())):
            try:
                outcome = handler(session, dict(facts))
                if outcome is not None:
                    await run(outcome)
            except Exception as fault:  # noqa: BLE001 (the boundary: what observes must not break what it observes)
                log_failure(self._redact, fault, "a handler of %s failed (session %s)", event, session)


def left_once(handlers: list[T], handler: T) -> Callable[[], None]:
    """A function that takes a handler out of those of an event, and out again that comes twice does nothing: the same
    handler may be among them once more."""
    there = [handler]

    def leave() -> None:
        while there:
            handlers.remove(there.pop())

    return leave


RunAwaitable = Callable[[Awaitable[None]], Awaitable[None]]
