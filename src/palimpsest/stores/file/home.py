"""What one home's log holds, as far as it was read: where each row lies in the file, and the heads.

Eight bytes for a row's key, eight for its place, and its id. What is behind the last line that was read is read when
somebody looks again; where another file has taken the log's place, or its end was taken back, all of it is.
"""

from __future__ import annotations

import os
from _thread import allocate_lock
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO, NamedTuple

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.runtime.logs import warn
from palimpsest.stores.backend import Ask, Cells, Due, Listed, Named, Place, PlaceHead, Range, Seen
from palimpsest.stores.file.disk import is_at, named
from palimpsest.stores.file.folder import is_mark, log_of
from palimpsest.stores.file.lines import (
    TAIL,
    HomeLine,
    RowLine,
    StepLine,
    Writing,
    is_fleeting,
    is_sound,
    is_torn,
    read_batch,
    read_home,
    value_of,
)
from palimpsest.stores.file.refused import RESTORE, Refused
from palimpsest.stores.file.table import OURS, WIDTH, Table, length_of
from palimpsest.stores.rules import is_meant

BLOCK = 1 << 16
NEAR = 4096
"""Bytes between two rows up to which they are read at once."""

TOGETHER = 64
"""Rows, or heads, of one line of a log that is written anew."""

STRAY = "take it away, or give it its own name again if nothing has that"

DROPPED, DESTROYED = 1, 2
"""What a log holds that is not there any more: what was replaced or dropped, or what no byte may be left of."""


class Unsure(Exception):
    """Something seems damaged, to one who has no lock: perhaps somebody was just writing."""


class HeadThere(NamedTuple):
    """A head: when it expires, when it was written, and how many bytes it has."""

    head: PlaceHead
    expires: int | None
    at: int
    size: int


class Home:
    """The log at a path of the store in `root`, for one thread at a time, who has the `lock`."""

    def __init__(self, url: str, root: str, path: str) -> None:
        self.url, self.root, self.path, self.lock = url, root, path, allocate_lock()
        self.folder, self.written = os.path.dirname(path), False
        self.forget()

    def forget(self) -> None:
        """Remember nothing: all is read anew."""
        self.file: tuple[int, int] | None = None
        self.end = self.lines = self.live = self.spoiled = 0
        self.torn = False  # whether something stands behind its end, which a writer has left there or is just writing
        self.unended = False  # whether its last line is whole, and the break behind it another character
        self.settled: tuple[int, ...] = ()  # what the log was like, where nobody can have written to it unseen since
        self.tenant = self.home = ""
        self.refused: Refused | None = None
        self._tail = b""
        self.heads: dict[tuple[str, str], HeadThere] = {}
        self.tables: dict[tuple[str, str, str], Table] = {}

    # --- catching up

    def refresh(self, fd: int, status: os.stat_result, *, sure: bool) -> None:
        """Read what is new in the log. Raises Unsure where it seems damaged, unless that is `sure`: then StoreCorrupt.

        `sure` is who has the file's lock.
        """
        file, size, tail = (status.st_dev, status.st_ino), status.st_size, len(self._tail)
        if self.file != file or size < self.end or self._read(fd, self.end - tail, tail) != self._tail:
            self.forget()
        self.torn = False
        if size != self.end or not size:
            self.file = None  # whoever is interrupted here reads all of it again
            for offset, raw in self._lines(fd, self.end, size):
                if offset + len(raw) == size and is_torn(raw):
                    self.torn = True
                    break
                self.unended = raw[-1:] != b"\n"
                self._take(offset, raw[:-1] + b"\n" if self.unended else raw, sure)
                self._tail = raw[-TAIL:]
            self.file = file
        if self.refused is not None:
            self.heads = {}
            if not self.refused.is_lease:
                raise StoreCorrupt(self.url, self.refused.why)

    def wrote(self, raws: Sequence[bytes], end: int) -> None:
        """Note the lines that were written at its end, unless another thread has read them there."""
        file, self.file = self.file, None
        if file is not None and self.end == end:
            for raw in raws:
                self._take(self.end, raw, True, True)
        self.file = file

    def _take(self, offset: int, raw: bytes, sure: bool, sound: bool = False) -> None:
        """Note what a line says, which begins at `offset`."""
        self.lines += 1
        try:
            if not offset:
                self._begin(raw, sure)
            elif self.refused is None:
                self._note(offset, raw, sure, sound or is_sound(raw))
        except (ValueError, TypeError, msgspec.DecodeError):  # of somebody else's making, with its checksum
            self._refuse(offset, sure)
        if self.refused is not None:
            self.refused.note(raw)
        self.end, self._tail = offset + len(raw), raw[-TAIL:]

    def _begin(self, raw: bytes, sure: bool) -> None:
        said = read_home(raw)
        if said is None:
            self._refuse(0, sure)
        elif log_of(self.root, said.tenant, said.home) != self.path:
            told = f"is the log of {said.home!r} of tenant {said.tenant!r}, copied or renamed"
            self._refuse(0, sure, f"{self.path} {told}: {STRAY}")
        else:
            self.tenant, self.home = said.tenant, said.home

    def _refuse(self, offset: int, sure: bool, why: str = "") -> None:
        if not sure:
            raise Unsure("a line of it is not as it was written")
        why = why or f"{self._line(offset)}. Nothing was changed: {RESTORE}"
        self.refused = Refused(self.root, self.path, self.home, why, self.heads)

    def _line(self, offset: int) -> str:
        return f"{self.path}, line {self.lines} (byte {offset}), is not as it was written"

    def _note(self, offset: int, raw: bytes, sure: bool, sound: bool) -> None:
        said = read_batch(raw, sound) if sound or sure else None
        if said is None:
            if sure and is_fleeting(raw):
                warn("%s", f"{self._line(offset)}: it may be lost, and is passed over")
            else:
                self._refuse(offset, sure)
            return
        if not sound:
            warn("%s", f"{self._line(offset)}: what was changed in it is set aside, or refused, and nothing beside it")
        batch, at = said
        for step in batch.steps:
            written = batch.at if step.at is None else step.at
            at = self._head(step, written if is_mark(written) else 0, raw, at)  # of a damaged mark
        if batch.destroys:
            self.spoiled = DESTROYED
        if batch.fleeting and not sound:
            return
        at += offset
        for step in batch.steps:
            for table, low, high in step.drop:
                self._drop(step.space, step.name, table, low, high)
            for name, rows in step.put.items():
                at = self._put(step, name, rows, at, batch.fleeting)

    def _put(self, step: StepLine, name: str, rows: Sequence[RowLine], at: int, fleeting: bool) -> int:
        """Note rows of a table, of which the first lies at a place; return where the next one is."""
        where = step.space, step.name, name
        table = self.tables.get(where)
        if table is None:
            table = self.tables[where] = Table(fleeting)
        table.fleeting &= fleeting
        live = 0
        for row in rows:
            size, length = row[1], abs(row[1])
            gone = table.put(row, at << WIDTH | (length if size > 0 else length | OURS))
            live += length
            if gone:
                self._lose(gone)
            at += length + 1
        self.live += live
        return at

    def _lose(self, size: int) -> None:
        """Note that so many bytes of the log are of what is not there any more."""
        self.live -= size
        self.spoiled = self.spoiled or DROPPED

    def _head(self, step: StepLine, written: int, raw: bytes, at: int) -> int:
        """Note a head, whose values begin at a place of the line; return where the next one is."""
        if not (step.hot or step.gone):
            return at
        where = step.space, step.name
        before = self.heads.pop(where, None)
        values = []
        for size in (step.hot, step.cold):
            values.append(value_of(raw[at : at + abs(size)], size < 0) if size else None)
            at += abs(size) + 1 if size else 0
        hot, cold = values
        if cold is None:
            cold = before.head.cold if before is not None else b""
        if hot is not None:
            size = len(hot) + len(cold)
            self.heads[where] = HeadThere(PlaceHead(hot, cold), step.expires, written, size)
            self.live += size
        if before is not None:
            self.live -= before.size
            if before.head.cold and (hot is None or step.cold):
                self._lose(0)
        return at

    def _drop(self, space: str, name: str, table: str, low: int, high: int) -> None:
        for where in [one for one in self.tables if one[:2] == (space, name) and is_meant(one[2], table)]:
            if gone := self.tables[where].drop(low, high):
                self._lose(gone)
            if not self.tables[where].keys:
                del self.tables[where]

    # --- reading

    @property
    def is_empty(self) -> bool:
        """Whether the home has no place any more."""
        return not (self.heads or self.tables)

    def listed(self, meant: Callable[[str], bool]) -> list[Listed]:
        """The places of these spaces that have a head."""
        there = [(where, one) for where, one in self.heads.items() if meant(where[0])]
        return [Listed(self._place(*where), one.head, one.at) for where, one in there]

    def expired(self, now: int) -> list[Due]:
        """What has expired of it."""
        heads = [(one.expires, *where, "", 0) for where, one in self.heads.items() if one.expires is not None]
        rows = [(at, *where, key) for where, table in self.tables.items() for key, at in table.due.items()]
        several = (*heads, *rows)
        return [Due(at, self._place(space, name), table, key) for at, space, name, table, key in several if at <= now]

    def _place(self, space: str, name: str) -> Place:
        return Place(self.tenant, self.home, space, name)

    def head(self, space: str, name: str) -> PlaceHead | None:
        """A place's head."""
        there = self.heads.get((space, name))
        return None if there is None else there.head

    def rows(self, fd: int, space: str, name: str, ask: Range | Named) -> list[Cells]:
        """The rows of a place that are asked for. Raises Unsure where the file has others by now."""
        table = self.tables.get((space, name, ask.table))
        if table is None:
            return []
        meant = table.meant(ask)
        keys, spots, names, due = table.keys, table.spots, table.names, table.due.get
        texts = self._texts(fd, [spots[i] for i in meant])
        try:
            return [
                (key := keys[i], value_of(text, bool(spots[i] & OURS)), names[i], due(key))
                for i, text in zip(meant, texts, strict=True)
            ]
        except ValueError as fault:
            self.forget()
            raise Unsure(f"a row of {ask.table!r} is not as it was written") from fault

    def is_still(self, fd: int) -> bool:
        """Whether nothing was written since it was looked at."""
        status = is_at(fd, self.path)
        return status is not None and status.st_size == self.end

    def _texts(self, fd: int, spots: Sequence[int]) -> Iterator[bytes]:
        """The values at these spots as they stand in the file; neighbours are read at once."""
        places = [(spot >> WIDTH, length_of(spot)) for spot in spots]
        i = 0
        while i < len(places):
            begin, end, j = places[i][0], sum(places[i]), i + 1
            while j < len(places) and begin <= places[j][0] <= end + NEAR and end - begin < BLOCK:
                end, j = max(end, sum(places[j])), j + 1
            data = self._read(fd, begin, end - begin)
            for at, length in places[i:j]:
                yield data[at - begin : at - begin + length]
            i = j

    # --- bytes

    def write_anew(self, fd: int, file: BinaryIO) -> None:
        """Write what the log that is open holds into a new file: first the heads, then the rows, a table at a time."""
        at, writing = max((head.at for head in self.heads.values()), default=0), Writing()
        file.write(HomeLine(self.tenant, self.home).line())
        heads = iter(self.heads.items())
        while some := list(islice(heads, TOGETHER)):
            for (space, name), there in some:
                step = StepLine(space, name, expires=there.expires, at=there.at)
                writing.head(step, there.head.hot, there.head.cold or None)
                writing.steps.append(step)
            file.write(writing.line(at))
        for (space, name, title), table in self.tables.items():
            for first in range(0, len(table.keys), TOGETHER):
                part = slice(first, first + TOGETHER)
                lines = map(table.line, range(first, min(part.stop, len(table.keys))))
                rows = list(map(writing.shown, lines, self._texts(fd, table.spots[part])))
                writing.steps.append(StepLine(space, name, put={title: rows}))
                file.write(writing.line(at, fleeting=table.fleeting))

    def _lines(self, fd: int, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
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
                raise Unsure("it ends before it should")
            data += more
        return data


def seen_in(there: tuple[Home, int] | None, ask: Ask) -> Seen:
    """What is asked for, of a home whose log is open, or None."""
    if there is None:
        return Seen(None, [[] for _ in ask.rows])
    home, fd = there
    _, _, space, name = ask.place
    return Seen(home.head(space, name) if ask.head else None, [home.rows(fd, space, name, one) for one in ask.rows])
