"""Lengths of time, as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palimpsest.errors import ConfigError
from palimpsest.log.values import microseconds

SECOND = 1_000_000
WRITTEN = {
    "45s": 45 * SECOND,
    "1h30m": 5400 * SECOND,
    "250ms": 250_000,
    "1d": 86_400 * SECOND,
    "2w": 1_209_600 * SECOND,
    "30 seconds": 30 * SECOND,
    "5 minutes": 300 * SECOND,
    " 1 day 2 hours ": 93_600 * SECOND,
    "1m30s": 90 * SECOND,
}


@pytest.mark.parametrize(("text", "length"), WRITTEN.items())
def test_text_with_units_is_read_as_a_duration(text: str, length: int) -> None:
    """Whole numbers with units, the longest first."""
    assert microseconds("x", text) == length


def test_numbers_are_seconds_and_a_timedelta_is_what_it_is() -> None:
    """Parts of a second count; nothing is a length only where it is allowed."""
    assert microseconds("x", 1.5) == 1_500_000
    assert microseconds("x", timedelta(minutes=1)) == 60 * SECOND
    for nothing in (0, "0", "0s", timedelta()):
        assert microseconds("x", nothing, zero=True) == 0
        with pytest.raises(ConfigError, match="over 0, at most 3,000 years"):
            microseconds("x", nothing)


@pytest.mark.parametrize(
    "given",
    [
        *(
            "",
            " ",
            "5",
            "-5m",
            "5x",
            "1.5h",
            "m5",
            "30m1h",
            "1h1h",
            "5 min utes",
            "\u0665s",
            "1e3s",
            "5M",
            "9" * 13 + "s",
        ),
        *("999999999999w", 1e12, float("inf"), float("nan"), -1, True, None, b"5s", ["5s"], timedelta(days=-1)),
    ],
)
def test_other_values_are_refused_by_the_options_name(given: object) -> None:
    """That includes lengths of more than three thousand years."""
    with pytest.raises(ConfigError, match="lifetime"):
        microseconds("lifetime", given, zero=True)


@given(st.integers(1, 10**9))
def test_every_unit_of_a_duration_is_read(number: int) -> None:
    """Every unit and its words."""
    for name, word, length in (("ms", "milliseconds", 1000), ("s", "seconds", SECOND), ("m", "minutes", 60 * SECOND)):
        assert microseconds("x", f"{number}{name}") == microseconds("x", f"{number} {word}") == number * length


@pytest.mark.parametrize(
    ("text", "meant"),
    [("5", "5s"), (" 90 ", "90s"), ("0", None), ("00", None), ("9" * 13, None), ("5x", None), ("٣", None)],
)
def test_suggested_durations_are_valid(text: str, meant: str | None) -> None:
    """The error for a number without a unit suggests the same number in seconds, if that would be accepted."""
    with pytest.raises(ConfigError) as caught:
        microseconds("x", text)

    assert caught.value.nearest == meant
    if meant is not None:
        assert microseconds("x", meant)
