"""What makes calls dependable: a bound on time, retries, a circuit breaker. Knows nothing of models.

A call consists of attempts. An attempt that fails for a reason that may pass is repeated after a pause, until the
retries or the allowance of the call are used up. After several failed calls in a row the breaker blocks calls for a
while. Then it lets one through, whose outcome decides for all (`palimpsest.runtime.breaker`).
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Literal, TypeVar

import msgspec

from palimpsest.errors import ConfigError, PalimpsestError, SummarizerFailed
from palimpsest.log import values
from palimpsest.runtime.breaker import Breaker, Paused

T = TypeVar("T")

Kind = Literal["timeout", "refused", "rate_limited", "unavailable", "raised", "answer"]
"""Why an attempt failed. `SummarizerFailed.kind` says the same of a call, or "paused"."""

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""In seconds. The pause before a retry is a random share of 0.5 s, then of 1 s, 2 s and so on: "full jitter", which
spreads callers that failed together better than any fixed share."""


class CallLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how often a call is tried. Times are in seconds.

    `timeout` bounds one attempt, `allowance` the whole call with its pauses. If a failure asks for a wait longer than
    `longest_wait` (`Retry-After`), the call is given up at once. `retries` counts the attempts after the first one.
    After `failures` failed calls in a row calls are blocked for `pause`.
    """

    timeout: float = 60.0
    retries: int = 2
    allowance: float = 180.0
    longest_wait: float = 30.0
    failures: int = 5
    pause: float = 30.0

    def check(self) -> None:
        """Raise ConfigError, naming the option, for an invalid value."""
        for name in ("timeout", "allowance", "longest_wait", "pause"):
            value = getattr(self, name)
            if not values.is_number(value) or not 0 < value < float("inf"):
                raise ConfigError(name, value, "a number of seconds above 0")
        for name, least in (("retries", 0), ("failures", 1)):
            values.whole(name, getattr(self, name), least)


def limits_of_function(timeout: float, retries: int) -> CallLimits:
    """Return the limits for a user's function. Its whole `timeout` is allowed, however long. Raises ConfigError."""
    limits = CallLimits(timeout=timeout, retries=retries)
    limits.check()
    return msgspec.structs.replace(limits, allowance=max(limits.allowance, timeout))


def check_size(name: str, value: object) -> None:
    """Raise ConfigError, naming the option, unless this is a number of tokens over 0, or None."""
    if value is not None and not values.is_whole(value, 1):
        raise ConfigError(name, value, "a number of tokens above 0, or None")


class Failure(PalimpsestError):
    """A failed attempt. `passing` says that another may succeed, `retry_after` how many seconds to wait before."""

    def __init__(self, kind: Kind, why: str, *, passing: bool = False, retry_after: float | None = None) -> None:
        self.kind, self.why, self.passing, self.retry_after = kind, why, passing, retry_after
        super().__init__(why)


class Caller:
    """Makes calls by attempts, within limits. Each callee has one, so that its breaker knows all calls.

    `name` is the callee in errors. `clock` returns seconds, `sleep` waits them, `chance` returns a number from 0 to 1.
    """

    def __init__(
        self,
        name: str,
        limits: CallLimits,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        chance: Callable[[], float] = random.random,
    ) -> None:
        limits.check()
        self.name, self.limits = name, limits
        self._clock, self._sleep, self._chance = clock, sleep, chance
        self._breaker = Breaker(limits.failures, limits.pause, clock)

    async def call(
        self, attempt: Callable[[float], Awaitable[T]], *, may_repeat: Callable[[], bool] = lambda: True
    ) -> T:
        """Return what an attempt returns.

        The attempt gets the seconds left of the allowance, keeps its own timeout, and raises Failure or TimeoutError.
        Raises SummarizerFailed if there is no answer.
        """
        try:
            with self._breaker.guarding(SummarizerFailed):
                return await self._attempts(attempt, may_repeat)
        except Paused as paused:
            when = (
                f"in {paused.seconds:.0f} s at the earliest"
                if paused.seconds
                else "as soon as another call has an answer"
            )
            why = f"it failed {self.limits.failures} times in a row, and is called again {when}"
            raise SummarizerFailed(self.name, "paused", why) from None

    async def _attempts(self, attempt: Callable[[float], Awaitable[T]], may_repeat: Callable[[], bool]) -> T:
        deadline = self._clock() + self.limits.allowance
        number = 0
        while True:
            number += 1
            seconds_left = deadline - self._clock()
            cause: BaseException | None
            try:
                return await attempt(seconds_left)
            except TimeoutError as error:
                why = str(error) or f"no answer within {min(self.limits.timeout, seconds_left):g} s"
                failed, cause = Failure("timeout", why, passing=True), error
            except Failure as error:
                failed, cause = error, error.__cause__
            pause = self._pause(failed, number, deadline) if may_repeat() else failed.why
            if isinstance(pause, str):
                raise SummarizerFailed(self.name, failed.kind, pause) from cause
            await self._sleep(pause)

    def _pause(self, failed: Failure, number: int, deadline: float) -> float | str:
        """Return the seconds before the next attempt, or why there is none."""
        if not failed.passing:
            return failed.why
        if number > self.limits.retries:
            return failed.why if number == 1 else f"{failed.why} (attempt {number} of {number})"
        requested = failed.retry_after or 0.0
        if requested > self.limits.longest_wait:
            return f"{failed.why}; it asks to wait {requested:.0f} s, but {self.limits.longest_wait:g} s are allowed"
        pause = max(requested, self._chance() * min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (number - 1)))
        if self._clock() + pause >= deadline:
            return f"{failed.why}; the {self.limits.allowance:g} s allowed for a call are used up"
        return pause
