"""Keys and passwords of a program: held where nothing shows them, and recognised where somebody put one in the wrong
place. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

_KEY = (  # a text, which `re` compiles when the first is looked for, and keeps: a start does without
    r"(?<![0-9A-Za-z])[0-9A-Fa-f]{64}(?![0-9A-Za-z])"
    r"|(?<![0-9A-Za-z+/_-])(?=[^a-z]{0,42}[a-z])(?=[^A-Z]{0,42}[A-Z])[0-9A-Za-z+/_-]{43}(?:=|(?![0-9A-Za-z+/_=-]))"
)
"""32 bytes as hexadecimal digits, or as base64, which of bytes by chance has letters of both cases."""

HIDDEN = "[what looks like a key]"

_LOGIN = r"(?<=://)(?:[^\s/@:]{0,256}:\S{0,1024}|[^\s/]{1,1024})@"
"""User and password of an address: up to the last "@", for a password may have any sign, "/" and "@" too."""

_SETTING = r"""(?i)(?<=[?&;])([\w.-]{0,64}?(?:pass|pwd|secret|token|key|credential)[\w.-]{0,64}=)[^\s&"'<>#]+"""
_MASKED = r"(?i)(?:.*[^a-z])?(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|api[_-]?key|authorization)"
"""Names of settings whose values are not shown: of an address, and of a mapping."""

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
    """The text without what in it looks like a key, and without what an address in it says of its user."""
    return re.sub(_KEY, HIDDEN, without_login(text))


def without_login(text: str) -> str:
    """The text with `…` for user and password of each address in it, and for the values of its secret settings."""
    if "://" not in text:
        return text
    bare = re.sub(_LOGIN, "…@", text) if "@" in text else text
    return re.sub(_SETTING, r"\1…", bare) if "=" in bare else bare


def shown(value: object) -> object:
    """What a message may show of a value that was given: the very same, unless it has bytes, what looks like a key, the
    user of an address, or a value under the name of a secret.

    For what looks like a key may be one, in the place of something else. Of a mapping that cannot be read it is the
    class.
    """
    try:
        return _shown(value, 0)
    except Exception:  # noqa: BLE001 (of a class of the program's: what was wrong with it is told all the same)
        return f"a {type(value).__name__} that cannot be read"


def _shown(value: object, depth: int) -> object:
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
        told = {_shown(key, depth + 1): _setting(key, held, depth + 1) for key, held in value.items()}
        pairs = zip(told.items(), value.items(), strict=False)
        same = len(told) == len(value) and all(key is k and held is v for (key, held), (k, v) in pairs)
        return value if same else told
    parts = [_shown(held, depth + 1) for held in value]
    return value if all(part is held for part, held in zip(parts, value, strict=True)) else parts


def _setting(name: object, value: object, depth: int) -> object:
    """A value of a mapping as it may be shown."""
    if isinstance(name, str) and isinstance(value, str) and re.fullmatch(_MASKED, name):
        return "…"
    return _shown(value, depth)


def sealed(value: Any) -> Any:
    """A value of plain JSON, with a `Secret` for each text that says the user of an address, or stands under the name
    of a secret: what is made of it holds, prints and stores none."""
    return _sealed(None, value)


def _sealed(name: object, value: Any) -> Any:
    if isinstance(value, str):
        is_named = isinstance(name, str) and re.fullmatch(_MASKED, name) is not None
        return Secret(value.encode("utf-8", "surrogatepass")) if is_named or without_login(value) != value else value
    if isinstance(value, Mapping):
        return {key: _sealed(key, held) for key, held in value.items()}
    return [_sealed(name, held) for held in value] if isinstance(value, list | tuple) else value


def unsealed(value: Any) -> Any:
    """The value with its secrets told."""
    if isinstance(value, Secret):
        return value.reveal().decode("utf-8", "surrogatepass")
    if isinstance(value, Mapping):
        return {key: unsealed(held) for key, held in value.items()}
    return [unsealed(held) for held in value] if isinstance(value, list | tuple) else value


def secrets_of(value: Any) -> list[str]:
    """The texts of plain JSON that `sealed` holds as secrets."""
    waiting, found = [sealed(value)], list[str]()
    while waiting:
        one = waiting.pop()
        if isinstance(one, Secret):
            found.append(str(unsealed(one)))
        elif isinstance(one, dict | list):
            waiting += one.values() if isinstance(one, dict) else one
    return found
