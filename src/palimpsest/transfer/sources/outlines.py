"""A JSON object of any size without the items of its lists: what it says beside them, and where each list stands.

All of it is read once, and held to what JSON is, so that nothing of a file is taken that is broken further on. The
lists are read again then, item by item. What is no such object, or holds too much beside its lists, is for whoever
reads it whole, and says what is wrong.
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
"""How many items of a list are known, and of how many bytes together; the first one in any case."""

_BLANK = b" \t\r\n"
_KEY = re.compile(rb'("(?>(?:[^"\\]++|\\.)*)")\s*+:\s*+\Z', re.DOTALL)
"""The key of what comes next."""


class Listed(NamedTuple):
    """Where a list stands in its file, in bytes, and its first items."""

    begin: int
    end: int
    first: list[Any]


class Outline(NamedTuple):
    """An object: `value` has the first items of each of its lists, `lists` says where these stand."""

    value: dict[str, Any]
    lists: Mapping[str, Listed]
    end: int

    def items(self, stream: Ahead, name: str, limits: Limits) -> Iterator[Value]:
        """Yield the items of a list, and what is wrong with others. `stream` is what the outline was made of."""
        listed = self.lists[name]
        part = stream.part(listed.begin, listed.end)
        assert part is not None, "it was read twice before"
        return ListReader(part, True, limits).items()


def outline_of(stream: Ahead, limits: Limits) -> Outline | None:
    """Return the outline of the object that a stream is; None for anything else, or where it cannot be read twice.

    The stream stays where it is, and is read through for the first who asks.
    """

    def made() -> Outline | None:
        again = stream.part(0, None)
        return None if again is None else _Outliner(again, limits).outline()

    return stream.once(made)


class _Refused(Exception):
    """This is no object, is broken, or holds too much beside its lists."""


class _Outliner(ListReader):
    """Reads an object as a list of its values, and of those that are lists the items.

    What stands between its values is put together again, a number in the place of each: so it is read as JSON, too.
    """

    def __init__(self, stream: Ahead, limits: Limits) -> None:
        super().__init__(stream, True, limits)
        self._keeps_gaps = True
        self._outer = bytearray()  # the object, with `[number]` for each of its lists and objects
        self._held: list[Any] = []  # these: their values, or a `Listed`
        self._size = self._values = 0  # of what is held, in bytes, and how many values there are in it
        self._opened = self._sampled = 0
        self._first: list[Any] = []
        self._follows = False  # whether an item comes before what stands between

    def outline(self) -> Outline | None:
        """Return the outline, or None."""
        try:
            while self._depth > 0 or not self._outer:
                if self._to_bracket():
                    self._bracket(bytes(self._body[self._at - 1 : self._at]))
                elif not self._more():
                    return None
            end = self._to_end()
            return self._made(loads(bytes(self._outer.removeprefix(BOM)), self._limits), end)
        except (_Refused, ValueError, RecursionError, OSError):
            return None  # whoever reads it whole says what is wrong

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
        """The object begins or ends, or a list of its does."""
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
        """A value of the object begins, or an item of a list."""
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
        """A value of the object ends, or an item of a list."""
        self._judge(self._at)
        text = b"" if self._beyond else bytes(self._body[self._begin : self._at])
        if self._level == 1:
            if bracket != b"}" or self._beyond:
                raise _Refused
            self._hold(text)
            self._put(loads(text, self._limits))
        else:
            self._follows = True
            with suppress(TooLarge, RecursionError):  # whoever takes the items leaves it out, and says why
                self._sample(text, [loads(text, self._limits)] if text else [])
        self._drop(self._at)

    def _gap(self, end: int) -> bytes:
        """What stands between two brackets."""
        self._judge(end)
        if self._beyond:
            raise _Refused
        return bytes(self._body[self._begin : end])

    def _between_items(self, gap: bytes, more: bool) -> None:
        """Look at what stands between two items: a comma, and perhaps others that are numbers or texts."""
        text = gap.strip(_BLANK)
        if text == (b"," if self._follows and more else b""):
            return
        read = loads(b"[" + b"null" * self._follows + gap + b"null" * more + b"]", self._limits)
        self._sample(text, read[self._follows : len(read) - more])
        self._follows = True

    def _sample(self, text: bytes, items: list[Any]) -> None:
        room = SAMPLE_ITEMS - len(self._first)
        if items and room > 0 and (not self._first or self._sampled + len(text) <= SAMPLE_BYTES):
            self._hold(text)
            self._sampled += len(text)
            self._first += items[:room]

    def _hold(self, text: bytes) -> None:
        """Count what is held of the object; what that may have is what a value may have."""
        self._size += len(text)
        self._values += text.count(b"[") + text.count(b"{") + text.count(b",")
        if self._size > self._limits.value or self._values > self._limits.values:
            raise _Refused

    def _put(self, value: Any) -> None:
        self._outer += b"[%d]" % len(self._held)
        self._held.append(value)

    def _to_end(self) -> int:
        """Read what stands behind the object, which must be nothing."""
        more = bytes(self._body[self._at :])
        while not more.strip(_BLANK):
            more = self._stream.read()
            if not more:
                return self._stream.taken
        raise _Refused

    def _made(self, outer: dict[str, Any], end: int) -> Outline:
        lists, value = {}, dict(outer)
        for name, number in outer.items():
            if isinstance(number, list):
                value[name] = held = self._held[number[0]]
                if isinstance(held, Listed):
                    lists[name], value[name] = held, held.first
        return Outline(value, lists, end)
