"""The stored form of a row: bytes in a document, called a cell."""

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
"""The bytes behind the key of a plain row: one without id and expiry, whose value is not in pieces."""


class Apart(bytes):
    """A reference to a value that is stored in pieces, in place of the value."""

    __slots__ = ()


class Cell:
    """Functions over cells. A cell is: key, time of expiry, whether its value is apart, length of its id, id, value.

    A value that is apart, in pieces, has its reference in its place.
    """

    __slots__ = ()

    @staticmethod
    def made(row: Cells, apart: bytes | None = None) -> bytes:
        """Return the cell of a row; `apart` is the reference to its value, if that is stored in pieces."""
        key, value, id, expires = row
        name = id.encode("utf-8") if id else b""
        form = _FORM.pack(key, _NEVER if expires is None else expires, apart is not None, len(name))
        return b"".join((form, name, value if apart is None else apart))

    @staticmethod
    def key(cell: bytes) -> int:
        """Return the key of the row."""
        return int.from_bytes(cell[:8])

    @staticmethod
    def expires(cell: bytes) -> int | None:
        """Return when the row expires, or None."""
        at = int.from_bytes(cell[8:16], signed=True)
        return None if at == _NEVER else at

    @staticmethod
    def id(cell: bytes) -> str:
        """Return the row's id, "" if it has none. A damaged one is decoded to a text that no row has for an id."""
        size = int.from_bytes(cell[17:19])
        return cell[19 : 19 + size].decode("utf-8", "backslashreplace") if size else ""

    @staticmethod
    def apart(cell: bytes) -> bytes | None:
        """Return the reference to the row's value if that is stored in pieces, or None."""
        return cell[19 + int.from_bytes(cell[17:19]) :] if cell[16] == 1 else None

    @classmethod
    def rows(cls, cells: Iterable[bytes]) -> list[Cells]:
        """Return the rows of these cells. Raises ValueError for a damaged cell."""
        found, plain = list[Cells](), _PLAIN
        for cell in cells:
            if cell[8:19] == plain and len(cell) > _FORM.size:  # most rows are plain
                found.append((int.from_bytes(cell[:8]), cell[19:], "", None))
            else:
                found.append(cls.row(cell))
        return found

    @staticmethod
    def row(cell: bytes) -> Cells:
        """Return the row of a cell, with an `Apart` for a value in pieces. Raises ValueError for a damaged cell."""
        if len(cell) < _FORM.size:
            raise ValueError("a row is cut off")
        key, expires, apart, size = _FORM.unpack_from(cell)
        value, id = cell[19 + size :], ""
        if size:
            id = cell[19 : 19 + size].decode("utf-8", "backslashreplace")
        return key, Apart(value) if apart else value, id, None if expires == _NEVER else expires
