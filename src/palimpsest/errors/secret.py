"""Keys and passwords: `Secret` holds them where nothing shows them, and functions recognise them in text. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

_KEY = (  # text, which `re` compiles on first use, and caches: a cold start does not pay for it
    r"(?<![0-9A-Za-z])[0-9A-Fa-f]{64}(?![0-9A-Za-z])"
    r"|(?<![0-9A-Za-z+/_-])(?=[^a-z]{0,42}[a-z])(?=[^A-Z]{0,42}[A-Z])[0-9A-Za-z+/_-]{43}(?:=|(?![0-9A-Za-z+/_=-]))"
)
"""32 bytes in hexadecimal digits, or in base64: that of random bytes has letters of both cases."""

HIDDEN = "[what looks like a key]"

_LOGIN = r"(?<=://)(?:[^\s/@:]{0,256}:\S{0,1024}|[^\s/]{1,1024})@"
"""User and password of an address: up to the last "@", since a password may have any character, also "/" and "@"."""

_SETTING = r"""(?i)(?<=[?&;])([\w.-]{0,64}?(?:pass|pwd|secret|token|key|credential)[\w.-]{0,64}=)[^\s&"'<>#]+"""
_MASKED = r"(?i)(?:.*[^a-z])?(?:pass(?:word|wd|phrase)?|pwd|secret|token|credentials?|api[_-]?key|authorization)"
"""Names of settings whose values are not shown: in an address (`_SETTING`), and in a mapping (`_MASKED`)."""

DEEP = 8
"""Levels of a nested value that are searched; what is nested deeper is not shown."""


class Secret:
    """Holds the bytes of a key. Only `reveal()` gives them: no `repr`, attribute, copy or pickle has them."""

    __slots__ = ("_held",)

    def __init__(self, value: bytes) -> None:
        self._held: Callable[[], bytes] = lambda: value  # in a closure, which `vars` and dumps of objects do not show

    def reveal(self) -> bytes:
        """Return the bytes."""
        return self._held()

    def __repr__(self) -> str:
        return "<a secret>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret cannot be pickled or copied: create the object that holds it where you use it")


def is_key(text: str) -> bool:
    """Return whether the whole text looks like a key of 32 bytes."""
    return re.fullmatch(_KEY, text) is not None


def hidden(text: str) -> str:
    """Return the text without anything that looks like a key, and without user and password of addresses."""
    return re.sub(_KEY, HIDDEN, without_login(text))


def without_login(text: str) -> str:
    """Return the text with `…` for the user and password of each address in it, and for values of secret settings."""
    if "://" not in text:
        return text
    bare = re.sub(_LOGIN, "…@", text) if "@" in text else text
    return re.sub(_SETTING, r"\1…", bare) if "=" in bare else bare


def shown(value: object) -> object:
    """Return what a message may show of a given value: the same object, unless it contains a secret.

    Secrets are bytes, whatever looks like a key (it may be one, put in the wrong place), user and password of an
    address, and values under the name of a secret. Of a mapping that cannot be read, only the class is shown.
    """
    try:
        return _shown(value, 0)
    except Exception:  # noqa: BLE001 (a mapping of a user's class: the message about it is given all the same)
        return f"a {type(value).__name__} that cannot be read"


def _shown(value: object, depth: int) -> object:
    """Return as `shown`, of a value at this depth."""
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
        safe = {_shown(key, depth + 1): _setting(key, item, depth + 1) for key, item in value.items()}
        pairs = zip(safe.items(), value.items(), strict=False)
        same = len(safe) == len(value) and all(key is k and item is v for (key, item), (k, v) in pairs)
        return value if same else safe
    parts = [_shown(item, depth + 1) for item in value]
    return value if all(part is item for part, item in zip(parts, value, strict=True)) else parts


def _setting(name: object, value: object, depth: int) -> object:
    """Return what may be shown of a mapping's value under this name."""
    if isinstance(name, str) and isinstance(value, str) and re.fullmatch(_MASKED, name):
        return "…"
    return _shown(value, depth)


def sealed(value: Any) -> Any:
    """Return plain JSON with a `Secret` in the place of each secret text, so that it can be kept, printed and stored.

    These are texts with the user of an address, and texts under the name of a secret.
    """
    return _sealed(None, value)


def _sealed(name: object, value: Any) -> Any:
    """Return as `sealed`, of a value under this name."""
    if isinstance(value, str):
        is_named = isinstance(name, str) and re.fullmatch(_MASKED, name) is not None
        return Secret(value.encode("utf-8", "surrogatepass")) if is_named or without_login(value) != value else value
    if isinstance(value, Mapping):
        return {key: _sealed(key, item) for key, item in value.items()}
    return [_sealed(name, item) for item in value] if isinstance(value, list | tuple) else value


def unsealed(value: Any) -> Any:
    """Return the value with the text of each `Secret` in its place: the reverse of `sealed`."""
    if isinstance(value, Secret):
        return value.reveal().decode("utf-8", "surrogatepass")
    if isinstance(value, Mapping):
        return {key: unsealed(item) for key, item in value.items()}
    return [unsealed(item) for item in value] if isinstance(value, list | tuple) else value


def secrets_of(value: Any) -> list[str]:
    """Return the texts of plain JSON that `sealed` would turn into secrets."""
    pending, texts = [sealed(value)], list[str]()
    while pending:
        item = pending.pop()
        if isinstance(item, Secret):
            texts.append(str(unsealed(item)))
        elif isinstance(item, dict | list):
            pending += item.values() if isinstance(item, dict) else item
    return texts
