"""Lengths of time as people give them: the one home of what `90d`, `1h30m` or `250 ms` mean. Pure."""

from __future__ import annotations

import re
from datetime import timedelta

from palimpsest.errors import ConfigError
from palimpsest.log import values

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
    elif values.is_number(length) and length < LONGEST:
        found = length * 1_000_000
    if not (0 <= found < LONGEST) or (int(found) == 0 and not zero):
        raise ConfigError(name, length, _ALLOWED + ("" if zero else ", over 0"))
    return int(found)
