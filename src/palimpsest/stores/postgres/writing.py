"""How batches are written: most in one statement, the others in a transaction that locks the heads before it reads.

One statement moves existing heads and puts rows. A batch that drops rows, or expects that a head does not exist, takes
locks first. Rows to drop must be read after the previous writer of the head has committed. A head that does not exist
has no row to lock: an advisory lock of the home's number stands in for it, which everybody takes who creates a head in
that home. The home's number is locked first, then the heads in the order of their keys, so that writers cannot
deadlock.

A refused writer that may ask `again` locks the heads and looks at them. While it keeps meeting other writers at a head
it begins with the lock, which takes three round trips: to lock, to look, to write and commit.
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
from palimpsest.stores.postgres.reading import look_up
from palimpsest.stores.postgres.statements import Statements
from palimpsest.stores.rules import ask_again, expect_of, is_meant, refused

CROWDS = 4096
"""How many heads at which other writers were met are remembered at once."""

CALM = 2
"""After this many writes in a row that met no other writer, a head is written to without a lock again."""

HASTY = 100
"""Milliseconds that a write waits for other writers before it is given up, if it may be lost."""

SHORT = 64 << 10
"""Bytes up to which a write is sent as SQL text, together with the COMMIT, in one round trip."""

Args = tuple[Any, ...]


class Writing:
    """Writes batches over a connection. Remembers at which heads other writers were met (`_crowds`)."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements
        self._crowds: OrderedDict[Place, int] = OrderedDict()

    async def write(
        self, db: Connection, number: int, batch: Batch, lasting: bool, again: Again | None, *, locked: bool = False
    ) -> Refusal | None:
        """Write a batch, or what `again` returns in its place if it is refused. Returns the refusal, or None.

        With `locked` it takes the locks in any case. One that is not `lasting` may raise LockNotAvailableError.
        """
        crowded = bool(self._crowds) and again is not None and any(step.place in self._crowds for step in batch)
        if not lasting and _is_simple(batch):
            return await self._change(db, batch, (), HASTY)
        if locked or crowded or not _is_simple(batch):
            return await self._write_locked(db, number, batch, again)
        plain = _plain_of(batch) if again is not None else None
        if plain is None:
            refusal = await self._change(db, batch, ())
            if refusal is None or again is None:
                return refusal
        elif await db.fetchval(self._sql.plain, *plain):
            return None
        return await self._write_locked(db, number, batch, again)

    # --- in one statement

    async def _change(
        self, db: Connection, batch: Batch, drops: Sequence[Drop], patience: int | None = None
    ) -> Refusal | None:
        """Write a batch with the general statement. Its table patterns in `drop` are resolved to `drops` already."""
        heads = _heads_of(batch)
        rows = await db.fetch(self._sql.change, *_change_of(batch, heads, drops), patience)
        if rows[0][0]:
            return None
        present = {heads[n - 1].place: PlaceHead(hot, cold) for _, n, hot, cold in rows if n is not None}
        return tuple(None if step.rows_only else present.get(step.place) for step in batch)

    # --- behind locks

    async def _write_locked(self, db: Connection, number: int, batch: Batch, again: Again | None) -> Refusal | None:
        """Write a batch in a transaction that locks its heads first, or what `again` returns in its place.

        A fault or a cancellation leaves the transaction open: the caller, or the pool, rolls it back.
        """
        await db.execute("BEGIN; " + self._locks(batch))
        heads: dict[Place, PlaceHead | None] = {}
        if again is not None:
            heads = await self._heads(db, batch)
            refusal = refused(batch, [heads.get(step.place) for step in batch])
            if refusal is not None:
                look = partial(look_up, db, self._sql)
                instead = await ask_again(again, number, batch, refusal, look)
                if instead is None:
                    await db.execute("ROLLBACK")
                    return refusal
                batch = instead
                if not _is_simple(batch) or any(step.place not in heads for step in _heads_of(batch)):
                    await db.execute(self._locks(batch))
        plain = _plain_of(batch)
        if plain is not None and _length(plain) <= SHORT and expect_of(heads.get(batch[0].place)) == batch[0].expect:
            await db.execute(f"{_spelt(self._sql.plain, plain)}; COMMIT")
            return None
        refusal = await self._change(db, batch, await self._drops(db, batch))
        await db.execute("COMMIT" if refusal is None else "ROLLBACK")
        return refusal

    async def _heads(self, db: Connection, batch: Batch) -> dict[Place, PlaceHead | None]:
        """Read the heads that a batch compares, which are locked, and remember whether another writer was met there."""
        steps = _heads_of(batch)
        seen = await look_up(db, self._sql, [Ask(step.place) for step in steps])
        heads = {step.place: answer.head for step, answer in zip(steps, seen, strict=True)}
        met = any(expect_of(heads[step.place]) != step.expect for step in steps)
        for step in steps:
            remaining = CALM if met else self._crowds.pop(step.place, 0) - 1
            if remaining > 0:
                self._crowds[step.place] = remaining
        while len(self._crowds) > CROWDS:
            self._crowds.popitem(last=False)
        return heads

    def _locks(self, batch: Batch) -> str:
        """Return SQL that locks the heads of a batch.

        The home is locked before them, unless the tables are on this server and the batch compares a single head, which
        is expected to exist.
        """
        heads, home = _heads_of(batch), home_key(*batch[0].place[:2])
        locks = []
        if self._sql.foreign or len(heads) != 1 or heads[0].expect is None:
            locks.append(f"SELECT pg_advisory_xact_lock({home})")
        keys = ", ".join(f"'{place_key(step.place)}'" for step in heads)
        if keys:
            locks.append(self._sql.lock % (home, keys))
        return "; ".join(locks)

    async def _drops(self, db: Connection, batch: Batch) -> list[Drop]:
        """Return the drops of a batch, with each pattern (`name*`) resolved to the tables of the place that match."""
        drops: list[Drop] = []
        for step in batch:
            names: list[tuple[str, str]] | None = None
            for table, low, high in step.drop:
                if not table.endswith("*"):
                    drops.append((step.place, table_key(table)[0], low, high))
                    continue
                if names is None:
                    key = home_key(*step.place[:2]), place_key(step.place)
                    names = [(tbl, whole or tbl) for tbl, whole in await db.fetch(self._sql.tables, *key)]
                pattern = text_of(table[:-1]) + "*"
                drops += [(step.place, tbl, low, high) for tbl, whole in names if is_meant(whole, pattern)]
        return drops


Drop = tuple[Place, str, int, int]
"""A span of keys to drop: place, table as it is stored in keys, first key, last key."""


# --- arguments of the statements


def _is_simple(batch: Batch) -> bool:
    """Whether it drops no rows, and expects every head that it compares to exist: it needs no locks beforehand."""
    for step in batch:  # noqa: SIM110 (quicker than `all` of a generator)
        if step.drop or (step.expect is None and not step.rows_only):
            return False
    return True


def _heads_of(batch: Batch) -> list[Step]:
    """Return the steps that compare a head, in the order in which heads are locked."""
    steps = [step for step in batch if not step.rows_only]
    return steps if len(steps) < 2 else sorted(steps, key=lambda step: place_key(step.place))


def _plain_of(batch: Batch) -> Args | None:
    """Return the arguments of the plain statement, or None for a batch that it cannot do.

    It does batches of two steps: one moves an existing head, and one only puts rows, of one table, without ids and
    expiry.
    """
    if len(batch) != 2:
        return None
    head, rows_step = batch
    if head.rows_only or head.expect is None or head.hot is None or not rows_step.rows_only or len(rows_step.put) != 1:
        return None
    if head.put or head.drop or rows_step.drop or not head.moves:
        return None
    ((table, rows),) = rows_step.put
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
    return *of_head, place_key(rows_step.place), name, keys, values


def _change_of(batch: Batch, heads: Sequence[Step], drops: Sequence[Drop]) -> Args:
    """Return the arguments of the general statement, but for the last (how many milliseconds it may wait)."""
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
    """Return the rows that a batch puts, one list for each column. Of several rows with one key the last counts."""
    put: dict[tuple[object, str, int], tuple[Cells, str | None, str | None]] = {}
    for step in batch:
        for table, rows in step.put:
            place, (name, whole) = place_key(step.place), table_key(table)
            for row in rows:
                address = address_of(step.place) if row[3] is not None else None
                put[place, name, row[0]] = row, address, whole
    return (
        [place for place, _, _ in put],
        [name for _, name, _ in put],
        [key for _, _, key in put],
        [row[1] for row, _, _ in put.values()],
        [text_of(row[2]) if row[2] else None for row, _, _ in put.values()],
        [row[3] for row, _, _ in put.values()],
        [address for _, address, _ in put.values()],
        [whole for _, _, whole in put.values()],
    )


def _length(arguments: Args) -> int:
    """Return about how many bytes these arguments have."""
    values = [*arguments, *(value for column in arguments if isinstance(column, list) for value in column)]
    return sum(len(value) for value in values if isinstance(value, bytes | str))


_KINDS = ("bigint", "uuid", "bytea", "bytea", "bytea", "bigint", "uuid", "text", "bigint", "bytea")
"""The SQL types of the plain statement's arguments (of a list: of its elements)."""


def _spelt(sql: str, arguments: Args) -> str:
    """Return the plain statement with its arguments as literals. They are numbers, UUIDs and hexadecimal digits, so
    nothing has to be quoted."""
    literals = [_literal(value, kind) for value, kind in zip(arguments, _KINDS, strict=True)]
    return re.sub(r"\$(\d+)", lambda match: literals[int(match[1]) - 1], sql)


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
