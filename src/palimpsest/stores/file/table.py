"""`Table`: the index of one table of a place, with where its rows lie in the log of their home."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from palimpsest.stores.backend import Named, Range
from palimpsest.stores.file.lines import LONGEST, RowLine
from palimpsest.stores.rules import rows_in_spans

OURS, WIDTH = LONGEST + 1, LONGEST.bit_length() + 1
"""A row's spot is one number: the value's length, the bit `OURS` if its checksum is ours, and above, from bit `WIDTH`
on, where it begins in the log."""


class Table:
    """The rows of a table, by key: the spots of their values, and their ids.

    `first` has a key for each id, `others` further keys of the few ids that were given to several rows. The rows of
    these keys may have another id by now, or be gone. A `fleeting` table has only what may be lost.
    """

    __slots__ = ("due", "first", "fleeting", "keys", "names", "others", "spots")

    def __init__(self, fleeting: bool) -> None:
        self.keys, self.spots, self.fleeting = array("q"), array("Q"), fleeting
        self.names: list[str] = []
        self.first: dict[str, int] = {}
        self.others: dict[str, list[int]] = {}
        self.due: dict[int, int] = {}

    def put(self, row: RowLine, spot: int) -> int:
        """Index a row at a spot. Return the bytes of the value that it replaces, 0 if none."""
        keys, before = self.keys, 0
        key, _, id, expires = row
        if not keys or key > keys[-1]:
            keys.append(key)
            self.spots.append(spot)
            self.names.append(id)
        else:
            i = bisect_left(keys, key)
            if keys[i] == key:
                before = length_of(self.spots[i])
                self.spots[i], self.names[i] = spot, id
                self.due.pop(key, None)
            else:
                keys.insert(i, key)
                self.spots.insert(i, spot)
                self.names.insert(i, id)
        if id and self.first.setdefault(id, key) != key:
            self.others.setdefault(id, []).append(key)
        if expires is not None:
            self.due[key] = expires
        return before

    def drop(self, low: int, high: int) -> int:
        """Drop the rows of a span of keys. Return the bytes of their values."""
        begin, end = self.among(low, high)
        dropped = sum(map(length_of, self.spots[begin:end]))
        for key in self.keys[begin:end] if self.due else ():
            self.due.pop(key, None)
        del self.keys[begin:end], self.spots[begin:end], self.names[begin:end]
        return dropped

    def among(self, low: int, high: int) -> tuple[int, int]:
        """Return the indices of a span of keys: its begin, and behind its end."""
        keys = self.keys
        if not keys or low > keys[-1]:  # as for new rows
            return len(keys), len(keys)
        begin = bisect_left(keys, low)
        return begin, bisect_right(keys, high, begin)

    def meant(self, ask: Range | Named) -> Sequence[int]:
        """Return the indices of the rows that are asked for, in that order."""
        if isinstance(ask, Named):
            return sorted({i for id in ask.ids for i in self._named(id)})
        return rows_in_spans(ask, lambda low, high: range(*self.among(low, high)))

    def line(self, i: int) -> RowLine:
        """Return the row at this index as a line of a log has it."""
        key, spot = self.keys[i], self.spots[i]
        size = -length_of(spot) if spot & OURS else length_of(spot)
        return RowLine(key, size, self.names[i], self.due.get(key))

    def _named(self, id: str) -> list[int]:
        """Return the indices of the rows that have this id."""
        first = self.first.get(id)
        keys = () if first is None else (first, *self.others.get(id, ()))
        return [i for key in keys for i in range(*self.among(key, key)) if self.names[i] == id]


def length_of(spot: int) -> int:
    """Return the bytes of the value at a spot."""
    return spot & (OURS - 1)
