"""Reading JSON of any size value by value: lines, the items of a list, or one value. Broken values become faults.

A list is split by its brackets and strings alone, and each item is decoded for itself. So a broken item does not affect
others, numbers and lone surrogates are kept, and no more than one item is in memory. A value beyond a limit is skipped
without being held. Of a large object an outline is made first (`palimpsest.transfer.sources.outlines`), so that sources
can take the items of its lists one by one.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

from palimpsest.errors import ImportFailed
from palimpsest.transfer.sources.files import CHUNK, Ahead, SourceFile
from palimpsest.transfer.sources.limits import Limits
from palimpsest.transfer.sources.lists import ListReader
from palimpsest.transfer.sources.outlines import Outline, outline_of
from palimpsest.transfer.sources.values import BOM, VALUE, Value, loads, read

Layout = Literal["lines", "list", "value"]

SAMPLE_BYTES, SAMPLE_ITEMS = 1 << 20, 50
"""How much of a file is read to detect what it holds. More bytes are read if the first item is larger."""


class Document:
    """The JSON values of a stream. The ending of the file's `name` decides about lines where the content does not.

    `outline` is set for one large object that can be read twice. `first` then has the value of the outline.
    """

    def __init__(self, stream: Ahead, name: str, limits: Limits = Limits()) -> None:  # noqa: B008 (it is frozen)
        self._stream, self._limits = stream, limits
        self.outline: Outline | None = None
        head, self.first = self._look(name)
        self.is_empty = not self.first and not head.strip()
        self.is_blank = not self.first
        """Whether there is no value at all: the file is empty, or has an empty list."""

    def _look(self, name: str) -> tuple[bytes, list[Value]]:
        """Detect the layout and the first values, reading ahead until one value is complete or too large."""
        size, most = SAMPLE_BYTES, self._limits.value
        while True:
            head = self._stream.ahead(size)
            over = len(head) < size
            self.layout: Layout = _layout(head.removeprefix(BOM), name, over, self._limits)
            values = list[Value]()
            if self.layout == "value" and not over and size == SAMPLE_BYTES:
                self.outline = outline_of(self._stream, self._limits)
                if self.outline is not None:
                    return head, [Value(1, self.outline.value, None, self.outline.end)]
            if over and self.layout == "value":
                values = list(self._read_whole(head, len(head)))
            elif over or self.layout != "value":
                values = list(islice(self._items(Ahead(io.BytesIO(head)), over), SAMPLE_ITEMS))
            if over or values:
                return head, values
            if size > most + CHUNK:
                return head, [Value(1, fault=self._limits.more_than("value", VALUE))]
            size *= 4

    def sample(self) -> list[Any]:
        """Return the first values, without those that cannot be read."""
        return [item.value for item in self.first if item.fault is None]

    def items(self) -> Iterator[Value]:
        """Yield all values in order, each of them whole."""
        if self.layout == "value" and self.outline is None and self.sample():
            values, self.first = self.first, []  # the value was read whole already: do not hold it twice
            self._stream.skip()
            return iter(values)
        return self._items(self._stream, True)

    def listed(self, name: str) -> Iterator[Value]:
        """Yield the items of one list of an object that has an outline."""
        assert self.outline is not None, "only for a document with an outline"
        return self.outline.items(self._stream, name, self._limits)

    def fits(self, name: str) -> bool:
        """Return whether a list of an object that has an outline is within the limit of a value."""
        assert self.outline is not None, "only for a document with an outline"
        return self.outline.lists[name].end - self.outline.lists[name].begin <= self._limits.value

    def conversations(self) -> Iterator[tuple[str, str, Value]]:
        """Yield all values as conversations of a data export: the path in the file, the number, and the value."""
        for number, item in enumerate(self.items()):
            yield "conversation" if self.layout == "value" else f"conversations[{number}]", str(number + 1), item

    def _items(self, stream: Ahead, over: bool) -> Iterator[Value]:
        """Yield the values of a stream. `over`: it is the whole file, else a last value that is cut off is left out."""
        place = 0
        try:
            if self.layout == "list":
                for item in ListReader(stream, over, self._limits).items():
                    place = item.place + 1
                    yield item
            elif self.layout == "lines":
                for place, raw in enumerate(stream.lines(self._limits.value), 1):
                    yield from self._line(place, raw, stream.taken, over)
            else:
                yield from self._whole(stream)
        except (ImportFailed, OSError) as fault:
            yield Value(place, fault=f"the rest of the file cannot be read: {fault}", end=stream.taken)

    def _line(self, place: int, raw: bytes | None, end: int, over: bool) -> Iterator[Value]:
        if raw is None:
            yield Value(place, fault=self._limits.more_than("value", "bytes in one line"), end=end)
            return
        text = raw.removeprefix(BOM).strip() if place == 1 else raw.strip()
        if text and (over or raw.endswith(b"\n")):
            yield read(place, text, end, self._limits)

    def _whole(self, stream: Ahead) -> Iterator[Value]:
        """Yield the one value of the document."""
        pieces, length = list[bytes](), 0
        while chunk := stream.read():
            pieces.append(chunk)
            length += len(chunk)
            if length > self._limits.value:
                yield Value(1, fault=self._limits.more_than("value", VALUE), end=stream.taken)
                return
        body = b"".join(pieces)
        del pieces  # do not hold the bytes twice while they are decoded
        yield from self._read_whole(body, stream.taken)

    def _read_whole(self, body: bytes, end: int) -> Iterator[Value]:
        if len(body) > self._limits.value:
            yield Value(1, fault=self._limits.more_than("value", VALUE), end=end)
        elif body and not body.isspace():
            yield read(1, body.removeprefix(BOM), end, self._limits, whole=True)


class DocumentSource:
    """The base of sources whose files are JSON: the document, the limits, and whether all branches are wanted."""

    format: str | None = None

    def __init__(self, file: SourceFile, *, format: str | None = None, branches: bool = False) -> None:
        self._document = Document(file.stream, file.name, file.limits)
        self._limits, self._branches = file.limits, branches


def _layout(head: bytes, name: str, over: bool, limits: Limits) -> Layout:
    if name.endswith((".jsonl", ".ndjson")) and _EXPORT.match(head) is None:
        return "lines"
    first, second = _first_lines(head, over)
    if second or (first and not over):
        if first and _is_whole(first, limits):
            return "lines"
        opened = first.strip() in (b"[", b"{")
        if second and not name.endswith(".json") and not opened and _is_whole(second, limits):
            return "value" if over and _is_whole(head, limits) else "lines"
    return "list" if _OPENS.match(head) is not None else "value"


def _first_lines(head: bytes, over: bool) -> tuple[bytes, bytes]:
    """Return the first two lines that are not blank and complete; b"" for one that is missing."""
    lines, at = list[bytes](), 0
    while len(lines) < 2 and (line := _LINE.match(head, at)) is not None:
        if line[1] and (over or line[2]):
            lines.append(line[1])
        at = line.end()
        if not line[2]:
            break
    first, second = [*lines, b"", b""][:2]
    return first, second


def _is_whole(line: bytes, limits: Limits) -> bool:
    try:
        return isinstance(loads(line, limits), dict | list)
    except (ValueError, RecursionError):
        return False


_OPENS = re.compile(rb"\s*+\[")
"""Matches the beginning of a list."""

_EXPORT = re.compile(rb'\s*+\{\s*+"kind"\s*+:\s*+"palimpsest/session"\s*+,[ \r]*+\n')
"""Matches the beginning of an export of Palimpsest on several lines, whatever the file's ending."""

_LINE = re.compile(rb"\s*+([^\n]*+)(\n?)")
"""Matches the next line that is not blank, and its end if that was read."""
