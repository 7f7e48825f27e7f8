"""Converting JSON in UTF-16 or UTF-32 to UTF-8. The first bytes tell the encoding. Pure."""

from __future__ import annotations

import codecs
import json
from typing import Protocol

from palimpsest.errors import ImportFailed

LOOKED_AT = 8
"""How many bytes tell the encoding: a byte order mark and the first character, in any encoding."""

_BEGINS = frozenset(" \t\r\n[{")
"""The characters that JSON of a conversation may begin with."""


class Readable(Protocol):
    """A stream of bytes."""

    def read(self, size: int, /) -> bytes: ...


def encoding_of(head: bytes) -> str | None:
    """Return the UTF-16 or UTF-32 encoding of a JSON file that begins with these bytes; None for any other file."""
    encoding = json.detect_encoding(head)
    if encoding.startswith("utf-8"):
        return None
    beginning = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    return encoding if beginning[:1] in _BEGINS else None


class Recoded:
    """A stream converted to UTF-8. Raises ImportFailed where the bytes do not fit the encoding."""

    def __init__(self, stream: Readable, encoding: str, name: str) -> None:
        self._stream, self._name, self._encoding = stream, name, encoding
        self._decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
        self._over = False

    def read(self, size: int, /) -> bytes:
        """Return the next bytes; none at the end."""
        while not self._over:
            chunk = self._stream.read(size)
            self._over = not chunk
            try:
                text = self._decoder.decode(chunk, final=self._over)
            except UnicodeDecodeError as fault:
                self._over = True
                what = self._encoding.upper()[:6]
                raise ImportFailed(self._name, f"begins as {what} but is not valid {what}: {fault.reason}") from fault
            if text:
                return text.encode("utf-8", "surrogatepass")
        return b""
