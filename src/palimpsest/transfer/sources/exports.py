"""`palimpsest`: sessions that `export()` wrote, one in a file, several in a list, or one on each line."""

from __future__ import annotations

from collections.abc import Iterator

from palimpsest.transfer.sources import Piece
from palimpsest.transfer.sources.documents import DocumentSource
from palimpsest.transfer.sources.shapes import is_export


class Exports(DocumentSource):
    """Exports of Palimpsest: whole sessions with their ids, times and records."""

    @staticmethod
    def speaks(value: object) -> bool:
        """Return whether this is an export."""
        return is_export(value)

    def pieces(self) -> Iterator[Piece]:
        """Yield the sessions."""
        listed = self._document.layout == "list"
        for item in self._document.items():
            place = f"item {item.place + 1}" if listed else str(item.place)
            if self._document.layout == "value" and item.fault is None:
                place = "messages"
            if item.fault is not None:
                yield Piece(place=place, fault=item.fault, end=item.end)
            elif is_export(item.value):
                yield Piece(place=place, export=item.value, end=item.end)
            else:
                yield Piece(place=place, fault="is not an export of Palimpsest", end=item.end)
