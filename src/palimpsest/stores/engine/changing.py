"""Changes of a session: commits of every kind, erasures in every branch, clearing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from palimpsest.errors import Conflict
from palimpsest.log.change import Change, Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.resuming import committed
from palimpsest.stores.backend import Look, Refusal, Seen, Step
from palimpsest.stores.engine.erasure import OF_ENTRIES, Erasure, of_erasure
from palimpsest.stores.engine.forms import LAST, entry_row, key_of, record_row
from palimpsest.stores.engine.heads import Known, Made, Sessions, expected
from palimpsest.stores.engine.large import Large
from palimpsest.stores.engine.owners import noted
from palimpsest.stores.engine.reading import Reading
from palimpsest.stores.engine.trees import Tree, of_tree

Expect = Callable[[Head], None]


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

    def _changed_over(
        self, known: Known, change: Change, at: int, expect: Expect, heads: Refusal, _: Look
    ) -> Made | None:
        """The change over the head that is there, where it moves that one and no other."""
        now = self._sessions.now(known, heads[0])
        if now.there is None or now.head.is_over(at) or not now.reads_as(known):
            return None
        try:
            expect(now.head)
            head, record, linked = _changed(now.head, change, at)
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
        head, record, linked = _changed(known.head, change, at)
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
                known, seen = await self._sessions.look(key, lambda known: of_erasure(known, change))
            expect(known.head)
            erasure = Erasure(self._sessions, self._reading, known, change)
            await erasure.read(seen)
            at = self._clock()
            more = (await self._large.taken(known, [], erasure.points))[1]
            more += await self._sessions.created(known, at)
            over = partial(self._erased_over, erasure, more, at, expect)
            refusal, after = await self._sessions.write_over(erasure.batch(known, at, more), at, over)
            if refusal is None:
                return after[0].head
            known, seen = self._still(known, erasure, refusal, seen)

    def _erased_over(
        self, erasure: Erasure, more: list[Step], at: int, expect: Expect, heads: Refusal, look: Look
    ) -> Made | None:
        """The erasure over the heads that are there."""
        now = erasure.sharing.again(erasure.steps, heads, look)
        try:
            if now is not None:
                expect(now.head)
        except Conflict:
            return None
        return erasure.batch(now, at, more) if now is not None else None

    def _still(self, known: Known, erasure: Erasure, refusal: Refusal, seen: list[Seen]) -> tuple[Known, list[Seen]]:
        """The session as it is now, and what was read of it, where nobody but those who append was in the way.

        So an erasure beside a writer who never pauses looks once, and has only its last step to do again.
        """
        now = self._sessions.moved(known, refusal[0])
        still = now is not None and seen and erasure.sharing.again(erasure.steps, refusal) is not None
        return known if now is None else now, seen if still else []


def _changed(head: Head, change: Change, at: int) -> tuple[Head, Record | None, list[Entry]]:
    after, record, linked = committed(head, change, at)
    return (after.renewed(at) if change.kind == "about" or linked else after), record, linked


def spans_of(pieces: Iterable[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """The spans of keys of stretches of logs."""
    return [(key_of(log, low), key_of(log, high)) for log, low, high in pieces if low <= high]


def dropping(pieces: Iterable[tuple[int, int, int]]) -> list[tuple[str, int, int]]:
    """What drops the entries of stretches of logs, with all that belongs to them."""
    return [(table, low, high) for low, high in spans_of(pieces) for table in OF_ENTRIES]
