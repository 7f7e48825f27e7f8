"""`Tables`: what the verbs of an SQLite backend do inside a transaction, which `Database` begins and ends."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from palimpsest.stores.backend import (
    LAST_KEY,
    Again,
    Ask,
    Batch,
    Cells,
    Due,
    Listed,
    Named,
    Place,
    PlaceHead,
    Range,
    Refusal,
    Seen,
    Step,
)
from palimpsest.stores.rules import refused, try_batch
from palimpsest.stores.sqlite.connections import Damaged
from palimpsest.stores.sqlite.layout import TABLES
from palimpsest.stores.sqlite.numbers import LOW, Numbers, Remembered, refuse_lost, table_of
from palimpsest.stores.sqlite.scrubbing import note

HEAD = (
    "SELECT p.hot, c.body FROM place p LEFT JOIN cold c ON c.place = p.number "
    "WHERE p.tenant = ? AND p.space = ? AND p.name = ? AND p.home = ? AND p.hot IS NOT NULL"
)
MOVE = (
    "UPDATE place SET hot = ? WHERE number = ? AND hot = ? AND expires IS NULL "
    "AND (SELECT value FROM meta WHERE name = 'generation') = ? AND mark = (SELECT max(mark) FROM place)"
)
"""Replaces a head's hot value, if it is as expected, the remembered numbers still hold, and its mark is the newest."""

SET = "UPDATE place SET hot = ?, expires = ?, mark = max(?, (SELECT max(mark) FROM place)) WHERE number = ?"
LISTED = (
    "SELECT p.tenant, p.home, p.space, p.name, p.hot, c.body, p.mark "
    "FROM place p LEFT JOIN cold c ON c.place = p.number "
)

OLDEST = "SELECT pos + ?, value, coalesce(id, ''), expires FROM ROWS WHERE pos BETWEEN ? AND ? ORDER BY pos LIMIT ?"
NEWEST = OLDEST.replace("ORDER BY pos", "ORDER BY pos DESC")
NAMED = "SELECT pos + ?, value, id, expires FROM ROWS WHERE id = ? AND id IS NOT NULL AND pos BETWEEN ? AND ?"
ANYWHERE = (
    "SELECT (part.high << 32) + (r.pos & 0xFFFFFFFF), r.value, r.id, r.expires "
    "FROM ROWS r JOIN part ON part.number = r.pos >> 32 "
    "WHERE r.id = ? AND r.id IS NOT NULL AND part.place = ? AND part.name = ?"
)
DUE = (
    "SELECT r.expires, r.pos, part.high, part.name, p.tenant, p.home, p.space, p.name FROM ROWS r "
    "JOIN part ON part.number = r.pos >> 32 JOIN place p ON p.number = part.place "
    "WHERE (r.expires, r.pos) > (?, ?) AND r.expires <= ? AND p.tenant = ? ORDER BY r.expires, r.pos LIMIT ?"
)
HEADS_DUE = (
    "SELECT expires, number, 0, '', tenant, home, space, name FROM place "
    "WHERE (expires, number) > (?, ?) AND expires <= ? AND +tenant = ? AND hot IS NOT NULL "
    "ORDER BY expires, number LIMIT ?"
)
ADD = "INSERT INTO ROWS(pos, value, id, expires) VALUES(?, ?, nullif(?, ''), nullif(?, ''))"
PUT = ADD.replace("INSERT", "INSERT OR REPLACE")
DROP = "DELETE FROM ROWS WHERE pos BETWEEN ? AND ?"
ANY = "SELECT 1 FROM ROWS WHERE pos BETWEEN ? AND ? LIMIT 1"
"""Statements over a table of rows, whose name `_sql` puts in the place of ROWS."""

FEW = 8
"""Up to so many parts of a table are searched for an id one by one."""

MARKED = 1_000_000
"""Microseconds that one mark lasts, so that the index of marks is not written with every head."""


class Tables:
    """The tables of one connection. `known` is what all connections of this process to the file remember."""

    __slots__ = ("_db", "_known", "connection", "numbers")

    def __init__(self, connection: sqlite3.Connection, known: Remembered) -> None:
        self.connection = self._db = connection
        self._known, self.numbers = known, known.numbers

    def begin(self) -> None:
        """Forget the remembered numbers if the file's generation has moved. Call it first in a transaction."""
        row = self._db.execute("SELECT value FROM meta WHERE name = 'generation'").fetchone()
        if row is None:
            raise Damaged("its generation number is missing")
        self.numbers = self._known.of(row[0])

    # --- reading

    def look(self, asks: Sequence[Ask]) -> list[Seen]:
        if any([ask.rows for ask in asks]):  # noqa: C419 (quicker)
            self.begin()
        return [
            Seen(self._head(ask.place) if ask.head else None, [self._rows(ask.place, rows) for rows in ask.rows])
            for ask in asks
        ]

    def _head(self, place: Place) -> PlaceHead | None:
        row = self._db.execute(HEAD, (place.tenant, place.space, place.name, place.home)).fetchone()
        if row is None:
            refuse_lost(self._db, place, head=True)
            return None
        return PlaceHead(row[0], row[1] or b"")

    def _rows(self, place: Place, ask: Range | Named) -> list[Cells]:
        if isinstance(ask, Named):
            return self._named(place, ask)
        sql = _sql(NEWEST if ask.newest_first else OLDEST, ask.table)
        cells: list[Cells] = []
        for low, high in reversed(ask.spans) if ask.newest_first else ask.spans:
            parts = self.numbers.parts_within(self._db, place, ask.table, low, high)
            for part, first, last in reversed(parts) if ask.newest_first else parts:
                limit = -1 if ask.limit is None else ask.limit - len(cells)
                if limit:
                    shift = part - (first >> 32) << 32  # what to add to a `pos` to get the key
                    cells += self._fetch(sql, (shift, first, last, limit))
        return cells

    def _named(self, place: Place, ask: Named) -> list[Cells]:
        parts = self.numbers.parts_within(self._db, place, ask.table, 0, LAST_KEY) if ask.ids else ()
        cells: list[Cells] = []
        if len(parts) > FEW:
            sql, owner = _sql(ANYWHERE, ask.table), self.numbers.place(self._db, place)
            for id in ask.ids:
                cells += self._fetch(sql, (id, owner, ask.table))
        else:
            sql = _sql(NAMED, ask.table)
            for part, first, last in parts:
                shift = part - (first >> 32) << 32
                for id in ask.ids:
                    cells += self._fetch(sql, (shift, id, first, last))
        return sorted(cells)

    def _fetch(self, sql: str, values: Sequence[object]) -> list[Cells]:
        """Return the rows that a statement gives. Text of a damaged row that is not UTF-8 is read leniently."""
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.OperationalError as fault:
            if "decode" not in str(fault):
                raise
        try:
            self._db.text_factory = _lenient
            return self._db.execute(sql, values).fetchall()
        finally:
            self._db.text_factory = str

    def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        sql = LISTED + "WHERE p.tenant = ? AND p.hot IS NOT NULL AND p.space = ? "
        values: list[object] = [tenant, space]
        if beneath:
            sql = LISTED + "WHERE p.tenant = ? AND p.hot IS NOT NULL AND p.space >= ? AND substr(p.space, 1, ?) = ? "
            values += (len(space), space)
        if after is not None:
            sql += "AND (p.space, p.name, p.home) > (?, ?, ?) "
            values += (after.space, after.name, after.home)
        return _listed(self._db.execute(sql + "ORDER BY p.space, p.name, p.home LIMIT ?", (*values, limit)))

    def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        return self._by_mark(tenant, space, ">", since, after, limit)

    def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        return self._by_mark(tenant, space, "<", until, after, limit)

    def _by_mark(
        self, tenant: str, space: str, way: str, bound: int | None, after: Place | None, limit: int
    ) -> list[Listed]:
        """Return places by mark, rising from `bound` (`way` ">") or falling; of that mark those behind `after`."""
        sql = (
            LISTED + "WHERE +p.tenant = ? AND p.hot IS NOT NULL AND +p.space = ? "
        )  # `+`: SQLite is to use the index of marks
        values: list[object] = [tenant, space]
        if bound is not None:
            sql, values = f"{sql}AND p.mark {way}= ? ", [*values, bound]
        if bound is not None and after is not None:
            sql += f"AND (p.mark {way} ? OR (p.space, p.name, p.home) > (?, ?, ?)) "
            values += (bound, after.space, after.name, after.home)
        sql += f"ORDER BY p.mark {'ASC' if way == '>' else 'DESC'}, p.space, p.name, p.home LIMIT ?"
        return _listed(self._db.execute(sql, (*values, limit)))

    def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        """As `Backend.expired`, in the order of the times, then of the tables, then of `pos`: a range of each index."""
        self.begin()
        since, last, behind = (0, -1, -1) if after is None else (after.at, *self._whereabouts(after))
        ordered: list[tuple[int, int, int, Due]] = []
        for i, sql in enumerate((HEADS_DUE, *(_sql(DUE, table) for table in TABLES))):
            bound = behind if i == last else LAST_KEY if i < last else -1
            for at, pos, high, name, *place in self._db.execute(sql, (since, bound, now, tenant, limit)).fetchall():
                ordered.append((at, i, pos, Due(at, Place(*place), name, high << 32 | pos & LOW if name else 0)))
        return [due for *_, due in sorted(ordered)[:limit]]

    def _whereabouts(self, due: Due) -> tuple[int, int]:
        """Return which statement of `expired` lists a due thing, and its number or `pos` there (-1: it is gone)."""
        if not due.table:
            return 0, self.numbers.place(self._db, due.place) or -1
        part = self.numbers.part(self._db, due.place, due.table, due.key >> 32)
        return TABLES.index(table_of(due.table)) + 1, -1 if part is None else part << 32 | due.key & LOW

    def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        sql = (
            "SELECT DISTINCT tenant FROM place WHERE (? IS NULL OR tenant > ?) AND hot IS NOT NULL "
            "ORDER BY tenant LIMIT ?"
        )
        return [tenant for (tenant,) in self._db.execute(sql, (after, after, limit)).fetchall()]

    # --- writing

    def write(self, batches: Sequence[Batch], at: int, again: Again | None = None) -> list[Refusal | None]:
        """Do these batches, as `Backend.write` says."""
        outcomes: list[Refusal | None] = []
        for number, batch in enumerate(batches):
            if self._move_head(batch, at):
                outcomes.append(None)
                continue
            self.begin()
            outcomes.append(try_batch(number, batch, lambda steps: self._do(steps, at), again, self.look))
        return outcomes

    def _move_head(self, batch: Batch, at: int) -> bool:
        """Do a batch that moves one head and has rows beside it, like an append, in as few statements as possible.

        Return whether it was done. If not, nothing was changed.
        """
        if len(batch) != 2 or not batch[1].rows_only:
            return False
        first, rows = batch
        numbers, hot, expect = self._known.numbers, first.hot, first.expect
        number = numbers.places.get(first.place)
        if number is None or hot is None or expect is None or first.expires is not None:
            return False
        if self._known.marked.get(number) != at // MARKED:
            return False
        if self._db.execute(MOVE, (bytearray(hot), number, bytearray(expect), numbers.generation)).rowcount != 1:
            return False
        self.numbers = numbers
        if first.cold is not None:
            self._put_cold(number, first.cold)
        if first.put or first.drop:
            self._change_rows(first)
        self._change_rows(rows)
        return True

    def _do(self, batch: Batch, at: int) -> Refusal | None:
        """Do a batch if its heads are as expected; else return the heads that are stored."""
        heads = [None if step.rows_only else self._head(step.place) for step in batch]
        if (refusal := refused(batch, heads)) is not None:
            return refusal
        for step in batch:
            if step.moves:
                self._change_head(step, at)
            self._change_rows(step)
        return None

    def _change_head(self, step: Step, at: int) -> None:
        if step.hot is None:
            number = self.numbers.place(self._db, step.place)
            if number is not None:
                self._db.execute("UPDATE place SET hot = NULL, expires = NULL WHERE number = ?", (number,))
                self._db.execute("DELETE FROM cold WHERE place = ?", (number,))
                self._drop_if_empty(number)
        else:
            number, mark = self.numbers.make_place(self._db, step.place), at // MARKED
            self._db.execute(SET, (step.hot, step.expires, mark, number))
            self._known.mark(number, mark)
            if step.cold is not None:
                self._put_cold(number, step.cold)

    def _put_cold(self, number: int, cold: bytes) -> None:
        if cold:
            self._db.execute("INSERT OR REPLACE INTO cold VALUES(?, ?)", (number, cold))
        else:
            self._db.execute("DELETE FROM cold WHERE place = ?", (number,))

    def _change_rows(self, step: Step) -> None:
        if step.destroys:
            note(self._db)
        for name, low, high in step.drop:
            self._drop(step.place, name, low, high)
        place, numbers = step.place, self.numbers
        for name, rows in step.put:
            high, shift, values = -1, 0, []
            for key, value, id, expires in rows:
                if key >> 32 != high:  # usually all rows are of one part
                    high = key >> 32
                    shift = numbers.make_part(self._db, place, name, high) - high << 32
                # Neither `bytes` nor None: for these the driver would search for adapters, in vain.
                values.append((key + shift, bytearray(value), id, "" if expires is None else expires))
            try:
                self._db.executemany(_sql(ADD, name), values)  # a third cheaper than PUT, and nearly always enough
            except sqlite3.IntegrityError:
                self._db.executemany(_sql(PUT, name), values)

    def _drop(self, place: Place, name: str, low: int, high: int) -> None:
        """Delete the rows of a span, then parts that have become empty, and the place if it has nothing left."""
        names = [name] if not name.endswith("*") else self._tables_like(place, name[:-1])
        for table in names:
            for _, first, last in self.numbers.parts_within(self._db, place, table, low, high):
                dropped = self._db.execute(_sql(DROP, table), (first, last)).rowcount
                if dropped and self._db.execute(_sql(ANY, table), (first & ~LOW, first | LOW)).fetchone() is None:
                    self._db.execute("DELETE FROM part WHERE number = ?", (first >> 32,))
                    self._retire()
        number = self.numbers.place(self._db, place)
        if number is not None:
            self._drop_if_empty(number)

    def _tables_like(self, place: Place, begin: str) -> list[str]:
        number = self.numbers.place(self._db, place)
        sql = "SELECT DISTINCT name FROM part WHERE place = ? AND substr(name, 1, ?) = ?"
        return [name for (name,) in self._db.execute(sql, (number, len(begin), begin)).fetchall()]

    def _drop_if_empty(self, number: int) -> None:
        """Delete a place that has neither a head nor rows."""
        sql = "DELETE FROM place WHERE number = ? AND hot IS NULL AND NOT EXISTS(SELECT 1 FROM part WHERE place = ?)"
        if self._db.execute(sql, (number, number)).rowcount:
            self._retire()

    def _retire(self) -> None:
        """Move the generation, since a number is gone. Until the commit, readers of the old state may fill the shared
        memory of numbers again, so this connection keeps its own for the rest of its transaction."""
        self.numbers = Numbers(-1)
        self._db.execute("UPDATE meta SET value = value + 1 WHERE name = 'generation'")


@lru_cache(256)
def _sql(statement: str, name: str) -> str:
    """Return the statement over the file's table for a table of the seam, so that no caller's name gets into it."""
    return statement.replace("ROWS", table_of(name))


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _listed(rows: Iterable[Any]) -> list[Listed]:
    return [
        Listed(Place(tenant, home, space, name), PlaceHead(hot, cold or b""), mark)
        for tenant, home, space, name, hot, cold, mark in rows
    ]
