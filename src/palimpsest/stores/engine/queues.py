"""Where appends meet: those that arrive during a write are written together by the next caller that gets the turn.

Over a blocking backend there is one queue. The caller whose turn it is writes everything that waits, of whatever
session, one batch per session, all in one call. Over a driver, and where a backend gains nothing from that, each
session has a queue of its own, so that no append waits for another session's round trip or for a lock on another home.

An append stays in its queue until it is settled. If the caller that was writing it is interrupted, the next one takes
it over, after it has looked whether the append was written.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from palimpsest.errors import PalimpsestError, StoreUnavailable
from palimpsest.log.head import SessionKey
from palimpsest.runtime.once import new_lock
from palimpsest.stores.backend import Backend
from palimpsest.stores.engine.appends import Append, Appends
from palimpsest.stores.values import Appended

if TYPE_CHECKING:
    from palimpsest.runtime.task_lock import TaskLock

GROUP = 32
"""Appends written together at most, so that nobody waits long for others. With 1,000 sessions that each add and then
ask for a context, a limit of 128 made these contexts wait for each other three times as long.
"""

CALM = 16
"""Appends in a row that met nobody, after which an append goes past the queue. Where many write, going past it would
take the turn from those who have been waiting to write together.
"""

QUEUES = 4096
"""Queues of sessions that are kept. Dropping one too early costs a comparison of heads, and nothing else."""


class Queue:
    """Appends that wait for their turn to be written.

    The caller that writes holds `turn`, a lock of threads; over a driver it holds `tasks`, a lock of tasks, instead.
    `lock` guards `waiting` and who has claimed what. `users` are the tasks that use the queue.
    """

    def __init__(self) -> None:
        self.turn, self.lock = new_lock(), new_lock()
        self.waiting: deque[Append] = deque()
        self.tasks: TaskLock | None = None
        self.users = 0


class Queues:
    """The queues in front of a backend."""

    def __init__(self, backend: Backend, appends: Appends) -> None:
        self._backend, self._appends, self._crowds = backend, appends, appends.crowds
        self._inline = backend.inline
        self._alone = 0
        self._queue = Queue()
        self._queues: dict[SessionKey, Queue] = {}
        if not backend.blocking:
            from palimpsest.runtime.task_lock import TaskLock  # asyncio: only under an event loop

            self._lock = TaskLock

    async def run(self, append: Append) -> Appended:
        """Have the append written. A caller that is cancelled or interrupted before that began takes it back."""
        if not self._backend.blocking:
            return await self._run_over_driver(append)
        queue = self._queue if self._backend.gathers else self._session_queue(append.key)
        if self._alone >= CALM and not (queue.waiting or queue.turn.locked()):
            try:
                with queue.turn:
                    await self._appends.quickly(append)
            except StoreUnavailable as fault:
                if fault.written is not None:
                    raise  # else nobody knows whether it was written: whoever writes the queue finds out
            if append.done:
                return _outcome(append)
        try:
            with queue.lock:
                queue.waiting.append(append)
            if not self._inline:
                return await self._backend.together(lambda: self._written(queue, append))
            while True:
                with queue.turn:
                    await self._settle(queue, append)
                if append.done:
                    return _outcome(append)
                await self._crowds.wait(append.key)
        except BaseException:
            if not self._withdraw(queue, append):  # another caller is writing it: wait until its fate is decided
                await self._backend.surely(lambda: self._decide(queue, append))
            raise

    def _session_queue(self, key: SessionKey) -> Queue:
        """Return the queue of one session. Idle queues of other sessions are dropped when there are many."""
        if len(self._queues) >= QUEUES:
            queues = list(self._queues.items())
            for idle in [other for other, queue in queues if not (queue.waiting or queue.turn.locked())]:
                self._queues.pop(idle, None)
        return self._queues.setdefault(key, Queue())

    async def _written(self, queue: Queue, append: Append) -> Appended:
        """Write what waits, unless the previous holder of the turn has written the append already."""
        with queue.turn:
            await self._settle(queue, append)
        return _outcome(append)

    async def _run_over_driver(self, append: Append) -> Appended:
        """Like `run`, over a driver: tasks wait for each other, and hold no thread."""
        queue, alone = self._queues.get(append.key), False
        if queue is None:
            queue, alone = self._queues.setdefault(append.key, Queue()), not self._crowds.is_at(append.key)
        turn = queue.tasks = queue.tasks or self._lock()
        queue.users += 1
        try:
            if alone:
                async with turn:
                    await self._write_past_queue(append)
            if not append.done:
                queue.waiting.append(append)
            while not append.done:
                await self._crowds.wait(append.key)
                async with turn:
                    await self._settle(queue, append)
        except BaseException:
            append.withdrawn = append.withdrawn or not append.claimed
            raise
        finally:
            queue.users -= 1
            if not queue.users:
                self._queues.pop(append.key, None)
        return _outcome(append)

    async def _write_past_queue(self, append: Append) -> None:
        """Write an append of the common kind to a session that nobody else writes to, past its empty queue.

        The caller holds the turn; whoever comes meanwhile waits for it.
        """
        try:
            await self._appends.quickly(append)
        except PalimpsestError as fault:
            if getattr(fault, "written", False) is not None or not await self._appends.was_done(append, fault):
                raise

    async def _settle(self, queue: Queue, own: Append) -> None:
        """Write what waits, or the caller's own append alone, until that one is settled or its session is crowded.

        The caller holds the turn, and gives it back before it waits for a crowd.
        """
        try:
            await self._write(queue, own)
        except BaseException:
            own.withdrawn = not own.done  # its caller sees an error, so nobody may write it later
            raise

    async def _write(self, queue: Queue, own: Append) -> None:
        """Write groups of appends until `own` is settled; after a failure that may be another's, `own` alone.

        Where other processes were in the way for too long, all that had come before fail: they have waited as long.
        """
        together = True
        while not own.done:
            _drop(queue)
            with queue.lock:
                came_before = len(queue.waiting)
                candidates = islice(queue.waiting, GROUP) if together else [own]
                claimed = [append for append in candidates if not append.done and not append.withdrawn]
                for append in claimed:
                    append.claimed = True
            self._alone = self._alone + 1 if self._inline and len(claimed) == 1 else 0
            try:
                await self._appends.write(claimed)
                if self._crowds.is_at(own.key):
                    for append in claimed:
                        append.claimed = append.done  # until the next attempt its caller may withdraw it
                    break
            except PalimpsestError as fault:
                unavailable = isinstance(fault, StoreUnavailable)
                surely_unwritten = (unavailable or len(claimed) == 1) and getattr(fault, "written", False) is not None
                for append in claimed if surely_unwritten else ():
                    append.base = None  # nothing of it was written
                if (own.sent or not surely_unwritten) and await self._appends.was_done(own, fault):
                    continue
                if isinstance(fault, StoreUnavailable) and fault.busy:
                    self._fail_with(own, queue, came_before, fault)
                    raise
                if len(claimed) <= 1:
                    raise
                together = False  # another append may be to blame: each is tried alone
        _drop(queue)  # else settled appends would stay in memory

    def _fail_with(self, own: Append, queue: Queue, count: int, fault: StoreUnavailable) -> None:
        """Settle the first `count` appends of the queue with the fault of `own`, unless one may have been written."""
        with queue.lock:
            for append in islice(queue.waiting, count):
                if append is not own and not (append.done or append.withdrawn or append.base or append.sent):
                    append.error = StoreUnavailable(fault.store, fault.reason, busy=True)
                    append.error.__cause__, append.done = fault.__cause__, True

    def _withdraw(self, queue: Queue, append: Append) -> bool:
        """Take back an append that nobody has begun to write; return whether its fate is decided."""
        with queue.lock:
            append.withdrawn = not append.claimed
            return append.withdrawn or append.done

    async def _decide(self, queue: Queue, append: Append) -> None:
        """Take the append back unless the caller that writes it now settles it."""
        with queue.turn:
            append.withdrawn = not append.done


def _outcome(append: Append) -> Appended:
    """Return the result of a settled append, or raise its error."""
    if append.error is not None:
        raise append.error
    assert append.result is not None, "an append that is settled has a result or an error"
    return append.result


def _drop(queue: Queue) -> None:
    """Drop settled and withdrawn appends from the front of the queue. The caller holds the turn."""
    waiting = queue.waiting
    while waiting and (waiting[0].done or waiting[0].withdrawn):
        waiting.popleft()
