"""Large texts and media are kept once, by their content: how they are taken out of an entry's stored form. Pure.

Whatever string of an entry is larger than a limit (a text, arguments, the data of an image) leaves its place in the
JSON of `palimpsest.log.entry.pack`, and the stored form begins with a list of where which content belongs. No other
stored form begins so, and no text can pretend to.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

_MARK = b'{"held":'

Place = tuple[str | int, ...]


def take_out(body: bytes, limit: int) -> tuple[bytes, dict[str, bytes]]:
    """Return the stored form without its strings of more than `limit` bytes, and those by their SHA-256."""
    if len(body) <= limit:
        return body, {}
    value = json.loads(body)
    large: dict[str, bytes] = {}
    held = []
    for place, text in list(_strings(value, ())):
        content = text.encode("utf-8", "surrogatepass") if 6 * len(text) > limit else b""
        if len(content) > limit:
            digest = sha256(content).hexdigest()
            large[digest] = content
            held.append([*place, digest])
            _set(value, place, "")
    return (_encoded({"held": held, **value}), large) if held else (body, {})


def held(body: bytes) -> list[str]:
    """Return the SHA-256 of every content that a stored form refers to."""
    return [place[-1] for place in json.loads(body)["held"]] if body.startswith(_MARK) else []


def put_back(body: bytes, load: Callable[[str], bytes]) -> bytes:
    """Return the stored form as it was before `take_out`; `load` gives a content by its SHA-256."""
    if not body.startswith(_MARK):
        return body
    value = json.loads(body)
    for *place, digest in value.pop("held"):
        _set(value, tuple(place), load(digest).decode("utf-8", "surrogatepass"))
    return _encoded(value)


def _strings(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _strings(inner, (*place, key))


def _set(value: Any, place: Place, text: str) -> None:
    for key in place[:-1]:
        value = value[key]
    value[place[-1]] = text


def _encoded(value: dict[str, Any]) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # lone surrogates have no UTF-8
        return json.dumps(value, separators=(",", ":")).encode()
