"""Batches that are one update of one document, which most are: an append moves a head and pushes rows to its tail."""

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
"""Bytes of a tail from which on the next write moves its rows to buckets, in a transaction."""

FEW = 64
"""The most rows that one batch puts to a tail."""
SMALL = 32 * 1024
"""The most bytes of values that one batch puts to a tail."""


class Update(NamedTuple):
    """An update of one head: its filter, which matches only if the head is as it is known, and its change.

    `number` is the random number that it writes behind the hot value; `after` is what is known of the head afterwards.
    """

    where: Doc
    change: Doc
    number: bytes
    after: Known


class Plan(NamedTuple):
    """A batch that may be one update: the step of its head, its rows, and the keys of the parts that these belong to.

    `first` is when the first of the rows expires.
    """

    step: Step
    puts: list[Put]
    parts: set[bytes]
    first: int | None

    def fits(self, known: Known) -> bool:
        """Whether an update is enough for a head like this: it owns the parts of the rows, and its tail has room."""
        step = self.step
        if "hotv" in known.apart or (step.cold is not None and "coldv" in known.apart):
            return False  # the pieces of the old value have to be removed, too
        return not self.puts or (known.size < TAIL and known.own >= self.parts)

    def update(self, known: Known, spread: bool) -> Update:
        """Return the update of a head that this plan fits."""
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
            if removed := {name: "" for name in EXPIRING if name not in expires}:
                change["$unset"] = removed
        size = known.size
        if self.puts:
            batch = packed(self.puts)
            change["$push"] = {"tail": batch}
            size += len(batch)
        if step.moves:
            change["$currentDate"] = {"mark": {"$type": "timestamp"}}
        # `$exists` is implied by `$eq`. It keeps SecantusDB from searching three times for an index with `hot`.
        where = {**by_key(head_key(step.place), spread), "hot": {"$eq": known.hot, "$exists": True}}
        return Update(where, change, number, known._replace(hot=hot, size=size, exp=exp, first=first))


def plan_of(batch: Batch) -> Plan | None:
    """Return the plan of a batch as one update, or None if it needs a transaction whatever its head is like.

    It must have one head, which exists before and after, drop nothing, and put few and small rows.
    """
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
"""The fields of a head's document about expiry: when the head expires, when the first row in its tail does, and `due`
for the index of both."""


def expiring(tenant: str, exp: int | None, first: int | None) -> Doc:
    """Return those of these fields that a head with these times has."""
    own = {name: at for name, at in (("exp", exp), ("first", first)) if at is not None}
    return own | {"due": due_of(tenant, min(own.values()), rows=first is not None)} if own else {}
