"""Calls of the scripts: arguments encoded from asks and batches, and answers decoded into heads, rows and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from palimpsest.stores.backend import Ask, Batch, Cells, Range, Refusal, Seen, Step
from palimpsest.stores.redis.layout import (
    NEVER,
    escaped,
    escaped_beginning,
    head_of,
    home_of,
    member_of,
    place_of,
    row_of,
    table_of,
)

Arguments = list[bytes | str | int]
"""Arguments of a script."""

LOOKS, MOVES, EXPECTS, HAS, CHILLS, DESTROYS = 1, 2, 4, 8, 16, 32
"""Flags of a step: it compares the head, changes it, expects one to exist, leaves one, sets its cold value; and it
destroys."""


class Call(NamedTuple):
    """The buckets whose keys are given to a script, and the script's arguments."""

    buckets: Sequence[int]
    arguments: Arguments


# --- writing


def write_call(batches: Sequence[Batch]) -> Call:
    """Return the call that writes these batches. Each names its bucket by the position of the key, from 1."""
    buckets: dict[int, int] = {}
    arguments: Arguments = [len(batches)]
    for batch in batches:
        place = batch[0].place
        bucket, tenant, home = home_of(place.tenant, place.home)
        arguments += (buckets.setdefault(bucket, len(buckets) + 1), tenant, home, len(batch))
        for step in batch:
            _add_step(step, arguments)
    return Call(list(buckets), arguments)


def _add_step(step: Step, arguments: Arguments) -> None:
    """Append a step's arguments, in the order in which the script takes them: place, flags, head, drops, puts."""
    space, name = place_of(step.place.space, step.place.name)
    flags = DESTROYS if step.destroys else 0
    if step.rows_only:
        arguments += (space, name, flags)
    elif not step.moves:
        arguments += (space, name, flags | LOOKS | (EXPECTS if step.expect is not None else 0), step.expect or b"")
    else:
        flags |= LOOKS | MOVES | (EXPECTS if step.expect is not None else 0)
        flags |= (HAS if step.hot is not None else 0) | (CHILLS if step.cold is not None else 0)
        expires = NEVER if step.expires is None else step.expires.to_bytes(8)
        arguments += (space, name, flags, step.expect or b"", step.hot or b"", step.cold or b"", expires)
    puts = [(table, rows) for table, rows in step.put if rows]
    arguments += (len(step.drop), len(puts))
    for table, low, high in step.drop:
        wild = table.endswith("*")
        pattern = escaped_beginning(table[:-1]) if wild else table_of(table)
        arguments += (pattern, b"*" if wild else b"", low.to_bytes(8), high.to_bytes(8))
    for table, rows in puts:
        arguments += (table_of(table), len(ordered := _ordered(rows)))
        arguments += [member_of(row) for row in ordered]


def _ordered(rows: Sequence[Cells]) -> Sequence[Cells]:
    """Return the rows in order of their keys; of several rows with one key the last."""
    if len(rows) == 1 or all(row[0] < following[0] for row, following in pairwise(rows)):
        return rows
    return sorted({row[0]: row for row in rows}.values(), key=itemgetter(0))


def refusal_of(batch: Batch, answer: Sequence[bytes | None]) -> Refusal:
    """Return the refusal of a batch from the script's answer, the two values of each present head. Raises Damaged."""
    heads = [head_of(answer[2 * i], answer[2 * i + 1]) for i in range(len(batch))]
    return tuple(None if step.rows_only else head for step, head in zip(batch, heads, strict=True))


# --- reading


def look_call(asks: Sequence[Ask]) -> Call:
    """Return the call that answers these asks."""
    buckets: dict[int, int] = {}
    arguments: Arguments = [len(asks)]
    for ask in asks:
        bucket, tenant, home = home_of(ask.place.tenant, ask.place.home)
        space, name = place_of(ask.place.space, ask.place.name)
        arguments += (buckets.setdefault(bucket, len(buckets) + 1), tenant + home, space + name, 1 if ask.head else 0)
        arguments.append(len(ask.rows))
        for wanted in ask.rows:
            if isinstance(wanted, Range):
                spans = wanted.spans[::-1] if wanted.newest_first else wanted.spans
                limit = -1 if wanted.limit is None else wanted.limit
                arguments += (b"d" if wanted.newest_first else b"a", table_of(wanted.table), limit, len(spans))
                for low, high in spans:
                    arguments += (low.to_bytes(8), high.to_bytes(8))
            else:
                arguments += (b"n", table_of(wanted.table), len(wanted.ids), *map(escaped, wanted.ids))
    return Call(list(buckets), arguments)


class Packed:
    """Reads the answer of a look from its beginning on.

    The script packs all values into a single one, because the driver's parser, written in Python, is slow for many.
    """

    def __init__(self, packed: bytes) -> None:
        self._packed, self._at = packed, 0

    def value(self) -> bytes | None:
        """Return the next value, None for a missing one."""
        begin = self._at + 4
        size = int.from_bytes(self._packed[self._at : begin], signed=True)
        self._at = begin + max(size, 0)
        return self._packed[begin : self._at] if size >= 0 else None

    def rows(self) -> list[Cells]:
        """Return the next list of rows. Raises Damaged."""
        packed, at, found = self._packed, self._at + 4, list[Cells]()
        for _ in range(int.from_bytes(packed[self._at : at])):
            begin = at + 4
            at = begin + int.from_bytes(packed[at:begin])
            found.append(row_of(packed[begin:at]))
        self._at = at
        return found


def seen_of(asks: Sequence[Ask], answer: bytes) -> list[Seen]:
    """Decode the answer to these asks. Raises Damaged."""
    packed = Packed(answer)
    return [_seen_of(ask, packed) for ask in asks]


def _seen_of(ask: Ask, packed: Packed) -> Seen:
    """Read the next part of an answer, which is for this ask."""
    head = head_of(packed.value(), packed.value()) if ask.head else None
    found: list[Sequence[Cells]] = []
    for wanted in ask.rows:
        rows = packed.rows()
        if not isinstance(wanted, Range):  # by ids: in the order of these, and twice for an id that is given twice
            rows = sorted({row[0]: row for row in rows}.values(), key=itemgetter(0))
        found.append(rows)
    return Seen(head, found)
