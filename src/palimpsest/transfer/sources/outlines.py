"""The outline of a JSON object of any size: its values without the items of its lists, and where each list is.

The whole file is read once and checked to be valid JSON, so that nothing is imported of a file that is broken further
on. After that the lists are read again, item by item. There is no outline for anything else, nor for an object that has
too much beside its lists: the caller then reads it whole, and that says what is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from palimpsest.transfer.sources.files import Ahead
from palimpsest.transfer.sources.limits import MEBIBYTE, Limits
from palimpsest.transfer.sources.lists import ListReader
from palimpsest.transfer.sources.values import BOM, TooLarge, Value, loads

SAMPLE_ITEMS, SAMPLE_BYTES = 50, 8 * MEBIBYTE
"""The most items of a list that an outline has, and the most bytes of them together. The first one it always has."""

_BLANK = b" \t\r\n"
_KEY = re.compile(rb'("(?>(?:[^"\\]++|\\.)*)")\s*+:\s*+\Z', re.DOTALL)
"""Matches the key of the value that comes next."""


class Listed(NamedTuple):
    """The position of a list in its file, in bytes, and its first items."""

    begin: int
    end: int
    first: list[Any]


class Outline(NamedTuple):
    """The outline of an object. `value` has only the first items of each list; `lists` says where the lists are."""

    value: dict[str, Any]
    lists: Mapping[str, Listed]
    end: int

    def items(self, stream: Ahead, name: str, limits: Limits) -> Iterator[Value]:
        """Yield the items of a list, or faults in their places. `stream` is the one that the outline was made from."""
        listed = self.lists[name]
        part = stream.part(listed.begin, listed.end)
        assert part is not None, "there is an outline only of a stream that can be read twice"
        return ListReader(part, True, limits).items()


def outline_of(stream: Ahead, limits: Limits) -> Outline | None:
    """Return the outline of the object in a stream; None for anything else, or if the stream cannot be read twice.

    The position of the stream does not change. The first call reads it through; the result is cached.
    """

    def read_through() -> Outline | None:
        again = stream.part(0, None)
        return None if again is None else _Outliner(again, limits).outline()

    return stream.once(read_through)


class _Refused(Exception):
    """The value is no object, is broken, or has too much beside its lists."""


class _Outliner(ListReader):
    """Reads an object as if it were a list of its values, and its lists item by item.

    The text between its values is joined again, with a number in the place of each, and read as JSON. So the keys and
    the commas between the values are checked, too.
    """

    def __init__(self, stream: Ahead, limits: Limits) -> None:
        super().__init__(stream, True, limits)
        self._keeps_gaps = True
        self._outer = bytearray()  # the object, with `[number]` for each of its lists and objects
        self._held: list[Any] = []  # those by number: an object's value, or a `Listed`
        self._size = self._values = 0  # the bytes of what is held, and the number of values in it
        self._opened = self._sampled = 0  # where the current list begins, and the bytes of its sampled items
        self._first: list[Any] = []  # the sampled items of the current list
        self._follows = False  # whether the current list has had an item already

    def outline(self) -> Outline | None:
        """Return the outline, or None."""
        try:
            while self._depth > 0 or not self._outer:
                if self._to_bracket():
                    self._bracket(bytes(self._body[self._at - 1 : self._at]))
                elif not self._more():
                    return None
            end = self._to_end()
            return self._assembled(loads(bytes(self._outer.removeprefix(BOM)), self._limits), end)
        except (_Refused, ValueError, RecursionError, OSError):
            return None  # reading it whole will say what is wrong

    def _bracket(self, bracket: bytes) -> None:
        opens = bracket in b"[{"
        self._depth += 1 if opens else -1
        self._brackets += 1
        if self._depth < self._level or (opens and self._depth == self._level):
            self._ends_level(bracket, opens)
        elif opens and self._depth == self._level + 1:
            self._begins(bracket)
        elif self._depth == self._level:
            self._ends(bracket)

    def _ends_level(self, bracket: bytes, opens: bool) -> None:
        """Handle the bracket at which the object begins or ends, or one of its lists ends."""
        gap = self._gap(self._at - 1)
        if self._level == 1:
            if bracket != (b"{" if opens else b"}") or b"\0" in gap:
                raise _Refused
            self._hold(gap + bracket)
            self._outer += gap + bracket
        else:
            if bracket != b"]":
                raise _Refused
            self._between_items(gap, False)
            self._put(Listed(self._opened, self._end(), self._first))
            self._level = 1
        self._drop(self._at)

    def _begins(self, bracket: bytes) -> None:
        """Handle the bracket at which a value of the object begins, or an item of a list."""
        gap = self._gap(self._at - 1)
        if self._level == 2:
            self._between_items(gap, True)
            self._drop(self._at - 1)
            return
        self._hold(gap)
        self._outer += gap
        if bracket == b"{" or _KEY.search(gap) is None:
            self._drop(self._at - 1)
            return
        self._opened, self._level = self._end() - 1, 2
        self._first, self._sampled, self._follows = [], 0, False
        self._drop(self._at)

    def _ends(self, bracket: bytes) -> None:
        """Handle the bracket at which a value of the object ends, or an item of a list."""
        self._check_limits(self._at)
        text = b"" if self._beyond else bytes(self._body[self._begin : self._at])
        if self._level == 1:
            if bracket != b"}" or self._beyond:
                raise _Refused
            self._hold(text)
            self._put(loads(text, self._limits))
        else:
            self._follows = True
            with suppress(TooLarge, RecursionError):  # reading the items reports it later
                self._sample(text, [loads(text, self._limits)] if text else [])
        self._drop(self._at)

    def _gap(self, end: int) -> bytes:
        """Return the text between two brackets."""
        self._check_limits(end)
        if self._beyond:
            raise _Refused
        return bytes(self._body[self._begin : end])

    def _between_items(self, gap: bytes, more: bool) -> None:
        """Check the text between two items with brackets: a comma, and perhaps items that are numbers or texts."""
        text = gap.strip(_BLANK)
        if text == (b"," if self._follows and more else b""):
            return
        items = loads(b"[" + b"null" * self._follows + gap + b"null" * more + b"]", self._limits)
        self._sample(text, items[self._follows : len(items) - more])
        self._follows = True

    def _sample(self, text: bytes, items: list[Any]) -> None:
        room = SAMPLE_ITEMS - len(self._first)
        if items and room > 0 and (not self._first or self._sampled + len(text) <= SAMPLE_BYTES):
            self._hold(text)
            self._sampled += len(text)
            self._first += items[:room]

    def _hold(self, text: bytes) -> None:
        """Count what is held of the object. It has the limits of one value."""
        self._size += len(text)
        self._values += text.count(b"[") + text.count(b"{") + text.count(b",")
        if self._size > self._limits.value or self._values > self._limits.values:
            raise _Refused

    def _put(self, value: Any) -> None:
        self._outer += b"[%d]" % len(self._held)
        self._held.append(value)

    def _to_end(self) -> int:
        """Read to the end of the file, where nothing but blanks may follow. Return how many bytes the file has."""
        chunk = bytes(self._body[self._at :])
        while not chunk.strip(_BLANK):
            chunk = self._stream.read()  # empty at the end
            if not chunk:
                return self._stream.taken
        raise _Refused

    def _assembled(self, outer: dict[str, Any], end: int) -> Outline:
        """Put the held values back into their places."""
        lists, value = {}, dict(outer)
        for name, number in outer.items():
            if isinstance(number, list):
                value[name] = held = self._held[number[0]]
                if isinstance(held, Listed):
                    lists[name], value[name] = held, held.first
        return Outline(value, lists, end)
