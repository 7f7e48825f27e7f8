"""The form of a row in a document."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

from palimpsest.stores.backend import Cells

Doc = dict[str, Any]

SUM = 12
"""Bytes of the digest of the names of a table."""

_FORM = struct.Struct(">QqBH")
_NEVER = -1
_PLAIN = _FORM.pack(0, _NEVER, 0, 0)[8:]
"""What stands behind the key of a row that has neither a time nor an id, and its value with it."""


class Apart(bytes):
    """What refers to a value in pieces, in the place of the value."""

    __slots__ = ()


class Cell:
    """The stored form of a row: its key, when it expires, whether its value is apart, its id, its value."""

    __slots__ = ()

    @staticmethod
    def made(row: Cells, apart: bytes | None = None) -> bytes:
        """The form of a row; `apart` is the reference to its value, where that is in pieces."""
        key, value, id, expires = row
        name = id.encode("utf-8") if id else b""
        form = _FORM.pack(key, _NEVER if expires is None else expires, apart is not None, len(name))
        return b"".join((form, name, value if apart is None else apart))

    @staticmethod
    def key(cell: bytes) -> int:
        """The key of a row."""
        return int.from_bytes(cell[:8])

    @staticmethod
    def expires(cell: bytes) -> int | None:
        """When it does."""
        at = int.from_bytes(cell[8:16], signed=True)
        return None if at == _NEVER else at

    @staticmethod
    def id(cell: bytes) -> str:
        """Its id, also where somebody has damaged it: then it is that of no row."""
        size = int.from_bytes(cell[17:19])
        return cell[19 : 19 + size].decode("utf-8", "backslashreplace") if size else ""

    @staticmethod
    def apart(cell: bytes) -> bytes | None:
        """The reference to its value, if that is in pieces."""
        return cell[19 + int.from_bytes(cell[17:19]) :] if cell[16] == 1 else None

    @classmethod
    def rows(cls, cells: Iterable[bytes]) -> list[Cells]:
        """The rows. Raises ValueError for what is none."""
        found, plain = list[Cells](), _PLAIN
        for cell in cells:
            if cell[8:19] == plain and len(cell) > _FORM.size:  # as most are
                found.append((int.from_bytes(cell[:8]), cell[19:], "", None))
            else:
                found.append(cls.row(cell))
        return found

    @staticmethod
    def row(cell: bytes) -> Cells:
        """The row; one whose value is apart has the reference in its place. Raises ValueError for what is none."""
        if len(cell) < _FORM.size:
            raise ValueError("a row is cut off")
        key, expires, apart, size = _FORM.unpack_from(cell)
        value, id = cell[19 + size :], ""
        if size:
            id = cell[19 : 19 + size].decode("utf-8", "backslashreplace")
        return key, Apart(value) if apart else value, id, None if expires == _NEVER else expires
