"""JSON that is not UTF-8 as UTF-8: its first bytes say what it is, for all of it. Pure."""

from __future__ import annotations

import codecs
import json
from typing import Protocol

from palimpsest.errors import ImportFailed

LOOKED_AT = 8
"""Bytes that say what a text is: a mark of their order and the first character, in any encoding."""

_BEGINS = frozenset(" \t\r\n[{")
"""What JSON of a conversation begins with."""


class Readable(Protocol):
    """What bytes come from."""

    def read(self, size: int, /) -> bytes: ...


def encoding_of(head: bytes) -> str | None:
    """UTF-16 or UTF-32 where a file that begins so is JSON of it, with a mark of its order or without; else None."""
    found = json.detect_encoding(head)
    if found.startswith("utf-8"):
        return None
    begun = codecs.getincrementaldecoder(found)("replace").decode(head)
    return found if begun[:1] in _BEGINS else None


class Recoded:
    """The bytes of a stream as UTF-8. Raises ImportFailed where they are not what they began as."""

    def __init__(self, stream: Readable, encoding: str, name: str) -> None:
        self._stream, self._name, self._encoding = stream, name, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        self._over = False

    def read(self, size: int, /) -> bytes:
        """Return the next bytes: some, or none at the end."""
        while not self._over:
            read = self._stream.read(size)
            self._over = not read
            try:
                text = self._decoder.decode(read, final=self._over)
            except UnicodeDecodeError as fault:
                self._over = True
                what = self._encoding.upper()[:6]
                raise ImportFailed(self._name, f"is no {what}, as which it begins: {fault.reason}") from fault
            if text:
                return text.encode("utf-8", "surrogatepass")
        return b""
