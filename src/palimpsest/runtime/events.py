"""Events: handlers learn what happened, after the commit. A handler that raises breaks nothing but itself."""

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
    "privacy:redacted",
    "privacy:refused",
    "lock:waited",
    "redacted",
    "usage:recorded",
    "turn:ended",
    "config:changed",
]
"""The events that handlers can be registered for."""
EVENTS: tuple[str, ...] = get_args(EventName)

T = TypeVar("T")

Handler = Callable[[str, dict[str, Any]], Awaitable[None] | None]
"""Called with the session's id and the event's facts. It may be a coroutine function."""


class Observers:
    """The handlers of one memory, by event. Cheap without handlers. `redact` cleans what is logged."""

    def __init__(self, redact: Redact | None = None) -> None:
        self._redact = redact
        self._handlers: dict[str, list[Handler]] = {}
        self._failed: set[tuple[str, str]] = set()

    def on(self, event: str, handler: Handler) -> Callable[[], None]:
        """Call `handler` after each `event` and return a function that stops it.

        Handlers run after the commit, in the order in which they were registered. An error of one is logged, and
        changes nothing. Raises ConfigError for an unknown event.
        """
        values.choice("event", event, EVENTS)
        if not callable(handler):
            raise ConfigError("handler", handler, "a function or coroutine function of session id and facts")
        handlers = self._handlers.setdefault(event, [])
        handlers.append(handler)

        return left_once(handlers, handler)

    def first_failure(self, session: str, condition: str) -> bool:
        """Return whether this condition fails for the first time in this session: its event is sent only once."""
        before = len(self._failed)
        self._failed.add((session, condition))
        return len(self._failed) > before

    @property
    def handled(self) -> bool:
        """Whether a handler was ever registered."""
        return bool(self._handlers)

    def wants(self, event: EventName) -> bool:
        """Return whether `event` has a handler. If not, its facts need not be gathered."""
        return bool(self._handlers.get(event))

    async def emit(self, event: EventName, session: str, facts: dict[str, Any], run: RunAwaitable) -> None:
        """Call every handler of `event`; `run` awaits what an asynchronous one returns."""
        for handler in tuple(self._handlers.get(event, ())):
            try:
                outcome = handler(session, dict(facts))
                if outcome is not None:
                    await run(outcome)
            except Exception as fault:  # noqa: BLE001 (a boundary: a handler must not break the verb that it observes)
                log_failure(self._redact, fault, "a handler of %s failed (session %s)", event, session)


def left_once(handlers: list[T], handler: T) -> Callable[[], None]:
    """Return a function that removes a handler from the list once. Calling it again does nothing.

    Without that, a second call would remove another registration of the same handler.
    """
    registered = [handler]

    def leave() -> None:
        while registered:
            handlers.remove(registered.pop())

    return leave


RunAwaitable = Callable[[Awaitable[None]], Awaitable[None]]
