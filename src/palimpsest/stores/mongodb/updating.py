"""A batch in one update of one document, as most are."""

from __future__ import annotations

import os
from typing import NamedTuple

from palimpsest.stores.backend import Batch, Step
from palimpsest.stores.mongodb.layout import (
    HEAD_INLINE,
    NUMBER,
    Known,
    by_key,
    claim,
    due_of,
    head_key,
    table_sum,
)
from palimpsest.stores.mongodb.rows import Cell, Doc, packed

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
    """A batch that can be one update: the head that it is of, the rows with their tables, and what they have to have.

    `first` is when the first of the rows expires.
    """

    step: Step
    cells: list[tuple[bytes, bytes]]
    claims: set[bytes]
    first: int | None

    def fits(self, known: Known) -> bool:
        """Whether this is a head whose tail has room for these rows, and may have them."""
        step = self.step
        if "hotv" in known.apart or (step.cold is not None and "coldv" in known.apart):
            return False  # whose pieces have to go
        return not self.cells or (known.size < TAIL and known.own >= self.claims)

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
        if self.cells:
            batch = packed(self.cells)
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
    cells, claims, times, size = list[tuple[bytes, bytes]](), set[bytes](), list[int](), 0
    for step in batch:
        if not step.rows_only:
            if head is not None or step.expect is None or step.hot is None:
                return None
            head = step
        if step.drop:
            return None
        for name, rows in step.put:
            table = table_sum(step.place, name)
            for row in rows:
                size += len(row[1])
                if size > SMALL or len(cells) == FEW:
                    return None
                cells.append((table, Cell.made(row)))
                claims.add(claim(table, row[0] >> 32))
                if row[3] is not None:
                    times.append(row[3])
    if head is None or len(head.hot or b"") > HEAD_INLINE or len(head.cold or b"") > HEAD_INLINE:
        return None
    return Plan(head, cells, claims, min(times, default=None)) if cells or head.moves else None


# --- of heads

EXPIRING = ("exp", "first", "due")
"""What the document of a head has of when it expires, and when the first row in its tail does."""


def expiring(tenant: str, exp: int | None, first: int | None) -> Doc:
    """The same of one that expires then."""
    own = {name: at for name, at in (("exp", exp), ("first", first)) if at is not None}
    return own | {"due": due_of(tenant, min(own.values()), rows=first is not None)} if own else {}
