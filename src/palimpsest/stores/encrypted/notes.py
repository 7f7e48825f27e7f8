"""What a head knows of rows, in a few bytes: which were written anew, and of some tables which there are. Pure.

A row that was written once needs no line where something else tells that it is there. One that was written anew has a
token of the step that did it, which its ciphertext is bound to: so an old row is known in the place of its new.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from palimpsest.log import spans
from palimpsest.log.spans import Span

TOKEN = 6
"""Bytes of a step's token: of few steps that write the same rows anew no two have the same."""

Lines = Mapping[bytes, tuple[Span, ...]]
"""Spans of keys, apart from each other, by the token that their rows have; an empty one for rows as they came."""

_NONE: Mapping[str, Lines] = {}


class Notes:
    """Lines by the names of tables. Immutable."""

    __slots__ = ("_flat", "tables")

    def __init__(self, tables: Mapping[str, Lines] = _NONE) -> None:
        self.tables = tables
        self._flat: dict[str, tuple[list[int], list[tuple[int, bytes]]]] = {}

    @classmethod
    def load(cls, raw: bytes) -> Notes:
        """What `dump` gave. Raises ValueError where it is none of ours."""
        if not raw:
            return NOTHING
        stored = msgspec.msgpack.decode(raw, type=dict[str, dict[bytes, bytes]])
        return cls({name: {token: _read(some) for token, some in lines.items()} for name, lines in stored.items()})

    def dump(self) -> bytes:
        """These lines as bytes, none for none."""
        if not self.tables:
            return b""
        return msgspec.msgpack.encode(
            {name: {token: _written(some) for token, some in lines.items()} for name, lines in self.tables.items()}
        )

    def token(self, table: str, key: int) -> bytes | None:
        """The token that the row of this key has; None where there is no line for it."""
        lines = self.tables.get(table)
        if lines is None:
            return None
        flat = self._flat.get(table)
        if flat is None:
            found = sorted((low, high, token) for token, some in lines.items() for low, high in some)
            flat = self._flat[table] = [low for low, _, _ in found], [(high, token) for _, high, token in found]
        at = bisect_right(flat[0], key) - 1
        return flat[1][at][1] if at >= 0 and key <= flat[1][at][0] else None

    def keys(self, table: str, within: Iterable[Span]) -> list[int]:
        """The keys in these spans that there are lines for, ascending."""
        there = spans.union(*self.tables.get(table, {}).values())
        return list(spans.members(spans.common(there, tuple(within))))

    def noting(self, table: str, keys: Collection[int], token: bytes) -> Notes:
        """These, and that the rows of these keys have this token."""
        if not keys:
            return self
        new = spans.of(set(keys))
        lines = self._minus(table, new)
        lines[token] = spans.union(lines.get(token, ()), new)
        return Notes({**self.tables, table: lines})

    def without(self, pattern: str, low: int, high: int) -> Notes:
        """These without what is in a span of a table, or of all those whose names begin so, where it ends in `*`."""
        meant = [
            name for name in self.tables if name == pattern or (pattern[-1:] == "*" and name.startswith(pattern[:-1]))
        ]
        if not meant:
            return self
        left = {name: lines for name, lines in self.tables.items() if name not in meant}
        return Notes(left | {name: lines for name in meant if (lines := self._minus(name, [(low, high)]))})

    def only(self, table: str, kept: Sequence[Span]) -> Notes:
        """These, of a table only what is in these spans of keys."""
        lines = self.tables.get(table)
        if not lines:
            return self
        left = {token: found for token, some in lines.items() if (found := spans.common(some, kept))}
        rest = {name: lines for name, lines in self.tables.items() if name != table}
        return Notes(rest | ({table: left} if left else {}))

    def joined(self, other: Notes) -> Notes:
        """These and those: where both know a row they say the same of it."""
        found = self
        for table, lines in other.tables.items():
            for token, some in lines.items():
                kept = found._minus(table, some)
                kept[token] = spans.union(kept.get(token, ()), some)
                found = Notes({**found.tables, table: kept})
        return found

    def _minus(self, table: str, gone: Sequence[Span]) -> dict[bytes, tuple[Span, ...]]:
        lines = self.tables.get(table, {})
        return {token: left for token, some in lines.items() if (left := spans.minus(some, gone))}


NOTHING = Notes()


def new_token() -> bytes:
    """A token that no step before has had."""
    return os.urandom(TOKEN)


def _written(some: Iterable[Span]) -> bytes:
    """Of each span the distance from the one before, doubled, and how much longer than one it is where it is odd."""
    out, end = bytearray(), 0
    for low, high in some:
        _put(out, (low - end) << 1 | (high > low))
        if high > low:
            _put(out, high - low)
        end = high
    return bytes(out)


def _read(written: bytes) -> tuple[Span, ...]:
    found, numbers, end = [], _numbers(written), 0
    for gap in numbers:
        low = end + (gap >> 1)
        end = low + (next(numbers) if gap & 1 else 0)
        found.append((low, end))
    return tuple(found)


def _put(out: bytearray, number: int) -> None:
    """Seven bits a byte, the lowest first."""
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


def _numbers(raw: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in raw:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0
