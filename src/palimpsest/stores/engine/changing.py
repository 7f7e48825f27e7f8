"""Changes of a session: commits of every kind, erasures in every branch, clearing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log import spans as ranges
from palimpsest.log.change import Change, Record, recounted, still_meant
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.resuming import committed
from palimpsest.log.withdrawal import forgotten, tombstone
from palimpsest.stores.backend import Ask, Batch, Cells, Named, Place, Range, Refusal, Row, Seen, Step
from palimpsest.stores.engine.forms import LAST, entry_row, key_of, record_row
from palimpsest.stores.engine.heads import Known, Made, Sessions, expected
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.owners import noted
from palimpsest.stores.engine.reading import Reading
from palimpsest.stores.engine.trees import Tree, of_tree

Expect = Callable[[Head], None]

OF_ENTRIES = ("entry", "tokens/*", "held")
"""The tables that have something of an entry."""


class Changing:
    """What changes a session beside appends."""

    def __init__(self, sessions: Sessions, reading: Reading, large: Large, clock: Callable[[], int]) -> None:
        self._sessions, self._reading, self._large, self._clock = sessions, reading, large, clock
        self._url = sessions.url

    async def commit(
        self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None
    ) -> Head:
        def expect(head: Head) -> None:
            expected(key, head, expect_revision, expect_epoch, change.created)

        if change.kind == "erase":
            return await self._erase(key, change, expect)
        if change.kind == "clear":
            return await self._clear(key, change, expect)
        known = self._sessions.remembered(key)
        fresh = known is None
        while True:
            known, at = known or await self._sessions.find(key), self._clock()
            try:
                expect(known.head)
                after, steps = await self._changed(known, change, at)
            except Conflict:
                if fresh:
                    raise
                known, fresh = None, True  # what was remembered may be outdated
                continue
            steps += await self._sessions.created(known, at)
            over = partial(self._changed_over, known, change, at, expect)
            refusal, (after,) = await self._sessions.write_over((steps, [after]), at, over)
            if refusal is None:
                return after.head
            known, fresh = self._sessions.moved(known, refusal[0]), True

    def _changed_over(self, known: Known, change: Change, at: int, expect: Expect, heads: Refusal) -> Made | None:
        """The change over the head that is there, where it moves that one and no other."""
        now = self._sessions.now(known, heads[0])
        if now.there is None or not now.reads_as(known):
            return None
        try:
            expect(now.head)
            head, record, linked = committed(now.head, change, at)
        except Conflict:
            return None
        if linked or len(heads) > (1 if record is None else 2):
            return None
        after, step = now.step(head)
        if noted(now, after):  # whose it is is written beside the head
            return None
        rows = [record_row(now.log, record)] if record is not None else []
        return [step, *(Step(now.logs, rows_only=True, put=[("record", [row])]) for row in rows)], [after]

    async def _changed(self, known: Known, change: Change, at: int) -> tuple[Known, list[Step]]:
        """The session after a change of it alone, and what makes it so."""
        head, record, linked = committed(known.head, change, at)
        rows = [entry_row(known.log, entry) for entry in linked]
        put, more = await self._large.taken(known, rows)
        if record is not None:
            put.append(("record", [record_row(known.log, record)]))
        now, step = known.step(head)
        steps = [step, *noted(known, now)]
        return now, [*steps, Step(known.logs, rows_only=True, put=put), *more] if put else steps

    async def _clear(self, key: SessionKey, change: Change, expect: Expect) -> Head:
        while True:
            known, seen = await self._sessions.look(key, lambda known: [of_tree(known)])
            expect(known.head)
            tree, at = Tree(self._url, known, seen[0] if seen else None), self._clock()
            head, record, _ = committed(known.head, change, at)
            unread = [(known.log, 0, head.first_seq - 1)]
            if tree.hot is not None:
                tree.leave(known)
                tree.join(known, (), head.first_seq)
                unread = tree.unread([known.log, *(log for _, log in known.shares)])
            drop = [("record", key_of(known.log, 0), key_of(known.log, LAST)), *dropping(unread)]
            put, more = await self._large.taken(known, [], spans_of(unread))
            rows = [record_row(known.log, record)] if record is not None else []
            cleared, step = known.step(head, ())
            gone = Step(known.logs, rows_only=True, drop=drop, put=[*put, ("record", rows)], destroys=True)
            steps = [step, gone, tree.step(), *more, *await self._sessions.created(known, at)]
            if await self._sessions.write(steps, at, cleared) is None:
                return head

    # --- erasing

    async def _erase(self, key: SessionKey, change: Change, expect: Expect) -> Head:
        seen: list[Seen] = []
        while True:
            if not seen:
                known, seen = await self._sessions.look(key, lambda known: _of_erasure(known, change))
            expect(known.head)
            erasure = Erasure(self._sessions, self._reading, known, change)
            await erasure.read(seen)
            at = self._clock()
            more = (await self._large.taken(known, [], erasure.points))[1]
            more += await self._sessions.created(known, at)
            made = erasure.batch(known, at, more)
            over = partial(self._erased_over, known, erasure, made[0], more, at, expect)
            refusal, after = await self._sessions.write_over(made, at, over)
            if refusal is None:
                return after[0].head
            known, seen = self._still(known, erasure, refusal, seen)

    def _erased_over(
        self, known: Known, erasure: Erasure, batch: Batch, more: list[Step], at: int, expect: Expect, heads: Refusal
    ) -> Made | None:
        """The erasure over the head that is there, where nothing has become of anything but that it was appended to."""
        now = self._sessions.now(known, heads[0])
        if now.there is None or not only_appended(known, now):
            return None
        for step, head in zip(batch[1:], heads[1:], strict=True):
            if not step.rows_only and (head.hot if head is not None else None) != step.expect:
                return None
        try:
            expect(now.head)
        except Conflict:
            return None
        return erasure.batch(now, at, more)

    def _still(self, known: Known, erasure: Erasure, refusal: Refusal, seen: list[Seen]) -> tuple[Known, list[Seen]]:
        """The session as it is now, and what was read of it, where nobody but those who append was in the way.

        So an erasure beside a writer who never pauses looks once, and has only its last step to do again.
        """
        now = self._sessions.moved(known, refusal[0])
        others = dict(zip(erasure.places, refusal, strict=False))
        if now is None or not seen or not only_appended(known, now):
            return known if now is None else now, []
        if any(others[place] != was for place, was in erasure.beside.items()):
            return now, []
        return now, seen


class Erasure:
    """One erasure: what it means in the session where it was asked for, and in every branch that has the entries."""

    def __init__(self, sessions: Sessions, reading: Reading, known: Known, change: Change) -> None:
        self._sessions, self._reading, self._known, self._asked = sessions, reading, known, change
        self._tree = Tree(sessions.url, known, None)
        self._records: list[Record] = []
        self._living: list[Entry] = []
        self._others: list[tuple[Known, tuple[int, ...], list[Record]]] = []
        self._graves: dict[SessionKey, set[int]] = {}
        self._change = change
        self.places: list[Place] = []
        self.beside: dict[Place, object] = {}

    @property
    def points(self) -> list[tuple[int, int]]:
        """The keys of what is erased."""
        return _joined(self._known.keys(self._change.seqs))

    async def read(self, seen: Sequence[Seen]) -> None:
        """Take what was read of the session, and read what is read of its branches."""
        known, asked = self._known, self._asked
        if not seen:
            self._change = still_meant(known.head, asked, {})
            return
        tree, rows = seen
        self._tree = Tree(self._sessions.url, known, tree)
        entries = await self._reading.slim(known, rows.rows[0])
        living = [e for e in entries if e.damaged or not e.erased]
        self._change = change = still_meant(known.head, asked, {e.seq: e.id for e in living})
        meant = set(change.seqs)
        self._living = [entry for entry in living if entry.seq in meant]
        told = {row[0]: row for some in rows.rows[1:] for row in some}
        self._records = self._reading.told(known, [told[key] for key in sorted(told)])
        self._others = await self._read_others(change)
        if any(entry.damaged for entry in self._living):
            for each in (known, *(other for other, _, _ in self._others)):
                self._graves[each.key] = await self._reading.graves(each)

    async def _read_others(self, change: Change) -> list[tuple[Known, tuple[int, ...], list[Record]]]:
        """The other sessions that have some of these entries, which, and their records."""
        known, found = self._known, dict[tuple[str, int], tuple[int, ...]]()
        for log, seqs in known.by_log(change.seqs).items():
            for reader, read in self._tree.readers(log, seqs).items():
                found[reader] = (*found.get(reader, ()), *read)
        found.pop((known.key.session, known.log), None)
        if not found:
            return []
        return [
            (other, tuple(sorted(found[other.key.session, other.log])), self._reading.told(other, rows))
            for other, rows in await beside(self._sessions, known, list(found))
        ]

    def batch(self, known: Known, at: int, more: Sequence[Step]) -> tuple[list[Step], list[Known]]:
        """The steps of it, with `more`, and the sessions after them; of the session as it is known by now."""
        change = self._change
        made = [self._in(known, change, self._records, at)]
        for other, seqs, records in self._others:
            made.append(self._in(other, of_branch(change, known.key, seqs), records, at))
        graves = [entry_row(known.log_of(entry.seq), tombstone(entry)) for entry in self._living]
        points = _joined(row[0] for row in graves)
        log = Step(
            known.logs,
            rows_only=True,
            drop=[(table, low, high) for table in OF_ENTRIES[1:] for low, high in points],
            put=[("entry", graves), ("record", [row for _, _, rows in made for row in rows])],
            destroys=True,
        )
        steps = [step for _, step, _ in made]
        batch = [*steps, self._tree.step(), log, *more]
        self.places = [step.place for step in batch]
        self.beside = {step.place: other.there for step, (other, _, _) in zip(steps[1:], self._others, strict=True)}
        self.beside[known.tree] = self._tree.there
        return batch, [after for after, _, _ in made]

    def _in(self, known: Known, change: Change, there: list[Record], at: int) -> tuple[Known, Step, list[Row]]:
        """What it makes of one session."""
        gone = [*change.seqs, *ranges.members(change.also)]
        made, state = forgotten(there, known.head, gone, spare=change.spare, silence=change.silence)
        if state is not None:
            change = msgspec.structs.replace(change, compaction=state)
        after, record, _ = committed(known.head, change, at)
        if known.key in self._graves:
            after = recounted(after, self._graves[known.key] | set(change.seqs))
        if record is not None:
            made.append(record)
        now, step = known.step(after)
        return now, step, [record_row(known.log, one) for one in made]


def of_branch(change: Change, key: SessionKey, seqs: Sequence[int]) -> Change:
    """The erasure as another branch has it: of the entries that it shares, with the session where it was asked for.

    What was made from them, and what is remembered of compactions, is each branch's own.
    """
    detail = {**change.detail, "session": key.session}
    return msgspec.structs.replace(
        change, seqs=tuple(seqs), silence=(), said=(), compaction=None, attempts=None, detail=detail
    )


def only_appended(known: Known, now: Known) -> bool:
    """Whether nothing has become of a session but appends: what was read of it is as it was."""
    return now.reads_as(known) and now.head.epoch == known.head.epoch and now.stirred == known.stirred


async def beside(
    sessions: Sessions, known: Known, readers: Sequence[tuple[str, int]]
) -> list[tuple[Known, Sequence[Cells]]]:
    """Other sessions of a home, by name and own log, as they are now, and the records that carry a compaction."""
    places = [known.place._replace(name=name) for name, _ in readers]
    logs = [str(log) for _, log in readers]
    *heads, records = await sessions.backend.look(
        [*map(Ask, places), Ask(known.logs, [Named("record", logs)], head=False)]
    )
    by_log: dict[int, list[Cells]] = {}
    for row in records.rows[0]:
        by_log.setdefault(row[0] >> 32, []).append(row)
    found: list[tuple[Known, Sequence[Cells]]] = []
    for (name, log), place, seen in zip(readers, places, heads, strict=True):
        other = sessions.read(known.key._replace(session=name), place, seen.head)
        if other.there is not None and other.log == log:
            found.append((other, by_log.get(log, [])))
    return found


def _of_erasure(known: Known, change: Change) -> list[Ask]:
    """What asks for all that an erasure has to know of a session."""
    silent = [(key, key) for key in sorted(key_of(known.log, revision) for revision in set(change.silence))]
    wanted: list[Range | Named] = [
        Range("entry", _joined(known.keys(change.seqs))),
        Named("record", [str(known.log)]),
        Range("record", silent),
    ]
    return [of_tree(known), Ask(known.logs, wanted, head=False)]


def _joined(keys: Iterable[int]) -> list[tuple[int, int]]:
    """Keys as spans, as few as there can be."""
    return list(ranges.of(set(keys)))


def spans_of(pieces: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """The spans of keys of stretches of logs."""
    return [(key_of(log, low), key_of(log, high)) for log, low, high in pieces if low <= high]


def dropping(pieces: Iterable[tuple[int, int, int]]) -> list[tuple[str, int, int]]:
    """What drops the entries of stretches of logs, with all that belongs to them."""
    return [(table, low, high) for low, high in spans_of(pieces) for table in OF_ENTRIES]
