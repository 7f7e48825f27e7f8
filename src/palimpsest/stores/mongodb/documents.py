"""Documents that were read, the rows in them, and the values that are apart: pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from palimpsest.stores.backend import Ask, Cells, Place, PlaceHead, Range, Seen
from palimpsest.stores.mongodb.layout import (
    BUCKET,
    bucket_key,
    bucket_of,
    home_of,
    in_tail,
    kind_of,
    part_key,
    table_sum,
)
from palimpsest.stores.mongodb.rows import Apart, Cell, Doc

PARTS = 4
"""Parts of a span that are looked into one by one."""
MOST = 200
"""Buckets that are asked for by their keys."""


class Part(NamedTuple):
    """Who has the tail of a part, by the key of the head, and the last bucket of each table in it."""

    owner: bytes | None
    tops: dict[bytes, int]

    @classmethod
    def of(cls, doc: Doc | None) -> Part:
        """What a document says; without one there is no tail."""
        if doc is None:
            return NO_PART
        return cls(doc.get("owner"), dict(doc["tops"]))


NO_PART = Part(None, {})


class Region(NamedTuple):
    """What is read of a span: keys from `low` to `high`, and whether that is all of it."""

    low: int
    high: int
    whole: bool


class Documents:
    """Documents of one moment, by their keys."""

    def __init__(self, docs: Iterable[Doc] = ()) -> None:
        self.by: dict[bytes, Doc] = {}
        self._buckets: dict[bytes, dict[int, Doc]] | None = None
        self._tails: dict[bytes, dict[int, bytes]] | None = None
        self.add(docs)

    def add(self, docs: Iterable[Doc]) -> None:
        """Take in more of the same moment."""
        self.by.update((doc["_id"], doc) for doc in docs)
        self._buckets = self._tails = None

    def put(self, key: bytes, doc: Doc | None) -> None:
        """Put a document into the place of what was there; None: it is gone."""
        if doc is None:
            self.by.pop(key, None)
        else:
            self.by[key] = doc
        self._buckets = self._tails = None

    def part(self, key: bytes) -> Part:
        """What is known of a part that was asked for."""
        return Part.of(self.by.get(key))

    def tails(self) -> dict[bytes, dict[int, bytes]]:
        """Rows in the tails of heads, by table and key, the newest of each. Raises ValueError for what is none."""
        if self._tails is None:
            self._tails = {}
            for key, doc in self.by.items():
                if kind_of(key) == b"h":
                    for place, table, cells in in_tail(doc):
                        rows = self._tails.setdefault(table_sum(place, table), {})
                        rows.update((Cell.key(cell), cell) for cell in cells)
        return self._tails

    def buckets(self, table: bytes) -> dict[int, Doc]:
        """A table's buckets that were read, in order of their numbers."""
        if self._buckets is None:
            self._buckets = {}
            for key in sorted(one for one in self.by if kind_of(one) == b"r"):
                name, number = bucket_of(key)
                self._buckets.setdefault(name, {})[number] = self.by[key]
        return self._buckets.get(table, {})

    def cells(self, table: bytes, low: int, high: int) -> list[bytes]:
        """The rows of a table from key to key, in order."""
        found = list[bytes]()
        first, last = low.to_bytes(8), high.to_bytes(8)
        for number, doc in self.buckets(table).items():
            if low >> BUCKET <= number <= high >> BUCKET:
                found += [cell for cell in doc["r"] if first <= cell[:8] <= last]
        tail = self.tails().get(table)
        if tail:
            by_key = {int.from_bytes(cell[:8]): cell for cell in found}
            by_key.update((key, cell) for key, cell in tail.items() if low <= key <= high)
            return [by_key[key] for key in sorted(by_key)]
        return found

    def rows(self, table: bytes, ask: Range, regions: Sequence[Region]) -> tuple[list[Cells], bool]:
        """The rows that are asked for, as far as these regions go, and whether some may be missing."""
        found: list[Cells] = []
        for low, high, whole in regions:
            cells = self.cells(table, low, high)
            found += Cell.rows(reversed(cells) if ask.newest_first else cells)
            if ask.limit is not None and len(found) >= ask.limit:
                return found[: ask.limit], False
            if not whole:
                return found, True
        return found, False


# --- values in pieces


def apart_in(asks: Sequence[Ask], seen: Sequence[Seen]) -> list[tuple[bytes, bytes]]:
    """References to values, in what was seen, with their homes."""
    found = dict[tuple[bytes, bytes], None]()
    for ask, one in zip(asks, seen, strict=True):
        heads = (one.head.hot, one.head.cold) if one.head is not None else ()
        values = [*heads, *(value for rows in one.rows for _, value, *_ in rows)]
        home = home_of(ask.place.tenant, ask.place.home)
        found.update(((home, bytes(value)), None) for value in values if isinstance(value, Apart))
    return list(found)


def filled(seen: Iterable[Seen], values: dict[bytes, bytes]) -> list[Seen]:
    """The same with the values in the places of references."""

    def full(value: bytes) -> bytes:
        return values[bytes(value)] if isinstance(value, Apart) else value

    return [
        Seen(
            None if one.head is None else PlaceHead(full(one.head.hot), full(one.head.cold)),
            [[(key, full(value), id, expires) for key, value, id, expires in rows] for rows in one.rows],
        )
        for one in seen
    ]


# --- which buckets are to be read


def parts_of(place: Place, ask: Range) -> list[bytes] | None:
    """The keys of the parts that a range is in; None where these are many."""
    found = dict[bytes, None]()
    for low, high in ask.spans:
        if (high >> 32) - (low >> 32) >= PARTS:
            return None
        found.update((part_key(place, part), None) for part in range(low >> 32, (high >> 32) + 1))
    return list(found)


def buckets_of(place: Place, table: bytes, ask: Range, parts: Documents) -> tuple[list[bytes], list[Region]] | None:
    """The keys of the buckets that a range needs, and what is read with them; None where these are many.

    By a limit it is as many as there would be without gaps.
    """
    left = MOST if ask.limit is None else 1 + -(-ask.limit >> BUCKET)
    home, keys, regions = home_of(place.tenant, place.home), list[bytes](), list[Region]()
    for low, high in reversed(ask.spans) if ask.newest_first else ask.spans:
        runs = list[tuple[int, int]]()
        for number in range(low >> 32, (high >> 32) + 1):
            first, last = max(low, number << 32) >> BUCKET, min(high, number << 32 | 0xFFFFFFFF) >> BUCKET
            part = parts.part(part_key(place, number))
            if part is not NO_PART:
                last = min(last, part.tops.get(table, -1))
            if first <= last:
                runs.append((first, last))
        for first, last in reversed(runs) if ask.newest_first else runs:
            if ask.limit is None and last - first >= left:
                return None
            if ask.newest_first:
                begin = max(first, last - left + 1)
                keys += [bucket_key(home, table, one) for one in range(begin, last + 1)]
                left -= last - begin + 1
                if begin > first:
                    return keys, [*regions, Region(max(low, begin << BUCKET), high, whole=False)]
            else:
                end = min(last, first + left - 1)
                keys += [bucket_key(home, table, one) for one in range(first, end + 1)]
                left -= end - first + 1
                if end < last:
                    return keys, [*regions, Region(low, min(high, (end + 1 << BUCKET) - 1), whole=False)]
        regions.append(Region(low, high, whole=True))
    return (keys, regions) if len(keys) <= MOST else None
