"""`FakeClock`: a clock that stands still until it is advanced."""

from __future__ import annotations


class FakeClock:
    """A clock for tests: `Memory.open(…, clock=FakeClock())`. Microseconds since 1970, UTC."""

    def __init__(self, start: int = 1_700_000_000_000_000) -> None:
        self.now = start

    def __call__(self) -> int:
        """Return the time in microseconds since 1970."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by this many `seconds`."""
        self.now += round(seconds * 1_000_000)
