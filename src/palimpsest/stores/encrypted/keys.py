"""`Keys`: master keys, read from text or bytes, checked, and never shown."""

from __future__ import annotations

import binascii
import os
import re
from collections.abc import Mapping
from typing import NoReturn

from palimpsest.errors import ConfigError
from palimpsest.errors.secret import Secret, is_key

ENVIRONMENT = "PALIMPSEST_KEY"
SIZE, LONGEST_ID = 32, 64
ALLOWED = f"{SIZE} bytes, or their base64, or {2 * SIZE} hexadecimal digits"
IDS = f"ids of up to {LONGEST_ID} letters, digits, dots, hyphens and underscores, which do not look like a key"
SHOWN = 20
"""The longest id, in characters, that a message quotes: a longer one may be a key that was put in the wrong place."""

WRITTEN = "ID:KEY, or several with commas between them, the current one first"

_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{LONGEST_ID - 1}}}")


class Keys:
    """Master keys by their ids: `Keys({"2026": key, "2025": older})`.

    New data is written under the `current` key; the others only serve to read. Raises ConfigError, which shows no key.

    Args:
        keys: keys by their ids. A key is 32 bytes, or text: their base64, or 64 hexadecimal digits. An id is up to 64
            letters, digits, dots, hyphens and underscores; it stands in clear beside everything that the key encrypts,
            so an id that looks like a key is refused.
        current: the id of the key to write with; None: the first.
    """

    __slots__ = ("_keys", "current")

    def __init__(self, keys: Mapping[str, str | bytes], *, current: str | None = None) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise ConfigError("encryption", type(keys).__name__, "a mapping of key ids to keys, with one at least")
        self._keys = {_id(id): Secret(_key(id, key)) for id, key in keys.items()}
        if current is not None and (not isinstance(current, str) or current not in self._keys):
            raise ConfigError("encryption.current", _quoted(current), ", ".join(self._keys))
        self.current = next(iter(self._keys)) if current is None else current

    @classmethod
    def parse(cls, text: str, *, where: str = "encryption") -> Keys:
        """Read keys from `text`, as `ID:KEY,ID:KEY`, the current one first. Raises ConfigError that names `where`."""
        keys: dict[str, str | bytes] = {}
        for piece in filter(None, map(str.strip, text.split(","))):
            id, colon, key = piece.partition(":")
            if not colon:
                raise ConfigError(where, "a key without an id", WRITTEN)
            if id in keys:
                named = f"the id {id}" if len(_id(id)) <= SHOWN else _quoted(id)
                raise ConfigError(where, f"two keys of {named}", "an id of its own for each key")
            keys[id] = key
        if not keys:
            raise ConfigError(where, "nothing", WRITTEN)
        return cls(keys)

    @classmethod
    def from_env(cls, name: str = ENVIRONMENT) -> Keys:
        """Read keys from the environment variable `name`, like `parse`. Raises ConfigError when it is not set."""
        return cls.parse(os.environ.get(name, ""), where=name)

    @classmethod
    def of(cls, given: object) -> Keys:
        """Return as keys what `encryption=` was `given`: keys, a mapping, or text."""
        if isinstance(given, Keys):
            return given
        if isinstance(given, str):
            return cls.parse(given)
        if isinstance(given, Mapping):
            return cls(given)
        raise ConfigError("encryption", type(given).__name__, "Keys(...), a mapping of key ids to keys, or ID:KEY")

    @staticmethod
    def new() -> str:
        """Return a new random key as base64. Keep it where you keep secrets: without it nothing can be read."""
        return binascii.b2a_base64(os.urandom(SIZE), newline=False).decode()

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all keys."""
        return tuple(self._keys)

    def secret(self, id: str) -> bytes | None:
        """Return the key of this `id`; None if it is not among these."""
        key = self._keys.get(id)
        return None if key is None else key.reveal()

    def __repr__(self) -> str:
        return f"Keys(ids={self.ids!r}, current={self.current!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys cannot be pickled or copied: open the memory in the process that uses it")


def is_id(given: object) -> bool:
    """Return whether a value may be the id of a key."""
    return isinstance(given, str) and _ID.fullmatch(given) is not None and not is_key(given)


def _id(given: object) -> str:
    if not isinstance(given, str) or not is_id(given):
        raise ConfigError("encryption", _quoted(given), IDS)
    return given


def _quoted(given: object) -> str:
    """Return how a message names what was given as an id, which may be a key in the wrong place."""
    if not isinstance(given, str):
        return type(given).__name__
    return given if len(given) <= SHOWN and _ID.fullmatch(given) else f"an id of {len(given)} characters"


def _key(id: str, given: object) -> bytes:
    where = f"encryption key {id}" if len(id) <= SHOWN else f"encryption key of {_quoted(id)}"
    if isinstance(given, bytes | bytearray):
        raw = bytes(given)
    elif isinstance(given, str):
        raw = _read(given.strip())
    else:
        raise ConfigError(where, type(given).__name__, ALLOWED)
    if len(raw) != SIZE:
        raise ConfigError(where, f"{len(raw)} bytes" if raw else "what is neither base64 nor hexadecimal", ALLOWED)
    return raw


def _read(text: str) -> bytes:
    """Return the bytes of a key in hexadecimal or base64; b"" if it is neither."""
    if len(text) == 2 * SIZE and re.fullmatch("[0-9a-fA-F]+", text):
        return bytes.fromhex(text)
    if not re.fullmatch("[A-Za-z0-9+/_-]+={0,2}", text):
        return b""
    plain = text.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return binascii.a2b_base64(plain + "=" * (-len(plain) % 4))
    except binascii.Error:
        return b""
