"""`Numbers`: the numbers of places and of parts of tables, as the connections of a process remember them.

Numbers are never reused, but a place that was dropped may come back under another one. So each transaction first
compares the file's generation, which moves whenever a number goes, and forgets all numbers if that has changed.
"""

from __future__ import annotations

import sqlite3
from zlib import crc32

from palimpsest.stores.backend import Place
from palimpsest.stores.sqlite.connections import Damaged

KNOWN = 65_536
"""Numbers that are remembered at once."""

LOW = 0xFFFFFFFF
"""The lower half of a key."""

BESIDE = ("tokens/", "figure/")
"""Prefixes of tables that are often missing, and may be: a missing part of one is not looked up by its checksum."""


class Numbers:
    """The numbers of places, and of parts of their tables, of one generation of a file."""

    __slots__ = ("generation", "parts", "places")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.places: dict[Place, int] = {}
        self.parts: dict[tuple[Place, str, int], int] = {}

    def place(self, db: sqlite3.Connection, place: Place) -> int | None:
        """Return the number of a place; None if it does not exist. Raises Damaged for a damaged index."""
        number = self.places.get(place)
        if number is None:
            sql = "SELECT number, sum FROM place WHERE tenant = ? AND space = ? AND name = ? AND home = ?"
            row = db.execute(sql, (place.tenant, place.space, place.name, place.home)).fetchone()
            if row is None:
                refuse_lost(db, place)
                return None
            if row[1] != _sum(*place):
                raise Damaged(f"the index entry of {place.space}/{place.name} points to another place")
            number = self._know_place(place, row[0])
        return number

    def make_place(self, db: sqlite3.Connection, place: Place) -> int:
        """Return the number of a place, which is made if it does not exist."""
        number = self.place(db, place)
        if number is None:
            sql = "INSERT INTO place(tenant, home, space, name, sum) VALUES(?, ?, ?, ?, ?)"
            inserted = db.execute(sql, (*place, _sum(*place))).lastrowid
            assert inserted is not None, "an inserted row has a number"
            number = self._know_place(place, inserted)
        return number

    def _know_place(self, place: Place, number: int) -> int:
        if len(self.places) >= KNOWN:
            self.places.clear()
        self.places[place] = number
        return number

    def part(self, db: sqlite3.Connection, place: Place, table: str, high: int) -> int | None:
        """Return the number of a part of a table; None if it does not exist. Raises Damaged for a damaged index."""
        number = self.parts.get((place, table, high))
        if number is None:
            owner = self.place(db, place)
            sql = "SELECT number, sum FROM part WHERE place = ? AND name = ? AND high = ?"
            row = db.execute(sql, (owner, table, high)).fetchone() if owner is not None else None
            if row is None:
                if owner is not None and not table.startswith(BESIDE):
                    _refuse_lost_part(db, owner, table, high)
                return None
            if row[1] != _sum(owner or 0, table, high):
                raise Damaged(f"an index entry of {table} rows points to other rows")
            number = self._know_part((place, table, high), row[0])
        return number

    def make_part(self, db: sqlite3.Connection, place: Place, table: str, high: int) -> int:
        """Return the number of a part of a table, which is made if it does not exist."""
        number = self.parts.get((place, table, high)) or self.part(db, place, table, high)
        if number is None:
            owner = self.make_place(db, place)
            sql = "INSERT INTO part(place, name, high, sum) VALUES(?, ?, ?, ?)"
            inserted = db.execute(sql, (owner, table, high, _sum(owner, table, high))).lastrowid
            assert inserted is not None, "an inserted row has a number"
            number = self._know_part((place, table, high), inserted)
        return number

    def _know_part(self, part: tuple[Place, str, int], number: int) -> int:
        if number >> 31:
            raise Damaged(f"rows of {part[1]} have an invalid number")
        if len(self.parts) >= KNOWN:
            self.parts.clear()
        self.parts[part] = number
        return number

    def parts_within(
        self, db: sqlite3.Connection, place: Place, table: str, low: int, high: int
    ) -> list[tuple[int, int, int]]:
        """Return the parts of a table between two keys: each upper half, with its first and last `pos` between them."""
        if low >> 32 == high >> 32:
            number = self.part(db, place, table, low >> 32)
            return [] if number is None else [(low >> 32, number << 32 | low & LOW, number << 32 | high & LOW)]
        owner = self.place(db, place)
        sql = "SELECT high, number FROM part WHERE place = ? AND name = ? AND high BETWEEN ? AND ? ORDER BY high"
        rows = db.execute(sql, (owner, table, low >> 32, high >> 32)).fetchall() if owner is not None else []
        if not rows:
            self.part(db, place, table, low >> 32)  # raises Damaged if an index has lost the first part
        if not all(isinstance(part, int) and not number >> 31 for part, number in rows):
            raise Damaged(f"rows of {table} have an invalid number")
        return [
            (
                part,
                number << 32 | (low & LOW if part == low >> 32 else 0),
                number << 32 | (high & LOW if part == high >> 32 else LOW),
            )
            for part, number in rows
        ]


def refuse_lost(db: sqlite3.Connection, place: Place, *, head: bool = False) -> None:
    """Raise Damaged if a place (one with a `head`) exists that its address did not lead to: an index is damaged."""
    sql = "SELECT hot IS NOT NULL FROM place WHERE sum = ? AND +tenant = ? AND +home = ? AND +space = ? AND +name = ?"
    row = db.execute(sql, (_sum(*place), *place)).fetchone()
    if row is not None and (row[0] or not head):
        raise Damaged(f"the index lacks {place.space}/{place.name}")


def _refuse_lost_part(db: sqlite3.Connection, owner: int, table: str, high: int) -> None:
    """Raise Damaged if a part that was not found by its address exists."""
    sql = "SELECT 1 FROM part WHERE sum = ? AND +place = ? AND +name = ? AND +high = ?"
    if db.execute(sql, (_sum(owner, table, high), owner, table, high)).fetchone() is not None:
        raise Damaged(f"the index lacks rows of {table}")


def _sum(*address: str | int) -> int:
    """Return the checksum of an address."""
    return crc32("\0".join(map(str, address)).encode())


class Remembered:
    """What all connections of a process to one file remember: numbers, and for each place the mark last written."""

    __slots__ = ("marked", "numbers")

    def __init__(self) -> None:
        self.numbers, self.marked = Numbers(-1), dict[int, int]()

    def of(self, generation: int) -> Numbers:
        """Return the numbers remembered of this generation. Those of another one are forgotten."""
        numbers = self.numbers
        if numbers.generation != generation:
            self.numbers = numbers = Numbers(generation)
        return numbers

    def mark(self, number: int, mark: int) -> None:
        """Remember the mark that was written for the place of this number."""
        if len(self.marked) >= KNOWN:
            self.marked.clear()
        self.marked[number] = mark

    def forget(self) -> None:
        """Forget everything, since a transaction was rolled back."""
        self.numbers, self.marked = Numbers(-1), {}


def table_of(name: str) -> str:
    """Return the table of the file that holds a table of the seam."""
    return "entry" if name == "entry" else "other"
