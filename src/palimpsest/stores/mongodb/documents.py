"""Documents that were read, the rows in them, and references to values in pieces. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from palimpsest.stores.backend import Ask, Cells, Named, Place, PlaceHead, Range, Seen
from palimpsest.stores.mongodb.layout import (
    BUCKET,
    bucket_key,
    bucket_of,
    head_key,
    home_of,
    in_tail,
    kind_of,
    part_key,
    table_sum,
)
from palimpsest.stores.mongodb.rows import Apart, Cell, Doc

PARTS = 4
"""Up to this many parts of a span are asked for by their keys."""
MOST = 200
"""Up to this many buckets are asked for by their keys."""


class Part(NamedTuple):
    """The key of the head that owns a part (None: no tail has rows of it), and the last bucket of each table in it."""

    owner: bytes | None
    tops: dict[bytes, int]

    @classmethod
    def of(cls, doc: Doc | None) -> Part:
        """Read the document of a part. Without one, no tail has rows of it, and nothing is known of its buckets."""
        if doc is None:
            return NO_PART
        return cls(doc.get("owner"), dict(doc["tops"]))


NO_PART = Part(None, {})


class Region(NamedTuple):
    """The part of a span whose buckets are read, keys from `low` to `high`, and whether that is the whole span."""

    low: int
    high: int
    whole: bool


class Documents:
    """Documents of one snapshot, by their keys (`by`)."""

    def __init__(self, docs: Iterable[Doc] = ()) -> None:
        self.by: dict[bytes, Doc] = {}
        self._buckets: dict[bytes, dict[int, Doc]] | None = None
        self._tails: dict[bytes, dict[int, bytes]] | None = None
        self.add(docs)

    def add(self, docs: Iterable[Doc]) -> None:
        """Add more documents of the same snapshot."""
        self.by.update((doc["_id"], doc) for doc in docs)
        self._buckets = self._tails = None

    def put(self, key: bytes, doc: Doc | None) -> None:
        """Set the document of a key; None: there is none."""
        if doc is None:
            self.by.pop(key, None)
        else:
            self.by[key] = doc
        self._buckets = self._tails = None

    def part(self, key: bytes) -> Part:
        """Return the part of this key, as far as its document was read."""
        return Part.of(self.by.get(key))

    def tails(self) -> dict[bytes, dict[int, bytes]]:
        """Return the cells in the tails of all heads, by table and key, the newest of each. Raises ValueError for a
        damaged tail."""
        if self._tails is None:
            self._tails = {}
            for key, doc in self.by.items():
                if kind_of(key) == b"h":
                    for place, table, cells in in_tail(doc):
                        rows = self._tails.setdefault(table_sum(place, table), {})
                        rows.update((Cell.key(cell), cell) for cell in cells)
        return self._tails

    def buckets(self, table: bytes) -> dict[int, Doc]:
        """Return the buckets of a table that were read, by number, in order."""
        if self._buckets is None:
            self._buckets = {}
            for key in sorted(key for key in self.by if kind_of(key) == b"r"):
                name, number = bucket_of(key)
                self._buckets.setdefault(name, {})[number] = self.by[key]
        return self._buckets.get(table, {})

    def cells(self, table: bytes, low: int, high: int) -> list[bytes]:
        """Return the cells of a table with keys from `low` to `high`, in order; those in tails replace those in
        buckets."""
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
        """Return the rows that a range asks for, as far as these regions go, and whether some may be missing."""
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
    """Return the references to values in pieces among these answers, each with its home, once."""
    found = dict[tuple[bytes, bytes], None]()
    for ask, answer in zip(asks, seen, strict=True):
        of_head = (answer.head.hot, answer.head.cold) if answer.head is not None else ()
        values = [*of_head, *(value for rows in answer.rows for _, value, *_ in rows)]
        home = home_of(ask.place.tenant, ask.place.home)
        found.update(((home, bytes(value)), None) for value in values if isinstance(value, Apart))
    return list(found)


def filled(seen: Iterable[Seen], values: dict[bytes, bytes]) -> list[Seen]:
    """Return the answers with `values` in the places of their references."""

    def full(value: bytes) -> bytes:
        return values[bytes(value)] if isinstance(value, Apart) else value

    return [
        Seen(
            None if answer.head is None else PlaceHead(full(answer.head.hot), full(answer.head.cold)),
            [[(key, full(value), id, expires) for key, value, id, expires in rows] for rows in answer.rows],
        )
        for answer in seen
    ]


# --- which buckets are to be read


def parts_of(place: Place, ask: Range) -> list[bytes] | None:
    """Return the keys of the parts that a range reaches into; None if a span reaches into more than `PARTS`."""
    found = dict[bytes, None]()
    for low, high in ask.spans:
        if (high >> 32) - (low >> 32) >= PARTS:
            return None
        found.update((part_key(place, part), None) for part in range(low >> 32, (high >> 32) + 1))
    return list(found)


def buckets_of(place: Place, table: bytes, ask: Range, parts: Documents) -> tuple[list[bytes], list[Region]] | None:
    """Return the keys of the buckets to read for a range, and the regions that these cover; None if they are too many.

    With a limit they are as many as hold so many rows if no key is missing. So the regions may turn out too small.
    `parts` tells the last bucket of each table.
    """
    remaining = MOST if ask.limit is None else 1 + -(-ask.limit >> BUCKET)
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
            if ask.limit is None and last - first >= remaining:
                return None
            if ask.newest_first:
                begin = max(first, last - remaining + 1)
                keys += [bucket_key(home, table, number) for number in range(begin, last + 1)]
                remaining -= last - begin + 1
                if begin > first:
                    return keys, [*regions, Region(max(low, begin << BUCKET), high, whole=False)]
            else:
                end = min(last, first + remaining - 1)
                keys += [bucket_key(home, table, number) for number in range(first, end + 1)]
                remaining -= end - first + 1
                if end < last:
                    return keys, [*regions, Region(low, min(high, (end + 1 << BUCKET) - 1), whole=False)]
        regions.append(Region(low, high, whole=True))
    return (keys, regions) if len(keys) <= MOST else None


class Needed(NamedTuple):
    """The keys of the documents to read for a look, and the regions that these cover, for each range of each ask.

    `whole` is False if more may be needed, which the documents of the parts will tell.
    """

    keys: set[bytes]
    regions: list[list[list[Region]]]
    whole: bool


def needed_for(asks: Sequence[Ask], parts: Documents, *, remembered: bool = False) -> Needed | None:
    """Return what to read for these asks, by these documents of parts; None if it cannot be told, or is too much.

    `remembered` documents may be outdated, and some may be missing. Buckets that do not follow from them are left out,
    to be told by the documents of the parts, which are read together with the rest.
    """
    keys, regions, whole = set[bytes](), list[list[list[Region]]](), True
    for ask in asks:
        if ask.head:
            keys.add(head_key(ask.place))
        regions.append([])
        for wanted in ask.rows:
            if isinstance(wanted, Named):
                if wanted.ids:
                    return None
                regions[-1].append([])
                continue
            within = parts_of(ask.place, wanted)
            if within is None:
                return None
            keys.update(within)
            keys.update(owner for key in within if (owner := parts.part(key).owner) is not None)
            if remembered and any(key not in parts.by for key in within) and not _is_narrow(wanted):
                regions[-1].append([])
                whole = False
                continue
            found = buckets_of(ask.place, table_sum(ask.place, wanted.table), wanted, parts)
            if found is None and remembered:
                found, whole = ([], []), False
            if found is None:
                return None
            keys.update(found[0])
            regions[-1].append(found[1])
    return Needed(keys, regions, whole)


def _is_narrow(ask: Range) -> bool:
    """Whether a range has so few buckets that all are read, whether they exist or not."""
    return sum((high >> BUCKET) - (low >> BUCKET) + 1 for low, high in ask.spans) <= 8
