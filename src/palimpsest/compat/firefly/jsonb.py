"""Values of JSON in PostgreSQL's JSONB, which has no NUL, lone surrogates, floats, or order of keys. Pure.

A value that JSONB would change is written as `{"$json": "…"}`: its JSON in a text. If only the order of keys would be
lost, the value stays readable, and `$exact` in the metadata has the JSON of content and metadata.
"""

from __future__ import annotations

import json
import re
from typing import Any

PLACE, EXACT, TEXT = "$place", "$exact", "$json"

_CHANGED = re.compile(r"\\u(?:0000|d[89a-f])", re.IGNORECASE)
"""Finds escapes in ASCII JSON that may be a NUL or lone surrogate. Emoji match, too: they are pairs of surrogates."""

DEEP_NUMBER = re.compile(r"[0-9]e[+-]?[0-9]|-0\.0")
"""Finds what may be a number that JSONB would return as another one, or as an integer."""


def columns(content: str, metadata: str) -> tuple[str, str]:
    """Return the columns `content` and `metadata` for the JSON of an entry's content and metadata."""
    content_column, metadata_column = _fitting(content), _fitting(metadata)
    exact = None
    if (
        content_column == content
        and metadata_column == metadata
        and not (_is_ordered(json.loads(content)) and _is_ordered(json.loads(metadata)))
    ):
        exact = [content, metadata]
    if exact is not None:
        metadata_column = (
            f'{metadata_column[:-1]}{"," if metadata_column != "{}" else ""}"{EXACT}":{json.dumps(exact)}}}'
        )
    return content_column, metadata_column


def values(content: str, metadata: str) -> tuple[str, str]:
    """Return the JSON of content and metadata that these columns hold. Other programs may have written them, too."""
    metadata_value = json.loads(metadata)
    exact = None
    if isinstance(metadata_value, dict):
        metadata_value.pop(PLACE, None)
        exact = metadata_value.pop(EXACT, None)
    content_value = json.loads(content)
    if isinstance(exact, list) and [json.loads(text) for text in exact] == [content_value, metadata_value]:
        return exact[0], exact[1]
    return _plain(content_value), _plain(metadata_value)


def _plain(value: Any) -> str:
    """Return the JSON of the value of a column."""
    if isinstance(value, dict) and value.keys() == {TEXT} and isinstance(value[TEXT], str):
        return str(value[TEXT])
    return json.dumps(value, separators=(",", ":"))


def _fitting(text: str) -> str:
    """Return the JSON, or, if JSONB would change the value, that of an object with the JSON as a text."""
    if (_CHANGED.search(text) or DEEP_NUMBER.search(text)) and not _is_kept(json.loads(text)):
        return json.dumps({TEXT: text})
    return text


def _is_kept(value: Any) -> bool:
    """Return whether JSONB gives every text and number of a value back unchanged."""
    if isinstance(value, str):
        return "\0" not in value and not any(0xD800 <= ord(c) < 0xE000 for c in value)
    if isinstance(value, float):
        shown = repr(value)
        return "e" not in shown and shown != "-0.0"
    if isinstance(value, dict):
        return all(_is_kept(key) and _is_kept(item) for key, item in value.items())
    return not isinstance(value, list) or all(map(_is_kept, value))


def _is_ordered(value: Any) -> bool:
    """Return whether all mappings have their keys in the order that JSONB gives them: shorter first, then by bytes."""
    if isinstance(value, dict):
        keys = [(len(key.encode()), key.encode()) for key in value]
        return keys == sorted(keys) and all(map(_is_ordered, value.values()))
    return not isinstance(value, list) or all(map(_is_ordered, value))
