"""Reading the items of a JSON list of any size one at a time, separated by their brackets and strings alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from palimpsest.transfer.sources.files import Ahead
from palimpsest.transfer.sources.limits import Limits
from palimpsest.transfer.sources.values import BOM, VALUE, VALUES, Value, brackets, read

_UP_TO_BRACKET = re.compile(rb'(?>(?:[^"\[\]{}]++|"(?>(?:[^"\\]++|\\.)*)")*)([\[\]{}]|")', re.DOTALL)
"""Matches up to the next bracket outside of strings, or up to a string whose end has not been read yet."""

_REST_OF_STRING = re.compile(rb'(?>(?:[^"\\]++|\\.)*)("?)', re.DOTALL)
"""Matches the rest of a string: up to its end, or as far as it was read."""

_COMMAS = re.compile(rb"[\s,]*+")

_PAIRS = [b"[" * count + b"]" * count for count in (64, 16, 4, 1)]
"""Balanced runs of brackets, which do not change the depth, the longest first."""


class ListReader:
    """Reads the items of one JSON list, or of several in a row, as in the members of an archive.

    Each byte is scanned once. Bytes are kept from the beginning of the current item on, but not of an item that is
    beyond a limit. With `over` the stream is the whole file; else it is a sample, and a cut off end is no fault.
    """

    _level = 1
    """How many brackets are open around an item."""

    _keeps_gaps = False
    """Whether the bytes between items are kept even if they are only commas and blanks."""

    def __init__(self, stream: Ahead, over: bool, limits: Limits) -> None:
        self._stream, self._over, self._limits = stream, over, limits
        self._body = bytearray()  # the bytes that were read and are still needed
        self._begin = self._at = 0  # where the current item begins in them, and up to where they were scanned
        self._in_string = False
        self._depth = self._brackets = 0  # open brackets, and how many brackets the current item has
        self._beyond = ""  # why the current item is beyond a limit
        self._place = 0

    def items(self) -> Iterator[Value]:
        """Yield the items in order, with a fault in the place of each that cannot be read."""
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
        """Scan to behind the next bracket outside of strings; return False if none has been read yet."""
        while True:
            if self._in_string:
                rest = _REST_OF_STRING.match(self._body, self._at)
                assert rest is not None, "it matches the empty string, too"
                self._at, self._in_string = rest.end(), not rest[1]
                if self._in_string:
                    return False
            match = _UP_TO_BRACKET.match(self._body, self._at)
            if match is None:
                self._at = len(self._body)
                return False
            self._at, self._in_string = match.end(), match[1] == b'"'
            if not self._in_string:
                return True

    def _more(self) -> bool:
        """Read more bytes, dropping those that are not needed any more; return False at the end."""
        while True:
            self._check_limits(self._at)
            if self._beyond or (self._depth <= self._level and self._is_blank_gap()):
                self._begin = self._at
            del self._body[: self._begin]
            self._at -= self._begin
            self._begin = 0
            chunk = self._stream.read()
            self._body += chunk
            if not chunk or self._depth <= self._level or not self._skipped():
                return bool(chunk)

    def _skipped(self) -> bool:
        """Scan all bytes read at once, if the current item does not end in them; return whether that is so.

        The result is the same as scanning from bracket to bracket, but many brackets take no longer than text.
        """
        body = bytes(self._body[self._at :])
        if self._in_string:
            rest = _REST_OF_STRING.match(body)
            assert rest is not None, "it matches the empty string, too"
            if not rest[1]:
                self._at += rest.end()
                return True
            body = body[rest.end() :]
        unmatched, quote, string = brackets(body)
        count = len(unmatched)
        for pairs in _PAIRS:
            while len(reduced := unmatched.replace(pairs, b"")) < len(unmatched):
                unmatched = reduced
        closing = unmatched.count(b"]")
        if self._depth - closing <= self._level:
            return False
        self._depth += len(unmatched) - 2 * closing
        self._brackets += count
        self._in_string = bool(quote)
        self._at = len(self._body) - (len(string) - len(string.rstrip(b"\\"))) % 2
        return True

    def _is_blank_gap(self) -> bool:
        """Return whether only commas and blanks were read since the last item, and they need not be kept."""
        return not self._keeps_gaps and _COMMAS.fullmatch(self._body, self._begin, self._at) is not None

    def _check_limits(self, end: int) -> None:
        """Note if the current item, as far as `end`, is beyond a limit."""
        if self._beyond:
            return
        if end - self._begin > self._limits.value:
            self._beyond = self._limits.more_than("value", VALUE)
        elif self._brackets > 2 * self._limits.values:
            self._beyond = self._limits.more_than("values", VALUES)

    def _drop(self, to: int) -> None:
        """Begin the next item at `to`; the bytes before are not needed any more."""
        self._begin, self._beyond, self._brackets = to, "", 0

    def _end(self) -> int:
        """Return how many bytes of the file were scanned."""
        return self._stream.taken - len(self._body) + self._at

    def _item(self) -> Value:
        """Return the item that ends here."""
        place, self._place = self._place, self._place + 1
        self._check_limits(self._at)
        begin, beyond = self._begin, self._beyond
        self._drop(self._at)
        if beyond:
            return Value(place, fault=beyond, end=self._end())
        return read(place, bytes(self._body[begin : self._at]), self._end(), self._limits)

    def _between(self, end: int) -> Iterator[Value]:
        """Yield the items before a bracket that have no brackets: numbers and texts, or faults for anything else."""
        self._check_limits(end)
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
        """Yield a fault if the file ends within the list, or something else stands behind it."""
        if not self._over:
            return
        if self._depth:
            reason = (
                "the file ends before the end of this item"
                if self._depth > 1
                else "the file ends before the end of its list"
            )
            yield Value(self._place, None, self._beyond or reason, self._stream.taken)
        elif self._beyond or not _COMMAS.fullmatch(self._body, self._begin):
            yield Value(self._place, None, "this follows the list and is not valid JSON", self._stream.taken)
