"""`Sealing`: one batch, with the heads that it makes, their notes of its rows, and the sealed steps to write."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

import msgspec

from palimpsest.stores.backend import Batch, Cells, Place, PlaceHead, Refusal, Step
from palimpsest.stores.encrypted.notes import new_token
from palimpsest.stores.encrypted.sealed_bytes import LIFE, Floor, SealedHead, Unread
from palimpsest.stores.encrypted.sealed_rows import (
    CLEAR,
    LISTED,
    LOG,
    SESSION,
    VOUCHED,
    Heads,
    Rows,
    at_odds,
    is_clear,
    is_noted,
)

NO_HEAD = PlaceHead(b"")


class Sealing:
    """One batch, sealed under one key: `begin` finds its heads, `finish` makes the steps to write to the store below.

    `ahead` has the heads that batches written before it in the same call make. `others` are keys under which heads of
    its places were seen before the mark was last read.
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
        self._token = new_token()
        self._log: SealedHead | None = None  # the log's head that the batch makes
        self._unread_log = next((step.expect.log for step in batch if isinstance(step.expect, Unread)), None)
        self.places: list[Place | None] = []
        """For each step, the stored place of the head that it moves or compares; the hidden head of a log, too."""
        self.before: list[SealedHead | None] = []
        self.after: list[SealedHead | None] = [None] * len(batch)
        self.steps: list[Step] = list(batch)

    @property
    def drops_unread(self) -> bool:
        """Whether the batch takes the place of a head that cannot be opened: its maker looks again if it is refused."""
        return any(isinstance(step.expect, Unread) for step in self.batch)

    def begin(self, known: Mapping[Place, SealedHead]) -> bool:
        """Take the batch's heads from `ahead` and from those known. Return whether all are there and as expected."""
        self.places, self.before = [], []
        makes_session = any(
            step.place.space == SESSION and step.expect is None and step.hot is not None for step in self.batch
        )
        for step in self.batch:
            place = None if is_clear(step.place) else self._rows.at(step.place)
            before = None if place is None else self._ahead[place] if place in self._ahead else known.get(place)
            if isinstance(step.expect, Unread):
                before = step.expect.sealed
            elif step.rows_only and step.place.space == LOG and self._unread_log is not None:
                before = self._unread_log
            # A step of rows alone moves the hidden head of its log only if that notes something of the rows, or if it
            # exists and a new session has to refer to it. Otherwise the step has no head.
            if step.rows_only and not (place and place.space == LOG and (is_noted(step) or (makes_session and before))):
                place = before = None
            self.places.append(place)
            self.before.append(before)
        steps = list(zip(self.batch, self.places, self.before, strict=True))
        for step, place, before in steps:
            if place is not None and not step.rows_only and (before and before.plain.hot) != step.expect:
                return False
        log = next((before for _, place, before in steps if place and place.space == LOG), None)
        if makes_session and log is None and any(head is not None and head.floor.life for head in self.before):
            return False  # the new session has to refer to the head of the log, which this process has not seen
        return not at_odds([(place, before) for _, place, before in steps if place is not None])

    def finish(self) -> None:
        """Seal the heads that the batch makes, and make the steps to write below."""
        # The head of the log first: heads of sessions refer to it.
        for i in sorted(range(len(self.batch)), key=lambda i: self.batch[i].place.space != LOG):
            step, place, before = self.batch[i], self.places[i], self.before[i]
            if place is None:
                self.steps[i] = self._with_rows(step, ())
                continue
            after, rewritten = self._after(step, before, place), set[tuple[str, int]]()
            if after is not None and place.space in VOUCHED:
                after, rewritten = self._noted(step, after)
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
            self.steps[i] = _with_head(self._with_rows(step, rewritten), place, before, after)

    def probe(self) -> bool:
        """Make steps that the store below refuses in any case, so that it calls `again` while nobody else can write.

        Return whether the batch has a head whose comparison can fail.
        """
        self.steps = [
            Step(place or self._rows.at(step.place), NO_HEAD.hot, NO_HEAD.hot)
            if place or not step.rows_only
            else Step(step.place, rows_only=True)
            for step, place in zip(self.batch, self.places, strict=True)
        ]
        return any(self.places)

    def opened(self, refusal: Refusal, opener: Heads) -> Refusal:
        """Return a refusal of the store below with its heads opened, and without heads that the engine never sees."""
        plain: list[PlaceHead | None] = []
        for step, place, stored, floor in zip(self.batch, self.places, refusal, self.before, strict=True):
            stored_place, head = place if step.rows_only else self._rows.at(step.place), None
            if stored_place is not None:
                head = opener.open_or_unread(stored_place, stored, floor, alone=not step.rows_only)
            plain.append(head.plain if head is not None and not step.rows_only else None)
        return tuple(plain)

    def _after(self, step: Step, before: SealedHead | None, place: Place) -> SealedHead | None:
        """Return the head that a step makes, not yet with its notes; `before` itself where that is only compared."""
        if step.rows_only:
            log = before or SealedHead(NO_HEAD, NO_HEAD, life=os.urandom(LIFE))
            floors = self._floors(step, log)
            return log._replace(floors=floors) if floors else None  # a head that no session refers to is not needed
        plain_before = before.plain if before is not None else None
        plain = step.after(plain_before)
        if plain is None or not step.moves:
            return None if plain is None else before
        if before is None or plain_before is None or before.spoilt is not None:
            name = step.place.name if place != step.place else ""
            return SealedHead(NO_HEAD, plain, life=os.urandom(LIFE), expires=step.expires, name=name)
        return before._replace(
            plain=plain, bound=before.bound if plain.cold == plain_before.cold else None, expires=step.expires
        )

    def _floors(self, step: Step, log: SealedHead) -> Mapping[str, int]:
        """Return, by session, how often the log's head had moved when both heads were last written together.

        A step that destroys is recorded for every session head in its batch, also for those that are only compared.
        """
        floors = dict(log.floors)
        for session in self.batch:
            if session.place.space == SESSION and session.hot is None:
                floors.pop(session.place.name, None)
            elif session.place.space == SESSION and (step.destroys or session.hot != session.expect):
                floors[session.place.name] = log.moves + 1
        return floors

    def _noted(self, step: Step, head: SealedHead) -> tuple[SealedHead, set[tuple[str, int]]]:
        """Return the head with its notes of a step's rows, and the rows (table, key) that are put with the token."""
        notes, rewritten = head.notes, set[tuple[str, int]]()
        for drop in step.drop:
            notes = notes.without(*drop)
        for table, rows in step.put:
            if table.startswith(CLEAR) or not rows or not (table in LISTED or step.destroys):
                continue
            keys = {row[0] for row in rows}
            again = {key for key in keys if head.notes.token(table, key) is not None} if table in LISTED else keys
            notes = notes.noting(table, again, self._token).noting(table, keys - again, b"")
            rewritten.update((table, key) for key in again)
        if notes.tables == head.notes.tables and not step.rows_only:
            return head, rewritten
        return head._replace(notes=notes, bound=None), rewritten

    def _with_rows(self, step: Step, rewritten: Collection[tuple[str, int]]) -> Step:
        """Return the step with its rows as they are stored; the `rewritten` ones are bound to the batch's token."""
        if not step.put or is_clear(step.place):
            return step
        rows, place, key_id, token = self._rows, self._rows.at(step.place), self.key_id, self._token

        def sealed(table: str, plain_rows: Sequence[Cells]) -> Sequence[Cells]:
            if table.startswith(CLEAR):
                return plain_rows
            return [
                rows.sealed(place, table, row, token if (table, row[0]) in rewritten else b"", key_id)
                for row in plain_rows
            ]

        return msgspec.structs.replace(step, put=[(table, sealed(table, plain_rows)) for table, plain_rows in step.put])


def _with_head(step: Step, place: Place, before: SealedHead | None, after: SealedHead | None) -> Step:
    """Return the step with its heads as they are stored."""
    expect = before.stored.hot if before is not None else None
    hot, cold, expires = expect, None, None
    if after is None:
        hot = None
    elif after is not before:
        hot, cold, expires = after.stored.hot, after.stored.cold, after.expires
        if before is not None and cold == before.stored.cold:
            cold = None
    return Step(place, expect, hot, cold, expires, False, step.drop, step.put, step.destroys)
