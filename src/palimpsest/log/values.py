"""What the value of an option may be: the one home of what numbers, shares, choices and lengths of time are. Pure.

ConfigError names the option; whoever knows where it stands adds that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard, TypeVar

from palimpsest.errors import ConfigError, nearest
from palimpsest.log.entry import microseconds_of

W = TypeVar("W", bound=str)

MOST = 2**53
"""The largest number that anything may have: beyond it not every program reads JSON's numbers alike."""

FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
"""The first and the last time that has a date."""


def is_whole(value: object, least: int | None = None, most: int | None = None) -> TypeGuard[int]:
    """Whether a value is a whole number within these bounds, which True and False are not."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return (least is None or value >= least) and (most is None or value <= most)


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number, whole or not, which True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def part(share: float, whole: int) -> float:
    """So much of the whole, without the dust of binary fractions: 0.57 of 100 is 57."""
    return round(share * whole, 6)


def whole(name: str, value: object, least: int = 0, *, none: bool = False) -> None:
    """Check for a whole number of at least `least` and at most `MOST`."""
    if not is_whole(value, least, MOST) and not (none and value is None):
        bound = "" if least == -MOST else f" of at least {least}"
        if is_whole(value, MOST):  # else the rest of the message is what helps
            bound += " (and at most 2**53)"
        raise ConfigError(name, value, f"a whole number{bound}{', or None' * none}")


def share(name: str, value: object, *, one: bool = True, none: bool = False) -> None:
    """Check for a share over 0 and up to 1, which is allowed itself where `one` is set."""
    if none and value is None:
        return
    if not is_number(value) or not 0 < value <= 1 or (value == 1 and not one):
        raise ConfigError(name, value, f"a share over 0 and {'up to' if one else 'under'} 1{', or None' * none}")


def choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Check for one of these words."""
    if not isinstance(value, str) or value not in allowed:
        raise ConfigError(name, value, ", ".join(allowed), nearest=nearest(value, allowed))


def word(name: str, value: object, allowed: tuple[W, ...]) -> W:
    """Return the one of these words that was given, in any letter case."""
    plain = value.lower() if isinstance(value, str) else ""
    for one in allowed:
        if one == plain:
            return one
    raise ConfigError(name, value, ", ".join(allowed), nearest=nearest(plain, allowed))


def known(name: str, given: Iterable[object], allowed: Sequence[str], *, inside: bool = False) -> None:
    """Check that what was given has no other names than these, which stand `inside` of what is called `name`."""
    for each in given:
        choice(f"{name}.{each}" if inside else name, each, allowed)


def plain_text(value: Any) -> Any:
    """A text of a class of its own as plain text; any other value as it is."""
    return str.__str__(value) if isinstance(value, str) else value


def text(name: str, value: object, *, none: bool = True) -> None:
    """Check for text that says something."""
    if none and value is None:
        return
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(name, value, f"text{', or None' * none}")


def switch(name: str, value: object) -> None:
    """Check for True or False."""
    if not isinstance(value, bool):
        raise ConfigError(name, value, "True or False")


def is_listed(value: object) -> TypeGuard[Iterable[Any]]:
    """Whether a value can be gone through: an array of no dimension cannot, though it is iterable by its class."""
    if not isinstance(value, Iterable):
        return False
    return getattr(value, "shape", None) != ()


def texts(name: str, value: object, what: str) -> tuple[str, ...]:
    """Return a list of texts as a tuple."""
    if value is None:
        return ()
    if isinstance(value, str | Mapping) or not is_listed(value):
        raise ConfigError(name, value, f"a list of {what}")
    found = list[str]()
    for i, each in enumerate(value):
        text(f"{name}[{i}]", each, none=False)
        found.append(each)
    return tuple(found)


# --- times, and lengths of time

LONGEST = 10**17
"""Microseconds: three thousand years."""

UNITS = {
    "w|weeks?": 604_800_000_000,
    "d|days?": 86_400_000_000,
    "h|hours?": 3_600_000_000,
    "m|min|minutes?": 60_000_000,
    "s|sec|seconds?": 1_000_000,
    "ms|milliseconds?": 1000,
}
"""How units are written, the longest first, and their microseconds."""

_WRITTEN = "(?a)" + "".join(rf"(?:(\d{{1,12}}) ?(?:{names})(?![a-z]) ?)?" for names in UNITS)
_ALLOWED = "a timedelta, a number of seconds, or text such as '90d', '12h', '1h30m', '45s', '250ms', '5 minutes'"


def microseconds(name: str, length: object, *, zero: bool = False) -> int:
    """Return a length of time in microseconds, of the option of this name.

    Text has whole numbers with units, each unit once, the longest first: w, d, h, m, s, ms, or their words; "0" is
    nothing. Raises ConfigError for anything else, for what is longer than three thousand years, and, unless `zero`
    allows it, for nothing.
    """
    found: float = -1.0
    if isinstance(length, timedelta):
        found = length / timedelta(microseconds=1)
    elif isinstance(length, str):
        written = re.fullmatch(_WRITTEN, length.strip())
        if length.strip() == "0":
            found = 0
        elif written is not None and written.lastindex is not None:
            found = sum(int(one or 0) * each for one, each in zip(written.groups(), UNITS.values(), strict=True))
    elif is_number(length) and length < LONGEST:
        found = length * 1_000_000
    if not (0 <= found < LONGEST) or (int(found) == 0 and not zero):
        meant = f"{length.strip()}s" if isinstance(length, str) and length.strip().isdecimal() else None
        raise ConfigError(name, length, f"{_ALLOWED}{'' if zero else ', over 0'}, at most 3,000 years", nearest=meant)
    return int(found)


def instant(name: str, given: object) -> int | None:
    """Return a time in microseconds since 1970; None for None."""
    if given is None:
        return None
    if not isinstance(given, datetime) or given.utcoffset() is None:
        raise ConfigError(name, given, "a datetime with a time zone, such as UTC, or None")
    return microseconds_of(given)


def has_date(moment: datetime) -> bool:
    """Whether a time has a time zone, and is of the years 1 to 9999 in UTC, too."""
    return moment.utcoffset() is not None and FIRST <= moment <= LAST
