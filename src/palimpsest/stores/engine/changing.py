"""Changes of a session: commits of every kind, clearing, erasure and redaction afterwards in every branch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import msgspec

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log import spans as ranges
from palimpsest.log.change import Change, Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.resuming import committed
from palimpsest.stores.backend import Ask, Cells, Range, Row, Seen, Step
from palimpsest.stores.engine.erasing import Erasure, of_erasure
from palimpsest.stores.engine.forms import LAST, beside_entries, entry_row, record_row
from palimpsest.stores.engine.known import Known, noted
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.reading import Reading, of_records
from palimpsest.stores.engine.sessions import Made, Sessions, expected
from palimpsest.stores.engine.trees import Tree, dropped, of_tree, read_by, sharers, spans_of
from palimpsest.stores.rules import Looks

Expect = Callable[[Head], None]

COMPUTED = ("cut", "prompt")
"""Kinds of changes that are computed from the log, and can be again: they do not wait for the disk. What is added next
takes them along to it."""


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


class Changing:
    """What changes a session beside appends."""

    def __init__(self, sessions: Sessions, reading: Reading, large: Large) -> None:
        self._sessions, self._reading, self._large, self._clock = sessions, reading, large, sessions.clock

    async def commit(
        self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None
    ) -> Head:
        def expect(head: Head) -> None:
            expected(key, head, expect_revision, expect_epoch, change.created)

        if change.kind == "erase":
            return await self._erase(key, change, expect)
        if change.kind == "clear":
            return await self._clear(key, change, expect)

        async def changed(known: Known, _: list[Seen], at: int, look: Looks) -> Made:
            expect(known.head)
            after, steps = await self._changed(known, change, at, look)
            return [*steps, *await self._sessions.created(known, at)], [after]

        known = self._sessions.remembered(key)
        fresh = known is None
        while True:
            known = known or await self._sessions.find(key)
            try:
                refusal, after = await self._sessions.tried(known, [], None, changed)
            except Conflict:
                if fresh:
                    raise
                known, fresh = None, True  # what was remembered may be outdated
                continue
            if refusal is None:
                assert after is not None, "something is made of every session"
                return after[0].head
            known, fresh = self._sessions.moved(known, refusal[0]), True

    async def _changed(self, known: Known, change: Change, at: int, look: Looks) -> tuple[Known, list[Step]]:
        """The session after a change of it alone, and what makes it so."""
        head, record, linked = committed(known.head, change, at)
        if change.kind == "about" or linked:
            head = head.renewed(at)
        rows = [entry_row(known.log, entry) for entry in linked]
        put, more = await self._large.within(look).split(known, rows)
        if record is not None:
            put.append(("record", [record_row(known.log, record)]))
        now, step = known.step(head)
        steps = [step, *noted(known, now)]
        if put:
            steps += [Step(known.logs, rows_only=True, put=put), *more]
        return now, _delayed(change, steps)

    async def _clear(self, key: SessionKey, change: Change, expect: Expect) -> Head:
        async def cleared(known: Known, seen: list[Seen], at: int, look: Looks) -> Made:
            expect(known.head)
            tree = Tree(self._sessions.url, known, seen[0] if seen else None)
            head, record, _ = committed(known.head, change, at)
            unread = [(known.log, 0, head.first_seq - 1)]
            if tree.hot is not None:
                tree.leave(known)
                tree.join(known, (), head.first_seq)
                unread = tree.unread(read_by(known))
            more = await self._large.within(look).let_go(known, spans_of(unread))
            rows = [record_row(known.log, record)] if record is not None else []
            after, step = known.step(head, ())
            gone = Step(
                known.logs, rows_only=True, drop=dropped([known.log], unread), put=[("record", rows)], destroys=True
            )
            return [step, gone, tree.step(), *more, *await self._sessions.created(known, at)], [after]

        after = await self._sessions.change(key, lambda known: [of_tree(known)], cleared)
        assert after is not None, "something is made of every session"
        return after[0].head

    async def _erase(self, key: SessionKey, change: Change, expect: Expect) -> Head:
        async def erased(known: Known, seen: list[Seen], at: int, look: Looks) -> Made:
            expect(known.head)
            erasure = Erasure(self._sessions, self._reading.within(look), known, change)
            await erasure.read(seen, look)
            more = await self._large.within(look).let_go(known, erasure.points)
            return erasure.batch([*more, *await self._sessions.created(known, at)], at)

        after = await self._sessions.change(key, lambda known: of_erasure(known, change), erased)
        assert after is not None, "something is made of every session"
        return after[0].head

    async def rewrite(self, key: SessionKey, how: Rewrite, seqs: Collection[int]) -> int:
        done = 0

        def asks(known: Known) -> list[Ask]:
            wanted = Range("entry", list(ranges.of(known.keys(seqs))))
            return [of_tree(known), of_records(known), known.ask(wanted)]

        async def rewritten(known: Known, seen: list[Seen], _: int, look: Looks) -> Made | None:
            nonlocal done
            if not seen:
                return None
            head = how.head(known.head)  # first, for it may object
            records, new = await self._rewritten(known, how, seen, look)
            done = len(records) + len(new)
            if not done and head is known.head:
                return None
            tree = Tree(self._sessions.url, known, seen[0])
            others = await sharers(self._sessions, known, tree, [row[0] & LAST for row in new], look)
            gone = list(ranges.of(row[0] for row in new))
            put, more = await self._large.within(look).split(known, new, gone)
            if records:
                put.append(("record", records))
            made = [known.step(head)]
            made += [other.step(how.branch(other.key, other.head, its)) for other, its, _ in others]
            log = Step(known.logs, rows_only=True, drop=beside_entries(gone), put=put, destroys=True)
            return [*(step for _, step in made), tree.step(), log, *more], [after for after, _ in made]

        return done if await self._sessions.change(key, asks, rewritten) is not None else 0

    async def _rewritten(
        self, known: Known, how: Rewrite, seen: list[Seen], look: Looks
    ) -> tuple[list[Row], list[Cells]]:
        """What records and entries that were read become others, and which."""
        there, rows = self._reading.told(known, seen[1].rows[0]), seen[2].rows[0]
        records = [record_row(known.log, one) for old in there if (one := how.record(old)) is not old]
        return records, self._new(known, how, rows, await self._reading.within(look).entries(known, rows, {}))

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


def _delayed(change: Change, steps: list[Step]) -> list[Step]:
    """What makes a change, which need not wait for the disk where it can be computed again."""
    return [msgspec.structs.replace(step, delayed=True) for step in steps] if change.kind in COMPUTED else steps
