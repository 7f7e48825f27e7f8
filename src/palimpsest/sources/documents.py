"""JSON of any size, value by value: lines, the items of a list, or one value. What is broken is told, the rest read.

A list is taken apart by its brackets and strings alone, and each item is read for itself: so a broken item costs no
other, numbers and lone surrogates come as they are, and never more than one item is held.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal, NamedTuple

from palimpsest.errors import ImportFailed
from palimpsest.sources.files import CHUNK, Ahead

Layout = Literal["lines", "list", "value"]

SAMPLE_BYTES, SAMPLE_ITEMS = 1 << 20, 50
"""How much is looked at to tell what a file holds. More bytes are read where the first item has more."""

LEVELS = 300
"""How deeply a value may be nested: no message is, and whatever looks at one goes down level by level."""

BOM = b"\xef\xbb\xbf"


class Item(NamedTuple):
    """One value: at `place` (a line number from 1, an index of the list from 0), or what is wrong there.

    `raw` is its text, `end` how many bytes were read with it.
    """

    place: int
    value: Any = None
    fault: str | None = None
    raw: bytes = b""
    end: int = 0


class Document:
    """The JSON values of a stream. `name` is the file's: its ending says whether it is lines where that is open."""

    def __init__(self, stream: Ahead, name: str) -> None:
        self._stream = stream
        head, self.first = self._look(name)
        self.is_empty = not head.strip()
        self.is_blank = not self.first
        """Whether there is no value at all: nothing, or an empty list."""

    def _look(self, name: str) -> tuple[bytes, list[Item]]:
        """Find out the layout and the first values, reading ahead until there is a whole one."""
        size = SAMPLE_BYTES
        while True:
            head = self._stream.ahead(size)
            over = len(head) < size
            self.layout: Layout = _layout(head.removeprefix(BOM), name, over)
            source = Ahead(_Fixed(head))
            found = list(islice(_items(source, self.layout, over), SAMPLE_ITEMS))
            if over or (found and self.layout != "value"):
                return head, found
            size *= 4

    def sample(self) -> list[Any]:
        """The first values; what cannot be read is left out."""
        return [item.value for item in self.first if item.fault is None]

    def items(self) -> Iterator[Item]:
        """Take all values, in order."""
        return _items(self._stream, self.layout, True)

    def conversations(self) -> Iterator[tuple[str, str, Item]]:
        """Take all values as the conversations of a data export: each with its path in the file and its number."""
        for number, item in enumerate(self.items()):
            yield "conversation" if self.layout == "value" else f"conversations[{number}]", str(number + 1), item


class _Fixed:
    """Bytes as a stream."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def read(self, size: int, /) -> bytes:
        found, self._body = self._body[:size], self._body[size:]
        return found


def _layout(head: bytes, name: str, over: bool) -> Layout:
    if name.endswith((".jsonl", ".ndjson")):
        return "lines"
    lines = [line for line in head.split(b"\n")[: None if over else -1] if line.strip()]
    first, second = [*lines, b"", b""][:2]
    if second or (first and not over):
        if first and _is_whole(first):
            return "lines"
        opened = first.strip() in (b"[", b"{")
        if second and not name.endswith(".json") and not opened and _is_whole(second):
            return "value" if over and _is_whole(head) else "lines"
    return "list" if head.lstrip().startswith(b"[") else "value"


def _is_whole(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict | list)
    except (ValueError, RecursionError):
        return False


def _items(stream: Ahead, layout: Layout, over: bool) -> Iterator[Item]:
    """The values of a stream; where it is not all of the file (`over`), the last may be cut off and is not given."""
    place = 0
    try:
        if layout == "lines":
            for place, raw in enumerate(stream.lines(), 1):
                text = raw.removeprefix(BOM).strip() if place == 1 else raw.strip()
                if text and (over or raw.endswith(b"\n")):
                    yield _read(place, text, stream.taken)
        elif layout == "list":
            for item in _ListReader(stream, over).items():
                place = item.place + 1
                yield item
        else:
            body = b"".join(iter(stream.read, b""))
            if body.strip() and over:
                yield _read(1, body.removeprefix(BOM), stream.taken, whole=True)
    except (ImportFailed, OSError) as fault:
        yield Item(place, fault=f"the file cannot be read on: {fault}", end=stream.taken)


def loads(text: bytes, levels: int | None = None) -> Any:
    """Read a JSON value of so many levels (None: find out).

    Raises ValueError for what is none, RecursionError for more than `LEVELS` levels.
    """
    if levels is None:
        levels = _levels(text) if text.count(b"[") + text.count(b"{") > LEVELS else 0
    if levels > LEVELS:
        raise RecursionError
    return json.loads(text)


def _levels(text: bytes) -> int:
    depth = most = at = 0
    while (found := _UP_TO_BRACKET.match(text, at)) is not None and found[1] != b'"':
        at = found.end()
        depth += 1 if found[1] in b"[{" else -1
        most = max(most, depth)
    return most


def _read(place: int, text: bytes, end: int, *, whole: bool = False, levels: int | None = None) -> Item:
    try:
        return Item(place, loads(text, levels), None, text, end)
    except json.JSONDecodeError as fault:
        at = fault.lineno if whole else place
        return Item(at, None, f"no JSON: {fault.msg} at column {fault.colno}", text, end)
    except UnicodeDecodeError as fault:
        return Item(place, None, f"no UTF-8: {fault.reason} at byte {fault.start}", text, end)
    except (ValueError, RecursionError) as fault:
        reason = "nested too deeply" if isinstance(fault, RecursionError) else f"no JSON: {fault}"
        return Item(place, None, reason, text, end)


_UP_TO_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+([\[\]{}]|")', re.DOTALL)
"""Everything up to the next bracket outside of strings, or up to a string whose end has not been read yet."""

_COMMAS = re.compile(rb"[\s,]*+")


class _ListReader:
    """The items of one JSON list, or of several in a row, as the members of an archive are."""

    def __init__(self, stream: Ahead, over: bool) -> None:
        self._stream, self._over = stream, over
        self._body, self._at = b"", 0  # what was read and is not given yet, and how far it was scanned
        self._place = 0

    def items(self) -> Iterator[Item]:
        depth, begin, deepest = 0, 0, 0
        while True:
            found = _UP_TO_BRACKET.match(self._body, self._at)
            if found is None or found[1] == b'"':
                goes_on, begin = self._more(begin), 0
                if not goes_on:
                    break
                continue
            self._at = found.end()
            opens = found[1] in b"[{"
            depth += 1 if opens else -1
            deepest = max(deepest, depth)
            if depth == 1 and opens:
                begin = self._at
            elif depth == 2 and opens:
                yield from self._between(begin, found.start(1))
                begin = found.start(1)
            elif depth == 1:
                yield self._item(begin, self._at, deepest - 1)
                begin, deepest = self._at, 0
            elif depth <= 0:
                yield from self._between(begin, found.start(1))
                depth, begin = 0, self._at
        yield from self._rest(depth, begin)

    def _more(self, begin: int) -> bool:
        """Read on, keeping what begins at `begin`; the more is kept already, the more is read at once."""
        kept = self._body[begin:]
        more = self._stream.read(max(CHUNK, len(kept)))
        self._body, self._at = kept + more, self._at - begin
        return bool(more)

    def _item(self, begin: int, end: int, levels: int) -> Item:
        self._place += 1
        taken = self._stream.taken - len(self._body) + end
        return _read(self._place - 1, self._body[begin:end], taken, levels=levels)

    def _between(self, begin: int, end: int) -> Iterator[Item]:
        """What stands between two brackets: commas, and perhaps items that are numbers, texts or rubbish."""
        if _COMMAS.fullmatch(self._body, begin, end):
            return
        try:
            values = json.loads(b"[" + self._body[begin:end].strip(b" \t\r\n,").removeprefix(BOM) + b"]")
        except ValueError as fault:
            yield Item(self._place, None, f"no JSON: {fault}", self._body[begin:end])
            self._place += 1
            return
        for value in values:
            yield Item(self._place, value, None, json.dumps(value).encode())
            self._place += 1

    def _rest(self, depth: int, begin: int) -> Iterator[Item]:
        if not self._over:
            return
        if depth:
            reason = "the file ends before this item does" if depth > 1 else "the file ends before its list does"
            yield Item(self._place, None, reason, self._body[begin:], self._stream.taken)
        elif not _COMMAS.fullmatch(self._body, begin):
            yield Item(self._place, None, "this is no JSON, and stands after the list", end=self._stream.taken)
