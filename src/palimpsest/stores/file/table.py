"""Where the rows of a table lie in the log of their home."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from palimpsest.stores.backend import Named, Range
from palimpsest.stores.file.lines import RowLine
from palimpsest.stores.rules import in_spans

OURS, WIDTH = 1 << 28, 29
"""In a row's spot: the bit of values with our checksum, above their length; where they begin is above that."""


class Table:
    """The rows of a table, by key: where their values lie; and the keys of ids, some of which may be gone.

    One that is `fleeting` has only what may be lost.
    """

    __slots__ = ("due", "fleeting", "ids", "keys", "names", "spots")

    def __init__(self, fleeting: bool) -> None:
        self.keys, self.spots, self.fleeting = array("q"), array("Q"), fleeting
        self.ids: dict[str, list[int]] = {}
        self.names: dict[int, str] = {}
        self.due: dict[int, int] = {}

    def put(self, row: RowLine, spot: int) -> int:
        """Note where a row lies; return how many bytes there are of one whose place it takes."""
        keys, before = self.keys, 0
        key, _, id, expires = row
        if not keys or key > keys[-1]:
            keys.append(key)
            self.spots.append(spot)
        else:
            i = bisect_left(keys, key)
            if keys[i] == key:
                before = length_of(self.spots[i])
                self.spots[i] = spot
                self.due.pop(key, None)
                self.names.pop(key, None)
            else:
                keys.insert(i, key)
                self.spots.insert(i, spot)
        if id:
            self.ids.setdefault(id, []).append(key)
            self.names[key] = id
        if expires is not None:
            self.due[key] = expires
        return before

    def drop(self, low: int, high: int) -> int:
        """Forget the rows of a span of keys; return how many bytes they have."""
        begin, end = self.among(low, high)
        gone = sum(map(length_of, self.spots[begin:end]))
        for some in (self.due, self.names):
            for key in self.keys[begin:end] if some else ():
                some.pop(key, None)
        del self.keys[begin:end], self.spots[begin:end]
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
            keys = sorted({key for id in ask.ids for key in self.ids.get(id, ()) if self.names.get(key) == id})
            return [i for key in keys for i in range(*self.among(key, key))]
        return in_spans(ask, lambda low, high: range(*self.among(low, high)))


def length_of(spot: int) -> int:
    """The bytes of the value at a spot."""
    return spot & (OURS - 1)
