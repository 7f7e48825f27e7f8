"""Secrets in JSON lists and objects whose key names a secret, wherever such JSON stands in a text. Pure."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from functools import lru_cache

from palimpsest.privacy import Span
from palimpsest.privacy.recognisers.secret_names import secret_word

MOST = 65_536
"""How many characters of one list or object are searched."""

_BEFORE = re.compile(r"[\w.-]*")
_OPENS = re.compile(r'[\w.-]{0,64}(\\{0,3}")\s{0,4}:\s{0,4}(?=[\[{])', re.ASCII)
_PLAIN_VALUES = frozenset(("", "none", "null", "true", "false", "string", "number", "integer", "object", "array"))
"""Values that say nothing, and the types that a schema names."""


def nested_values(text: str, names: Iterable[tuple[int, int]]) -> Iterator[Span]:
    """Find every text below a key that names a secret, and numbers of four or more digits; keys are left alone.

    `names` are the places of words that may name a secret. No part of the text is searched twice.
    """
    walked = 0
    for first, last in names:
        opens = _OPENS.match(text, last) if first >= walked else None
        if opens is None:
            continue
        before = _BEFORE.match(text[max(first - 64, 0) : first][::-1])
        word = secret_word(text[first - (before.end() if before else 0) : opens.start(1)])
        if word is not None and word != "pass":
            walked = yield from _leaves(text, opens.end(), opens[1], numbers=word != "token")


def _leaves(text: str, start: int, mark: str, *, numbers: bool) -> Generator[Span, None, int]:
    """Yield the values of the list or object that opens at `start`; return where it ends."""
    depth = 0
    for match in _tokens(mark).finditer(text, start, start + MOST):
        token = match.group()
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        if depth == 0 or token == mark:  # the value is closed, or an unclosed text begins
            return match.end()
        if match["text"] is not None:
            if match["colon"] is None and match["text"].lower() not in _PLAIN_VALUES:
                yield Span(*match.span("text"), "credential")
        elif numbers and len(token) >= 4:
            yield Span(*match.span(), "credential")
    return min(start + MOST, len(text))


@lru_cache(maxsize=8)
def _tokens(mark: str) -> re.Pattern[str]:
    """Return a pattern for the tokens of JSON with texts between these marks: quotes, with backslashes in nested
    JSON."""
    end = re.escape(mark)
    inner = r"(?>(?:[^\"\\]|\\.)*)" if mark == '"' else rf"(?>(?:(?!(?<!\\){end}).)*)"
    return re.compile(
        rf"(?<!\\){end}(?P<text>{inner}){end}(?P<colon>\s{{0,4}}:)?|{end}|[\[\]{{}}]|-?[0-9][0-9.eE+-]*", re.DOTALL
    )
