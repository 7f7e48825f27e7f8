"""The circuit breaker: when nothing is tried, and when it tries again."""

from __future__ import annotations

import pytest

from palimpsest.runtime.breaker import Breaker, Paused
from processes import at_once


class Clock:
    """A clock in seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock, failures: int = 3, pause: float = 5.0) -> Breaker:
    """Return a breaker that has just opened."""
    breaker = Breaker(failures, pause, clock)
    for _ in range(failures):
        breaker.report(False, probe=breaker.admit())
    return breaker


def paused(breaker: Breaker) -> float:
    """Return for how many seconds the breaker lets nothing through."""
    with pytest.raises(Paused) as caught:
        breaker.admit()
    return caught.value.seconds


@pytest.mark.parametrize(("failures", "pause"), [(1, 0.5), (5, 30.0), (10, 5.0)])
def test_failures_in_a_row_open_the_breaker_for_pause_seconds(failures: int, pause: float) -> None:
    """A breaker opens with the last of `failures` in a row, for exactly `pause` seconds."""
    clock = Clock()
    breaker = Breaker(failures, pause, clock)
    for _ in range(failures):
        assert breaker.admit() is False
        breaker.report(False, probe=False)

    assert paused(breaker) == pause
    clock.now += pause - 0.25
    assert paused(breaker) == 0.25
    clock.now += 0.25

    assert breaker.admit() is True


@pytest.mark.parametrize(("outcome", "counted"), [(True, 0), (None, 2)])
def test_only_failures_in_a_row_count(outcome: bool | None, counted: int) -> None:
    """A success resets the count of failures; a try without an outcome does not change it."""
    breaker = Breaker(3, 5.0, Clock())
    for _ in range(2):
        breaker.report(False, probe=breaker.admit())

    breaker.report(outcome, probe=breaker.admit())

    for _ in range(2 - counted):
        breaker.report(False, probe=breaker.admit())
    assert breaker.admit() is False
    breaker.report(False, probe=False)
    assert paused(breaker) == 5.0


def test_the_outcome_of_a_probe_decides() -> None:
    """A failing probe starts the pause again, one without outcome allows another, and a successful one closes it."""
    clock = Clock()
    breaker = opened(clock)

    clock.now += 5
    breaker.report(False, probe=breaker.admit())
    assert paused(breaker) == 5.0

    clock.now += 5
    breaker.report(None, probe=breaker.admit())
    assert breaker.admit() is True
    breaker.report(True, probe=True)

    assert [breaker.admit() for _ in range(3)] == [False] * 3


def test_only_one_probe_goes_at_a_time() -> None:
    """Of many threads that come after the pause, one probes and the others are refused."""
    clock = Clock()
    breaker = opened(clock)
    clock.now += 5
    told = list[bool | float]()

    def come(_: int) -> None:
        try:
            told.append(breaker.admit())
        except Paused as pause:
            told.append(pause.seconds)

    at_once(come, 8)

    assert sorted(map(repr, told)) == ["0.0"] * 7 + ["True"]


def test_a_clock_that_is_set_back_does_not_prolong_a_pause() -> None:
    """Setting the clock back never makes a pause longer than `pause`."""
    clock = Clock()
    breaker = opened(clock)

    clock.now -= 1_000

    assert paused(breaker) == 5.0
