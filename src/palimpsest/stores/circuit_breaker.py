"""A circuit breaker in front of any store: one that does not answer is left alone for a while.

After `max_failures` calls in a row that found the store unavailable or timed out, every further call fails at once.
After a while one call is let through; its outcome decides for all.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from palimpsest.errors import ConfigError, PalimpsestError, StoreUnavailable
from palimpsest.log import values
from palimpsest.runtime.breaker import Breaker, Paused
from palimpsest.stores.backend import Backend
from palimpsest.stores.rules import is_unsent
from palimpsest.stores.wrappers import PassThrough

if TYPE_CHECKING:
    from datetime import timedelta

T = TypeVar("T")


class CircuitBreaker(msgspec.Struct, repr_omit_defaults=True, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a store is left alone: after `max_failures` calls in a row without an answer, for `reset_timeout`.

    Args:
        timeout: how long a call may take, over a network: a timedelta, seconds, or text such as "5s" (the default). A
            store on this machine's disk has `busy_seconds` instead.
        max_failures: calls in a row; 5 by default.
        reset_timeout: for how long no call is tried then, a length of time like `timeout`; "30s" by default.
    """

    timeout: timedelta | float | str = "5s"
    max_failures: int = 5
    reset_timeout: timedelta | float | str = "30s"

    @classmethod
    def of(cls, given: object) -> CircuitBreaker | None:
        """Return the circuit breaker that `given` means: it, its fields, True for the defaults, False or None for none.

        Raises ConfigError.

        Args:
            given: the value of the option `circuit_breaker`.
        """
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        if isinstance(given, Mapping):
            values.known("circuit_breaker", given, cls.__struct_fields__, inside=True)
            given = cls(**given)
        if not isinstance(given, cls):
            raise ConfigError("circuit_breaker", given, "True, a CircuitBreaker, or a mapping with its fields")
        values.microseconds("circuit_breaker.timeout", given.timeout)
        values.microseconds("circuit_breaker.reset_timeout", given.reset_timeout)
        values.whole("circuit_breaker.max_failures", given.max_failures, 1)
        return given


class BreakingBackend(PassThrough):
    """Another backend whose calls go through a circuit breaker. `clock` returns microseconds."""

    def __init__(self, below: Backend, given: CircuitBreaker, clock: Callable[[], int]) -> None:
        super().__init__(below)
        self._seconds = values.microseconds("timeout", given.timeout) / 1_000_000
        pause = values.microseconds("reset_timeout", given.reset_timeout) / 1_000_000
        self._failures, self._breaker = given.max_failures, Breaker(given.max_failures, pause, lambda: clock() / 1e6)

    async def pass_on(self, start: Callable[[], Coroutine[Any, Any, T]], *, writes: bool) -> T:
        """Do something below, unless the store is to be left alone."""
        try:
            with self._breaker.guarding(StoreUnavailable, PalimpsestError):  # another error of ours is an answer
                call = start()
                return await (call if self.blocking else self._in_time(call, writes))
        except Paused as paused:
            when = f"the next one is made in {paused.seconds:.0f} seconds" if paused.seconds else "a trial is under way"
            problem = f"it did not answer {self._failures} calls in a row, and {when} (circuit_breaker)"
            raise StoreUnavailable(self.url, problem) from None

    async def _in_time(self, call: Coroutine[Any, Any, T], writes: bool) -> T:
        import asyncio  # only over a network

        try:
            async with asyncio.timeout(self._seconds):
                return await call
        except TimeoutError as late:
            problem = f"it has not answered within {self._seconds:g} seconds (circuit_breaker)"
            written = None if writes and not is_unsent(late.__cause__) else False
            raise StoreUnavailable(self.url, problem, written=written, late=True) from late
