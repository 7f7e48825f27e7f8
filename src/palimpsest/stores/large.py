"""Large texts and media are kept once, by their content: how they are taken out of an entry's stored form. Pure.

Whatever string of an entry is larger than a limit (a text, arguments, the data of an image) leaves its place in the
JSON of `palimpsest.log.entry.pack`, and the stored form begins with a list of where which content belongs. No other
stored form begins so, and no text can pretend to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from palimpsest.log.codec import decoded, encoded
from palimpsest.log.late import sha256

_MARK = b'{"held":'

Place = tuple[str | int, ...]


def take_out(body: bytes, limit: int) -> tuple[bytes, dict[str, bytes]]:
    """Return the stored form without its strings of more than `limit` bytes, and those by their SHA-256."""
    if len(body) <= limit:
        return body, {}
    value = decoded(body, dict)
    large: dict[str, bytes] = {}
    held = []
    for place, text in list(_strings(value, ())):
        content = text.encode("utf-8", "surrogatepass") if 6 * len(text) > limit else b""
        if len(content) > limit:
            digest = sha256(content).hex()
            large[digest] = content
            held.append([*place, digest])
            _set(value, place, "")
    return (encoded({"held": held, **value}), large) if held else (body, {})


def held(body: bytes) -> list[str]:
    """Return the SHA-256 of every content that a stored form refers to."""
    return [place[-1] for place in decoded(body, dict)["held"]] if body.startswith(_MARK) else []


def put_back(body: bytes, load: Callable[[str], bytes]) -> bytes:
    """Return the stored form as it was before `take_out`; `load` gives a content by its SHA-256."""
    return filled(decoded(body, dict), load) if body.startswith(_MARK) else body


def filled(value: dict[str, Any], load: Callable[[str], bytes]) -> bytes:
    """Return what `put_back` does for a stored form that was read."""
    for *place, digest in value.pop("held"):
        _set(value, tuple(place), load(digest).decode("utf-8", "surrogatepass"))
    return encoded(value)


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
