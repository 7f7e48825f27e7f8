"""Keys in a program: held where nothing shows them, and recognised where somebody put one in the wrong place. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NoReturn

_KEY = (  # a text, which `re` compiles when the first is looked for, and keeps: a start does without
    r"(?<![0-9A-Za-z])[0-9A-Fa-f]{64}(?![0-9A-Za-z])"
    r"|(?<![0-9A-Za-z+/_-])(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])[0-9A-Za-z+/_-]{43}(?:=|(?![0-9A-Za-z+/_=-]))"
)
"""32 bytes as hexadecimal digits, or as base64, which of bytes by chance has letters of both cases."""

HIDDEN = "[what looks like a key]"

DEEP = 8
"""Levels of a value that are looked through; what lies deeper is not shown."""


class Secret:
    """Bytes of a key: no `repr`, no attribute, no copy and no pickle has them, `reveal()` alone does."""

    __slots__ = ("_held",)

    def __init__(self, value: bytes) -> None:
        self._held: Callable[[], bytes] = lambda: value

    def reveal(self) -> bytes:
        """The bytes."""
        return self._held()

    def __repr__(self) -> str:
        return "<a secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("secrets are neither pickled nor copied: make what holds one where it is used")


def is_key(text: str) -> bool:
    """Whether a text is what a key of 32 bytes may be written as, and nothing else."""
    return re.fullmatch(_KEY, text) is not None


def hidden(text: str) -> str:
    """The text without what in it looks like a key."""
    return re.sub(_KEY, HIDDEN, text)


def shown(value: object, depth: int = 0) -> object:
    """What a message may show of a value that was given: the very same, unless it has bytes, or what looks like a key.

    For what looks like a key may be one, in the place of something else.
    """
    if isinstance(value, str):
        text = hidden(value)
        return value if text == value else text
    if isinstance(value, bytes | bytearray):
        return f"{len(value)} bytes"
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth > DEEP:
        return f"a {type(value).__name__} nested too deeply"
    if isinstance(value, Mapping):
        told = {shown(key, depth + 1): shown(held, depth + 1) for key, held in value.items()}
        pairs = zip(told.items(), value.items(), strict=False)
        same = len(told) == len(value) and all(key is k and held is v for (key, held), (k, v) in pairs)
        return value if same else told
    parts = [shown(held, depth + 1) for held in value]
    return value if all(part is held for part, held in zip(parts, value, strict=True)) else parts
