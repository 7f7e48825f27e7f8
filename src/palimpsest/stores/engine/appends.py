"""Appends, and their meeting: those that arrive while others are written are written together by whoever comes next.

Over a backend of blocking functions there is one queue, and who has its turn writes what waits, of whatever session:
one batch for each, all in one call. Over a driver each session has a queue, so that none waits for another's round
trip. An append stays in its queue until it is settled, so that one whose leader was interrupted is written by the next,
who first looks whether it was: what a reply that was lost said is found out by the ids of what was to be written.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from palimpsest.errors import Conflict, InvalidEntry, PalimpsestError, StoreCorrupt
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.log.linking import link
from palimpsest.stores import Appended
from palimpsest.stores.backend import Ask, Batch, Range, Step
from palimpsest.stores.common import expected, unknown_only
from palimpsest.stores.engine.forms import DAMAGED, body_of, entry_row
from palimpsest.stores.engine.heads import Known, Sessions
from palimpsest.stores.engine.large import Large

if TYPE_CHECKING:
    import asyncio

GROUP = 128
"""Appends written together at most, so that nobody waits long for others."""

REFUSED = (Conflict, InvalidEntry, StoreCorrupt)
"""What an append may be told before anything of it is written."""

ByIds = Callable[[Known, Sequence[str]], Awaitable[list[Entry]]]


class Append:
    """One append that waits to be written, and what became of it.

    `linked` are its entries as somebody has begun to write them, over the session that is `over`.
    """

    __slots__ = (
        "check_ids", "claimed", "done", "entries", "error", "expect", "key", "linked", "over", "result", "withdrawn",
    )  # fmt: skip

    def __init__(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> None:
        self.key, self.entries, self.check_ids, self.expect = key, entries, check_ids, expect
        self.result: Appended | None = None
        self.error: BaseException | None = None
        self.done = self.claimed = self.withdrawn = False
        self.linked: list[Entry] = []
        self.over: Known | None = None


class Queue:
    """Appends that wait. `turn` is the lock of whoever writes: of threads, or, over a driver, of tasks."""

    def __init__(self) -> None:
        self.turn, self.lock = allocate_lock(), allocate_lock()
        self.waiting: deque[Append] = deque()
        self.tasks: asyncio.Lock | None = None
        self.users = 0


class Appends:
    """The queues before a backend. `by_ids` finds the entries of a session that have these ids."""

    def __init__(self, sessions: Sessions, large: Large, clock: Callable[[], int], by_ids: ByIds) -> None:
        self._sessions, self._large, self._clock, self._by_ids = sessions, large, clock, by_ids
        self._backend = sessions.backend
        self._inline = getattr(self._backend, "inline", False)
        self._queue = Queue()
        self._queues: dict[SessionKey, Queue] = {}

    async def run(self, append: Append) -> Appended:
        """Have the append written; a caller that is cancelled or interrupted before that began takes it back."""
        if not self._backend.blocking:
            return await self._awaited(append)
        queue = self._queue
        try:
            with queue.lock:
                queue.waiting.append(append)
            if self._inline:  # where nothing suspends, it is some coroutines less
                return await self._written(queue, append)
            return await self._backend.together(lambda: self._written(queue, append))
        except BaseException:
            if not self._withdraw(queue, append):  # another has it: when this returns, it is decided
                await self._backend.surely(lambda: self._decide(queue, append))
            raise

    async def _written(self, queue: Queue, append: Append) -> Appended:
        """Write what waits, unless whoever had the turn before has done it."""
        with queue.turn:
            await self._settle(queue, append)
        return _outcome(append)

    async def _awaited(self, append: Append) -> Appended:
        """The same over a driver: tasks wait for each other, and hold no thread."""
        import asyncio  # only under an event loop

        queue = self._queues.setdefault(append.key, Queue())
        queue.tasks = queue.tasks or asyncio.Lock()
        queue.users += 1
        try:
            queue.waiting.append(append)
            async with queue.tasks:
                await self._settle(queue, append)
        except BaseException:
            self._withdraw(queue, append)
            raise
        finally:
            queue.users -= 1
            if not queue.users:
                self._queues.pop(append.key, None)
        return _outcome(append)

    async def _settle(self, queue: Queue, append: Append) -> None:
        together = True
        while not append.done:
            together = await self._lead(queue, append, together=together)
        _drop(queue)  # or what it holds would stay in memory

    def _withdraw(self, queue: Queue, append: Append) -> bool:
        """Take back an append that nobody has begun to write; return whether it is decided what becomes of it."""
        with queue.lock:
            append.withdrawn = not append.claimed
            return append.withdrawn or append.done

    async def _decide(self, queue: Queue, append: Append) -> None:
        """Take the append back unless whoever writes it now settles it."""
        with queue.turn:
            append.withdrawn = not append.done

    async def _lead(self, queue: Queue, own: Append, *, together: bool) -> bool:
        """Write what waits, or one's own append alone; return whether to go on together."""
        _drop(queue)
        with queue.lock:
            first = [own] if not together else list(islice(queue.waiting, GROUP))
            claimed = [append for append in first if not append.done and not append.withdrawn]
            for append in claimed:
                append.claimed = True
        try:
            await self._write(claimed)
        except PalimpsestError as fault:
            for append in claimed:
                if getattr(fault, "written", False) is not None:
                    append.over = None  # nothing of it was written
            if len(claimed) <= 1:
                raise
            return False  # perhaps another's doing: each tries alone
        return True

    async def _write(self, claimed: Sequence[Append]) -> None:
        """Write these appends, one batch a session, until each is settled."""
        by_session: dict[SessionKey, list[Append]] = {}
        for append in claimed:
            if append.over is not None and await self._was_written(append):
                continue
            by_session.setdefault(append.key, []).append(append)
        there: dict[SessionKey, Known | None] = {key: self._sessions.remembered(key) for key in by_session}
        while by_session:
            batches: dict[SessionKey, tuple[Known, Batch]] = {}
            at = self._clock()
            for key, appends in by_session.items():
                made = await self._batch(key, appends, there[key], at)
                if made is not None:
                    batches[key] = made
            done = await self._backend.write([batch for _, batch in batches.values()], at) if batches else []
            for (key, (known, _)), refusal in zip(batches.items(), done, strict=True):
                there[key] = self._sessions.now(known, refusal[0]) if refusal is not None else None
                if refusal is None:
                    self._sessions.remember(known)
                    for append in by_session[key]:
                        append.done = True
                elif there[key] is not None and refusal[0] is None:
                    self._sessions.forget(key)
                    there[key] = None
            for key, (known, _) in batches.items():
                if by_session[key][0].done and known.pointer is not None and await self._sessions.astray(known, at):
                    for append in by_session[key]:
                        append.done, append.over = False, None
            by_session = {
                key: left for key, appends in by_session.items() if (left := [one for one in appends if not one.done])
            }

    async def _batch(
        self, key: SessionKey, appends: list[Append], known: Known | None, at: int
    ) -> tuple[Known, Batch] | None:
        """The session after these appends, and what makes it so; None where none of them is to be written."""
        if known is None or any(append.expect is not None or append.check_ids for append in appends):
            known = await self._sessions.find(key)
        over, rows, entered = known, [], list[Entry]()
        head, witness = known.head, self._sessions.witness
        for append in appends:
            try:
                fresh, found = append.entries, dict[str, Entry]()
                if append.expect is not None:
                    expected(key, head, append.expect)
                if append.check_ids:
                    known_ids = await self._by_ids(known, [entry.id for entry in append.entries])
                    found = {entry.id: entry for entry in (*known_ids, *entered)}
                    fresh = unknown_only(append.entries, found)
                if not fresh:
                    append.result = Appended(head, tuple(found[entry.id] for entry in append.entries), 0)
                    append.done = True
                    continue
                after, linked = link(head, fresh, at)
                append.result = None
            except REFUSED as fault:
                append.error, append.done = fault, True
                continue
            append.linked, append.over = linked, over
            entered += linked
            head = witness.head(key, head if head is not known.head or known.there is not None else None, after)
            given = linked
            if len(linked) != len(append.entries):
                new = {entry.id: entry for entry in linked}
                given = [new.get(entry.id) or found[entry.id] for entry in append.entries]
            append.result = Appended(head, tuple(given), len(linked))
        appends[:] = [append for append in appends if not append.done]
        if not entered:
            return None
        after_all, step = known.step(head)
        rows = [entry_row(known.log, entry) for entry in entered]
        put, more = await self._large.taken(known, rows) if self._large.limit is not None else ([("entry", rows)], [])
        steps = [step, Step(known.logs, rows_only=True, put=put), *more]
        if known.there is None:
            steps += self._sessions.created(known)
        return after_all, steps

    async def _was_written(self, append: Append) -> bool:
        """Whether an append was written of which nobody has heard: then it is settled."""
        over, first = append.over, append.linked[0]
        assert over is not None, "somebody has begun to write it"
        key = over.log << 32 | first.seq
        seen = await self._backend.look([Ask(over.place), Ask(over.logs, [Range("entry", [(key, key)])], head=False)])
        try:
            append.done = any(body_of(row)[1] == first.id for row in seen[1].rows[0])
        except DAMAGED:
            append.done = True  # there is something, and nobody else writes there
        append.over = None
        self._sessions.forget(append.key)
        return append.done


def _outcome(append: Append) -> Appended:
    if append.error is not None:
        raise append.error
    assert append.result is not None, "an append that is settled has a result or an error"
    return append.result


def _drop(queue: Queue) -> None:
    """Drop what is over from the head of the queue. Needs the turn."""
    waiting = queue.waiting
    while waiting and (waiting[0].done or waiting[0].withdrawn):
        waiting.popleft()
