"""Users' patterns: checked when they are loaded, then run by an engine that no text can hold up.

RE2 (the `pii` extra) finds a match in linear time and is used for every pattern that it can run. Finding all matches
may still take quadratic time, if each search looks at the rest of the text in vain for a longer match (`<[^>]*>|<`); so
it has a time limit, too. Patterns that RE2 does not support (look-around, back-references, atomic groups, `(?x)`) or
that would make it slow (counted repeats of many places) are run by `regex`, with a timeout; so are all patterns if RE2
is not installed. In both engines `\\d`, `\\w`, `\\s` and `\\b` mean ASCII. They differ in two things: in RE2 `$` is the
very end of the text, in `regex` also the place before a final line break; and only RE2 applies `(?i)` beyond ASCII.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from palimpsest.errors import ConfigError
from palimpsest.privacy.patterns.ambiguity import Ambiguous, check, spelled_out

MAX_CHARACTERS = 10_000
"""How long a pattern may be."""

FIRST_SECONDS, MORE_SECONDS, MORE_CHARACTERS = 0.05, 0.05, 65_536
"""A pattern may take 50 ms for an entry, and 50 ms more for each further 64 KiB of it."""

MATCH_SECONDS = 1e-5
"""RE2 may take so much longer for each match that it finds: about five times the cost of a match that is found at
once."""

MOST_SPELLED = 512
"""RE2 is used only if a pattern's counted repeats, written out, have at most so many places. At worst it looks at all
of them for each character, which cannot be interrupted: 4 microseconds a character."""

MOST_PLACES = 100_000
"""A pattern is refused if its counted repeats, written out, have more places: an engine allocates all of them."""

MOST_MEMORY = 8 << 20
"""Bytes that RE2 may use for one pattern and its states. If it needs more it becomes slower, but stays linear."""

_SURROGATES = re.compile("[\ud800-\udfff]")

Places = list[tuple[int, int]]


class Matcher(NamedTuple):
    """A pattern that is ready to run."""

    find: Callable[[str, float], Places]
    """Returns where the pattern matches a text, without empty matches. Raises TimeoutError after so many seconds."""
    linear: bool
    """Whether the engine is RE2, whose time limit is for one text; that of `regex` is for all texts of an entry."""


def allowed_seconds(characters: int) -> float:
    """Return how long a pattern may take for so many characters of one entry."""
    return FIRST_SECONDS + MORE_SECONDS * (characters // MORE_CHARACTERS)


def compiled(pattern: object, where: str, *, linear: bool = True) -> Matcher:
    """Return a matcher for the pattern. With `linear` False RE2 is not used, as if it were not installed.

    Raises ConfigError naming `where` and the reason, if it is no pattern or could backtrack exponentially.
    """
    if not isinstance(pattern, str) or not pattern:
        raise ConfigError(where, pattern, "a regular expression as text")
    if len(pattern) > MAX_CHARACTERS:
        raise ConfigError(where, pattern, f"a pattern of at most {MAX_CHARACTERS:,} characters")
    refused = _refused(pattern)
    if refused is not None:
        raise ConfigError(where, pattern, refused)
    search = _linear(pattern) if linear else None
    if search is not None:
        return Matcher(search, linear=True)
    return Matcher(_timed(pattern, where), linear=False)


@lru_cache(maxsize=256)
def _refused(pattern: str) -> str | None:
    """Return why the pattern is refused, or None."""
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
        return f"a regular expression with one meaning ({warning}; put a backslash before a bracket that is literal)"
    except RecursionError:
        return "a pattern that is less deeply nested"
    except Ambiguous as fault:
        return f"a pattern that is fast for every text; this one can backtrack exponentially: {fault.reason}"
    return None


def linear_engine() -> Any:
    """Return the module of RE2, or None if it is not installed."""
    try:
        import re2  # type: ignore[import-untyped, unused-ignore]  # an extra
    except ImportError:
        return None
    return re2


def _linear(pattern: str) -> Callable[[str, float], Places] | None:
    """Return a search with RE2, or None if RE2 is not installed or does not support the pattern."""
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
        except UnicodeEncodeError:  # each lone surrogate is replaced by one character, so places stay right
            return _timely(finditer(_SURROGATES.sub("\ufffd", text)), seconds)

    return find


def _timely(matches: Any, seconds: float) -> Places:
    """Return the places of the matches. Raises TimeoutError if finding them takes too long for their number.

    What counts is the CPU time of this thread, so that other busy programs cause no refusal. It is at most the wall
    clock's time, which costs less to ask for and is therefore checked first.
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
    """Return a search with `regex`, which stops after its timeout."""
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
