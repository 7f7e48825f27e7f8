"""Checks of arguments and option values: what numbers, shares, choices, durations, clocks and files may be. Pure.

ConfigError names the option; a caller that knows where it was set adds that.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard, TypeVar

from palimpsest.errors import ConfigError, nearest
from palimpsest.log.entry import LAST_MOMENT, microseconds_of, now_us

W = TypeVar("W", bound=str)

MOST = 2**53
"""The largest number allowed: some programs read larger JSON numbers inexactly."""

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
"""The first and the last time that a datetime can express."""


def is_whole(value: object, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Whether a value is an integer within these bounds. True and False are not."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is an integer or float. True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def part(share: float, whole: int) -> float:
    """Return this share of the whole, without binary rounding errors: 0.57 of 100 is 57."""
    return round(share * whole, 6)


def whole(name: str, value: object, least: int = 0, *, none: bool = False, of: str = "") -> None:
    """Check for a whole number from `least` to `MOST`. The message says what it is the number `of`: "a revision"."""
    if not is_whole(value, least, MOST) and not (none and value is None):
        bound = "" if least == -MOST else f" of at least {least}"
        if is_whole(value, MOST):  # mention the upper bound only if it is exceeded
            bound += " (and at most 2**53)"
        kind = f"{of}: a whole number" if of else "a whole number"
        raise ConfigError(name, value, f"{kind}{bound}{', or None' * none}")


def share(name: str, value: object, *, one: bool = True, none: bool = False) -> None:
    """Check for a share over 0 and up to 1; exactly 1 only if `one` is set."""
    if none and value is None:
        return
    if not is_number(value) or not 0 < value <= 1 or (value == 1 and not one):
        raise ConfigError(name, value, f"a share over 0 and {'up to' if one else 'under'} 1{', or None' * none}")


def choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Check for one of the `allowed` words."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(name, value, ", ".join(allowed), nearest=nearest(value, allowed))


def word(name: str, value: object, allowed: tuple[W, ...]) -> W:
    """Return the one of these words that was given in any letter case."""
    plain = value.lower() if isinstance(value, str) else ""
    for allowed_word in allowed:
        if allowed_word == plain:
            return allowed_word
    raise ConfigError(name, value, ", ".join(allowed), nearest=nearest(plain, allowed))


def known(name: str, given: Iterable[object], allowed: Sequence[str], *, inside: bool = False) -> None:
    """Check that only allowed names were given. With `inside` they are keys of the option `name`."""
    for value in given:
        choice(f"{name}.{value}" if inside else name, value, allowed)


def plain_text(value: Any) -> Any:
    """Return a text of a subclass of str as a plain str; any other value unchanged."""
    return str.__str__(value) if issubclass(type(value), str) else value


def text(name: str, value: object, *, none: bool = True) -> None:
    """Check for text that is not blank."""
    if none and value is None:
        return
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(name, value, f"text{', or None' * none}")


def switch(name: str, value: object) -> None:
    """Check for True or False."""
    if not isinstance(value, bool):
        raise ConfigError(name, value, "True or False")


def is_listed(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether a value can be iterated: an array without dimensions cannot, though its class is Iterable."""
    if not isinstance(value, Iterable):
        return False
    return getattr(value, "shape", None) != ()


def texts(name: str, value: object, what: str) -> tuple[str, ...]:
    """Check a list of texts, and return it as a tuple."""
    if value is None:
        return ()
    if isinstance(value, str | Mapping) or not is_listed(value):
        raise ConfigError(name, value, f"a list of {what}")
    result = list[str]()
    for i, each in enumerate(value):
        text(f"{name}[{i}]", each, none=False)
        result.append(each)
    return tuple(result)


# --- times, and lengths of time

LONGEST = 10**17
"""In microseconds: three thousand years."""

UNITS = {
    "w|weeks?": 604_800_000_000,
    "d|days?": 86_400_000_000,
    "h|hours?": 3_600_000_000,
    "m|min|minutes?": 60_000_000,
    "s|sec|seconds?": 1_000_000,
    "ms|milliseconds?": 1000,
}
"""Spellings of each unit, the longest unit first, and its microseconds."""

_WRITTEN = "(?a)" + "".join(rf"(?:(\d{{1,12}}) ?(?:{names})(?![a-z]) ?)?" for names in UNITS)
_ALLOWED = "a timedelta, a number of seconds, or text such as '90d', '12h', '1h30m', '45s', '250ms', '5 minutes'"


def microseconds(name: str, length: object, *, zero: bool = False) -> int:
    """Return a duration in microseconds; `name` is the option that it was given for.

    Text consists of whole numbers with units, each unit at most once, the longest first: w, d, h, m, s, ms, or their
    words. "0" is zero. Raises ConfigError for anything else, for more than three thousand years, and for zero unless
    `zero` is set.
    """
    total: float = -1.0
    if isinstance(length, timedelta):
        total = length / timedelta(microseconds=1)
    elif isinstance(length, str):
        written = re.fullmatch(_WRITTEN, length.strip())
        if length.strip() == "0":
            total = 0
        elif written is not None and written.lastindex is not None:
            total = sum(int(digits or 0) * unit for digits, unit in zip(written.groups(), UNITS.values(), strict=True))
    elif is_number(length) and length < LONGEST:
        total = length * 1_000_000
    if not (0 <= total < LONGEST) or (int(total) == 0 and not zero):
        digits = length.strip() if isinstance(length, str) else ""
        suggestion = f"{digits}s" if re.fullmatch(r"(?a)\d{1,11}", digits) and int(digits) else None
        raise ConfigError(
            name, length, f"{_ALLOWED}{'' if zero else ', over 0'}, at most 3,000 years", nearest=suggestion
        )
    return int(total)


def instant(name: str, given: object) -> int | None:
    """Return a time in microseconds since 1970, or None for None."""
    if given is None:
        return None
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise ConfigError(name, given, "a datetime with a time zone, such as UTC, or None")
    return microseconds_of(given)


def has_date(moment: datetime) -> bool:
    """Whether a time has a time zone, and lies in the years 1 to 9999 also in UTC."""
    return moment.utcoffset() is not None and FIRST <= moment <= LAST


MICROSECONDS = "a whole number of microseconds since 1970, at most of the year 9999"


# --- clocks, files and callbacks


def checked_clock(clock: Callable[[], int]) -> Callable[[], int]:
    """Return a clock that raises ConfigError for a time that no entry can have. The default clock is not checked.

    Raises ConfigError at once if `clock` is not callable.
    """
    if clock is now_us:
        return clock
    if not callable(clock):
        raise ConfigError("clock", clock, "a function that returns microseconds since 1970")

    def checked() -> int:
        now = clock()
        if not is_whole(now, 0, LAST_MOMENT):
            raise ConfigError("clock", now, MICROSECONDS)
        return now

    return checked


def check_file(file: object, where: str, verb: str) -> None:
    """Raise ConfigError unless this is a possible path of a file, or a binary stream with the method `verb`."""
    if isinstance(file, str | os.PathLike):
        path = os.fspath(file)
        if isinstance(path, str) and is_path(path):
            return
    elif callable(getattr(file, verb, None)) and not isinstance(getattr(file, "file", file), io.TextIOBase):
        return
    opened = f'a binary stream with {verb}(), such as a file opened as "{verb[0]}b"'
    allowed = f"a path without NUL that the file system can name, or {opened}"
    raise ConfigError(where, file, allowed)


def is_path(text: str) -> bool:
    """Whether a file may have this path, judging by its characters."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def check_progress(progress: object) -> None:
    """Raise ConfigError unless this is None or a function to report progress to."""
    if progress is not None and not callable(progress):
        raise ConfigError("progress", progress, "a function of two numbers, how much is done and of how much, or None")
