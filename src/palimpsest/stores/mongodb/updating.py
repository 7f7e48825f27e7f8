"""A batch in one update of one document, as most are."""

from __future__ import annotations

import os
from typing import NamedTuple

from palimpsest.stores.backend import Batch, Step
from palimpsest.stores.mongodb.layout import (
    HEAD_INLINE,
    NUMBER,
    Known,
    Put,
    by_key,
    due_of,
    head_key,
    packed,
    part_key,
)
from palimpsest.stores.mongodb.rows import Cell, Doc

TAIL = 56 * 1024
"""Bytes of a tail from which on its rows are moved on to buckets."""

FEW = 64
"""Rows, and..."""
SMALL = 32 * 1024
"""...bytes of rows, that are put to a tail at once."""


class Update(NamedTuple):
    """One update of one head, which finds it only as it is known: `number` is its own, `after` what is known then."""

    where: Doc
    change: Doc
    number: bytes
    after: Known


class Plan(NamedTuple):
    """A batch that can be one update: the head that it is of, the rows, and the keys of the parts that they are of.

    `first` is when the first of the rows expires.
    """

    step: Step
    puts: list[Put]
    parts: set[bytes]
    first: int | None

    def fits(self, known: Known) -> bool:
        """Whether this is a head whose tail has room for these rows, and may have them."""
        step = self.step
        if "hotv" in known.apart or (step.cold is not None and "coldv" in known.apart):
            return False  # whose pieces have to go
        return not self.puts or (known.size < TAIL and known.own >= self.parts)

    def update(self, known: Known, spread: bool) -> Update:
        """The update of a head that it fits."""
        step, number = self.step, os.urandom(NUMBER)
        times = [at for at in (known.first, self.first) if at is not None]
        exp, first = step.expires if step.moves else known.exp, min(times, default=None)
        hot = (step.hot or b"") + number
        assigned: Doc = {"hot": hot}
        change: Doc = {"$set": assigned}
        if step.cold is not None:
            assigned["cold"] = step.cold
        if (exp, first) != (known.exp, known.first):
            expires = expiring(step.place.tenant, exp, first)
            assigned.update(expires)
            if gone := {name: "" for name in EXPIRING if name not in expires}:
                change["$unset"] = gone
        size = known.size
        if self.puts:
            batch = packed(self.puts)
            change["$push"] = {"tail": batch}
            size += len(batch)
        if step.moves:
            change["$currentDate"] = {"mark": {"$type": "timestamp"}}
        # `$exists` says nothing new: it keeps SecantusDB from looking three times for an index that has `hot`
        where = {**by_key(head_key(step.place), spread), "hot": {"$eq": known.hot, "$exists": True}}
        return Update(where, change, number, known._replace(hot=hot, size=size, exp=exp, first=first))


def plan_of(batch: Batch) -> Plan | None:
    """What does a batch in one update, of a head that it fits; None for one that takes more."""
    head: Step | None = None
    puts, parts, times, number, size = list[Put](), set[bytes](), list[int](), 0, 0
    for step in batch:
        if not step.rows_only:
            if head is not None or step.expect is None or step.hot is None:
                return None
            head = step
        if step.drop:
            return None
        for table, rows in step.put:
            number, size = number + len(rows), size + sum([len(row[1]) for row in rows])
            if size > SMALL or number > FEW:
                return None
            puts.append((step.place.space, step.place.name, table, [Cell.made(row) for row in rows]))
            parts.update([part_key(step.place, part) for part in {row[0] >> 32 for row in rows}])
            times += [row[3] for row in rows if row[3] is not None]
    if head is None or len(head.hot or b"") > HEAD_INLINE or len(head.cold or b"") > HEAD_INLINE:
        return None
    return Plan(head, puts, parts, min(times, default=None)) if number or head.moves else None


# --- of heads

EXPIRING = ("exp", "first", "due")
"""What the document of a head has of when it expires, and when the first row in its tail does."""


def expiring(tenant: str, exp: int | None, first: int | None) -> Doc:
    """The same of one that expires then."""
    own = {name: at for name, at in (("exp", exp), ("first", first)) if at is not None}
    return own | {"due": due_of(tenant, min(own.values()), rows=first is not None)} if own else {}
