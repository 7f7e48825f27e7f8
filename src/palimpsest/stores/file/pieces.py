"""The bytes of an open file by line, forwards and backwards, and by block: never more of it at once than is needed."""

from __future__ import annotations

import os
from collections.abc import Iterator

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.file.disk import named

BLOCK = 32 * 1024
"""Bytes read at once: some dozen lines."""


class Pieces:
    """An open file. Whatever of it is asked for has to be there: StoreCorrupt where it was cut short meanwhile."""

    def __init__(self, url: str, path: str, fd: int) -> None:
        self._url, self._path, self._fd = url, path, fd

    def forward(self, begin: int, end: int, step: int = BLOCK) -> Iterator[tuple[int, bytes]]:
        """The pieces between line breaks from `begin` to `end`, each with its break, and where they begin."""
        at, data, size = begin, b"", step
        while at + len(data) < end:
            data += self._bytes(at + len(data), min(size, end - at - len(data)))
            first = 0
            while cut := data.find(b"\n", first) + 1:
                yield at + first, data[first:cut]
                first = cut
            size = step if first else size * 2  # a long line is read in few steps
            at, data = at + first, data[first:]
        if data:
            yield at, data

    def backward(self, end: int, step: int = BLOCK) -> Iterator[tuple[int, bytes]]:
        """The same from `end` back to the file's beginning."""
        at, data, size = end, b"", step
        while at > 0:
            at -= (more := min(size, at))
            data = self._bytes(at, more) + data
            stop = len(data)
            while cut := data.rfind(b"\n", 0, stop - 1) + 1:
                yield at + cut, data[cut:stop]
                stop = cut
            size = step if stop < len(data) else size * 2
            data = data[:stop]
        if data:
            yield 0, data

    def blocks(self, begin: int, end: int) -> Iterator[bytes]:
        """The bytes from `begin` to `end`."""
        for at in range(begin, end, 8 * BLOCK):
            yield self._bytes(at, min(8 * BLOCK, end - at))

    def _bytes(self, at: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                more = os.pread(self._fd, size - len(data), at + len(data))
            except OSError as fault:
                raise named(fault, self._path) from None
            if not more:
                raise StoreCorrupt(self._url, f"{self._path} was cut short while it was read")
            data += more
        return data
