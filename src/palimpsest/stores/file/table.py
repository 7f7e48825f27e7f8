"""Where the rows of a table lie in the log of their home."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from palimpsest.stores.backend import Named, Range
from palimpsest.stores.file.lines import LONGEST, RowLine
from palimpsest.stores.rules import in_spans

OURS, WIDTH = LONGEST + 1, LONGEST.bit_length() + 1
"""In a row's spot: the bit of values with our checksum, above their length; where they begin is above that."""


class Table:
    """The rows of a table, by key: where their values lie, and their ids.

    `first` and `others` are keys that ids were given to, some of which may have another by now, or be gone: hardly any
    id has two. One that is `fleeting` has only what may be lost.
    """

    __slots__ = ("due", "first", "fleeting", "keys", "names", "others", "spots")

    def __init__(self, fleeting: bool) -> None:
        self.keys, self.spots, self.fleeting = array("q"), array("Q"), fleeting
        self.names: list[str] = []
        self.first: dict[str, int] = {}
        self.others: dict[str, list[int]] = {}
        self.due: dict[int, int] = {}

    def put(self, row: RowLine, spot: int) -> int:
        """Note where a row lies; return how many bytes there are of one whose place it takes."""
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
        """Forget the rows of a span of keys; return how many bytes they have."""
        begin, end = self.among(low, high)
        gone = sum(map(length_of, self.spots[begin:end]))
        for key in self.keys[begin:end] if self.due else ():
            self.due.pop(key, None)
        del self.keys[begin:end], self.spots[begin:end], self.names[begin:end]
        return gone

    def among(self, low: int, high: int) -> tuple[int, int]:
        """From where to where the rows of a span are."""
        keys = self.keys
        if not keys or low > keys[-1]:  # as those of new rows are
            return len(keys), len(keys)
        begin = bisect_left(keys, low)
        return begin, bisect_right(keys, high, begin)

    def meant(self, ask: Range | Named) -> Sequence[int]:
        """The numbers of the rows that are asked for, in that order."""
        if isinstance(ask, Named):
            return sorted({i for id in ask.ids for i in self._named(id)})
        return in_spans(ask, lambda low, high: range(*self.among(low, high)))

    def line(self, i: int) -> RowLine:
        """What a line of a log says of the row with this number."""
        key, spot = self.keys[i], self.spots[i]
        size = -length_of(spot) if spot & OURS else length_of(spot)
        return RowLine(key, size, self.names[i], self.due.get(key))

    def _named(self, id: str) -> list[int]:
        """The numbers of the rows that have an id."""
        first = self.first.get(id)
        keys = () if first is None else (first, *self.others.get(id, ()))
        return [i for key in keys for i in range(*self.among(key, key)) if self.names[i] == id]


def length_of(spot: int) -> int:
    """The bytes of the value at a spot."""
    return spot & (OURS - 1)
