"""A batch as it is sealed: which heads it makes, what they note of its rows, and the steps that are written below."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

import msgspec

from palimpsest.stores.backend import Batch, Cells, Place, PlaceHead, Step
from palimpsest.stores.encrypted.notes import new_token
from palimpsest.stores.encrypted.sealed_bytes import LIFE, Floor, SealedHead, Unread
from palimpsest.stores.encrypted.sealed_rows import (
    CLEAR,
    LISTED,
    LOG,
    SESSION,
    VOUCHED,
    Rows,
    agrees,
    is_clear,
    is_noted,
)

NO_HEAD = PlaceHead(b"")


class Sealing:
    """One batch under one key. `ahead` is what batches that are written before it make of heads.

    `others` are keys that heads were seen under before the store said that this one is to be written with.
    """

    def __init__(
        self,
        rows: Rows,
        key_id: str,
        batch: Batch,
        ahead: dict[Place, SealedHead | None],
        others: Collection[str] = (),
    ) -> None:
        self._rows, self.key_id, self.batch, self._ahead = rows, key_id, batch, ahead
        self.others = set(others)
        self._mark = new_token()
        self._log: SealedHead | None = None
        self.places: list[Place | None] = []
        """Where the heads are that the batch moves, or looks at; those of logs, which the engine does not see, too."""
        self.before: list[SealedHead | None] = []
        self.after: list[SealedHead | None] = [None] * len(batch)
        self.steps: list[Step] = list(batch)

    def begin(self, known: Mapping[Place, SealedHead]) -> bool:
        """Take the heads of the batch from those that are known; whether these are all it needs, and as it expects."""
        self.places, self.before = [], []
        begins = any(one.place.space == SESSION and one.expect is None and one.hot is not None for one in self.batch)
        for step in self.batch:
            place = None if is_clear(step.place) else self._rows.at(step.place)
            before = None if place is None else self._ahead[place] if place in self._ahead else known.get(place)
            if isinstance(step.expect, Unread):
                before = step.expect.sealed
            # Rows alone move the head of their log where that notes something of them, or where it is there and a new
            # session is to know of it; otherwise they have no head.
            if step.rows_only and not (place and place.space == LOG and (is_noted(step) or (begins and before))):
                place = before = None
            self.places.append(place)
            self.before.append(before)
        heads = list(zip(self.batch, self.places, self.before, strict=True))
        for step, place, before in heads:
            if place is not None and not step.rows_only and (before and before.plain.hot) != step.expect:
                return False
        log = next((one for _, at, one in heads if at and at.space == LOG), None)
        if begins and log is None and any(one is not None and one.floor.life for one in self.before):
            return False  # the head of the log, which the new session is to know of, has not been seen here
        return agrees([(at, one) for _, at, one in heads if at is not None])

    def finish(self) -> None:
        """Make the steps that are written below, and the heads that they make."""
        for i in sorted(range(len(self.batch)), key=lambda i: self.batch[i].place.space != LOG):  # these know of that
            step, place, before = self.batch[i], self.places[i], self.before[i]
            if place is None:
                self.steps[i] = self._with_rows(step, ())
                continue
            after, anew = self._after(step, before, place), set[tuple[str, int]]()
            if after is not None and place.space in VOUCHED:
                after, anew = self._noted(step, after)
            elif after is not None and self._log is not None and place.space == SESSION:
                moves = self._log.floors.get(place.name, 0)
                if moves == self._log.moves:
                    after = after._replace(floor=Floor(self._log.life, moves))
            if after is not None and after is not before:
                if before is not None and before.key_id != self.key_id:
                    after = after._replace(bound=None)
                after = self._rows.values.head(place, after, self.key_id)
            if place.space == LOG:
                self._log = after
            self._ahead[place] = self.after[i] = after
            self.steps[i] = _with_head(self._with_rows(step, anew), place, before, after)

    def probe(self) -> bool:
        """Make steps that the store below refuses in any case, so that it asks what is to be written while nobody else
        can write; whether there is a head that can be compared for that."""
        self.steps = [
            Step(place or self._rows.at(step.place), NO_HEAD.hot, NO_HEAD.hot)
            if place or not step.rows_only
            else Step(step.place, rows_only=True)
            for step, place in zip(self.batch, self.places, strict=True)
        ]
        return any(self.places)

    def _after(self, step: Step, before: SealedHead | None, place: Place) -> SealedHead | None:
        """The head that a step makes, as yet without what it notes; itself where it is only looked at."""
        if step.rows_only:
            log = before or SealedHead(NO_HEAD, NO_HEAD, life=os.urandom(LIFE))
            floors = self._floors(step, log)
            return log._replace(floors=floors) if floors else None  # where nobody refers to it, it is not needed
        was = before.plain if before is not None else None
        plain = step.after(was)
        if plain is None or not step.moves:
            return None if plain is None else before
        if before is None or was is None:
            name = step.place.name if place != step.place else ""
            return SealedHead(NO_HEAD, plain, life=os.urandom(LIFE), expires=step.expires, name=name)
        return before._replace(
            plain=plain, bound=before.bound if plain.cold == was.cold else None, expires=step.expires
        )

    def _floors(self, step: Step, log: SealedHead) -> Mapping[str, int]:
        """Of each session when its head moved last together with what is noted of logs.

        What a step destroys is known to all heads of its batch, also to those that it only looks at.
        """
        floors = dict(log.floors)
        for one in self.batch:
            if one.place.space == SESSION and one.hot is None:
                floors.pop(one.place.name, None)
            elif one.place.space == SESSION and (step.destroys or one.hot != one.expect):
                floors[one.place.name] = log.moves + 1
        return floors

    def _noted(self, step: Step, head: SealedHead) -> tuple[SealedHead, set[tuple[str, int]]]:
        """The head with what it notes of a step's rows, and those that are put with the token."""
        notes, anew = head.notes, set[tuple[str, int]]()
        for drop in step.drop:
            notes = notes.without(*drop)
        for table, rows in step.put:
            if table.startswith(CLEAR) or not rows or not (table in LISTED or step.destroys):
                continue
            keys = {row[0] for row in rows}
            again = {key for key in keys if head.notes.token(table, key) is not None} if table in LISTED else keys
            notes = notes.noting(table, again, self._mark).noting(table, keys - again, b"")
            anew.update((table, key) for key in again)
        if notes.tables == head.notes.tables and not step.rows_only:
            return head, anew
        return head._replace(notes=notes, bound=None), anew

    def _with_rows(self, step: Step, anew: Collection[tuple[str, int]]) -> Step:
        """The step with its rows as they are stored."""
        if not step.put or is_clear(step.place):
            return step
        rows, place, key_id, mark = self._rows, self._rows.at(step.place), self.key_id, self._mark

        def sealed(table: str, some: Sequence[Cells]) -> Sequence[Cells]:
            if table.startswith(CLEAR):
                return some
            return [rows.sealed(place, table, row, mark if (table, row[0]) in anew else b"", key_id) for row in some]

        return msgspec.structs.replace(step, put=[(table, sealed(table, some)) for table, some in step.put])


def _with_head(step: Step, place: Place, before: SealedHead | None, after: SealedHead | None) -> Step:
    """The step with its heads as they are stored."""
    expect = before.stored.hot if before is not None else None
    hot, cold, expires = expect, None, None
    if after is None:
        hot = None
    elif after is not before:
        hot, cold, expires = after.stored.hot, after.stored.cold, after.expires
        if before is not None and cold == before.stored.cold:
            cold = None
    return Step(place, expect, hot, cold, expires, False, step.drop, step.put, step.destroys)
