"""A circuit breaker before any store: one that does not answer is left alone for a while, not asked by everybody.

After so many calls in a row that found the store away or did not end in time, each further one fails at once. After a
while one is let through, and what comes of it decides for all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from palimpsest.errors import ConfigError, PalimpsestError, StoreUnavailable
from palimpsest.log import values
from palimpsest.runtime.breaker import Breaker, Paused
from palimpsest.stores.around import Around
from palimpsest.stores.backend import Backend
from palimpsest.stores.tables import Tables

if TYPE_CHECKING:
    from datetime import timedelta

T = TypeVar("T")


class CircuitBreaker(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        """What was given: one, its fields, True for the defaults, False or None for none. Raises ConfigError.

        Args:
            given: what the option `circuit_breaker` was given.
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


def _guarded(verb: Callable[..., Awaitable[Any]]) -> Any:
    """The verb of the backend below, where the breaker lets it through."""
    name = verb.__name__

    @wraps(verb, updated=())
    async def guarded(self: BreakingBackend, *given: Any, **named: Any) -> Any:
        return await self.tried(name, *given, **named)

    return guarded


class BreakingBackend(Around):
    """Another backend whose calls go through a circuit breaker. `clock` gives microseconds."""

    def __init__(self, below: Backend, given: CircuitBreaker, clock: Callable[[], int]) -> None:
        super().__init__(below)
        self.large_bytes, self.companion = below.large_bytes, below.companion
        self.tables = BreakingTables(below.tables, self) if below.tables is not None else None
        self._seconds = values.microseconds("timeout", given.timeout) / 1_000_000
        pause = values.microseconds("reset_timeout", given.reset_timeout) / 1_000_000
        self._failures, self._breaker = given.max_failures, Breaker(given.max_failures, pause, lambda: clock() / 1e6)

    async def tried(self, name: str, *given: Any, **named: Any) -> Any:
        """Do a verb below, unless the store is to be left alone."""
        return await self.let_through(lambda: getattr(self.below, name)(*given, **named), writes=name == "write")

    async def let_through(self, start: Callable[[], Coroutine[Any, Any, T]], *, writes: bool) -> T:
        """Do something below, unless the store is to be left alone."""
        try:
            probe = self._breaker.admit()
        except Paused as paused:
            when = f"the next is tried in {paused.seconds:.0f} seconds" if paused.seconds else "one is under way"
            told = f"{self._failures} calls in a row have had no answer, and {when} (circuit_breaker)"
            raise StoreUnavailable(self.url, told) from None
        answered: bool | None = None
        try:
            doing = start()
            done = await (doing if self.blocking else self._in_time(doing, writes))
            answered = True
        except StoreUnavailable:
            answered = False
            raise
        except PalimpsestError:  # it has answered
            answered = True
            raise
        else:
            return done
        finally:
            self._breaker.report(answered, probe=probe)

    async def _in_time(self, doing: Coroutine[Any, Any, T], writes: bool) -> T:
        import asyncio  # only over a network

        try:
            async with asyncio.timeout(self._seconds):
                return await doing
        except TimeoutError as late:
            told = f"it has not answered within {self._seconds:g} seconds (circuit_breaker)"
            raise StoreUnavailable(self.url, told, written=None if writes else False) from late

    look = _guarded(Backend.look)
    write = _guarded(Backend.write)
    places = _guarded(Backend.places)
    recent = _guarded(Backend.recent)
    newest = _guarded(Backend.newest)
    expired = _guarded(Backend.expired)
    tenants = _guarded(Backend.tenants)


class BreakingTables:
    """Tables beside those of a store that is behind a circuit breaker."""

    def __init__(self, below: Tables, breaking: BreakingBackend) -> None:
        self.schema, self._below, self._breaking = below.schema, below, breaking

    async def do(self, work: Callable[[Any], Awaitable[T]], *, writes: bool = False) -> T:
        return await self._breaking.let_through(lambda: self._below.do(work, writes=writes), writes=writes)
