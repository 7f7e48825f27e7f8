"""`Notes`: what a head knows of rows, in a few bytes. Which were rewritten and, for some tables, which exist. Pure.

A row that was written only once needs no note if something else tells that it exists. The ciphertext of a rewritten row
is bound to the token of the step that rewrote it. The note has the same token, so an old row in the place of the new
one is recognised.
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
"""Bytes of a step's token: enough that no two of the few steps that rewrite the same row share one."""

LOW = 0xFFFFFFFF

_encode = msgspec.msgpack.Encoder().encode
_numbers = msgspec.msgpack.Decoder(list[int]).decode

Lines = Mapping[bytes, bytes]
"""Disjoint spans of keys, encoded (`_written`), by the token of their rows; b"" is the token of rows written once."""

Tables = Mapping[str, Mapping[int, Lines]]
"""Lines by table and by log, whose number is the upper half of a key: those of one log are read without the others.
Spans are of the lower halves."""


class Notes:
    """What a head notes of its rows, table by table. Immutable."""

    __slots__ = ("_flat", "tables")

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        # By table and log: the sorted beginnings of all spans, and the end and token of each. Made on first use.
        self._flat: dict[tuple[str, int], tuple[list[int], list[tuple[int, bytes]]]] = {}

    def token(self, table: str, key: int) -> bytes | None:
        """Return the token noted for the row of this key; None if there is no note."""
        lines = self.tables.get(table, {}).get(key >> 32)
        if lines is None:
            return None
        flat = self._flat.get((table, key >> 32))
        if flat is None:
            ordered = sorted((low, high, token) for token, written in lines.items() for low, high in _read(written))
            flat = [low for low, _, _ in ordered], [(high, token) for _, high, token in ordered]
            self._flat[table, key >> 32] = flat
        at = bisect_right(flat[0], key & LOW) - 1
        return flat[1][at][1] if at >= 0 and key & LOW <= flat[1][at][0] else None

    def keys(self, table: str, within: Iterable[Span]) -> list[int]:
        """Return the noted keys in these spans, span after span, each in ascending order."""
        logs, keys = self.tables.get(table, {}), list[int]()
        for low, high in within:
            for log in [low >> 32] if low >> 32 == high >> 32 else sorted(logs):
                first, last = max(low, log << 32), min(high, log << 32 | LOW)
                if first <= last and log in logs:
                    noted = spans.union(*map(_read, logs[log].values()))
                    common = spans.common(noted, [(first & LOW, last & LOW)])
                    keys += [log << 32 | key for key in spans.members(common)]
        return keys

    def noting(self, table: str, keys: Collection[int], token: bytes) -> Notes:
        """Return these notes with `token` noted for the rows of these keys, in the place of any other."""
        logs = dict(self.tables.get(table, {}))
        for log, keys_of_log in groupby(sorted(keys), lambda key: key >> 32):
            new = spans.of([key & LOW for key in keys_of_log])
            lines = _minus(logs.get(log, {}), new)
            logs[log] = {**lines, token: _written(spans.union(_read(lines.get(token, b"")), new))}
        return Notes({**self.tables, table: logs}) if keys else self

    def without(self, pattern: str, low: int, high: int) -> Notes:
        """Return these notes without keys from `low` to `high` of a table, or of all tables that match `prefix*`."""
        tables = dict(self.tables)
        for name, logs in self.tables.items():
            if is_meant(name, pattern):
                remaining = dict(logs)
                for log in [log for log in logs if low >> 32 <= log <= high >> 32]:
                    first, last = max(low, log << 32), min(high, log << 32 | LOW)
                    remaining[log] = _minus(remaining[log], [(first & LOW, last & LOW)])
                tables[name] = {log: lines for log, lines in remaining.items() if lines}
        return Notes({name: logs for name, logs in tables.items() if logs})


NOTHING = Notes({})


def new_token() -> bytes:
    """Return a random token for a step."""
    return os.urandom(TOKEN)


def _minus(lines: Lines, gone: Sequence[Span]) -> dict[bytes, bytes]:
    """Return the lines without these spans; a token without spans is left out."""
    remaining = {token: spans.minus(_read(written), gone) for token, written in lines.items()}
    return {token: _written(kept) for token, kept in remaining.items() if kept}


def _written(ordered: Iterable[Span]) -> bytes:
    """Encode spans: for each one number, twice its distance from the end of the span before.

    For a span of several keys that number is odd, and its length less one follows.
    """
    numbers, end = list[int](), 0
    for low, high in ordered:
        numbers += ((low - end) << 1 | 1, high - low) if high > low else ((low - end) << 1,)
        end = high
    return _encode(numbers)


@lru_cache(1024)
def _read(written: bytes) -> tuple[Span, ...]:
    """Decode what `_written` has encoded."""
    decoded, numbers, end = [], iter(_numbers(written) if written else ()), 0
    for gap in numbers:
        low = end + (gap >> 1)
        end = low + (next(numbers) if gap & 1 else 0)
        decoded.append((low, end))
    return tuple(decoded)
