"""JSON as it is stored: UTF-8, without spaces; text with lone surrogates, which has none, with JSON's escapes. Pure.

`msgspec` reads and writes it, and knows nothing of lone surrogates. What holds some goes the slower way of `escaped`
and `unescaped`, and no other value pays for that.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from palimpsest.log.late import dumps, loads

T = TypeVar("T")


def _plain(value: object) -> str | int | float:
    """A text or number of a class of its own as a plain one. Raises TypeError for what JSON has no form for."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return str.__str__(value) if kind is str else kind(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


encode = msgspec.json.Encoder(enc_hook=_plain).encode
"""The JSON of a value. Raises UnicodeEncodeError for text with lone surrogates."""


def encoded(value: object) -> bytes:
    """The JSON of a value, whatever text it holds."""
    try:
        return encode(value)
    except UnicodeEncodeError:
        return escaped(value)


def decoded(body: bytes, kind: type[T]) -> T:
    """The value that `encoded` wrote. Raises ValueError where it is another."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        return unescaped(body, kind)


def ready(*kinds: Any) -> None:
    """Have `msgspec` know the fields of types that are read from JSON: called by the module that defines them.

    It looks at the fields of a class when one is first read, and meanwhile shows what it has so far to other threads:
    that ends the process where they read one, too (version 0.22). A module is imported by one thread, and no process
    is forked in the middle of that.
    """
    for kind in kinds:
        msgspec.json.Decoder(kind)


def escaped(value: object) -> bytes:
    """The JSON of a value that `encode` did not take."""
    return dumps(msgspec.to_builtins(value, enc_hook=_plain), separators=(",", ":")).encode()


def unescaped(body: bytes, kind: type[T]) -> T:
    """The value of JSON that `msgspec` did not take. Raises ValueError where it is another."""
    return msgspec.convert(loads(body), kind)
