"""A batch as it is sealed: which heads it makes, what they note of its rows, and the steps that are written below."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from palimpsest.log.spans import Span, within
from palimpsest.stores.backend import Batch, Cells, Place, PlaceHead, Step
from palimpsest.stores.encrypted.notes import NOTHING, Notes, new_token
from palimpsest.stores.encrypted.values import LIFE, Known, Values


class Layout(NamedTuple):
    """What of the engine's layout decides how its places are sealed.

    The places of the space `log` have no head: the heads of the space `heads` vouch for their rows, each for the spans
    of keys of its `own` log, which its hot value tells, and of those that it shares, which its cold value tells. A head
    knows which rows of the `listed` tables its own log has, of the tables `tables`. `own_tables` are by space those of
    places whose own heads vouch for all of their rows; in other spaces a row is bound to its place alone. Tables whose
    names begin with `clear_tables` are in clear. Of spaces that begin with `hidden_names` the names of places are
    tokens.
    """

    log: str
    heads: str
    tables: Sequence[str]
    listed: Collection[str]
    own_tables: Mapping[str, Sequence[str]]
    clear_spaces: Collection[str]
    clear_tables: str
    hidden_names: str
    own: Callable[[bytes], Span]
    shared: Callable[[bytes], tuple[Span, ...]]

    def reads(self, head: PlaceHead, before: Known | None) -> tuple[Span, ...]:
        """What a head vouches for, which may have come in the place of another."""
        if before is not None and before.plain.cold == head.cold:
            return (self.own(head.hot), *before.reads[1:])
        return (self.own(head.hot), *self.shared(head.cold))


class Seals(Protocol):
    """What knows how addresses are kept: the backend."""

    @property
    def values(self) -> Values:
        """What seals."""
        ...

    @property
    def layout(self) -> Layout:
        """The engine's layout."""
        ...

    def at(self, place: Place) -> Place:
        """Where a place is kept."""
        ...

    def hides(self, place: Place) -> bool:
        """Whether its name is a token."""
        ...

    def is_clear(self, place: Place) -> bool:
        """Whether what a place has is not sealed."""
        ...

    def is_clear_table(self, table: str) -> bool:
        """Whether the rows of a table are not sealed."""
        ...

    def found_by(self, place: Place, table: str, id: str) -> str:
        """What rows of this id are found by."""
        ...


class Sealing:
    """One batch under one key. `ahead` is what batches that are written before it make of heads."""

    def __init__(self, seals: Seals, key_id: str, batch: Batch, ahead: dict[Place, Known | None]) -> None:
        self._seals, self.key_id, self.batch, self._ahead = seals, key_id, batch, ahead
        self._mark = new_token()
        self._anew: dict[tuple[int, str], Collection[int]] = {}
        self.before: list[Known | None] = []
        self.after: list[Known | None] = []
        self.steps: list[Step] = []

    def begin(self, known: Mapping[Place, Known]) -> bool:
        """Take the heads of the batch from those that are known; whether these are as it expects them."""
        self.before, self.after = [], []
        for step in self.batch:
            before = None
            if not (step.rows_only or self._seals.is_clear(step.place)):
                place = self._seals.at(step.place)
                before = self._ahead[place] if place in self._ahead else known.get(place)
                if (before.plain.hot if before is not None else None) != step.expect:
                    return False
            self.before.append(before)
        return True

    def finish(self) -> None:
        """Make the steps that are written below."""
        self.after = [self._after(step, before) for step, before in zip(self.batch, self.before, strict=True)]
        for i, step in enumerate(self.batch):
            if not (step.put or step.drop):
                continue
            if step.place.space == self._seals.layout.log:
                self._note_log(i, step)
            elif step.place.space in self._seals.layout.own_tables:
                self._note_own(i, step)
        self.steps = [self._step(i, step) for i, step in enumerate(self.batch)]

    # --- heads

    def _after(self, step: Step, before: Known | None) -> Known | None:
        """The head that a step makes, as yet without what it is to know of rows."""
        if step.rows_only or self._seals.is_clear(step.place) or step.hot is None:
            return None
        if step.hot == step.expect and step.cold is None:
            return before
        was = before.plain.cold if before is not None else b""
        plain = PlaceHead(step.hot, was if step.cold is None else step.cold)
        if before is None:
            after = Known(PlaceHead(b""), plain, "", os.urandom(LIFE), 0, b"", expires=step.expires)
        else:
            bound = before.bound if plain.cold == was and before.key_id == self.key_id else b""
            after = before._replace(plain=plain, bound=bound, expires=step.expires)
        layout = self._seals.layout
        return after._replace(reads=layout.reads(plain, before)) if step.place.space == layout.heads else after

    def _step(self, i: int, step: Step) -> Step:
        seals, before, after = self._seals, self.before[i], self.after[i]
        put = [(table, self._rows(i, step.place, table, rows)) for table, rows in step.put]
        if step.rows_only or seals.is_clear(step.place):
            return msgspec.structs.replace(step, put=put) if put else step
        place = seals.at(step.place)
        expect, hot, cold, expires = before.stored.hot if before is not None else None, None, None, None
        if after is not None and after is before:
            hot = expect
        elif after is not None:
            name = step.place.name if seals.hides(step.place) else ""
            after = self.after[i] = seals.values.head(place, after, self.key_id, name)
            hot, cold, expires = after.stored.hot, after.stored.cold, after.expires
            if before is not None and cold == before.stored.cold:
                cold = None
        self._ahead[place] = after
        return Step(place, expect, hot, cold, expires, False, step.drop, put, step.destroys)

    def _rows(self, i: int, place: Place, table: str, rows: Sequence[Cells]) -> Sequence[Cells]:
        seals = self._seals
        if seals.is_clear_table(table) or seals.is_clear(place):
            return rows
        at, anew, mark, key_id = seals.at(place), self._anew.get((i, table), ()), self._mark, self.key_id
        return [
            seals.values.row(at, table, row, mark if row[0] in anew else b"", key_id, seals.found_by(at, table, row[2]))
            for row in rows
        ]

    # --- what heads know of rows

    def _note_own(self, i: int, step: Step) -> None:
        """Let the head of a place know its own rows."""
        head = self.after[i]
        if head is None:
            return
        notes = head.notes
        for table, low, high in step.drop:
            notes = notes.without(table, low, high)
        for table, rows in step.put:
            if not self._seals.is_clear_table(table):
                keys = self._anew[i, table] = {row[0] for row in rows}
                notes = notes.noting(table, keys, self._mark)
        self.after[i] = _knowing(head, notes)

    def _note_log(self, i: int, step: Step) -> None:
        """Let the heads of a batch know the rows of the logs that they read."""
        heads = [at for at, one in enumerate(self.batch) if one.place.space == self._seals.layout.heads]
        there = [before for at in heads if (before := self.before[at]) is not None]
        inherited = NOTHING
        if len(there) < len(heads) or step.destroys:
            for one in there:
                inherited = inherited.joined(one.notes)
        elif there:
            inherited = there[0].notes
        for table, rows in step.put:
            if self._seals.is_clear_table(table):
                continue
            if table in self._seals.layout.listed:
                anew = {row[0] for row in rows if inherited.token(table, row[0]) is not None}
            elif step.destroys:
                anew = {row[0] for row in rows if any(within(one.reads, row[0]) for one in there)}
            else:
                anew = set()
            self._anew[i, table] = anew
        for at in heads:
            after = self.after[at]
            if after is not None:
                self.after[at] = self._noted(i, step, self.before[at], after, inherited)

    def _noted(self, i: int, step: Step, before: Known | None, after: Known, inherited: Notes) -> Known:
        """A head that knows what a step does to the logs that it reads."""
        listed, notes = self._seals.layout.listed, before.notes if before is not None else inherited
        if before is None or before.reads != after.reads:
            for table in list(notes.tables):
                notes = notes.only(table, after.reads[:1] if table in listed else after.reads)
        for table, low, high in step.drop:
            notes = notes.without(table, low, high)
        for table, rows in step.put:
            anew = self._anew.get((i, table))
            if anew is None or not (anew or table in listed):
                continue
            spans = after.reads[:1] if table in listed else after.reads
            keys = {row[0] for row in rows if within(spans, row[0])}
            notes = notes.noting(table, keys & set(anew), self._mark)
            if table in listed:
                notes = notes.noting(table, keys - set(anew), b"")
        return _knowing(after, notes)


def _knowing(head: Known, notes: Notes) -> Known:
    return head if notes is head.notes else head._replace(notes=notes, bound=b"")
