"""What one home's log holds, as far as it was read: where each row lies in the file, and the heads.

Eight bytes for a row's key and eight for its place. What is behind the last line that was read is read when somebody
looks again; where another file has taken the log's place, or its end was taken back, all of it is.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Cells, Named, PlaceHead, Range, Step
from palimpsest.stores.file.disk import named
from palimpsest.stores.file.folder import log_of
from palimpsest.stores.file.lines import (
    TAIL,
    BatchLine,
    StepLine,
    is_sound,
    is_torn,
    placed,
    read_batch,
    read_home,
    read_rows,
    read_value,
)

BLOCK = 1 << 16
NEAR = 4096
"""Bytes between two rows up to which they are read at once."""

WIDTH = 28
"""Bits of a row's length; the rest of its 64 say where it begins."""

RESTORE = "put the file back from a backup, or take the line out and see what `palimpsest doctor` says"

DROPPED, DESTROYED = 1, 2
"""What a log holds that is not there any more: what was replaced or dropped, or what no byte may be left of."""


class Unsure(Exception):
    """Something seems damaged, to one who has no lock: perhaps somebody was just writing."""


class Table:
    """The rows of a table, by key: where they lie. And the keys of rows by id, some of which may be gone."""

    __slots__ = ("due", "ids", "keys", "spots")

    def __init__(self) -> None:
        self.keys, self.spots = array("q"), array("Q")
        self.ids: dict[str, list[int]] = {}
        self.due: dict[int, int] = {}

    def put(self, key: int, id: str, expires: int | None, spot: int) -> int:
        """Note where a row lies; return how many bytes there are of one whose place it takes."""
        keys, before = self.keys, 0
        if not keys or key > keys[-1]:
            keys.append(key)
            self.spots.append(spot)
        else:
            i = bisect_left(keys, key)
            if keys[i] == key:
                before = _length(self.spots[i])
                self.spots[i] = spot
                self.due.pop(key, None)
            else:
                keys.insert(i, key)
                self.spots.insert(i, spot)
        if id:
            self.ids.setdefault(id, []).append(key)
        if expires is not None:
            self.due[key] = expires
        return before

    def drop(self, low: int, high: int) -> int:
        """Forget the rows of a span of keys; return how many bytes they have."""
        begin, end = self.among(low, high)
        gone = sum(map(_length, self.spots[begin:end]))
        del self.keys[begin:end], self.spots[begin:end]
        for key in [key for key in self.due if low <= key <= high]:
            del self.due[key]
        return gone

    def among(self, low: int, high: int) -> tuple[int, int]:
        """From where to where the rows of a span are."""
        begin = bisect_left(self.keys, low)
        return begin, bisect_right(self.keys, high, begin)

    def meant(self, ask: Range) -> list[int]:
        """Where the rows lie that are asked for, in that order."""
        found: list[int] = []
        for low, high in reversed(ask.spans) if ask.newest_first else ask.spans:
            begin, end = self.among(low, high)
            spots = self.spots[begin:end]
            found += reversed(spots) if ask.newest_first else spots
            if ask.limit is not None and len(found) >= ask.limit:
                return found[: ask.limit]
        return found

    def named(self, ids: Sequence[str]) -> list[int]:
        """Where the rows lie that have, or had, one of these ids, by key."""
        keys = sorted({key for id in ids for key in self.ids.get(id, ())})
        return [self.spots[i] for key in keys for i in range(*self.among(key, key))]


class HeadThere(msgspec.Struct):
    """A head: when it expires and was written, how many bytes it has, and in which damaged line it stands, if so."""

    head: PlaceHead
    expires: int | None
    at: int
    size: int
    doubt: str = ""


class Home:
    """The log at a path of the store in `root`, for one thread at a time, who has the `lock`."""

    def __init__(self, url: str, root: str, path: str) -> None:
        self.url, self.root, self.path, self.lock = url, root, path, allocate_lock()
        self._forget(None)

    def _forget(self, file: tuple[int, int] | None) -> None:
        self.file, self.end, self.lines, self._touched = file, 0, 0, 0
        self._tail = b""
        self.tenant = self.home = ""
        self.heads: dict[tuple[str, str], HeadThere] = {}
        self.tables: dict[tuple[str, str, str], Table] = {}
        self.live = self.spoiled = 0
        self._refused = ""

    # --- catching up

    def refresh(self, fd: int, *, sure: bool) -> None:
        """Read what is new in the log. Raises Unsure where it seems damaged, unless that is `sure`: then StoreCorrupt.

        `sure` is who has the file's lock.
        """
        try:
            self._refresh(fd, sure)
        except (Unsure, OSError):
            self._forget(None)
            raise
        if self._refused:
            raise StoreCorrupt(self.url, self._refused)

    def _refresh(self, fd: int, sure: bool) -> None:
        status = os.fstat(fd)
        size = status.st_size
        same = self.file == (status.st_dev, status.st_ino) and size >= self.end
        if same and self.end and (size != self.end or status.st_mtime_ns != self._touched):
            same = self._read(fd, self.end - TAIL, TAIL) == self._tail
        if not same:
            self._forget((status.st_dev, status.st_ino))
        self._touched = status.st_mtime_ns
        for offset, raw in self._pieces(fd, self.end, size):
            if offset + len(raw) == size and is_torn(raw):
                break
            self.take(offset, raw, sure)

    def take(self, offset: int, raw: bytes, sure: bool) -> None:
        """Note what a line says, which begins at `offset`."""
        self.lines += 1
        if not offset:
            self._begin(raw, sure)
        elif not self._refused:
            self._note(offset, raw, sure)
        self.end, self._tail = offset + len(raw), raw[-TAIL:]

    def _begin(self, raw: bytes, sure: bool) -> None:
        said = read_home(raw)
        if said is None:
            self._refuse(f"{self._named(0)}. Nothing was changed: {RESTORE}", sure)
        elif log_of(self.root, said.tenant, said.home) != self.path:
            whose = f"{said.home!r} of tenant {said.tenant!r}"
            self._refuse(f"{self.path} is the log of {whose}, copied or renamed: give it its own name again", sure)
        else:
            self.tenant, self.home = said.tenant, said.home

    def _refuse(self, why: str, sure: bool) -> None:
        if not sure:
            raise Unsure
        self._refused = why

    def _named(self, offset: int) -> str:
        return f"{self.path}, line {self.lines} (byte {offset}), is not as it was written"

    def _note(self, offset: int, raw: bytes, sure: bool) -> None:
        sound = is_sound(raw)
        if not (sound or sure):
            raise Unsure
        batch = read_batch(raw, sound)
        try:
            if batch is not None:
                self._do(batch, offset, raw, sound)
        except (ValueError, msgspec.DecodeError):  # of a line that somebody else has written, with its checksum
            batch = None
        if batch is None:
            self._refuse(f"{self._named(offset)}. Nothing was changed: {RESTORE}", sure)

    def _do(self, batch: BatchLine, offset: int, raw: bytes, sound: bool) -> None:
        """Note what a batch has done, which stands in a line at `offset`."""
        at = 0
        for step in batch.steps:
            doubt = "" if sound and not step.doubt else self._named(offset)
            self._head(step, batch.at if step.at is None else step.at, doubt)
            for table, low, high in step.drop:
                self._drop(step.space, step.name, table, low, high)
            for name, texts in step.put.items():
                table_of = self.tables.setdefault((step.space, step.name, name), Table())
                for text in map(bytes, texts):
                    at = raw.find(text, at)  # the same bytes before it would do as well
                    gone = table_of.put(*placed(text), offset + at << WIDTH | len(text))
                    self.live += len(text) - gone
                    at += len(text)
        self.spoiled = max(self.spoiled, batch.spoiled)

    def _head(self, step: StepLine, at: int, doubt: str) -> None:
        where = step.space, step.name
        if not (step.hot or step.gone):
            return
        before = self.heads.pop(where, None)
        cold = before.head.cold if before is not None else b""
        size = 0
        if step.hot:
            if step.cold:
                cold = read_value(step.cold)
            size = len(step.hot) + len(cold)
            self.heads[where] = HeadThere(PlaceHead(read_value(step.hot), cold), step.expires, at, size, doubt)
        gone = before.size if before is not None else 0
        self.live += size - gone

    def _drop(self, space: str, name: str, table: str, low: int, high: int) -> None:
        for where in self.like(space, name, table):
            self.live -= self.tables[where].drop(low, high)
            if not self.tables[where].keys:
                del self.tables[where]

    def like(self, space: str, name: str, table: str) -> list[tuple[str, str, str]]:
        """The tables of a place that a step means by this name."""
        if not table.endswith("*"):
            return [(space, name, table)] if (space, name, table) in self.tables else []
        return [one for one in self.tables if one[:2] == (space, name) and one[2].startswith(table[:-1])]

    # --- reading

    @property
    def is_empty(self) -> bool:
        """Whether the home has no place any more."""
        return not (self.heads or self.tables)

    def head(self, space: str, name: str) -> PlaceHead | None:
        """A place's head. Raises StoreCorrupt, naming the line, where that was damaged."""
        there = self.heads.get((space, name))
        if there is not None and there.doubt:
            raise StoreCorrupt(
                self.url, f"{there.doubt}; it says how things stand in {space} {name!r}. Nothing was changed"
            )
        return None if there is None else there.head

    def rows(self, fd: int, space: str, name: str, ask: Range | Named) -> list[Cells]:
        """The rows of a place that are asked for. Raises Unsure where the file has others by now."""
        table = self.tables.get((space, name, ask.table))
        if table is None:
            return []
        try:
            if isinstance(ask, Range):
                return read_rows(self.texts(fd, table.meant(ask)))
            ids = set(ask.ids)
            return [row for row in read_rows(self.texts(fd, table.named(ask.ids))) if row[2] in ids]
        except (ValueError, msgspec.DecodeError) as fault:
            self._forget(None)
            raise Unsure from fault

    def texts(self, fd: int, spots: Sequence[int]) -> Iterator[bytes]:
        """The rows at these spots as they stand in the file; neighbours are read at once."""
        places = [(spot >> WIDTH, _length(spot)) for spot in spots]
        i = 0
        while i < len(places):
            begin, end, j = places[i][0], sum(places[i]), i + 1
            while j < len(places) and begin <= places[j][0] <= end + NEAR and end - begin < BLOCK:
                end, j = max(end, sum(places[j])), j + 1
            data = self._read(fd, begin, end - begin)
            for at, length in places[i:j]:
                yield data[at - begin : at - begin + length]
            i = j

    def spoils(self, step: Step) -> int:
        """What the log holds after a step that is not there any more."""
        if step.destroys:
            return DESTROYED
        space, name = step.place.space, step.place.name
        there = self.heads.get((space, name)) if step.hot is None or step.cold is not None else None
        if not step.rows_only and there is not None and there.head.cold:
            return DROPPED
        spans = chain(step.drop, ((table, row[0], row[0]) for table, rows in step.put for row in rows))
        tables = ((self.tables[one], low, high) for table, low, high in spans for one in self.like(space, name, table))
        return DROPPED if any(len(range(*table.among(low, high))) for table, low, high in tables) else 0

    # --- bytes

    def _pieces(self, fd: int, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The pieces between line breaks, each with its break, and where they begin."""
        at, parts = begin, list[bytes]()
        while begin < end:
            block = self._read(fd, begin, min(BLOCK, end - begin))
            begin += len(block)
            *whole, rest = block.split(b"\n")
            for piece in whole:
                raw = b"".join((*parts, piece, b"\n"))
                parts = []
                yield at, raw
                at += len(raw)
            parts.append(rest)
        if last := b"".join(parts):
            yield at, last

    def _read(self, fd: int, at: int, size: int) -> bytes:
        data = b""
        while len(data) < size:
            try:
                more = os.pread(fd, size - len(data), at + len(data))
            except OSError as fault:
                raise named(fault, self.path) from None
            if not more:
                raise Unsure
            data += more
        return data


def _length(spot: int) -> int:
    return spot & ((1 << WIDTH) - 1)
