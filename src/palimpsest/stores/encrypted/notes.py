"""What a head knows of rows, in a few bytes: which were written anew, and of some tables which there are. Pure.

A row that was written once needs no line where something else tells that it is there. One that was written anew has a
token of the step that did it, which its ciphertext is bound to: so an old row is known in the place of its new.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby

import msgspec

from palimpsest.log import spans
from palimpsest.log.spans import Span
from palimpsest.stores.rules import is_meant

TOKEN = 6
"""Bytes of a step's token: of few steps that write the same rows anew no two have the same."""

LOW = 0xFFFFFFFF

_encode = msgspec.msgpack.Encoder().encode
_numbers = msgspec.msgpack.Decoder(list[int]).decode

Lines = Mapping[bytes, bytes]
"""Spans of keys, written, apart from each other, by the token that their rows have; an empty one for those as they
came."""

Tables = Mapping[str, Mapping[int, Lines]]
"""Lines by the names of tables and the upper halves of keys, which are the numbers of logs: one is read without the
others. The spans are of the lower halves."""


class Notes:
    """Lines. Immutable."""

    __slots__ = ("_flat", "tables")

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._flat: dict[tuple[str, int], tuple[list[int], list[tuple[int, bytes]]]] = {}

    def token(self, table: str, key: int) -> bytes | None:
        """The token that the row of this key has; None where there is no line for it."""
        lines = self.tables.get(table, {}).get(key >> 32)
        if lines is None:
            return None
        flat = self._flat.get((table, key >> 32))
        if flat is None:
            found = sorted((low, high, token) for token, some in lines.items() for low, high in _read(some))
            flat = [low for low, _, _ in found], [(high, token) for _, high, token in found]
            self._flat[table, key >> 32] = flat
        at = bisect_right(flat[0], key & LOW) - 1
        return flat[1][at][1] if at >= 0 and key & LOW <= flat[1][at][0] else None

    def keys(self, table: str, within: Iterable[Span]) -> list[int]:
        """The keys in these spans that there are lines for, span after span."""
        logs, found = self.tables.get(table, {}), list[int]()
        for low, high in within:
            for log in [low >> 32] if low >> 32 == high >> 32 else sorted(logs):
                first, last = max(low, log << 32), min(high, log << 32 | LOW)
                if first <= last and log in logs:
                    there = spans.union(*map(_read, logs[log].values()))
                    found += [
                        log << 32 | key for key in spans.members(spans.common(there, [(first & LOW, last & LOW)]))
                    ]
        return found

    def noting(self, table: str, keys: Collection[int], token: bytes) -> Notes:
        """These, and that the rows of these keys have this token."""
        logs = dict(self.tables.get(table, {}))
        for log, some in groupby(sorted(keys), lambda key: key >> 32):
            new = spans.of([key & LOW for key in some])
            lines = _minus(logs.get(log, {}), new)
            logs[log] = {**lines, token: _written(spans.union(_read(lines.get(token, b"")), new))}
        return Notes({**self.tables, table: logs}) if keys else self

    def without(self, pattern: str, low: int, high: int) -> Notes:
        """These without what is in a span of a table, or of all those whose names begin so, where it ends in `*`."""
        tables = dict(self.tables)
        for name, logs in self.tables.items():
            if is_meant(name, pattern):
                left = dict(logs)
                for log in [log for log in logs if low >> 32 <= log <= high >> 32]:
                    first, last = max(low, log << 32), min(high, log << 32 | LOW)
                    left[log] = _minus(left[log], [(first & LOW, last & LOW)])
                tables[name] = {log: lines for log, lines in left.items() if lines}
        return Notes({name: logs for name, logs in tables.items() if logs})


NOTHING = Notes({})


def new_token() -> bytes:
    """A token that no step before has had."""
    return os.urandom(TOKEN)


def _minus(lines: Lines, gone: Sequence[Span]) -> dict[bytes, bytes]:
    left = {token: spans.minus(_read(some), gone) for token, some in lines.items()}
    return {token: _written(some) for token, some in left.items() if some}


def _written(some: Iterable[Span]) -> bytes:
    """Of each span the distance from the one before, doubled, and how much longer than one it is where that is odd."""
    numbers, end = list[int](), 0
    for low, high in some:
        numbers += ((low - end) << 1 | 1, high - low) if high > low else ((low - end) << 1,)
        end = high
    return _encode(numbers)


@lru_cache(1024)
def _read(written: bytes) -> tuple[Span, ...]:
    found, numbers, end = [], iter(_numbers(written) if written else ()), 0
    for gap in numbers:
        low = end + (gap >> 1)
        end = low + (next(numbers) if gap & 1 else 0)
        found.append((low, end))
    return tuple(found)
