"""How batches are written: most in one statement, others in a transaction that has locked the heads before it looks.

One statement moves heads that are there and puts rows. A batch that drops rows, or expects that something is not there,
needs a lock first: what is dropped must be seen after whoever had the head before, and what is not there has no row to
lock. Then a lock of the home's number takes its place, which everybody has who makes a head in that home. Heads are
locked in the order of their keys, the home's number before them.

A writer who was refused, and may ask `again`, locks the heads and looks at them. While he meets others there he begins
with the lock, which is three trips to the server: to lock, to look, to write and commit.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import Any

from palimpsest.stores.backend import Again, Ask, Batch, Cells, Place, PlaceHead, Refusal, Step
from palimpsest.stores.postgres.names import address_of, home_key, place_key, table_key, text_of
from palimpsest.stores.postgres.pool import Connection
from palimpsest.stores.postgres.reading import looked
from palimpsest.stores.postgres.statements import Statements
from palimpsest.stores.rules import asked_again, expect_of, is_meant, refused

CROWDS = 4096
"""Heads that are remembered at once at which others were met."""

CALM = 2
"""How often nobody has to have moved a head meanwhile before it is written to without a lock again."""

HASTY = 100
"""Milliseconds that what may be given up waits for other writers."""

SHORT = 64 << 10
"""Bytes up to which what is written is sent as text, with the commit in one trip."""

Args = tuple[Any, ...]


class Writing:
    """Writes batches over a connection. Remembers where others were met."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements
        self._crowds: OrderedDict[Place, int] = OrderedDict()

    async def write(
        self, db: Connection, number: int, batch: Batch, lasting: bool, again: Again | None, *, locked: bool = False
    ) -> Refusal | None:
        """Do a batch whose heads are all as expected, or what `again` says in its place; behind locks in any case where
        that is said."""
        crowded = bool(self._crowds) and again is not None and any(step.place in self._crowds for step in batch)
        if not lasting and _is_simple(batch):
            return await self._changed(db, batch, (), HASTY)
        if locked or crowded or not _is_simple(batch):
            return await self._locked(db, number, batch, again)
        plain = _plain_of(batch) if again is not None else None
        if plain is None:
            refusal = await self._changed(db, batch, ())
            if refusal is None or again is None:
                return refusal
        elif await db.fetchval(self._sql.plain, *plain):
            return None
        return await self._locked(db, number, batch, again)

    # --- in one statement

    async def _changed(
        self, db: Connection, batch: Batch, drops: Sequence[Drop], patience: int | None = None
    ) -> Refusal | None:
        heads = _heads_of(batch)
        rows = await db.fetch(self._sql.change, *_change_of(batch, heads, drops), patience)
        if rows[0][0]:
            return None
        there = {heads[n - 1].place: PlaceHead(hot, cold) for _, n, hot, cold in rows if n is not None}
        return tuple(None if step.rows_only else there.get(step.place) for step in batch)

    # --- behind locks

    async def _locked(self, db: Connection, number: int, batch: Batch, again: Again | None) -> Refusal | None:
        """The same in a transaction. Whatever ends it otherwise than by its end closes the connection."""
        await db.execute("BEGIN; " + self._locks(batch))
        there: dict[Place, PlaceHead | None] = {}
        if again is not None:
            there = await self._there(db, batch)
            refusal = refused(batch, [there.get(step.place) for step in batch])
            if refusal is not None:
                look = partial(looked, db, self._sql)
                other = await asked_again(again, number, batch, refusal, look)
                if other is None:
                    await db.execute("ROLLBACK")
                    return refusal
                batch = other
                if not _is_simple(batch) or any(step.place not in there for step in _heads_of(batch)):
                    await db.execute(self._locks(batch))
        plain = _plain_of(batch)
        if plain is not None and _length(plain) <= SHORT and expect_of(there.get(batch[0].place)) == batch[0].expect:
            await db.execute(f"{_spelt(self._sql.plain, plain)}; COMMIT")
            return None
        refusal = await self._changed(db, batch, await self._drops(db, batch))
        await db.execute("COMMIT" if refusal is None else "ROLLBACK")
        return refusal

    async def _there(self, db: Connection, batch: Batch) -> dict[Place, PlaceHead | None]:
        """The heads that are there, which are locked; whether others are met there is remembered."""
        heads = _heads_of(batch)
        seen = await looked(db, self._sql, [Ask(step.place) for step in heads])
        there = {step.place: one.head for step, one in zip(heads, seen, strict=True)}
        met = any(expect_of(there[step.place]) != step.expect for step in heads)
        for step in heads:
            left = CALM if met else self._crowds.pop(step.place, 0) - 1
            if left > 0:
                self._crowds[step.place] = left
        while len(self._crowds) > CROWDS:
            self._crowds.popitem(last=False)
        return there

    def _locks(self, batch: Batch) -> str:
        """What locks the heads of a batch, and the home where one of them is not there, or there are several."""
        heads, home = _heads_of(batch), home_key(*batch[0].place[:2])
        locks = []
        if self._sql.foreign or len(heads) != 1 or heads[0].expect is None:
            locks.append(f"SELECT pg_advisory_xact_lock({home})")
        keys = ", ".join(f"'{place_key(step.place)}'" for step in heads)
        if keys:
            locks.append(self._sql.lock % (home, keys))
        return "; ".join(locks)

    async def _drops(self, db: Connection, batch: Batch) -> list[Drop]:
        """What is dropped, by the names of tables."""
        found: list[Drop] = []
        for step in batch:
            names: list[tuple[str, str]] | None = None
            for table, low, high in step.drop:
                if not table.endswith("*"):
                    found.append((step.place, table_key(table)[0], low, high))
                    continue
                if names is None:
                    key = home_key(*step.place[:2]), place_key(step.place)
                    names = [(tbl, whole or tbl) for tbl, whole in await db.fetch(self._sql.tables, *key)]
                meant = text_of(table[:-1]) + "*"
                found += [(step.place, tbl, low, high) for tbl, whole in names if is_meant(whole, meant)]
        return found


Drop = tuple[Place, str, int, int]


# --- what statements are given


def _is_simple(batch: Batch) -> bool:
    """Whether it only puts rows, over heads that are there."""
    for step in batch:  # noqa: SIM110 (quicker than `all` of a generator)
        if step.drop or (step.expect is None and not step.rows_only):
            return False
    return True


def _heads_of(batch: Batch) -> list[Step]:
    """The steps that compare a head, in the order in which heads are locked."""
    found = [step for step in batch if not step.rows_only]
    return found if len(found) < 2 else sorted(found, key=lambda step: place_key(step.place))


def _plain_of(batch: Batch) -> Args | None:
    """What the statement is given of a head that moves and rows of one table without ids and times; None for others."""
    if len(batch) != 2:
        return None
    head, beside = batch
    if head.rows_only or head.expect is None or head.hot is None or not beside.rows_only or len(beside.put) != 1:
        return None
    if head.put or head.drop or beside.drop or not head.moves:
        return None
    ((table, rows),) = beside.put
    name, whole = table_key(table)
    keys, values = list[int](), list[bytes]()
    for key, value, id, expires in rows:
        if id or expires is not None:
            return None
        keys.append(key)
        values.append(value)
    if whole is not None or len(set(keys)) != len(keys):
        return None
    place = head.place
    of_head = home_key(place.tenant, place.home), place_key(place), head.expect, head.hot, head.cold, head.expires
    return *of_head, place_key(beside.place), name, keys, values


def _change_of(batch: Batch, heads: Sequence[Step], drops: Sequence[Drop]) -> Args:
    tenant, home = batch[0].place[:2]
    return (
        home_key(tenant, home),
        [place_key(step.place) for step in heads],
        [step.expect for step in heads],
        [step.hot for step in heads],
        [step.cold for step in heads],
        [step.expires for step in heads],
        [step.moves for step in heads],
        [text_of(step.place.space) for step in heads],
        [text_of(step.place.name) for step in heads],
        text_of(tenant),
        text_of(home),
        [place_key(place) for place, _, _, _ in drops],
        [table for _, table, _, _ in drops],
        [low for _, _, low, _ in drops],
        [high for _, _, _, high in drops],
        *_rows_of(batch),
    )


def _rows_of(batch: Batch) -> Args:
    """The rows that a batch puts, as a list of each column's values; of several of one key the last."""
    found: dict[tuple[object, str, int], tuple[Cells, str | None, str | None]] = {}
    for step in batch:
        for table, rows in step.put:
            place, (name, whole) = place_key(step.place), table_key(table)
            for row in rows:
                address = address_of(step.place) if row[3] is not None else None
                found[place, name, row[0]] = row, address, whole
    return (
        [place for place, _, _ in found],
        [name for _, name, _ in found],
        [key for _, _, key in found],
        [row[1] for row, _, _ in found.values()],
        [text_of(row[2]) if row[2] else None for row, _, _ in found.values()],
        [row[3] for row, _, _ in found.values()],
        [address for _, address, _ in found.values()],
        [whole for _, _, whole in found.values()],
    )


def _length(given: Args) -> int:
    """About how many bytes these are."""
    values = [*given, *(one for many in given if isinstance(many, list) for one in many)]
    return sum(len(one) for one in values if isinstance(one, bytes | str))


_KINDS = ("bigint", "uuid", "bytea", "bytea", "bytea", "bigint", "uuid", "text", "bigint", "bytea")
"""Of what the statement of plain rows is given, one after the other."""


def _spelt(sql: str, given: Args) -> str:
    """That statement with its values in it, of which nothing but digits reaches the text."""
    spelt = [_literal(value, kind) for value, kind in zip(given, _KINDS, strict=True)]
    return re.sub(r"\$(\d+)", lambda found: spelt[int(found[1]) - 1], sql)


def _literal(value: object, kind: str) -> str:
    if value is None:
        return f"NULL::{kind}"
    if isinstance(value, list):
        return f"ARRAY[{', '.join(_literal(one, kind) for one in value)}]"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'::bytea"
    if kind == "text":
        return f"convert_from('\\x{str(value).encode().hex()}'::bytea, 'UTF8')"
    return f"'{value}'::{kind}"
