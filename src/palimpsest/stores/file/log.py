"""Reading one session's log: from its end backwards, or from a place that binary search finds. Changes nothing.

Whatever is asked, memory holds a block or a line of the file, never all of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import islice
from typing import Literal

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.log.change import Record
from palimpsest.log.codec import decoded, encoded
from palimpsest.log.entry import Entry, pack, set_aside, unpack
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.logs import warn
from palimpsest.stores.file.lines import Header, Line, Spot, is_sound, is_torn, spots, with_place
from palimpsest.stores.file.pieces import BLOCK, Pieces
from palimpsest.stores.records import HELD

LINE = 4 * 1024
"""Bytes read at once where one line is wanted."""

BESIDE = 8
"""Lines behind a damaged one that are asked what it held."""

SHARING = ("fork", "load")
"""Kinds of lines that are no commit of their own."""

ENDLESS = 2**63
"""A place, or a revision, that no log reaches."""

Found = tuple[Spot, msgspec.Raw]


class Log:
    """An open log as it was when it was opened: what others append afterwards is not seen.

    `end` is where the last whole line ends; what a killed writer has left after it does not count. `held` is let go of
    together with the log's lock.

    Raises StoreCorrupt where the first line is damaged, or the last; other damage is raised by whatever needs what is
    damaged. Whoever holds the log's lock, and so knows that it is damage, is `lenient`: for an entry that is damaged he
    gets what stands for it.
    """

    lenient = False

    def __init__(self, url: str, path: str, fd: int) -> None:
        self.url, self.path, self.fd, self.held = url, path, fd, ExitStack()
        self.pieces = Pieces(url, path, fd)
        self.told = set[tuple[str, int]]()
        self.size = os.fstat(fd).st_size
        self._last, self.end = self._find_end()
        self.start = 0
        self.header = self._find_header() if self.end else None

    def _find_end(self) -> tuple[Line | None, int]:
        for offset, raw in self.pieces.backward(self.size, LINE):
            if is_sound(raw) or not is_torn(raw):
                return Line(offset, raw), offset + len(raw)
        return None, 0

    def _find_header(self) -> Header:
        offset, raw = next(self.pieces.forward(0, self.end, LINE // 4))
        self.start = len(raw)
        if not is_sound(raw):
            raise self.corrupt(Line(offset, raw))
        try:
            return decoded(raw, Header)
        except ValueError as cause:
            raise StoreCorrupt(self.url, f"{self.path} does not begin as a log of ours ({cause})") from cause

    # --- what it tells

    @property
    def exists(self) -> bool:
        """Whether there is a session: its first line alone is none yet."""
        return self.end > self.start > 0

    @property
    def key(self) -> SessionKey | None:
        """Whose log it is, None where there is no session."""
        return self.header.key if self.header is not None else None

    @property
    def family(self) -> str:
        """The family of its branches, empty where there is no session."""
        return self.header.family if self.header is not None else ""

    @property
    def head(self) -> Head | None:
        """The session's head, None where there is no session."""
        if not self.exists:
            return None
        last = self._last
        assert last is not None, "a log with an end has a last line"
        if not last.sound:
            raise self.corrupt(last)
        with self.reading(last):
            return decoded(bytes(last.body().head), Head)

    def corrupt(self, line: Line, why: str = "it is not as it was written") -> StoreCorrupt:
        """The error that says which line is damaged."""
        number = sum(1 for _ in self.pieces.forward(0, line.offset)) + 1
        place = f"{self.path}, line {number} (byte {line.offset}; {line.holds()})"
        return StoreCorrupt(self.url, f"{place}: {why}. Nothing was changed; other lines can still be read")

    def reading(self, line: Line) -> _Reading:
        """Names the line where what it holds cannot be read."""
        return _Reading(self, line)

    # --- lines

    def lines(self, begin: int | None = None) -> Iterator[Line]:
        """The lines from the one at `begin` on (default: all after the first), the damaged, too."""
        for offset, raw in self.pieces.forward(self.start if begin is None else begin, self.end):
            yield Line(offset, raw)

    def sound_lines(self, begin: int | None = None) -> Iterator[Line]:
        """The same. Raises StoreCorrupt at one that is damaged."""
        for line in self.lines(begin):
            if not line.sound:
                raise self.corrupt(line)
            yield line

    def found_in(self, line: Line) -> list[Found]:
        """The entries of a sound line, with their places."""
        with self.reading(line):
            return spots(line.body().entries)

    def parts(self, line: Line) -> tuple[list[Found], msgspec.Raw | None, int]:
        """The entries of a sound line, its record, if it has one, and its time."""
        with self.reading(line):
            body = line.body()
            return spots(body.entries), body.record if bytes(body.record) else None, body.at

    def without_head(self, line: Line) -> bytes | None:
        """The bytes of a sound line without its head, or None where it must be written anew for that."""
        with self.reading(line):
            return line.without_head(line.body())

    def find(self, value: int, by: Literal["seq", "revision"] = "seq") -> tuple[int, int]:
        """Return where the last sound line begins whose `by` is at most `value`, and where the first one with more.

        The first line of all, or the end, where there is none.
        """
        low, right, high = self.start, self.end, self.end
        last = self._last
        if last is not None and last.sound and last.offset >= low and _of(last, by) <= value:
            return last.offset, high
        while right - low > BLOCK:
            middle = (low + right) // 2
            line = self._sound_after(middle, right)
            if line is not None and _of(line, by) <= value:
                low = line.offset
            else:  # no line that begins between the middle and that one is sound
                right, high = middle, line.offset if line is not None else high
        for line in self.lines(low):
            if line.offset > right:
                break
            if line.sound and _of(line, by) > value:
                return low, line.offset
            if line.sound:
                low = line.offset
        return low, high

    def _sound_after(self, middle: int, right: int) -> Line | None:
        """The first sound line that begins after `middle`, up to `right`."""
        pieces = self.pieces.forward(middle, self.end, LINE)
        next(pieces)  # of the line in the middle of which this is
        for offset, raw in pieces:
            if offset > right:
                return None
            line = Line(offset, raw)
            if line.sound:
                return line
        return None

    # --- entries

    def entries(self, low: int, high: int) -> Iterator[Found]:
        """The entries with `low` <= seq < `high`, oldest first. Raises StoreCorrupt where some of them are damaged."""
        reached, damaged, before = 0, list[Line](), list[Found]()
        for line in self.lines(self.find(low)[0]):
            if not line.sound:
                damaged.append(line)
                continue
            found = self.found_in(line) if damaged or line.seq < high else []
            if damaged:
                yield from self._set_aside(damaged, max(reached, low), min(line.seq, high), before, found)
                damaged = []
            if line.seq >= high:
                return
            reached, before = found[-1][0].seq + 1 if found else line.seq, found or before
            yield from ((at, raw) for at, raw in found if low <= at.seq < high)
        if damaged:
            self._lost(damaged[0], max(reached, low), high)

    def _set_aside(
        self, lines: list[Line], first: int, end: int, before: list[Found], behind: list[Found]
    ) -> Iterator[Found]:
        """What stands for the entries of damaged lines, from `first` to before `end`, between those beside them."""
        first = max(first, (self.head or Head()).first_seq)
        if first >= end:
            return
        if not self.lenient:
            raise self.corrupt(lines[0])
        if (self.path, lines[0].offset) not in self.told:
            self.told.add((self.path, lines[0].offset))
            warn("%s", f"{self.corrupt(lines[0])}. It is set aside, and `repair` takes it out")
        ids: dict[int, str] = {}
        for line in lines:
            ids |= line.ids()
        for line in islice(filter(_is_sound, self.lines(max(line.end for line in lines))), BESIDE):
            behind = [*behind, *self.found_in(line)]
        near = [[self._slim(one) for one in side] for side in (before[::-1], behind)]
        for seq in range(first, end):
            made = set_aside(ids.get(seq, f"damaged-{seq}"), seq, b"", *near)
            body = decoded(pack(made), dict) | {"damaged": True}
            raw = with_place(made.id, seq, encoded(body))
            yield Spot(id=made.id, seq=seq, erased=True, damaged=True), msgspec.Raw(raw)

    def _slim(self, found: Found) -> Entry:
        """An entry without what is kept apart."""
        return unpack(bytes(found[1]), found[0].id, found[0].seq, None)

    def entries_back(self, low: int, high: int) -> Iterator[Found]:
        """The same, newest first."""
        above, damaged, behind = high, list[Line](), list[Found]()
        for line in self._lines_back(self.find(high - 1)[1]):
            if not line.sound:
                damaged.append(line)
                continue
            found = self.found_in(line)
            if damaged:
                first = max(found[-1][0].seq + 1 if found else line.seq, low)
                yield from reversed([*self._set_aside(damaged[::-1], first, above, found, behind)])
                damaged = []
            yield from ((at, raw) for at, raw in reversed(found) if low <= at.seq < high)
            if line.seq <= low:
                return
            above, behind = min(above, line.seq), found or behind
        if damaged:
            yield from reversed([*self._set_aside(damaged[::-1], low, above, [], behind)])

    def _lines_back(self, end: int) -> Iterator[Line]:
        for offset, raw in self.pieces.backward(end):
            if offset < self.start:
                return
            yield Line(offset, raw)

    def _lost(self, line: Line, first: int, before: int) -> None:
        if first < before:
            raise self.corrupt(line)

    # --- records

    def records(self, after: int, before: int) -> Iterator[Record]:
        """The records with `after` < revision < `before`, oldest first."""
        reached, damaged = 0, None
        for line in self.lines(self.find(after, "revision")[0]):
            if not line.sound:
                if not self.lenient or line.may_be_record():
                    damaged = damaged or line
                continue
            if damaged is not None:
                shares = line.kind in SHARING  # its revision, with the record before it
                self._lost(damaged, max(reached, after) + 1, min(line.revision + shares, before))
                damaged = None
            if line.revision >= before:
                return
            reached = line.revision
            if line.revision > after and line.kind != "append":
                found = self._record(line)
                if found is not None:
                    yield found
        if damaged is not None:
            self._lost(damaged, max(reached, after) + 1, before)

    def _record(self, line: Line) -> Record | None:
        """The record of a sound line, if it has one."""
        with self.reading(line):
            record = line.body().record
            return decoded(bytes(record), Record) if bytes(record) else None

    def compactions(self, begin: int) -> Iterator[Record]:
        """The records from the byte `begin` on that carry a compaction, oldest first; those damaged are left out."""
        for line in self.lines(begin):
            if HELD in line.raw and line.sound and line.kind != "append":
                found = self._record(line)
                if found is not None:
                    yield found


def _is_sound(line: Line) -> bool:
    return line.sound


def _of(line: Line, by: Literal["seq", "revision"]) -> int:
    return line.seq if by == "seq" else line.revision


class _Reading:
    """Turns what a decoder objects to into StoreCorrupt that names the line."""

    def __init__(self, log: Log, line: Line) -> None:
        self._log, self._line = log, line

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, cause: BaseException | None, __: object) -> None:
        if isinstance(cause, ValueError | TypeError) and not isinstance(cause, StoreCorrupt):
            raise self._log.corrupt(self._line, f"it cannot be read ({cause})") from cause
