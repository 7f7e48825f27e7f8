"""Where appends meet: those that arrive while others are written are written together by whoever comes next.

Over a backend of blocking functions there is one queue, and who has his turn writes what waits, of whatever session:
one batch for each, all in one call. Over a driver, and where a backend gains nothing by that, each session has a queue,
so that none waits for another's round trip, or for whoever keeps its home.

An append stays in its queue until it is settled, so that one whose leader was interrupted is written by the next, who
first looks whether it was.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

from palimpsest.errors import PalimpsestError, StoreUnavailable
from palimpsest.log.head import SessionKey
from palimpsest.stores.backend import Backend
from palimpsest.stores.engine.appends import Append, Appends
from palimpsest.stores.values import Appended

if TYPE_CHECKING:
    from palimpsest.runtime.task_lock import TaskLock

GROUP = 32
"""Appends written together at most, so that nobody waits long for others. Where a thousand sessions add at once, and
each asks for a context then, these come evenly: with 128 they waited for each other three times as long."""

CALM = 16
"""After so many appends that were alone nobody is expected to wait, and the queue is gone past: where many write, one
that goes past it would take the turn from those who have been waiting to go together."""

QUEUES = 4096
"""Queues of sessions that are kept; one that is dropped too early costs a comparison of heads, and nothing else."""


class Queue:
    """Appends that wait. `turn` is the lock of whoever writes: of threads, or, over a driver, of tasks."""

    def __init__(self) -> None:
        self.turn, self.lock = allocate_lock(), allocate_lock()
        self.waiting: deque[Append] = deque()
        self.tasks: TaskLock | None = None
        self.users = 0


class Queues:
    """The queues before a backend."""

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
        """Have the append written; a caller that is cancelled or interrupted before that began takes it back."""
        if not self._backend.blocking:
            return await self._awaited(append)
        queue = self._queue if self._backend.gathers else self._own(append.key)
        if self._alone >= CALM and not (queue.waiting or queue.turn.locked()):
            try:
                with queue.turn:
                    await self._appends.quickly(append)
            except StoreUnavailable as fault:
                if fault.written is not None:
                    raise
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
        queue, alone = self._queues.get(append.key), False
        if queue is None:
            queue, alone = self._queues.setdefault(append.key, Queue()), not self._crowds.is_at(append.key)
        turn = queue.tasks = queue.tasks or self._lock()
        queue.users += 1
        try:
            if alone:
                async with turn:
                    await self._past(append)
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

    async def _past(self, append: Append) -> None:
        """Write an append as most are, to a session that nobody else is writing to: past the queue, in which nobody is.

        Needs the turn, for which waits who comes meanwhile.
        """
        try:
            await self._appends.quickly(append)
        except PalimpsestError as fault:
            if getattr(fault, "written", False) is not None or not await self._appends.was_done(append, fault):
                raise

    async def _settle(self, queue: Queue, own: Append) -> None:
        """Write what waits, or one's own append alone, until that is settled, or a crowd is in the way.

        Needs the turn, and gives it back before that is waited for.
        """
        try:
            await self._write(queue, own)
        except BaseException:
            own.withdrawn = not own.done  # nobody writes what its caller was told has failed
            raise

    async def _write(self, queue: Queue, own: Append) -> None:
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
                await self._appends.write(claimed)
                if self._crowds.is_at(own.key):
                    for append in claimed:
                        append.claimed = append.done  # nobody is writing it now
                    break
            except PalimpsestError as fault:
                unavailable = isinstance(fault, StoreUnavailable)
                sure = (unavailable or len(claimed) == 1) and getattr(fault, "written", False) is not None
                for append in claimed if sure else ():
                    append.over = None  # nothing of it was written
                if (own.sent or not sure) and await self._appends.was_done(own, fault):
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
