"""Stored values in the place of others, for redaction afterwards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from palimpsest.errors import StoreCorrupt
from palimpsest.log import spans as ranges
from palimpsest.log.change import Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores.backend import Ask, Cells, Range, Row, Seen, Step
from palimpsest.stores.engine.erasure import asks_beside, beside, only_appended
from palimpsest.stores.engine.forms import LAST, entry_row, record_row
from palimpsest.stores.engine.heads import Known, Sessions
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.reading import Reading, of_records
from palimpsest.stores.engine.trees import Tree, of_tree


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

        made: tuple[list[Row], list[Cells]] | None = None
        while True:
            if made is None:
                known, seen = await self._sessions.look(key, asks)
                if not seen:
                    return 0
            head = how.head(known.head)  # first, for it may object
            made = made or await self._made(known, how, seen)
            if not (made[0] or made[1] or head is not known.head):
                return 0
            steps, heads = await self._steps(known, head, how, seen, *made)
            refusal = await self._sessions.write(steps, self._clock(), *heads)
            if refusal is None:
                return len(made[0]) + len(made[1])
            now = self._sessions.moved(known, refusal[0])
            others = [(head and head.hot) == one.expect for one, head in zip(steps, refusal, strict=True)]
            if now is None or not only_appended(known, now) or not all(others[1:]):
                made = None
            else:  # so beside a writer who never pauses it looks once
                known = now

    async def _made(self, known: Known, how: Rewrite, seen: list[Seen]) -> tuple[list[Row], list[Cells]]:
        """What records and entries that were read become others, and which."""
        there, rows = self._reading.told(known, seen[1].rows[0]), seen[2].rows[0]
        records = [record_row(known.log, one) for old in there if (one := how.record(old)) is not old]
        return records, self._new(known, how, rows, await self._reading.entries(known, rows, {}))

    async def _steps(
        self, known: Known, head: Head, how: Rewrite, seen: list[Seen], records: list[Row], new: list[Cells]
    ) -> tuple[list[Step], list[Known]]:
        """What puts these in the place of others, and the sessions after it."""
        tree = Tree(self._sessions.url, known, seen[0])
        steps, heads = await self._branches(known, how, tree, [row[0] for row in new])
        put, more = await self._large.taken(known, new, gone := list(ranges.of(row[0] for row in new)))
        drop = [(table, low, high) for table in ("held", "tokens/*") for low, high in gone]
        put = [*put, ("record", records)] if records else put
        now, step = known.step(head)
        log = Step(known.logs, rows_only=True, drop=drop, put=put, destroys=True)
        return [step, *steps, log, tree.step(), *more], [*heads, now]

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

    async def _branches(
        self, known: Known, how: Rewrite, tree: Tree, keys: list[int]
    ) -> tuple[list[Step], list[Known]]:
        """What moves the heads of the other sessions that have these entries, and those sessions after it."""
        read: dict[tuple[str, int], list[int]] = {}
        for log in {key >> 32 for key in keys}:
            meant = [key & LAST for key in keys if key >> 32 == log]
            for reader, some in tree.readers(log, meant).items():
                read.setdefault(reader, []).extend(some)
        read.pop((known.key.session, known.log), None)
        steps, heads = [], []
        seen = await self._sessions.backend.look(asks_beside(known, read)) if read else ()
        for other, _ in beside(self._sessions, known, read, seen):
            now, step = other.step(how.branch(other.key, other.head, read[other.key.session, other.log]))
            steps.append(step)
            heads.append(now)
        return steps, heads
