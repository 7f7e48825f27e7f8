"""Stored values in the place of others, for redaction afterwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log import spans as ranges
from palimpsest.log.change import Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores.backend import Ask, Cells, Look, Range, Refusal, Row, Seen, Step
from palimpsest.stores.engine.forms import LAST, entry_row, record_row
from palimpsest.stores.engine.heads import Known, Made, Sessions
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.reading import Reading, of_records
from palimpsest.stores.engine.sharing import Sharing
from palimpsest.stores.engine.trees import of_tree


class Rewrite(Protocol):
    """Says what takes the place of a stored value: the very same object where that is to stay.

    Its methods are pure: a store may ask more than once, and in any order.
    """

    def head(self, head: Head) -> Head:
        """The head in its place, with a later revision: it is a commit."""
        ...

    def branch(self, key: SessionKey, head: Head, seqs: Collection[int]) -> Head:
        """The head of another session that has these entries, too, whose texts become others in the same step."""
        ...

    def entry(self, entry: Entry) -> Entry:
        """The entry in its place, with the same id, seq, links and expiry."""
        ...

    def record(self, record: Record) -> Record:
        """The record in its place, of the same revision."""
        ...


class Rewriting:
    """Rewrites sessions."""

    def __init__(self, sessions: Sessions, reading: Reading, large: Large, clock: Callable[[], int]) -> None:
        self._sessions, self._reading, self._large, self._clock = sessions, reading, large, clock

    async def rewrite(self, key: SessionKey, how: Rewrite, seqs: Collection[int]) -> int:
        def asks(known: Known) -> list[Ask]:
            wanted = Range("entry", list(ranges.of(known.keys(seqs))))
            return [of_tree(known), of_records(known), Ask(known.logs, [wanted], head=False)]

        while True:
            known, seen = await self._sessions.look(key, asks)
            if not seen:
                return 0
            head = how.head(known.head)  # first, for it may object
            records, new = await self._made(known, how, seen)
            if not (records or new or head is not known.head):
                return 0
            sharing = Sharing(self._sessions, known, seen[0], [row[0] & LAST for row in new])
            await sharing.look()
            put, more = await self._large.taken(known, new, list(ranges.of(row[0] for row in new)))
            rewritten = Rewritten(how, sharing, [*put, ("record", records)] if records else put, more, new)
            now: Known | None = known
            while now is not None:  # who is only added to was looked at once
                made = rewritten.batch(now, head if now is known else how.head(now.head))
                refusal, _ = await self._sessions.write_over(made, self._clock(), rewritten.over)
                if refusal is None:
                    return len(records) + len(new)
                self._sessions.moved(now, refusal[0])
                now = sharing.again(rewritten.steps, refusal)

    async def _made(self, known: Known, how: Rewrite, seen: list[Seen]) -> tuple[list[Row], list[Cells]]:
        """What records and entries that were read become others, and which."""
        there, rows = self._reading.told(known, seen[1].rows[0]), seen[2].rows[0]
        records = [record_row(known.log, one) for old in there if (one := how.record(old)) is not old]
        return records, self._new(known, how, rows, await self._reading.entries(known, rows, {}))

    def _new(self, known: Known, how: Rewrite, rows: Sequence[Cells], entries: list[Entry]) -> list[Cells]:
        found = []
        for row, old in zip(rows, entries, strict=True):
            if old.damaged:
                told = f"entry {old.seq} of session {known.key.session!r} cannot be read: `repair` it first"
                raise StoreCorrupt(self._sessions.url, told)
            new = how.entry(old)
            if new is not old:
                found.append(entry_row(row[0] >> 32, new))
        return found


class Rewritten:
    """What takes the place of stored values: `put` in the log, `new` of it for entries, and `more` steps with it."""

    def __init__(
        self,
        how: Rewrite,
        sharing: Sharing,
        put: Sequence[tuple[str, Sequence[Cells]]],
        more: Sequence[Step],
        new: Sequence[Cells],
    ) -> None:
        self._how, self._sharing, self._put, self._more = how, sharing, put, more
        gone = list(ranges.of(row[0] for row in new))
        self._drop = [(table, low, high) for table in ("held", "tokens/*") for low, high in gone]
        self.steps: list[Step] = []
        """What it was made to last."""

    def batch(self, known: Known, head: Head) -> Made:
        """The steps of it, and the sessions after them; of the session as it is known by now, which gets this head."""
        now, step = known.step(head)
        steps, heads = [step], [now]
        for other, seqs, _ in self._sharing.others:
            after, step = other.step(self._how.branch(other.key, other.head, seqs))
            steps.append(step)
            heads.append(after)
        log = Step(known.logs, rows_only=True, drop=self._drop, put=self._put, destroys=True)
        self.steps = [*steps, log, self._sharing.tree.step(), *self._more]
        return self.steps, heads

    def over(self, heads: Refusal, look: Look) -> Made | None:
        """The same over the heads that are there."""
        now = self._sharing.again(self.steps, heads, look)
        try:
            return self.batch(now, self._how.head(now.head)) if now is not None else None
        except Conflict:  # whoever asked for it hears of that when he has looked
            return None
