"""`Home`: the index of one home's log, as far as it was read: its heads, and where each row lies in the file.

A row takes eight bytes for its key, eight for its spot, and its id. Lines behind the last one that was read are read at
the next look. If another file has taken the log's place, or the log became shorter, everything is read again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO, NamedTuple

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.runtime.logs import warn
from palimpsest.runtime.once import new_lock
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
"""Bytes between two rows up to which both are read in one call."""

TOGETHER = 64
"""Rows, or heads, in one line of a rewritten log."""

STRAY = "move it out of the folder, or give it back its own name if no file has that"

DROPPED, DESTROYED = 1, 2
"""The dead content of a log: something replaced or dropped; or something destroyed, of which no byte may be left."""


class Unsure(Exception):
    """Something seems damaged to a reader without the lock: perhaps a writer is just at work."""


class IndexedHead(NamedTuple):
    """A head with its expiry, the mark of its last write, and its size in bytes."""

    head: PlaceHead
    expires: int | None
    at: int
    size: int


class Home:
    """The log at a path of the store in `root`, for one thread at a time: the holder of `lock`."""

    def __init__(self, url: str, root: str, path: str) -> None:
        self.url, self.root, self.path, self.lock = url, root, path, new_lock()
        self.folder, self.written = os.path.dirname(path), False  # whether this process has written to it
        self.forget()

    def forget(self) -> None:
        """Forget the index: the next look reads the whole log."""
        self.file: tuple[int, int] | None = None
        self.end = self.lines = self.live = self.spoiled = 0
        self.torn = False  # whether an unfinished line is behind `end`: of a killed writer, or one just at work
        self.unended = False  # whether the last line is complete, but a damaged byte is in the place of its line break
        self.settled: tuple[int, ...] = ()  # the log's status, if any later write changes that (`Listing`)
        self.tenant = self.home = ""
        self.refused: Refused | None = None
        self._tail = b""
        self.heads: dict[tuple[str, str], IndexedHead] = {}
        self.tables: dict[tuple[str, str, str], Table] = {}

    # --- catching up

    def refresh(self, fd: int, status: os.stat_result, *, sure: bool) -> None:
        """Read what is new in the log. `sure` says that the caller has the file's lock.

        If it seems damaged, raises Unsure, or if `sure` StoreCorrupt.
        """
        file, size, tail = (status.st_dev, status.st_ino), status.st_size, len(self._tail)
        if self.file != file or size < self.end or self._read(fd, self.end - tail, tail) != self._tail:
            self.forget()
        self.torn = False
        if size != self.end or not size:
            self.file = None  # after an interrupt here everything is read again
            for offset, raw in self._lines(fd, self.end, size):
                if offset + len(raw) == size and is_torn(raw):
                    self.torn = True
                    break
                self.unended = raw[-1:] != b"\n"
                self._index(offset, raw[:-1] + b"\n" if self.unended else raw, sure)
                self._tail = raw[-TAIL:]
            self.file = file
        if self.refused is not None:
            self.heads = {}
            if not self.refused.is_lease:
                raise StoreCorrupt(self.url, self.refused.why)

    def wrote(self, raws: Sequence[bytes], end: int) -> None:
        """Index lines that this process has written at `end`, unless another thread has read them meanwhile."""
        file, self.file = self.file, None
        if file is not None and self.end == end:
            for raw in raws:
                self._index(self.end, raw, True, True)
        self.file = file

    def _index(self, offset: int, raw: bytes, sure: bool, sound: bool = False) -> None:
        """Index the line that begins at `offset`."""
        self.lines += 1
        try:
            if not offset:
                self._index_owner(raw, sure)
            elif self.refused is None:
                self._index_batch(offset, raw, sure, sound or is_sound(raw))
        except (ValueError, TypeError, msgspec.DecodeError):  # another program wrote it, with a fitting checksum
            self._refuse(offset, sure)
        if self.refused is not None:
            self.refused.note(raw)
        self.end, self._tail = offset + len(raw), raw[-TAIL:]

    def _index_owner(self, raw: bytes, sure: bool) -> None:
        """Take the first line, which says whose log it is."""
        owner = read_home(raw)
        if owner is None:
            self._refuse(0, sure)
        elif log_of(self.root, owner.tenant, owner.home) != self.path:
            reason = f"is a copied or renamed log of {owner.home!r} of tenant {owner.tenant!r}"
            self._refuse(0, sure, f"{self.path} {reason}: {STRAY}")
        else:
            self.tenant, self.home = owner.tenant, owner.home

    def _refuse(self, offset: int, sure: bool, why: str = "") -> None:
        """Refuse the log because of the line at `offset`. Raises Unsure unless `sure`."""
        if not sure:
            raise Unsure("a line of it was changed since it was written")
        why = why or f"{self._fault(offset)}. Nothing was changed: {RESTORE}"
        self.refused = Refused(self.root, self.path, self.home, why, self.heads)

    def _fault(self, offset: int) -> str:
        return f"{self.path}, line {self.lines} (byte {offset}), was changed since it was written"

    def _index_batch(self, offset: int, raw: bytes, sure: bool, sound: bool) -> None:
        """Index the heads and rows of a line; what is damaged in it is refused, or set aside if it is only rows."""
        line = read_batch(raw, sound) if sound or sure else None
        if line is None:
            if sure and is_fleeting(raw):
                warn("%s", f"{self._fault(offset)}: it holds only a lease, and is ignored")
            else:
                self._refuse(offset, sure)
            return
        if not sound:
            warn("%s", f"{self._fault(offset)}: its damaged rows are set aside or refused, the others are read")
        batch, at = line
        for step in batch.steps:
            mark = batch.at if step.at is None else step.at
            at = self._index_head(step, mark if is_mark(mark) else 0, raw, at)  # 0: from a damaged `marks`
        if batch.destroys:
            self.spoiled = DESTROYED
        if batch.fleeting and not sound:
            return
        at += offset
        for step in batch.steps:
            for table, low, high in step.drop:
                self._drop_rows(step.space, step.name, table, low, high)
            for name, rows in step.put.items():
                at = self._index_rows(step, name, rows, at, batch.fleeting)

    def _index_rows(self, step: StepLine, name: str, rows: Sequence[RowLine], at: int, fleeting: bool) -> int:
        """Index rows of a table, of which the first lies at `at`. Return where the next value begins."""
        where = step.space, step.name, name
        table = self.tables.get(where)
        if table is None:
            table = self.tables[where] = Table(fleeting)
        table.fleeting &= fleeting
        live = 0
        for row in rows:
            size, length = row[1], abs(row[1])
            replaced = table.put(row, at << WIDTH | (length if size > 0 else length | OURS))
            live += length
            if replaced:
                self._mark_dead(replaced)
            at += length + 1
        self.live += live
        return at

    def _mark_dead(self, size: int) -> None:
        """Note that so many live bytes of the log have become dead."""
        self.live -= size
        self.spoiled = self.spoiled or DROPPED

    def _index_head(self, step: StepLine, mark: int, raw: bytes, at: int) -> int:
        """Index a head, whose values begin at `at` in the line. Return where the next value begins."""
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
            self.heads[where] = IndexedHead(PlaceHead(hot, cold), step.expires, mark, size)
            self.live += size
        if before is not None:
            self.live -= before.size
            if before.head.cold and (hot is None or step.cold):
                self._mark_dead(0)
        return at

    def _drop_rows(self, space: str, name: str, table: str, low: int, high: int) -> None:
        for where in [key for key in self.tables if key[:2] == (space, name) and is_meant(key[2], table)]:
            if dropped := self.tables[where].drop(low, high):
                self._mark_dead(dropped)
            if not self.tables[where].keys:
                del self.tables[where]

    # --- reading

    @property
    def is_empty(self) -> bool:
        """Whether the home has neither heads nor rows."""
        return not (self.heads or self.tables)

    def listed(self, meant: Callable[[str], bool]) -> list[Listed]:
        """Return the places with a head in spaces that are `meant`."""
        return [Listed(self._place(*key), head.head, head.at) for key, head in self.heads.items() if meant(key[0])]

    def expired(self, now: int) -> list[Due]:
        """Return the heads and rows that have expired at `now`."""
        heads = [(head.expires, *where, "", 0) for where, head in self.heads.items() if head.expires is not None]
        rows = [(at, *where, key) for where, table in self.tables.items() for key, at in table.due.items()]
        both = (*heads, *rows)
        return [Due(at, self._place(space, name), table, key) for at, space, name, table, key in both if at <= now]

    def _place(self, space: str, name: str) -> Place:
        return Place(self.tenant, self.home, space, name)

    def head(self, space: str, name: str) -> PlaceHead | None:
        """Return a place's head; None if it has none."""
        return None if (indexed := self.heads.get((space, name))) is None else indexed.head

    def rows(self, fd: int, space: str, name: str, ask: Range | Named) -> list[Cells]:
        """Read rows of a place. Raises Unsure if the file does not have them where the index says."""
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
            raise Unsure(f"a row of {ask.table!r} was changed since it was written") from fault

    def is_still(self, fd: int) -> bool:
        """Return whether nothing was written to the log since it was read."""
        status = is_at(fd, self.path)
        return status is not None and status.st_size == self.end

    def _texts(self, fd: int, spots: Sequence[int]) -> Iterator[bytes]:
        """Yield the values at these spots as they are in the file. Neighbours are read in one call."""
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
        """Write the live content of the open log into a new file: first the heads, then the rows, table by table."""
        at, writing = max((head.at for head in self.heads.values()), default=0), Writing()
        file.write(HomeLine(self.tenant, self.home).line())
        heads = iter(self.heads.items())
        while chunk := list(islice(heads, TOGETHER)):
            for (space, name), indexed in chunk:
                step = StepLine(space, name, expires=indexed.expires, at=indexed.at)
                writing.head(step, indexed.head.hot, indexed.head.cold or None)
                writing.steps.append(step)
            file.write(writing.line(at))
        for (space, name, title), table in self.tables.items():
            for first in range(0, len(table.keys), TOGETHER):
                chunk_of_rows = slice(first, first + TOGETHER)
                lines = map(table.line, range(first, min(chunk_of_rows.stop, len(table.keys))))
                rows = list(map(writing.shown, lines, self._texts(fd, table.spots[chunk_of_rows])))
                writing.steps.append(StepLine(space, name, put={title: rows}))
                file.write(writing.line(at, fleeting=table.fleeting))

    def _lines(self, fd: int, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the lines between two places, with where each begins. The last may lack its line break."""
        at, parts = begin, list[bytes]()
        while begin < end:
            block = self._read(fd, begin, min(BLOCK, end - begin))
            begin += len(block)
            *complete, rest = block.split(b"\n")
            for piece in complete:
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
                block = os.pread(fd, size - len(data), at + len(data))
            except OSError as fault:
                raise named(fault, self.path) from None
            if not block:
                raise Unsure("it ends before it should")
            data += block
        return data


def seen_in(opened: tuple[Home, int] | None, ask: Ask) -> Seen:
    """Answer an ask from a home and its open log; None stands for a home without a log."""
    if opened is None:
        return Seen(None, [[] for _ in ask.rows])
    home, fd = opened
    _, _, space, name = ask.place
    return Seen(home.head(space, name) if ask.head else None, [home.rows(fd, space, name, rows) for rows in ask.rows])
