"""Users' patterns: checked when they are loaded, then run by an engine that no text can hold up.

RE2 (the `pii` extra) takes linear time for a match and is used for every pattern that it can run. A search for all
matches may yet be quadratic, where each looks at the rest of the text in vain for a longer one (`<[^>]*>|<`): so it has
a limit of time, too. What RE2 has not, look-around, back-references, atomic groups and `(?x)`, and what would make it
slow, counted repeats of many places, is run by `regex`, with a timeout; so is everything where RE2 is not installed. In
both engines `\\d`, `\\w`, `\\s` and `\\b` mean ASCII. They differ in two things: in RE2 `$` is the very end, in `regex`
also before a line break there; and `(?i)` beyond ASCII is RE2's alone.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from palimpsest.errors import ConfigError
from palimpsest.privacy.ambiguity import Ambiguous, check, spelled_out

MAX_CHARACTERS = 10_000
"""A pattern may be so long."""

FIRST_SECONDS, MORE_SECONDS, MORE_CHARACTERS = 0.05, 0.05, 65_536
"""A pattern may take 50 ms for an entry, and 50 ms more for each further 64 KiB of it."""

MATCH_SECONDS = 1e-5
"""RE2 may take so much longer for each match that it finds: about five times what one costs that is found at once."""

MOST_SPELLED = 512
"""Places that counted repeats may have, spelled out, for RE2 to be used: at worst it looks at all of them for each
character, which cannot be interrupted. That is 4 microseconds a character."""

MOST_PLACES = 100_000
"""Places that a pattern may have, its counted repeats spelled out: an engine makes all of them, of bytes each."""

MOST_MEMORY = 8 << 20
"""Bytes that RE2 may use for one pattern and its states; with more of them it is slower, and still linear."""

_SURROGATES = re.compile("[\ud800-\udfff]")

Places = list[tuple[int, int]]


class Matcher(NamedTuple):
    """A pattern that is ready. `linear` says that its engine needs no timeout."""

    find: Callable[[str, float], Places]
    """Return where the pattern matches a text, without empty matches. Raises TimeoutError after so many seconds."""
    linear: bool
    """Whether the engine is RE2, whose limit is for one text, and not the other, whose is for all of an entry."""


def allowed_seconds(characters: int) -> float:
    """How long a pattern may take for so many characters of one entry."""
    return FIRST_SECONDS + MORE_SECONDS * (characters // MORE_CHARACTERS)


def compiled(pattern: object, where: str, *, linear: bool = True) -> Matcher:
    """Return what finds the pattern; without `linear` RE2 is left alone, as where it is not installed.

    Raises ConfigError naming `where` and the reason for what is no pattern, or could backtrack exponentially.
    """
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError(where, pattern, "a regular expression as text")
    if len(pattern) > MAX_CHARACTERS:
        raise ConfigError(where, pattern, f"a pattern of at most {MAX_CHARACTERS:,} characters")
    refused = _refused(pattern)
    if refused is not None:
        raise ConfigError(where, pattern, refused)
    found = _linear(pattern) if linear else None
    if found is not None:
        return Matcher(found, linear=True)
    return Matcher(_timed(pattern, where), linear=False)


@lru_cache(maxsize=256)
def _refused(pattern: str) -> str | None:
    """Why the pattern is not accepted, or None."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
        check(pattern)
        if spelled_out(pattern) > MOST_PLACES:
            return f"a pattern whose counted repeats come to at most {MOST_PLACES:,} places"
    except (re.error, OverflowError) as error:
        return f"a valid regular expression ({error})"
    except Warning as warning:
        return f"a regular expression of one meaning ({warning}; put a backslash before a bracket that is meant)"
    except RecursionError:
        return "a pattern that is less deeply nested"
    except Ambiguous as fault:
        return f"a pattern that no text can make run for ever; this one can backtrack exponentially: {fault.reason}"
    return None


def linear_engine() -> Any:
    """RE2, or None where it is not installed."""
    try:
        import re2  # type: ignore[import-untyped, unused-ignore]  # an extra
    except ImportError:
        return None
    return re2


def _linear(pattern: str) -> Callable[[str, float], Places] | None:
    """The pattern in RE2, or None where that is not installed or has not what the pattern needs."""
    re2 = linear_engine()
    if re2 is None or spelled_out(pattern) > MOST_SPELLED:
        return None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MOST_MEMORY
    try:
        finditer = re2.compile(pattern, options).finditer
    except (re2.error, UnicodeEncodeError):
        return None

    def find(text: str, seconds: float) -> Places:
        try:
            return _timely(finditer(text), seconds)
        except UnicodeEncodeError:  # one character stands for each lone surrogate, so that the places stay right
            return _timely(finditer(_SURROGATES.sub("\ufffd", text)), seconds)

    return find


def _timely(matches: Any, seconds: float) -> Places:
    """The places of the matches. Raises TimeoutError where they take too long for their number.

    What counts is the time of this thread alone, which the clock on the wall bounds and which costs more to ask for:
    that other programs are busy refuses nothing.
    """
    places, spent, wall = [], time.thread_time(), time.monotonic()
    for count, match in enumerate(matches, 1):
        start, end = match.span()
        if start < end:
            places.append((start, end))
        allowed = seconds + count * MATCH_SECONDS
        if time.monotonic() - wall > allowed and time.thread_time() - spent > allowed:
            raise TimeoutError
    return places


def _timed(pattern: str, where: str) -> Callable[[str, float], Places]:
    import regex  # type: ignore[import-untyped, unused-ignore]  # only for what RE2 does not take

    try:
        finditer = regex.compile(pattern, regex.ASCII | regex.VERSION0).finditer
    except (regex.error, ValueError) as error:
        raise ConfigError(where, pattern, f"a valid regular expression ({error})") from error

    def find(text: str, seconds: float) -> Places:
        if seconds <= 0:
            raise TimeoutError
        return _places(finditer(text, timeout=seconds))

    return find


def _places(matches: Any) -> Places:
    return [span for match in matches if (span := match.span())[0] < span[1]]
