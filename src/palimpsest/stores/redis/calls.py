"""Calls of the scripts: arguments, made of what the seam is asked, and answers, read as what it returns."""

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
"""What a step does: look at its head, change it, expect one, leave one, give it a cold value; and destroy."""


class Call(NamedTuple):
    """The buckets whose keys a script is given, and its arguments."""

    buckets: Sequence[int]
    arguments: Arguments


# --- writing


def write_call(batches: Sequence[Batch]) -> Call:
    """How a script is told what to do."""
    buckets: dict[int, int] = {}
    given: Arguments = [len(batches)]
    for batch in batches:
        where = batch[0].place
        bucket, tenant, home = home_of(where.tenant, where.home)
        given += (buckets.setdefault(bucket, len(buckets) + 1), tenant, home, len(batch))
        for step in batch:
            _add_step(step, given)
    return Call(list(buckets), given)


def _add_step(step: Step, given: Arguments) -> None:
    space, name = place_of(step.place.space, step.place.name)
    how = DESTROYS if step.destroys else 0
    if step.rows_only:
        given += (space, name, how)
    elif not step.moves:
        given += (space, name, how | LOOKS | (EXPECTS if step.expect is not None else 0), step.expect or b"")
    else:
        how |= LOOKS | MOVES | (EXPECTS if step.expect is not None else 0)
        how |= (HAS if step.hot is not None else 0) | (CHILLS if step.cold is not None else 0)
        expires = NEVER if step.expires is None else step.expires.to_bytes(8)
        given += (space, name, how, step.expect or b"", step.hot or b"", step.cold or b"", expires)
    puts = [(table, rows) for table, rows in step.put if rows]
    given += (len(step.drop), len(puts))
    for table, low, high in step.drop:
        wild = table.endswith("*")
        meant = escaped_beginning(table[:-1]) if wild else table_of(table)
        given += (meant, b"*" if wild else b"", low.to_bytes(8), high.to_bytes(8))
    for table, rows in puts:
        given += (table_of(table), len(ordered := _ordered(rows)))
        given += [member_of(row) for row in ordered]


def _ordered(rows: Sequence[Cells]) -> Sequence[Cells]:
    """These rows in order of their keys, of each key the last."""
    if len(rows) == 1 or all(one[0] < other[0] for one, other in pairwise(rows)):
        return rows
    return sorted({row[0]: row for row in rows}.values(), key=itemgetter(0))


def refusal_of(batch: Batch, answer: Sequence[bytes | None]) -> Refusal:
    """The heads that a script tells of a batch that it refused."""
    told = [head_of(answer[2 * i], answer[2 * i + 1]) for i in range(len(batch))]
    return tuple(None if step.rows_only else head for step, head in zip(batch, told, strict=True))


# --- reading


def look_call(asks: Sequence[Ask]) -> Call:
    """How a script is asked."""
    buckets: dict[int, int] = {}
    given: Arguments = [len(asks)]
    for ask in asks:
        tenant, home, space, name = ask.place
        bucket, tenants, homes = home_of(tenant, home)
        one, other = place_of(space, name)
        given += (buckets.setdefault(bucket, len(buckets) + 1), tenants + homes, one + other, 1 if ask.head else 0)
        given.append(len(ask.rows))
        for rows in ask.rows:
            if isinstance(rows, Range):
                spans = rows.spans[::-1] if rows.newest_first else rows.spans
                limit = -1 if rows.limit is None else rows.limit
                given += (b"d" if rows.newest_first else b"a", table_of(rows.table), limit, len(spans))
                for low, high in spans:
                    given += (low.to_bytes(8), high.to_bytes(8))
            else:
                given += (b"n", table_of(rows.table), len(rows.ids), *map(escaped, rows.ids))
    return Call(list(buckets), given)


class Packed:
    """What a script has packed into one value, of which the driver's parser makes no more than one: it is read once,
    from its beginning on."""

    def __init__(self, packed: bytes) -> None:
        self._packed, self._at = packed, 0

    def value(self) -> bytes | None:
        """The next value, or None for one that is not there."""
        begin = self._at + 4
        size = int.from_bytes(self._packed[self._at : begin], signed=True)
        self._at = begin + max(size, 0)
        return self._packed[begin : self._at] if size >= 0 else None

    def rows(self) -> list[Cells]:
        """The next rows. Raises Damaged."""
        packed, at, found = self._packed, self._at + 4, list[Cells]()
        for _ in range(int.from_bytes(packed[self._at : at])):
            begin = at + 4
            at = begin + int.from_bytes(packed[at:begin])
            found.append(row_of(packed[begin:at]))
        self._at = at
        return found


def seen_of(asks: Sequence[Ask], answer: bytes) -> list[Seen]:
    """What there is of places, as a script tells it."""
    packed = Packed(answer)
    return [_seen_of(ask, packed) for ask in asks]


def _seen_of(ask: Ask, packed: Packed) -> Seen:
    head = head_of(packed.value(), packed.value()) if ask.head else None
    found: list[Sequence[Cells]] = []
    for rows in ask.rows:
        some = packed.rows()
        if not isinstance(rows, Range):
            some = sorted({row[0]: row for row in some}.values(), key=itemgetter(0))
        found.append(some)
    return Seen(head, found)
