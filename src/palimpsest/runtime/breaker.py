"""`Breaker`, a circuit breaker: after several failures in a row it refuses calls for a while, then tries one. Pure.

closed ── several failures in a row ──> open ── a pause ──> one probe ── it fails ──> open
   ^                                                          │
   └────────────────────────── it succeeds ───────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from palimpsest.runtime.once import new_lock


class Paused(Exception):
    """The breaker refuses calls for another `seconds`; 0: until its probe has reported."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(seconds)


class Breaker:
    """Admits calls, or refuses them with how long that lasts. Threads may share it.

    After `failures` in a row it refuses calls for `pause` seconds. `clock` returns seconds.
    """

    def __init__(self, failures: int, pause: float, clock: Callable[[], float]) -> None:
        self._failures, self._pause, self._clock = failures, pause, clock
        self._lock = new_lock()
        self._in_row, self._until, self._probing = 0, 0.0, False

    def admit(self) -> bool:
        """Admit a call, which has to `report` its outcome. Return whether it is the probe. Raises Paused."""
        if self._in_row < self._failures:
            return False
        with self._lock:
            if self._in_row < self._failures:  # another call has reported a success meanwhile
                return False
            remaining = min(self._until - self._clock(), self._pause)  # the clock may have been set back
            if remaining > 0 or self._probing:
                raise Paused(max(remaining, 0.0))
            self._probing = True
            return True

    @contextmanager
    def guarding(self, failure: type[Exception], answer: type[Exception] | tuple[()] = ()) -> Iterator[None]:
        """Admit the call that the block makes, and report its outcome. Raises Paused before the block.

        An error of the type `failure` is a failure, another one of the type `answer` a success; any other says nothing.
        """
        probe, outcome = self.admit(), None
        try:
            yield
            outcome = True
        except failure:
            outcome = False
            raise
        except answer:
            outcome = True
            raise
        finally:
            self.report(outcome, probe=probe)

    def report(self, succeeded: bool | None, *, probe: bool) -> None:
        """Report the outcome of an admitted call; None: it has none, for instance because it was cancelled."""
        if succeeded and not probe and not self._in_row:
            return
        with self._lock:
            if probe:
                self._probing = False
            if succeeded:
                self._in_row = 0
            elif succeeded is not None:
                self._in_row += 1
                self._until = self._clock() + self._pause
