"""Put strings in place of parts of a text. JSON stays JSON. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

Replacement: TypeAlias = tuple[int, int, str]
"""From where to where in a text, and what stands there instead."""

_TOKEN = re.compile(r'"(?>(?:[^"\\]|\\.)*)"|-?[0-9][0-9.eE+-]*', re.DOTALL)
"""The texts and numbers of JSON."""


def replaced(text: str, places: Sequence[Replacement]) -> str:
    """Return the text with each place replaced by its string. Places are in order and do not overlap.

    If the text is JSON, a number in which a place is becomes a JSON text as a whole.
    """
    pieces, end = [], 0
    for start, stop, string in _in_json(text, places) if _is_json(text) else places:
        pieces += [text[end:start], string]
        end = stop
    return "".join([*pieces, text[end:]])


def _is_json(text: str) -> bool:
    """Return whether the text is a JSON list or object."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _in_json(text: str, places: Sequence[Replacement]) -> Iterator[Replacement]:
    """Yield the places, or the whole numbers of JSON that they are in, with their strings in quotes."""
    tokens, end = _TOKEN.finditer(text), 0
    token = next(tokens, None)
    for start, stop, string in places:
        while token is not None and token.end() <= start:
            token = next(tokens, None)
        if token is not None and token.start() <= start and stop <= token.end() and token[0][0] != '"':
            if token.start() >= end:  # else it was replaced for another place in it
                yield *token.span(), json.dumps(string, ensure_ascii=False)
            end = token.end()
        else:
            yield start, stop, string
