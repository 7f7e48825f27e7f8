"""Values as PostgreSQL's JSONB, which has no NUL, no lone surrogates, no floats and no order of a mapping's keys. Pure.

What it would change is written as `{"$json": "…"}`, JSON in a text. Where only the order of keys would be lost, the
value stays readable, and `$exact` of the metadata has its JSON beside it.
"""

from __future__ import annotations

import json
import re
from typing import Any

PLACE, EXACT, TEXT = "$place", "$exact", "$json"

_CHANGED = re.compile(r"\\u(?:0000|d[89a-f])", re.IGNORECASE)
"""What may be an escape of NUL or of a surrogate in JSON of ASCII; emoji are surrogates there, too."""

DEEP_NUMBER = re.compile(r"[0-9]e[+-]?[0-9]|-0\.0")
"""What may be a number that comes back as another, or as a whole one."""


def columns(content: str, metadata: str) -> tuple[str, str]:
    """The columns `content` and `metadata`, of JSON as entries have it."""
    fits, said = _fitting(content), _fitting(metadata)
    exact = None
    if (
        fits == content
        and said == metadata
        and not (_is_ordered(json.loads(content)) and _is_ordered(json.loads(metadata)))
    ):
        exact = [content, metadata]
    if exact is not None:
        said = f'{said[:-1]}{"," if said != "{}" else ""}"{EXACT}":{json.dumps(exact)}}}'
    return fits, said


def values(content: str, metadata: str) -> tuple[str, str]:
    """The JSON of content and metadata that columns have, of whoever's writing."""
    told = json.loads(metadata)
    exact = None
    if isinstance(told, dict):
        told.pop(PLACE, None)
        exact = told.pop(EXACT, None)
    held = json.loads(content)
    if isinstance(exact, list) and [json.loads(one) for one in exact] == [held, told]:
        return exact[0], exact[1]
    return _plain(held), _plain(told)


def _plain(held: Any) -> str:
    if isinstance(held, dict) and held.keys() == {TEXT} and isinstance(held[TEXT], str):
        return str(held[TEXT])
    return json.dumps(held, separators=(",", ":"))


def _fitting(text: str) -> str:
    """The JSON, or where JSONB would change it, an object with it as a text."""
    if (_CHANGED.search(text) or DEEP_NUMBER.search(text)) and not _is_kept(json.loads(text)):
        return json.dumps({TEXT: text})
    return text


def _is_kept(value: Any) -> bool:
    """Whether JSONB gives every text and number of a value back as it is."""
    if isinstance(value, str):
        return "\0" not in value and not any(0xD800 <= ord(c) < 0xE000 for c in value)
    if isinstance(value, float):
        shown = repr(value)
        return "e" not in shown and shown != "-0.0"
    if isinstance(value, dict):
        return all(_is_kept(key) and _is_kept(one) for key, one in value.items())
    return not isinstance(value, list) or all(map(_is_kept, value))


def _is_ordered(value: Any) -> bool:
    """Whether all mappings have their keys in the order that JSONB gives them: the shorter first, then by bytes."""
    if isinstance(value, dict):
        keys = [(len(key.encode()), key.encode()) for key in value]
        return keys == sorted(keys) and all(map(_is_ordered, value.values()))
    return not isinstance(value, list) or all(map(_is_ordered, value))
