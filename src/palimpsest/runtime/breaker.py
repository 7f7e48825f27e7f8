"""A circuit breaker: what has failed several times in a row is left alone for a while, then tried once. Pure.

closed ── so many failures in a row ──> open ── a pause ──> one probe ── it fails ──> open
   ^                                                          │
   └────────────────────────── it succeeds ───────────────────┘
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable


class Paused(Exception):
    """The breaker lets nothing through for so many `seconds`; with 0, until its probe has an outcome."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        super().__init__(seconds)


class Breaker:
    """Lets tries through, or says how long there are to be none. Safe to share between threads.

    After `failures` in a row there is no try for `pause` seconds. `clock` returns seconds.
    """

    def __init__(self, failures: int, pause: float, clock: Callable[[], float]) -> None:
        self._failures, self._pause, self._clock = failures, pause, clock
        self._lock = allocate_lock()
        self._in_row, self._until, self._probing = 0, 0.0, False

    def admit(self) -> bool:
        """Let a try through, which reports its outcome, and return whether it is the probe. Raises Paused."""
        if self._in_row < self._failures:
            return False
        with self._lock:
            if self._in_row < self._failures:  # a report came first
                return False
            left = min(self._until - self._clock(), self._pause)  # a clock may have been set back
            if left > 0 or self._probing:
                raise Paused(max(left, 0.0))
            self._probing = True
            return True

    def report(self, succeeded: bool | None, *, probe: bool) -> None:
        """Note a try's outcome; None says that it has none, because whoever made it went away."""
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
