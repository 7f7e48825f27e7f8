"""Changes of a session: commits of every kind, clearing, erasure, and redaction after the fact, in every branch."""

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
from palimpsest.stores.engine.erasing import Erasure, ask_erasure
from palimpsest.stores.engine.forms import LAST, drops_beside, entry_row, record_row
from palimpsest.stores.engine.known import Known, check_expected, note_steps
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.reading import Reading, ask_records
from palimpsest.stores.engine.sessions import Prepared, Sessions
from palimpsest.stores.engine.trees import Tree, ask_tree, logs_read_by, session_drops, sharers, spans_of
from palimpsest.stores.rules import AsyncLook

Expect = Callable[[Head], None]

COMPUTED = ("cut", "prompt")
"""Kinds of changes that are computed from the log and can be computed again. They do not wait for the disk: the next
durable write takes them along.
"""


class Rewrite(Protocol):
    """Says what a stored value is replaced by; returning the very same object keeps it.

    The methods are pure: a store may call them more than once, and in any order.
    """

    def head(self, head: Head) -> Head:
        """Return the new head, with a later revision: the rewrite is a commit."""
        ...

    def branch(self, key: SessionKey, head: Head, seqs: Collection[int]) -> Head:
        """Return the new head of another session that shares these entries, whose texts change in the same step."""
        ...

    def entry(self, entry: Entry) -> Entry:
        """Return the new entry, with the same id, seq, links and expiry."""
        ...

    def record(self, record: Record) -> Record:
        """Return the new record, of the same revision."""
        ...


class Changing:
    """Every way to change a session except appending."""

    def __init__(self, sessions: Sessions, reading: Reading, large: Large) -> None:
        self._sessions, self._reading, self._large, self._clock = sessions, reading, large, sessions.clock

    async def commit(
        self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None
    ) -> Head:
        """Commit a change, as `Store.commit` says."""

        def expect(head: Head) -> None:
            check_expected(key, head, expect_revision, expect_epoch, change.created)

        if change.kind == "erase":
            return await self._erase(key, change, expect)
        if change.kind == "clear":
            return await self._clear(key, change, expect)

        async def prepare(known: Known, _: list[Seen], at: int, look: AsyncLook) -> Prepared:
            expect(known.head)
            after, steps = await self._changed(known, change, at, look)
            return [*steps, *await self._sessions.creation_steps(known, at)], [after]

        known = self._sessions.remembered(key)
        fresh = known is None
        while True:
            known = known or await self._sessions.find(key)
            try:
                refusal, after = await self._sessions.attempt(known, [], None, prepare)
            except Conflict:
                if fresh:
                    raise
                known, fresh = None, True  # the remembered session may be outdated
                continue
            if refusal is None:
                assert after is not None, "something is made of every session"
                return after[0].head
            known, fresh = self._sessions.after_refusal(known, refusal[0]), True

    async def _changed(self, known: Known, change: Change, at: int, look: AsyncLook) -> tuple[Known, list[Step]]:
        """Return the session after a change that touches no other session, and the steps that make the change."""
        head, record, linked = committed(known.head, change, at)
        if change.kind == "about" or linked:
            head = head.renewed(at)
        rows = [entry_row(known.log, entry) for entry in linked]
        puts, large_steps = await self._large.within(look).split(known, rows)
        if record is not None:
            puts.append(("record", [record_row(known.log, record)]))
        after, step = known.step(head)
        steps = [step, *note_steps(known, after)]
        if puts:
            steps += [Step(known.logs, rows_only=True, put=puts), *large_steps]
        return after, _delayed(change, steps)

    async def _clear(self, key: SessionKey, change: Change, expect: Expect) -> Head:
        """Remove the entries before `head.first_seq` from this session; those that no branch reads are dropped."""

        async def prepare(known: Known, seen: list[Seen], at: int, look: AsyncLook) -> Prepared:
            expect(known.head)
            tree = Tree(self._sessions.url, known, seen[0] if seen else None)
            head, record, _ = committed(known.head, change, at)
            # The session stops reading what is before `first_seq`; of that, drop what no branch reads.
            unread = [(known.log, 0, head.first_seq - 1)]
            if tree.hot is not None:
                tree.leave(known)
                tree.join(known, (), head.first_seq)
                unread = tree.unread(logs_read_by(known))
            large_steps = await self._large.within(look).release_steps(known, spans_of(unread))
            rows = [record_row(known.log, record)] if record is not None else []
            after, step = known.step(head, ())
            drop = Step(
                known.logs,
                rows_only=True,
                drop=session_drops([known.log], unread),
                put=[("record", rows)],
                destroys=True,
            )
            return [step, drop, tree.step(), *large_steps, *await self._sessions.creation_steps(known, at)], [after]

        after = await self._sessions.change(key, lambda known: [ask_tree(known)], prepare)
        assert after is not None, "something is made of every session"
        return after[0].head

    async def _erase(self, key: SessionKey, change: Change, expect: Expect) -> Head:
        """Erase entries in every session that has them."""

        async def prepare(known: Known, seen: list[Seen], at: int, look: AsyncLook) -> Prepared:
            expect(known.head)
            erasure = Erasure(self._sessions, self._reading.within(look), known, change)
            await erasure.read(seen, look)
            large_steps = await self._large.within(look).release_steps(known, erasure.points)
            return erasure.batch([*large_steps, *await self._sessions.creation_steps(known, at)], at)

        after = await self._sessions.change(key, lambda known: ask_erasure(known, change), prepare)
        assert after is not None, "something is made of every session"
        return after[0].head

    async def rewrite(self, key: SessionKey, how: Rewrite, seqs: Collection[int]) -> int:
        """Rewrite a session, as `Store.rewrite` says."""
        rewritten = 0

        def asks(known: Known) -> list[Ask]:
            wanted = Range("entry", list(ranges.of(known.keys(seqs))))
            return [ask_tree(known), ask_records(known), known.ask(wanted)]

        async def prepare(known: Known, seen: list[Seen], _: int, look: AsyncLook) -> Prepared | None:
            nonlocal rewritten
            if not seen:
                return None
            head = how.head(known.head)  # first, as it may raise
            records, rows = await self._rewritten(known, how, seen, look)
            rewritten = len(records) + len(rows)
            if not rewritten and head is known.head:
                return None
            tree = Tree(self._sessions.url, known, seen[0])
            sharing = await sharers(self._sessions, known, tree, [row[0] & LAST for row in rows], look)
            spans = list(ranges.of(row[0] for row in rows))
            puts, large_steps = await self._large.within(look).split(known, rows, spans)
            if records:
                puts.append(("record", records))
            changed = [known.step(head)]
            changed += [other.step(how.branch(other.key, other.head, shared)) for other, shared, _ in sharing]
            log_step = Step(known.logs, rows_only=True, drop=drops_beside(spans), put=puts, destroys=True)
            steps = [*(step for _, step in changed), tree.step(), log_step, *large_steps]
            return steps, [after for after, _ in changed]

        return rewritten if await self._sessions.change(key, asks, prepare) is not None else 0

    async def _rewritten(
        self, known: Known, how: Rewrite, seen: list[Seen], look: AsyncLook
    ) -> tuple[list[Row], list[Cells]]:
        """Return the rows of the records and of the entries that the rewrite changes."""
        stored_records, rows = self._reading.records_of(known, seen[1].rows[0]), seen[2].rows[0]
        records = [
            record_row(known.log, new_record)
            for record in stored_records
            if (new_record := how.record(record)) is not record
        ]
        return records, self._new_rows(known, how, rows, await self._reading.within(look).entries(known, rows, {}))

    def _new_rows(self, known: Known, how: Rewrite, rows: Sequence[Cells], entries: list[Entry]) -> list[Cells]:
        """Return the rows of the entries that the rewrite changes. Raises StoreCorrupt for an unreadable entry."""
        changed = []
        for row, entry in zip(rows, entries, strict=True):
            if entry.damaged:
                problem = f"entry {entry.seq} of session {known.key.session!r} cannot be read: `repair` it first"
                raise StoreCorrupt(self._sessions.url, problem)
            new_entry = how.entry(entry)
            if new_entry is not entry:
                changed.append(entry_row(row[0] >> 32, new_entry))
        return changed


def _delayed(change: Change, steps: list[Step]) -> list[Step]:
    """Mark the steps as delayed (not waiting for the disk) if their change can be computed again."""
    return [msgspec.structs.replace(step, delayed=True) for step in steps] if change.kind in COMPUTED else steps
