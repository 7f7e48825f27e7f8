"""Appends, and their meeting: those that arrive while others are written are written together by whoever comes next.

Over a backend of blocking functions there is one queue, and who has his turn writes what waits, of whatever session:
one batch for each, all in one call. Over a driver, and where a backend gains nothing by that, each session has a queue,
so that none waits for another's round trip, or for whoever keeps its home.

An append stays in its queue until it is settled, so that one whose leader was interrupted is written by the next, who
first looks whether it was: what a reply that was lost said is found out by the ids of what was to be written.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from palimpsest.errors import Conflict, InvalidEntry, PalimpsestError, StoreCorrupt, StoreUnavailable
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.linking import link
from palimpsest.stores import Appended
from palimpsest.stores.backend import Ask, Batch, Range, Step
from palimpsest.stores.common import expected, unknown_only
from palimpsest.stores.engine.forms import DAMAGED, checked, entry_of, entry_row
from palimpsest.stores.engine.heads import Known, Sessions
from palimpsest.stores.engine.large import Large

if TYPE_CHECKING:
    import asyncio

GROUP = 128
"""Appends written together at most, so that nobody waits long for others."""

CALM = 16
"""After so many appends that were alone nobody is expected to wait, and the queue is gone past: where many write, one
that goes past it would take the turn from those who have been waiting to go together."""

QUEUES = 4096
"""Queues of sessions that are kept; one that is dropped too early costs a comparison of heads, and nothing else."""

REFUSED = (Conflict, InvalidEntry, StoreCorrupt)
"""What an append may be told before anything of it is written."""

ByIds = Callable[[Known, Sequence[str]], Awaitable[list[Entry]]]


class Append(msgspec.Struct, eq=False):
    """One append that waits to be written, and what became of it.

    `linked` are its entries as somebody has begun to write them, over the session that is `over`.
    """

    key: SessionKey
    entries: Sequence[Entry]
    check_ids: bool
    expect: int | None
    result: Appended | None = None
    error: BaseException | None = None
    done: bool = False
    claimed: bool = False
    withdrawn: bool = False
    linked: Sequence[Entry] = ()
    over: Known | None = None


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
        self._alone = 0
        self._queue = Queue()
        self._queues: dict[SessionKey, Queue] = {}

    async def run(self, append: Append) -> Appended:
        """Have the append written; a caller that is cancelled or interrupted before that began takes it back."""
        backend = self._backend
        if not backend.blocking:
            return await self._awaited(append)
        queue = self._queue if backend.gathers else self._own(append.key)
        if self._alone >= CALM and not (queue.waiting or queue.turn.locked()):
            try:
                with queue.turn:
                    await self._quickly(append)
            except StoreUnavailable as fault:
                if fault.written is not None:
                    raise
            if append.result is not None:
                return append.result
        try:
            with queue.lock:
                queue.waiting.append(append)
            if self._inline:  # where nothing suspends, it is a coroutine less
                with queue.turn:
                    await self._settle(queue, append)
                return _outcome(append)
            return await self._backend.together(lambda: self._written(queue, append))
        except BaseException:
            if not self._withdraw(queue, append):  # another has it: when this returns, it is decided
                await self._backend.surely(lambda: self._decide(queue, append))
            raise

    def _own(self, key: SessionKey) -> Queue:
        """The queue of a session alone, as long as somebody is in it, or many more were asked for."""
        if len(self._queues) >= QUEUES:
            for one in [one for one, queue in list(self._queues.items()) if not (queue.waiting or queue.turn.locked())]:
                self._queues.pop(one, None)
        return self._queues.setdefault(key, Queue())

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
                try:
                    await self._settle(queue, append)
                finally:
                    append.withdrawn = not append.done  # nobody writes what its caller was told has failed
        except BaseException:
            append.withdrawn = append.withdrawn or not append.claimed
            raise
        finally:
            queue.users -= 1
            if not queue.users:
                self._queues.pop(append.key, None)
        return _outcome(append)

    async def _settle(self, queue: Queue, own: Append) -> None:
        """Write what waits, or one's own append alone, until that is settled. Needs the turn."""
        together = True
        while not own.done:
            _drop(queue)
            with queue.lock:
                first = islice(queue.waiting, GROUP) if together else [own]
                claimed = [append for append in first if not append.done and not append.withdrawn]
                for append in claimed:
                    append.claimed = True
            self._alone = self._alone + 1 if self._inline and len(claimed) == 1 else 0
            try:
                await self._write(claimed)
            except PalimpsestError as fault:
                if getattr(fault, "written", False) is not None:
                    for append in claimed:
                        append.over = None  # nothing of it was written
                elif await self._asked(own, fault):
                    continue
                if len(claimed) <= 1:
                    raise
                together = False  # perhaps another's doing: each tries alone
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

    async def _write(self, claimed: Sequence[Append]) -> None:
        """Write these appends, one batch a session, until each is settled."""
        if len(claimed) == 1:
            await self._quickly(claimed[0])
            if claimed[0].done:
                return
        left: dict[SessionKey, list[Append]] = {}
        for append in claimed:
            if append.over is None or not await self._was_written(append):
                left.setdefault(append.key, []).append(append)
        there = {key: self._sessions.remembered(key) for key in left}
        while left:
            at = self._clock()
            made = [await self._batch(key, appends, there[key], at) for key, appends in left.items()]
            batches = [one for one in made if one is not None]
            done = await self._backend.write([batch for _, _, batch in batches], at) if batches else ()
            for (before, after, _), refusal in zip(batches, done, strict=True):
                key = after.key
                if refusal is not None:
                    there[key] = self._sessions.moved(before, refusal[0])
                elif before.there is None and await self._sessions.astray(after, at):
                    there[key] = None
                else:
                    self._sessions.remember(after)
                    for append in left[key]:
                        append.done = True
                    left[key] = []
            left = {key: appends for key, appends in left.items() if appends}

    async def _quickly(self, append: Append) -> None:
        """Write an append as most are, alone and to a known session, if it is one."""
        known = self._sessions.remembered(append.key)
        if known is None or append.check_ids or append.expect is not None or append.over is not None:
            return
        at, log = self._clock(), known.log
        try:
            head, linked = link(known.head, append.entries, at)
        except InvalidEntry:
            return
        rows = [entry_row(log, entry) for entry in linked]
        if not rows or self._large.meant(rows):
            return
        append.linked, append.over = linked, known
        after, step = known.grown(head)
        put = (("entry", rows),)
        (refusal,) = await self._backend.write(((step, Step(known.logs, rows_only=True, put=put)),), at)
        if refusal is not None:
            append.over = None
            self._sessions.moved(known, refusal[0])
            return
        self._sessions.remember(after)
        append.result, append.done = Appended(head, tuple(linked), len(linked)), True

    async def _batch(
        self, key: SessionKey, appends: list[Append], known: Known | None, at: int
    ) -> tuple[Known, Known, Batch] | None:
        """The session before and after these appends, and what makes it so; None where none is to be written."""
        if known is None or any([append.check_ids or append.expect is not None for append in appends]):  # noqa: C419
            known = await self._sessions.find(key)
        head, entered = known.head, list[Entry]()
        before = head if known.there is not None else None
        for append in appends:
            try:
                found: dict[str, Entry] = {}
                fresh = append.entries
                if append.check_ids or append.expect is not None:
                    found = await self._found(append, known, head, entered)
                    fresh = unknown_only(append.entries, found) if append.check_ids else append.entries
                if not fresh:
                    append.result = Appended(head, tuple(found[entry.id] for entry in append.entries), 0)
                    append.done = True
                    continue
                after, linked = link(head, fresh, at)
            except REFUSED as fault:
                append.error, append.done = fault, True
                continue
            head = before = self._sessions.witness.head(key, before, after)
            append.linked, append.over = linked, known
            entered += linked
            given = linked
            if len(linked) != len(append.entries):
                found |= {entry.id: entry for entry in linked}
                given = [found[entry.id] for entry in append.entries]
            append.result = Appended(head, tuple(given), len(linked))
        if not entered:
            appends.clear()
            return None
        appends[:] = [append for append in appends if not append.done]
        log = known.log
        rows = [entry_row(log, entry) for entry in entered]
        now, step = known.grown(head)
        put, more = await self._large.taken(known, rows) if self._large.meant(rows) else ([("entry", rows)], ())
        steps = [step, Step(known.logs, None, None, None, None, True, (), put), *more]
        return known, now, steps if known.there is not None else steps + self._sessions.created(known)

    async def _found(self, append: Append, known: Known, head: Head, entered: Sequence[Entry]) -> dict[str, Entry]:
        """The entries that are there, or just come, under ids of an append, which expects what it expects."""
        if append.expect is not None:
            expected(append.key, head, append.expect)
        if not append.check_ids:
            return {}
        there = await self._by_ids(known, [entry.id for entry in append.entries])
        return {entry.id: entry for entry in (*there, *entered)}

    async def _asked(self, own: Append, fault: PalimpsestError) -> bool:
        """Whether an append was written though the answer was lost; where it was not, the fault says so from now on."""
        try:
            if own.over is not None and await self._was_written(own):
                return True
        except PalimpsestError:
            raise fault from None
        if isinstance(fault, StoreUnavailable):
            fault.written = False
        return False

    async def _was_written(self, append: Append) -> bool:
        """Whether an append was written of which nobody has heard: then it is settled."""
        over, first = append.over, append.linked[0]
        assert over is not None, "somebody has begun to write it"
        key = over.log << 32 | first.seq
        seen = await self._backend.look([Ask(over.place), Ask(over.logs, [Range("entry", [(key, key)])], head=False)])
        try:
            append.done = any(entry_of(checked(row[1], key)).id == first.id for row in seen[1].rows[0])
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
