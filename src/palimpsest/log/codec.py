"""JSON as it is stored: UTF-8 without spaces; text with lone surrogates has no UTF-8 and uses JSON's escapes. Pure.

`msgspec` reads and writes it, but does not support lone surrogates. Values that hold some take the slower way of
`escaped` and `unescaped`; no other value pays for that.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from palimpsest.log.lazy_imports import dumps, loads

T = TypeVar("T")


def _plain(value: object) -> str | int | float:
    """Convert a text or number of a subclass to a plain one. Raises TypeError for a value that JSON cannot express."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return str.__str__(value) if kind is str else kind(value)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


encode = msgspec.json.Encoder(enc_hook=_plain).encode
"""Return the JSON of a value. Raises UnicodeEncodeError for text with lone surrogates."""


def encoded(value: object) -> bytes:
    """Return the JSON of a value, lone surrogates included."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        return escaped(value)


def decoded(body: bytes, kind: type[T]) -> T:
    """Return the value that `encoded` wrote. Raises ValueError if it is not of this `kind`."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        return unescaped(body, kind)


def ready(*kinds: Any) -> None:
    """Let `msgspec` inspect the fields of types that are read from JSON. Call this in the module that defines them.

    `msgspec` inspects a class when it first decodes one, and meanwhile other threads see the unfinished result: if they
    decode one, too, the process crashes (version 0.22). A module is imported by a single thread, and no process forks
    during an import.
    """
    for kind in kinds:
        msgspec.json.Decoder(kind)


def escaped(value: object) -> bytes:
    """Return the JSON of a value that `encode` refused."""
    return dumps(msgspec.to_builtins(value, enc_hook=_plain), separators=(",", ":")).encode()


def unescaped(body: bytes, kind: type[T]) -> T:
    """Decode JSON that `msgspec` refused. Raises ValueError if the value is not of this `kind`."""
    return msgspec.convert(loads(body), kind)
