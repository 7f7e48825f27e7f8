"""What is read of sealed places: which addresses they have, and rows, held against the heads that vouch for them."""

from __future__ import annotations

from collections.abc import Sequence

from palimpsest.errors import StoreCorrupt
from palimpsest.log.spans import common, within
from palimpsest.stores.backend import LAST_KEY, Ask, Cells, Named, Place, Range, Row
from palimpsest.stores.encrypted.batches import Layout
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.notes import NOTHING, Notes
from palimpsest.stores.encrypted.sealing import Unsealed, token
from palimpsest.stores.encrypted.values import Known, Values

BROKEN = b"00000000"
"""In the place of a row's value that is not authentic, and of the end of one that is where what is beside it is not. No
checksum of the engine's is that."""


class Rows:
    """Asks for rows where they are kept, and opens those that come."""

    def __init__(self, url: str, values: Values, markings: Markings, layout: Layout) -> None:
        self.values, self.layout = values, layout
        self._url, self._markings = url, markings

    def hides(self, place: Place) -> bool:
        """Whether the name of a place is a token."""
        return place.space.startswith(self.layout.hidden_names)

    def at(self, place: Place) -> Place:
        """Where a place is kept."""
        return place._replace(name=self._token("name", *place)) if self.hides(place) else place

    def _token(self, *names: str) -> str:
        return token(self._markings.secret, *names)

    def found_by(self, place: Place, table: str, id: str) -> str:
        """What rows of this id are found by where they are kept."""
        return self._token("id", place.tenant, place.home, place.space, table, id) if id else ""

    def is_clear(self, place: Place) -> bool:
        """Whether what a place has is not sealed."""
        return place.space in self.layout.clear_spaces

    def is_clear_table(self, table: str) -> bool:
        """Whether the rows of a table are not sealed."""
        return table.startswith(self.layout.clear_tables)

    def what(self, place: Place, known: Known | None = None) -> str:
        """What a place is, for messages."""
        if place.space == self.layout.heads:
            return f"the head of session {place.name!r}"
        if self.hides(place):
            return f"the item {place.home}/{known.name if known is not None else place.name}"
        return f"the head of {place.space} {place.name or place.home!r}"

    # --- rows

    def asked(self, ask: Ask, place: Place) -> Ask:
        """What is asked of a place where it is kept."""
        if not ask.rows:
            return ask if place is ask.place else Ask(place, (), ask.head)
        if place.space in self.layout.own_tables:  # its head vouches for all of its rows together
            return Ask(place, [one if self.is_clear_table(one.table) else all_of(one.table) for one in ask.rows])
        return Ask(place, [self._named(place, one) for one in ask.rows], ask.head)

    def _named(self, place: Place, one: Range | Named) -> Range | Named:
        if isinstance(one, Range) or self.is_clear_table(one.table):
            return one
        return Named(one.table, [self.found_by(place, one.table, id) for id in one.ids])

    def opened(
        self,
        place: Place,
        asked: Range | Named,
        rows: Sequence[Cells],
        known: Known | None,
        vouching: Sequence[tuple[Place, Known]],
    ) -> Sequence[Cells]:
        """The rows that were asked for, of a place with the head `known`. `vouching` are heads of the same look.

        Raises StoreCorrupt, WrongKey.
        """
        table = asked.table
        if self.is_clear_table(table):
            return rows
        if place.space not in self.layout.own_tables:
            heads = [one for at, one in vouching if at[:2] == place[:2]] if place.space == self.layout.log else ()
            if heads and table in self.layout.listed and isinstance(asked, Range):
                self._complete(place, asked, rows, heads)
            return self._of_log(place, table, rows, heads)
        notes = known.notes if known is not None else NOTHING
        if [row[0] for row in rows] != notes.keys(table, [(0, LAST_KEY)]):
            told = "rows are missing, or too many: somebody has changed it"
            raise StoreCorrupt(self._url, f"{self.what(place, known)} does not vouch for what is beside it: {told}")
        return _meant(asked, [self._own_row(place, table, row, notes) for row in rows])

    def _own_row(self, place: Place, table: str, row: Cells, notes: Notes) -> Row:
        opened, mark = self.row_opened(place, table, row)
        if opened is None or mark != notes.token(table, row[0]) or not self._same(place, table, row, opened):
            told = f"a row of {table} of {place.space} {place.name or place.home!r}"
            raise StoreCorrupt(self._url, f"{told} is not as it was committed: it was changed, or comes from elsewhere")
        return opened

    def _of_log(self, place: Place, table: str, rows: Sequence[Cells], heads: Sequence[Known]) -> Sequence[Cells]:
        """Rows of a log; one that is not authentic without its value, or with a spoilt one: who reads it tells."""
        found: list[Cells] = []
        listed = table in self.layout.listed
        noted = listed or any(table in one.notes.tables for one in heads)
        for row in rows:
            opened, mark = self.row_opened(place, table, row)
            if opened is None or ((noted or mark) and not _vouched(table, row[0], mark, heads, listed)):
                found.append((row[0], BROKEN, "", row[3]))
            elif self._same(place, table, row, opened):
                found.append(opened)
            else:
                found.append(opened._replace(value=opened.value[:-8] + BROKEN))
        return found

    def row_opened(self, place: Place, table: str, row: Cells) -> tuple[Row | None, bytes]:
        """A row as it was sealed, None where it is not authentic, and its token. Raises WrongKey."""
        try:
            return self.values.row_opened(place, table, row)
        except Unsealed as fault:
            if fault.key_id:
                raise fault.told(self._url, what_row(place, table, row[0])) from None
            return None, b""

    def _same(self, place: Place, table: str, row: Cells, opened: Row) -> bool:
        """Whether what stands in clear beside a row is what was sealed with it."""
        id = opened.id
        return row[3] == opened.expires and row[2] == (self.found_by(place, table, id) if id else "")

    def _complete(self, place: Place, asked: Range, rows: Sequence[Cells], heads: Sequence[Known]) -> None:
        """Raise StoreCorrupt unless of a log's listed table all are there that a head knows, and no others."""
        for known in heads:
            own = known.reads[:1]
            meant = [common([span], own) for span in asked.spans]
            if not any(meant):
                continue
            keys = [key for spans in meant for key in known.notes.keys(asked.table, spans)]
            keys = keys[::-1] if asked.newest_first else keys
            if [row[0] for row in rows if within(own, row[0])] != keys[: asked.limit]:
                told = f"the {asked.table}s of a session in {place.home!r} are not those that its head knows"
                raise StoreCorrupt(
                    self._url, f"{told}: some are missing, or it is of an earlier time: there are others"
                )


def _vouched(table: str, key: int, mark: bytes, heads: Sequence[Known], listed: bool) -> bool:
    """Whether a row of this token is what one of the heads knows of those that have its key, if any has."""
    meant = [one.notes for one in heads if within(one.reads[:1] if listed else one.reads, key)]
    told = [notes.token(table, key) for notes in meant]
    return not meant or mark in (told if listed else [one or b"" for one in told])


def all_of(table: str) -> Range:
    """All rows of a table."""
    return Range(table, [(0, LAST_KEY)])


def _meant(asked: Range | Named, rows: Sequence[Row]) -> Sequence[Row]:
    """Those of all rows of a table, in order, that were asked for."""
    if isinstance(asked, Named):
        return [row for row in rows if row.id in asked.ids and row.id]
    found = [row for low, high in asked.spans for row in rows if low <= row.key <= high]
    return (found[::-1] if asked.newest_first else found)[: asked.limit]


def what_row(place: Place, table: str, key: int) -> str:
    """What a row is, for messages."""
    what = {"entry": f"entry {key & 0xFFFFFFFF}", "record": f"the record of revision {key & 0xFFFFFFFF}"}
    return f"{what.get(table, f'{table} {key}')} of session {place.home!r}"
