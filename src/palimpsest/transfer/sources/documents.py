"""JSON of any size, value by value: lines, the items of a list, or one value. What is broken is told, the rest read.

A list is taken apart by its brackets and strings alone, and each item is read for itself: so a broken item costs no
other, numbers and lone surrogates come as they are, and never more than one item is held. What is larger than a limit
is passed over without being held. A large object is looked through first (`palimpsest.transfer.sources.outlines`), so
that whoever can take the items of a list of its one by one need not hold them.
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
"""How much is looked at to tell what a file holds. More bytes are read where the first item has more."""


class Document:
    """The JSON values of a stream. `name` is the file's: its ending says whether it is lines where that is open.

    `outline` is there where it is one large object that can be read twice; its first value has the beginnings of lists.
    """

    def __init__(self, stream: Ahead, name: str, limits: Limits = Limits()) -> None:  # noqa: B008 (it is frozen)
        self._stream, self._limits = stream, limits
        self.outline: Outline | None = None
        head, self.first = self._look(name)
        self.is_empty = not self.first and not head.strip()
        self.is_blank = not self.first
        """Whether there is no value at all: nothing, or an empty list."""

    def _look(self, name: str) -> tuple[bytes, list[Value]]:
        """Find out the layout and the first values, reading ahead until there is a whole one, or one too large."""
        size, most = SAMPLE_BYTES, self._limits.value
        while True:
            head = self._stream.ahead(size)
            over = len(head) < size
            self.layout: Layout = _layout(head.removeprefix(BOM), name, over, self._limits)
            found = list[Value]()
            if self.layout == "value" and not over and size == SAMPLE_BYTES:
                self.outline = outline_of(self._stream, self._limits)
                if self.outline is not None:
                    return head, [Value(1, self.outline.value, None, self.outline.end)]
            if over and self.layout == "value":
                found = list(self._read_whole(head, len(head)))
            elif over or self.layout != "value":
                found = list(islice(self._items(Ahead(io.BytesIO(head)), over), SAMPLE_ITEMS))
            if over or found:
                return head, found
            if size > most + CHUNK:
                return head, [Value(1, fault=self._limits.told("value", VALUE))]
            size *= 4

    def sample(self) -> list[Any]:
        """The first values; what cannot be read is left out."""
        return [item.value for item in self.first if item.fault is None]

    def items(self) -> Iterator[Value]:
        """Take all values, in order, each of them whole."""
        if self.layout == "value" and self.outline is None and self.sample():
            found, self.first = self.first, []  # it was read whole, and is not to be held twice
            self._stream.skip()
            return iter(found)
        return self._items(self._stream, True)

    def listed(self, name: str) -> Iterator[Value]:
        """Take the items of a list of the one object that this is, which has an outline."""
        assert self.outline is not None, "the caller has looked"
        return self.outline.items(self._stream, name, self._limits)

    def fits(self, name: str) -> bool:
        """Whether a list of that object is no larger than a value may be."""
        assert self.outline is not None, "the caller has looked"
        return self.outline.lists[name].end - self.outline.lists[name].begin <= self._limits.value

    def conversations(self) -> Iterator[tuple[str, str, Value]]:
        """Take all values as the conversations of a data export: each with its path in the file and its number."""
        for number, item in enumerate(self.items()):
            yield "conversation" if self.layout == "value" else f"conversations[{number}]", str(number + 1), item

    def _items(self, stream: Ahead, over: bool) -> Iterator[Value]:
        """The values of a stream; where that is not all of the file (`over`), one that may be cut off is not given."""
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
            yield Value(place, fault=f"the file cannot be read on: {fault}", end=stream.taken)

    def _line(self, place: int, raw: bytes | None, end: int, over: bool) -> Iterator[Value]:
        if raw is None:
            yield Value(place, fault=self._limits.told("value", "bytes in one line"), end=end)
            return
        text = raw.removeprefix(BOM).strip() if place == 1 else raw.strip()
        if text and (over or raw.endswith(b"\n")):
            yield read(place, text, end, self._limits)

    def _whole(self, stream: Ahead) -> Iterator[Value]:
        """The one value that a document is."""
        pieces, length = list[bytes](), 0
        while more := stream.read():
            pieces.append(more)
            length += len(more)
            if length > self._limits.value:
                yield Value(1, fault=self._limits.told("value", VALUE), end=stream.taken)
                return
        body = b"".join(pieces)
        del pieces  # it is not to be held twice while it is read
        yield from self._read_whole(body, stream.taken)

    def _read_whole(self, body: bytes, end: int) -> Iterator[Value]:
        if len(body) > self._limits.value:
            yield Value(1, fault=self._limits.told("value", VALUE), end=end)
        elif body and not body.isspace():
            yield read(1, body.removeprefix(BOM), end, self._limits, whole=True)


class DocumentSource:
    """A source whose file is JSON: its document, the limits, and whether all branches are meant."""

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
    """The first two lines that are not blank, as far as their ends are known."""
    found, at = list[bytes](), 0
    while len(found) < 2 and (line := _LINE.match(head, at)) is not None:
        if line[1] and (over or line[2]):
            found.append(line[1])
        at = line.end()
        if not line[2]:
            break
    first, second = [*found, b"", b""][:2]
    return first, second


def _is_whole(line: bytes, limits: Limits) -> bool:
    try:
        return isinstance(loads(line, limits), dict | list)
    except (ValueError, RecursionError):
        return False


_OPENS = re.compile(rb"\s*+\[")
"""Where a list begins."""

_EXPORT = re.compile(rb'\s*+\{\s*+"kind"\s*+:\s*+"palimpsest/session"\s*+,[ \r]*+\n')
"""How an export of ours begins that stands on many lines, whatever its file is called."""

_LINE = re.compile(rb"\s*+([^\n]*+)(\n?)")
"""The next line that is not blank, and whether it ends."""
