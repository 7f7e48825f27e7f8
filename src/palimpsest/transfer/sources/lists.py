"""The items of a JSON list of any size, one at a time, by its brackets and strings alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from palimpsest.transfer.sources.files import Ahead
from palimpsest.transfer.sources.limits import Limits
from palimpsest.transfer.sources.values import BOM, VALUE, VALUES, Value, brackets, read

_UP_TO_BRACKET = re.compile(rb'(?>(?:[^"\[\]{}]++|"(?>(?:[^"\\]++|\\.)*)")*)([\[\]{}]|")', re.DOTALL)
"""Everything up to the next bracket outside of strings, or up to a string whose end has not been read yet."""

_REST_OF_STRING = re.compile(rb'(?>(?:[^"\\]++|\\.)*)("?)', re.DOTALL)
"""What is left of a string: up to its end, or as far as it was read."""

_COMMAS = re.compile(rb"[\s,]*+")

_PAIRS = [b"[" * count + b"]" * count for count in (64, 16, 4, 1)]
"""What means nothing to how deep it is, the most of it first."""


class ListReader:
    """The items of one JSON list, or of several in a row, as the members of an archive are.

    What was read is looked at once. It is kept from where an item begins, and of one that is beyond a limit no more.
    """

    _level = 1
    """How many brackets are open around an item."""

    _keeps_gaps = False
    """Whether what stands between items is kept, though it be but commas."""

    def __init__(self, stream: Ahead, over: bool, limits: Limits) -> None:
        self._stream, self._over, self._limits = stream, over, limits
        self._body = bytearray()  # what was read and is still needed
        self._begin = self._at = 0  # where the item at hand begins in it, and how far it was looked at
        self._in_string = False
        self._depth = self._brackets = 0  # of the item at hand
        self._beyond = ""  # which limit it is beyond
        self._place = 0

    def items(self) -> Iterator[Value]:
        """Yield the items, and what is wrong with others."""
        while True:
            if not self._to_bracket():
                if not self._more():
                    break
                continue
            opens = self._body[self._at - 1] in b"[{"
            self._depth += 1 if opens else -1
            self._brackets += 1
            if self._depth == 1 and opens:
                self._drop(self._at)
            elif self._depth == 2 and opens:
                yield from self._between(self._at - 1)
            elif self._depth == 1:
                yield self._item()
            elif self._depth <= 0:
                yield from self._between(self._at - 1)
                self._drop(self._at)
                self._depth = 0
        yield from self._rest()

    def _to_bracket(self) -> bool:
        """Look on behind the next bracket that is in no string; False where none was read yet."""
        while True:
            if self._in_string:
                rest = _REST_OF_STRING.match(self._body, self._at)
                assert rest is not None, "it matches nothing, too"
                self._at, self._in_string = rest.end(), not rest[1]
                if self._in_string:
                    return False
            found = _UP_TO_BRACKET.match(self._body, self._at)
            if found is None:
                self._at = len(self._body)
                return False
            self._at, self._in_string = found.end(), found[1] == b'"'
            if not self._in_string:
                return True

    def _more(self) -> bool:
        """Read on, keeping what is needed; False at the end."""
        while True:
            self._judge(self._at)
            if self._beyond or (self._depth <= self._level and self._is_of_no_use()):
                self._begin = self._at
            del self._body[: self._begin]
            self._at -= self._begin
            self._begin = 0
            more = self._stream.read()
            self._body += more
            if not more or self._depth <= self._level or not self._is_within():
                return bool(more)

    def _is_within(self) -> bool:
        """Whether the item at hand goes on behind what was read; then that was looked at.

        It comes to the same as going from bracket to bracket, but takes no longer for brackets than for text.
        """
        body = bytes(self._body[self._at :])
        if self._in_string:
            rest = _REST_OF_STRING.match(body)
            assert rest is not None, "it matches nothing, too"
            if not rest[1]:
                self._at += rest.end()
                return True
            body = body[rest.end() :]
        left, quote, string = brackets(body)
        count = len(left)
        for pairs in _PAIRS:
            while len(fewer := left.replace(pairs, b"")) < len(left):
                left = fewer
        closing = left.count(b"]")
        if self._depth - closing <= self._level:
            return False
        self._depth += len(left) - 2 * closing
        self._brackets += count
        self._in_string = bool(quote)
        self._at = len(self._body) - (len(string) - len(string.rstrip(b"\\"))) % 2
        return True

    def _is_of_no_use(self) -> bool:
        """Whether nobody needs what was read of what stands between two items."""
        return not self._keeps_gaps and _COMMAS.fullmatch(self._body, self._begin, self._at) is not None

    def _judge(self, end: int) -> None:
        """Find out whether the item at hand, as far as `end`, is beyond a limit."""
        if self._beyond:
            return
        if end - self._begin > self._limits.value:
            self._beyond = self._limits.told("value", VALUE)
        elif self._brackets > 2 * self._limits.values:
            self._beyond = self._limits.told("values", VALUES)

    def _drop(self, to: int) -> None:
        """Let go of what comes before `to`."""
        self._begin, self._beyond, self._brackets = to, "", 0

    def _end(self) -> int:
        """How many bytes of the file were looked at."""
        return self._stream.taken - len(self._body) + self._at

    def _item(self) -> Value:
        place, self._place = self._place, self._place + 1
        self._judge(self._at)
        begin, beyond = self._begin, self._beyond
        self._drop(self._at)
        if beyond:
            return Value(place, fault=beyond, end=self._end())
        return read(place, bytes(self._body[begin : self._at]), self._end(), self._limits)

    def _between(self, end: int) -> Iterator[Value]:
        """What stands between two brackets: commas, and perhaps items that are numbers, texts or rubbish."""
        self._judge(end)
        begin, beyond = self._begin, self._beyond
        self._drop(end)
        if beyond:
            yield Value(self._place, fault=beyond, end=self._end())
            self._place += 1
            return
        if _COMMAS.fullmatch(self._body, begin, end):
            return
        text = b"[" + self._body[begin:end].strip(b" \t\r\n,").removeprefix(BOM) + b"]"
        item = read(self._place, bytes(text), self._end(), self._limits)
        for value in [None] if item.fault is not None else item.value:
            yield Value(self._place, value, item.fault, item.end)
            self._place += 1

    def _rest(self) -> Iterator[Value]:
        if not self._over:
            return
        if self._depth:
            reason = "the file ends before this item does" if self._depth > 1 else "the file ends before its list does"
            yield Value(self._place, None, self._beyond or reason, self._stream.taken)
        elif self._beyond or not _COMMAS.fullmatch(self._body, self._begin):
            yield Value(self._place, None, "this is no JSON, and stands after the list", self._stream.taken)
