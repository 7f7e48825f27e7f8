"""Count with a service that may fail: then another counter is used for now, and the text is counted again later.

Interim counts are never stored as the service's, and no cut that is based on them is stored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, cast

from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.runtime.logs import warn
from palimpsest.runtime.registry import Registry
from palimpsest.runtime.threads import apart, outcome
from palimpsest.tokens.counter import FunctionCounter, TokenCounter, encoding

COUNTERS = Registry("token_provider.provider", "palimpsest.counters", {})
"""Counting services by name, for `token_provider` of a declared memory. `COUNTERS.register("acme", make)` adds one.
`make` is called with the block as a mapping, the key resolved. It returns a counter, or a function or coroutine
function from a text to its number of tokens."""

TIMEOUT, PAUSE = 5.0, 30.0
"""Seconds that a count may take, and for which a service that has failed is not asked again."""


class FallbackCounter:
    """A counter that may fail, such as one that asks a service, with a fallback that counts for the time being.

    Its own counts are stored under its name. If it raises, returns no number, or takes too long, `fallback` counts, and
    `failures` is incremented: the next context counts the text again. Raises ConfigError for an invalid option.

    Args:
        counter: a counter, or a function from a text to its number of tokens; it may be a coroutine function.
        fallback: a counter, or the name of an encoding.
        name: the key of stored counts; None: the counter's own name, or that of the function.
        timeout: seconds that one count may take; 5 by default.
        pause: seconds for which a counter that has failed is not asked again; 30 by default.
        clock: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        counter: TokenCounter | Callable[[str], int | Awaitable[int]],
        fallback: TokenCounter | str = "o200k_base",
        *,
        name: str | None = None,
        timeout: float = TIMEOUT,
        pause: float = PAUSE,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        for option, value in (("timeout", timeout), ("pause", pause)):
            if not values.is_number(value) or value < 0 or (option == "timeout" and not value):
                allowed = "over 0" if option == "timeout" else "of at least 0"
                raise ConfigError(option, value, f"a number of seconds {allowed}")
        if not hasattr(counter, "count") and not callable(counter):
            raise ConfigError("counter", type(counter).__name__, "a counter, or a function from text to a count")
        given_counter = cast("TokenCounter", counter) if hasattr(counter, "count") else None
        ask = given_counter.count if given_counter is not None else cast("Callable[[str], Any]", counter)
        self._counter = FunctionCounter(lambda text: self._count_in_time(ask, text), name=name or _name_of(counter))
        self._fallback = encoding(fallback) if isinstance(fallback, str) else fallback
        self.name, self.overhead = self._counter.name, bool(given_counter is not None and given_counter.overhead)
        self._timeout, self._pause, self._clock = timeout, pause, clock
        self._retry_at = 0.0
        self.failures = 0
        """How many texts the fallback has counted."""

    def __repr__(self) -> str:
        return f"FallbackCounter({self.name!r})"

    def count(self, text: str) -> int:
        """Return the number of tokens of a text: the counter's, or the fallback's while the counter fails.

        Never raises because of the counter.

        Args:
            text: the text.
        """
        if not text:
            return 0
        if self._clock() >= self._retry_at:
            try:
                return self._counter.count(text)
            except Exception as fault:  # noqa: BLE001 (a service may raise anything; the context is made anyway)
                self._retry_at = self._clock() + self._pause
                kind = type(fault).__name__  # its message may quote the counted text
                warn("the token counter %s failed, so %s counts for now: %s", self.name, self._fallback.name, kind)
        self.failures += 1
        return self._fallback.count(text)

    def _count_in_time(self, ask: Callable[[str], Any], text: str) -> Any:
        """Ask in a thread of its own, so that a call that never returns blocks nobody for long."""
        return outcome(apart(_answer, ask, text), self._timeout)


def _answer(ask: Callable[[str], Any], text: str) -> Any:
    """Return the answer, awaited if need be. Called in a thread of its own."""
    try:
        answer = ask(text)
        if not isinstance(answer, Awaitable):
            return answer
        import asyncio  # only for a counter that is a coroutine function

        return asyncio.run(_awaited(answer))
    except Exception:
        raise
    except BaseException as fault:  # such as the panic of a native library: the fallback counts then, too
        raise RuntimeError(f"it raised {type(fault).__name__}") from fault


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _name_of(counter: object) -> str:
    name = getattr(counter, "name", None)
    return name if isinstance(name, str) else f"custom:{getattr(counter, '__qualname__', type(counter).__qualname__)}"
