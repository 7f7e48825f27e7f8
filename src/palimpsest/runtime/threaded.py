"""`Threaded`, the runner of asynchronous memories: blocking functions run in worker threads, coroutines on the loop.

It loads asyncio, so only asynchronous code imports it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError
from functools import partial
from threading import local
from typing import Any, TypeVar

from palimpsest.errors import Closed
from palimpsest.runtime.lasting import Start, settled, surely
from palimpsest.runtime.logs import Redact, log_failure, warn
from palimpsest.runtime.runner import GIVEN_UP, GRACE, PATIENCE, STILL_USED, Job, Last, drive
from palimpsest.runtime.task_lock import TaskLock, calls
from palimpsest.runtime.threads import apart, awaited, outcome, promised
from palimpsest.runtime.workers import Call, Workers

T = TypeVar("T")

READERS = 8
"""Threads that read at the same time. Each waits for a disk, or for a write that its context has to make."""


class OneAtATime:
    """Runs the same coroutine for every call, one call after the other."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work, self._turn = work, TaskLock()

    async def __call__(self) -> None:
        await self.after(self._work)

    async def after(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run another coroutine in its turn, once all earlier calls have ended."""
        async with self._turn:
            await work()


class Threaded:
    """Runs blocking functions in its own worker threads, so that the event loop never waits for a disk.

    One thread writes, others read: a read does not queue behind a write that waits for another process. It uses plain
    asyncio: anyio would add 20 ms to a cold start and 10 us to each hop. Inside `whole`, `run` and `read` call their
    function directly, so that several verbs of a store take one hop.
    """

    suspends = True

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}
        self.redact: Redact | None = None
        self.patience = PATIENCE
        self._thread = local()
        self._writer, self._readers = Workers(1), Workers(READERS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: asyncio.Task[None] | None = None
        self._closed = False

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self._run(self._writer, function, *arguments)

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self._run(self._readers, function, *arguments)

    async def _run(self, threads: Workers, function: Callable[..., T], *arguments: Any) -> T:
        if getattr(self._thread, "inside", False):
            return function(*arguments)
        job = Call(function, arguments)
        threads.put(job)
        try:
            result: T = await job.future
        except asyncio.CancelledError:
            if not job.withdraw():  # it has begun, so it is waited for
                await settled(job.over())
            raise
        return result

    async def whole(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        return await self._run(self._readers if reads else self._writer, self._driven, start)

    def _driven(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine to its end in this worker thread."""
        before, self._thread.inside = getattr(self._thread, "inside", False), True
        try:
            return drive(start())
        finally:
            self._thread.inside = before

    async def finish(self, function: Callable[..., T], *arguments: Any) -> T:
        job = Call(function, arguments)
        self._writer.put(job)
        await settled(job.future)
        result: T = job.future.result()
        return result

    async def surely(self, start: Start[T], again: Start[T] | None = None) -> T:
        return await surely(start, again, self.redact)

    def beside(self, start: Callable[[], Coroutine[Any, Any, T]], caller: object = None) -> T:
        if caller is not None:
            return self._on_loop(start(), caller)
        future, work = promised(self._driven, start)
        self._writer.put(work)
        result: T = outcome(future)
        return result

    def _on_loop(self, coroutine: Coroutine[Any, Any, T], caller: object) -> T:
        """Run a coroutine on the event loop of the task `caller`, and wait for it in this thread."""
        assert isinstance(caller, asyncio.Task), "a caller under an event loop is a task"
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, caller.get_loop())
        except RuntimeError:
            coroutine.close()
            raise Closed("the event loop of the memory") from None
        try:
            return outcome(future, self.patience)
        except CancelledError:
            raise Closed("the event loop of the memory") from None
        finally:
            future.cancel()  # does nothing to a finished one

    def caller(self) -> object:
        return asyncio.current_task()

    async def outside(self, function: Callable[..., T], *arguments: Any, timeout: float | None = None) -> T:
        return await self.wait(asyncio.wrap_future(apart(function, *arguments)), timeout)

    async def wait(self, awaitable: Awaitable[T], timeout: float | None = None) -> T:
        if timeout is None:
            return await awaited(awaitable)
        async with asyncio.timeout(timeout):
            return await awaited(awaitable)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def meanwhile(self, function: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_soon(function)

    def background(self, start: Job) -> None:
        if self._closed:
            raise Closed("the memory")
        task = asyncio.get_running_loop().create_task(_logged(start, self.redact))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self, timeout: float | None = None) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + (self.patience if timeout is None else timeout)
        while (others := self._under_way()) and loop.time() < until:  # a job may begin another
            await asyncio.wait([_end_of(task, loop) for task in others], timeout=until - loop.time())
        return not others

    def _under_way(self) -> set[asyncio.Task[None]]:
        """Return the unfinished background tasks but for the current one, and those of loops that are closed."""
        own = asyncio.current_task()
        return {task for task in tuple(self._tasks) if task is not own and not task.get_loop().is_closed()}

    async def close(self, *, last: Last | None = None) -> None:
        try:
            await self._give_up()
        finally:  # a cancelled close leaves nothing open, either
            await surely(partial(self._end, last), redact=self.redact)

    async def _give_up(self) -> None:
        """Settle for `patience` seconds, then cancel the background tasks that are left."""
        settled = False
        try:
            settled = await self.settle()
        finally:
            self._closed = True
            for task in () if settled else self._under_way():
                calls(task.get_loop(), task.cancel)
        if not settled:
            warn(GIVEN_UP, self.patience)
            await self.settle(min(self.patience, GRACE))

    async def _end(self, last: Last | None) -> None:
        """Begin `last` unless it is under way already, and wait at most `patience` seconds for it."""
        ending = self._ending
        if ending is None or ending.done() or ending.get_loop().is_closed():
            ending = self._ending = asyncio.ensure_future(self._ended(last))
        if (await asyncio.wait([_end_of(ending, asyncio.get_running_loop())], timeout=self.patience))[0]:
            ending.result()
            return
        warn(STILL_USED, self.patience)
        ending.add_done_callback(self._log_ending)

    async def _ended(self, last: Last | None) -> None:
        """Run `last`, then let go of the threads, which it needs until then."""
        try:
            if last is not None:
                await last()
        finally:
            self._writer.close()
            self._readers.close()

    def _log_ending(self, ending: asyncio.Task[None]) -> None:
        """Log an error of `last`, which nobody waits for any more."""
        if not ending.cancelled() and (fault := ending.exception()) is not None:
            log_failure(self.redact, fault, "closing the store failed")


def _end_of(task: asyncio.Task[None], here: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
    """Return a future of the loop `here` that is done when a task of any loop is."""
    loop = task.get_loop()
    if loop is here:
        return task
    end: asyncio.Future[None] = here.create_future()

    def finish() -> None:
        if not end.done():
            end.set_result(None)

    def ended(_: object) -> None:
        calls(here, finish)

    if not calls(loop, task.add_done_callback, ended):  # a closed loop runs its tasks no further
        finish()
    return end


async def _logged(start: Job, redact: Redact | None) -> None:
    """Run a background job, and log its error."""
    try:
        await start()
    except Exception as fault:  # noqa: BLE001 (the boundary of the task: nobody awaits it)
        log_failure(redact, fault, "work in the background failed")
