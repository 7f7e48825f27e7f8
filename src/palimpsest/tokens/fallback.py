"""Counting by a service that may fail: then another counter does it for now, and the count is made again later.

What is counted for now is never stored as the service's, and no cut is stored that was made by it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any, cast

from palimpsest.errors import ConfigError
from palimpsest.log import values
from palimpsest.runtime.logs import warn
from palimpsest.runtime.registry import Registry
from palimpsest.tokens.counter import FunctionCounter, TokenCounter, encoding

COUNTERS = Registry("token_provider.provider", "palimpsest.counters", {})
"""Counting services by name, for `token_provider` of a declared memory. `COUNTERS.register("acme", make)` adds one: it
is given the block as a mapping, the key resolved, and returns a counter, or a function from a text to its number of
tokens, which may be a coroutine function."""

TIMEOUT, PAUSE = 5.0, 30.0
"""Seconds that a count may take, and for how long a service that failed is left alone."""


class FallbackCounter:
    """A counter that may fail, such as one that asks a service, with one that counts in its place for now.

    Counts of the first are stored under its name. Where it raises, says what is no number, or takes too long,
    `fallback` counts, and `failures` goes up: what was counted meanwhile is counted again by the next context. Raises
    ConfigError for what cannot be.

    Args:
        counter: a counter, or a function from a text to its number of tokens; it may be a coroutine function.
        fallback: a counter, or the name of an encoding.
        name: the key of stored counts; None: the counter's own name, or that of the function.
        timeout: seconds that one count may take; 5 by default.
        pause: seconds for which a counter that failed is left alone; 30 by default.
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
                raise ConfigError(option, value, "seconds, over 0" if option == "timeout" else "seconds, 0 or more")
        if not hasattr(counter, "count") and not callable(counter):
            raise ConfigError("counter", type(counter).__name__, "a counter, or a function from a text to a number")
        known = cast("TokenCounter", counter) if hasattr(counter, "count") else None
        ask = known.count if known is not None else cast("Callable[[str], Any]", counter)
        self._counter = FunctionCounter(lambda text: self._within(ask, text), name=name or _name_of(counter))
        self._fallback = encoding(fallback) if isinstance(fallback, str) else fallback
        self.name, self.overhead = self._counter.name, bool(known is not None and known.overhead)
        self._timeout, self._pause, self._clock = timeout, pause, clock
        self._left_alone = 0.0
        self.failures = 0
        """How many texts the fallback has counted."""

    def __repr__(self) -> str:
        return f"FallbackCounter({self.name!r})"

    def count(self, text: str) -> int:
        """Return the number of tokens of a text: the counter's, or the fallback's while that fails.

        It never raises for what the counter does.

        Args:
            text: the text.
        """
        if not text:
            return 0
        if self._clock() >= self._left_alone:
            try:
                return self._counter.count(text)
            except Exception as fault:  # noqa: BLE001 (the boundary: whatever a service does, a context is made)
                self._left_alone = self._clock() + self._pause
                kind = type(fault).__name__  # its text may quote what was to be counted
                warn("the token counter %s failed, so %s counts for now: %s", self.name, self._fallback.name, kind)
        self.failures += 1
        return self._fallback.count(text)

    def _within(self, ask: Callable[[str], Any], text: str) -> Any:
        """What it says, in a thread of its own: one that never returns holds up nobody for long."""
        said: SimpleQueue[tuple[Any, Exception | None]] = SimpleQueue()
        Thread(target=_asked, args=(ask, text, said), daemon=True, name="palimpsest-count").start()
        try:
            answer, fault = said.get(timeout=self._timeout)
        except Empty:
            raise TimeoutError(f"no count within {self._timeout} seconds") from None
        if fault is not None:
            raise fault
        return answer


def _asked(ask: Callable[[str], Any], text: str, said: SimpleQueue[tuple[Any, Exception | None]]) -> None:
    try:
        answer = ask(text)
        if isinstance(answer, Awaitable):
            import asyncio  # only for a counter that is a coroutine function

            answer = asyncio.run(_awaited(answer))
        said.put((answer, None))
    except Exception as fault:  # noqa: BLE001 (it is raised where somebody waits)
        said.put((None, fault))


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def _name_of(counter: object) -> str:
    name = getattr(counter, "name", None)
    return name if isinstance(name, str) else f"custom:{getattr(counter, '__qualname__', type(counter).__qualname__)}"
