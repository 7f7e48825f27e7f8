"""Public helpers for tests: a clock that stands still. (The stores' contract follows.)"""

from __future__ import annotations


class FakeClock:
    """A clock that moves only when it is told: `Memory.open(…, clock=FakeClock())`. Microseconds since 1970, UTC."""

    def __init__(self, start: int = 1_700_000_000_000_000) -> None:
        self.now = start

    def __call__(self) -> int:
        """Return the time in microseconds since 1970."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self.now += round(seconds * 1_000_000)
