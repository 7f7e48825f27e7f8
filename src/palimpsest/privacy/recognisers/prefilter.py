"""A first look at a text: which recognisers have to be asked about it. Pure.

Most texts hold nothing private. With RE2 the signs of all recognisers, such as an "@" or seven digits, are searched for
in one pass over the text, in linear time; without RE2 each recogniser makes a quick check of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.privacy.patterns import linear_engine
from palimpsest.privacy.policy import Use
from palimpsest.privacy.recognisers.built_in import BUILT_IN
from palimpsest.privacy.recognisers.scanning import Scan, softened

_END = r"\z"
"""Matches at the end of every text. If RE2 does not report it, RE2 has given up for lack of memory. (An empty pattern
would match at every place, and RE2 would note each.)"""


class Prefilter:
    """Looks for what each recogniser always needs. `linear` says whether RE2 may be used. Any thread may use it."""

    def __init__(self, uses: Sequence[Use], *, linear: bool) -> None:
        self._uses = uses
        self._signs = [BUILT_IN[use.name].sign if use.find is None else _END for use in uses]
        self._patterns = list(dict.fromkeys([_END, *self._signs]))
        self._places = [self._patterns.index(sign) for sign in self._signs]
        self._set = _set_of(self._patterns) if linear and uses else None

    def candidates(self, text: str) -> tuple[Scan | None, list[Use]]:
        """Return the scan of a text, and the recognisers that may find something in it, in order; (None, []) if
        none."""
        uses: Sequence[Use] = self._uses
        if self._set is not None:
            seen = self._set.Match(softened(text).encode("ascii", "replace"))
            if 0 in seen:
                if len(seen) == 1 and 0 not in self._places:
                    return None, []
                uses = [use for use, place in zip(self._uses, self._places, strict=True) if place in seen]
        scan = Scan(text)
        return scan, [use for use in uses if use.find is not None or BUILT_IN[use.name].may_find(scan)]


def _set_of(patterns: Sequence[str]) -> Any:
    """Return the patterns as one automaton over bytes, or None if RE2 is not installed."""
    re2 = linear_engine()
    if re2 is None:
        return None
    options = re2.Options()
    options.log_errors = False
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    pattern_set = re2.Set.SearchSet(options)
    for pattern in patterns:
        pattern_set.Add(pattern.encode("ascii"))
    pattern_set.Compile()
    return pattern_set
