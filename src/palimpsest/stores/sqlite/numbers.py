"""What an SQLite backend remembers of numbers: which places and parts of tables have which.

Numbers are never used again, but a place that went may come back under another one. So each transaction first compares
the generation that stands in the file, which moves whenever a number goes, and forgets all that it remembers when that
is another.
"""

from __future__ import annotations

import sqlite3
from zlib import crc32

from palimpsest.stores.backend import Place
from palimpsest.stores.sqlite.connections import Damaged

KNOWN = 65_536
"""Numbers remembered at once."""

LOW = 0xFFFFFFFF
"""The lower half of a key."""

BESIDE = ("tokens/", "figure/")
"""How tables begin that are often not there, and of which nothing is lost that stops a read."""


class Numbers:
    """The numbers of places, and of parts of their tables, of one generation of a file."""

    __slots__ = ("generation", "parts", "places")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.places: dict[Place, int] = {}
        self.parts: dict[tuple[Place, str, int], int] = {}

    def place(self, db: sqlite3.Connection, place: Place) -> int | None:
        """The number of a place; None where there is none."""
        number = self.places.get(place)
        if number is None:
            sql = "SELECT number, sum FROM place WHERE tenant = ? AND space = ? AND name = ? AND home = ?"
            found = db.execute(sql, (place.tenant, place.space, place.name, place.home)).fetchone()
            if found is None:
                refuse_lost(db, place)
                return None
            if found[1] != _sum(*place):
                raise Damaged(f"the address of the place {place.space}/{place.name} leads to another")
            number = self._know_place(place, found[0])
        return number

    def make_place(self, db: sqlite3.Connection, place: Place) -> int:
        """The number of a place, which is made where it is missing."""
        number = self.place(db, place)
        if number is None:
            sql = "INSERT INTO place(tenant, home, space, name, sum) VALUES(?, ?, ?, ?, ?)"
            made = db.execute(sql, (*place, _sum(*place))).lastrowid
            assert made is not None, "an inserted row has a number"
            number = self._know_place(place, made)
        return number

    def _know_place(self, place: Place, number: int) -> int:
        if len(self.places) >= KNOWN:
            self.places.clear()
        self.places[place] = number
        return number

    def part(self, db: sqlite3.Connection, place: Place, table: str, high: int) -> int | None:
        """The number of a part of a table; None where there is none."""
        number = self.parts.get((place, table, high))
        if number is None:
            owner = self.place(db, place)
            sql = "SELECT number, sum FROM part WHERE place = ? AND name = ? AND high = ?"
            found = db.execute(sql, (owner, table, high)).fetchone() if owner is not None else None
            if found is None:
                if owner is not None and not table.startswith(BESIDE):
                    _refuse_lost_part(db, owner, table, high)
                return None
            if found[1] != _sum(owner or 0, table, high):
                raise Damaged(f"the address of rows of {table} leads to others")
            number = self._know_part((place, table, high), found[0])
        return number

    def make_part(self, db: sqlite3.Connection, place: Place, table: str, high: int) -> int:
        """The number of a part of a table, which is made where it is missing."""
        number = self.parts.get((place, table, high)) or self.part(db, place, table, high)
        if number is None:
            owner = self.make_place(db, place)
            sql = "INSERT INTO part(place, name, high, sum) VALUES(?, ?, ?, ?)"
            made = db.execute(sql, (owner, table, high, _sum(owner, table, high))).lastrowid
            assert made is not None, "an inserted row has a number"
            number = self._know_part((place, table, high), made)
        return number

    def _know_part(self, part: tuple[Place, str, int], number: int) -> int:
        if number >> 31:
            raise Damaged(f"rows of {part[1]} have a number that nothing has")
        if len(self.parts) >= KNOWN:
            self.parts.clear()
        self.parts[part] = number
        return number

    def parts_within(
        self, db: sqlite3.Connection, place: Place, table: str, low: int, high: int
    ) -> list[tuple[int, int, int]]:
        """The upper halves between two keys that there are of a table, with the least and greatest `pos` meant."""
        if low >> 32 == high >> 32:
            number = self.part(db, place, table, low >> 32)
            return [] if number is None else [(low >> 32, number << 32 | low & LOW, number << 32 | high & LOW)]
        owner = self.place(db, place)
        sql = "SELECT high, number FROM part WHERE place = ? AND name = ? AND high BETWEEN ? AND ? ORDER BY high"
        found = db.execute(sql, (owner, table, low >> 32, high >> 32)).fetchall() if owner is not None else []
        if not found:
            self.part(db, place, table, low >> 32)  # raises where an index has lost the first
        if not all(isinstance(part, int) and not number >> 31 for part, number in found):
            raise Damaged(f"rows of {table} have a number that nothing has")
        return [
            (
                part,
                number << 32 | (low & LOW if part == low >> 32 else 0),
                number << 32 | (high & LOW if part == high >> 32 else LOW),
            )
            for part, number in found
        ]


def refuse_lost(db: sqlite3.Connection, place: Place, *, head: bool = False) -> None:
    """Raise where a place, or one with a `head`, that its address does not lead to is there all the same."""
    sql = "SELECT hot IS NOT NULL FROM place WHERE sum = ? AND +tenant = ? AND +home = ? AND +space = ? AND +name = ?"
    found = db.execute(sql, (_sum(*place), *place)).fetchone()
    if found is not None and (found[0] or not head):
        raise Damaged(f"the place {place.space}/{place.name} is not found by its address")


def _refuse_lost_part(db: sqlite3.Connection, owner: int, table: str, high: int) -> None:
    sql = "SELECT 1 FROM part WHERE sum = ? AND +place = ? AND +name = ? AND +high = ?"
    if db.execute(sql, (_sum(owner, table, high), owner, table, high)).fetchone() is not None:
        raise Damaged(f"rows of {table} are not found by their address")


def _sum(*address: str | int) -> int:
    return crc32("\0".join(map(str, address)).encode())


class Remembered:
    """What the connections of one file remember together."""

    __slots__ = ("marked", "numbers")

    def __init__(self) -> None:
        self.numbers, self.marked = Numbers(-1), dict[int, int]()

    def of(self, generation: int) -> Numbers:
        """What is remembered of this generation."""
        numbers = self.numbers
        if numbers.generation != generation:
            self.numbers = numbers = Numbers(generation)
        return numbers

    def mark(self, number: int, mark: int) -> None:
        """Remember when the mark of a place was written."""
        if len(self.marked) >= KNOWN:
            self.marked.clear()
        self.marked[number] = mark

    def forget(self) -> None:
        """Forget all of it: a transaction was taken back."""
        self.numbers, self.marked = Numbers(-1), {}


def table_of(name: str) -> str:
    """The table of the file in which a table of the seam is."""
    return "entry" if name == "entry" else "other"
