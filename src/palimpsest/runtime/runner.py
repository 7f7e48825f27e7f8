"""Where blocking functions run, and how a coroutine is driven without an event loop.

The core is written once, as coroutines. In a synchronous memory over an embedded store they never suspend: `drive` runs
them to their end in one step. In an asynchronous memory the blocking functions run in worker threads.
"""

from __future__ import annotations

import time
from _thread import get_ident  # `threading` costs a cold start a millisecond
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from palimpsest.errors import Closed, PalimpsestError
from palimpsest.runtime.logs import Redact, log_failure, warn
from palimpsest.runtime.once import new_lock
from palimpsest.runtime.threads import Suspended, apart, outcome

if TYPE_CHECKING:
    from concurrent.futures import Future

    from palimpsest.runtime.loop_thread import LoopThread

T = TypeVar("T")
Job = Callable[[], Coroutine[Any, Any, object]]
Last = Callable[[], Coroutine[Any, Any, None]]

PATIENCE = 10.0
"""Seconds that closing waits for background work."""

GRACE = 1.0
"""Seconds that background work gets to clean up once it is given up, for instance to give a lease back."""


class Runner(Protocol):
    """Where blocking functions run: inline, or in worker threads.

    `kept` holds, by key, whatever lives as long as the runner and is shared by its users. `redact` cleans what is
    logged. `patience` is the default timeout in seconds of settling and closing.
    """

    kept: dict[Any, Any]
    redact: Redact | None
    patience: float
    suspends: bool
    """Whether code that it runs may wait for the caller's event loop."""

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return a function's result. Once it has started it is waited for, even if the caller is cancelled."""
        ...

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Like `run`, for a function that only reads: it does not wait for functions given to `run`."""
        ...

    async def finish(self, function: Callable[..., T], *arguments: Any) -> T:
        """Like `run`, for a caller that has been cancelled already."""
        ...

    async def whole(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        """Run a coroutine that awaits nothing but this runner in one thread: that of `run`, or `read` if it `reads`."""
        ...

    async def surely(
        self, start: Callable[[], Coroutine[Any, Any, T]], again: Callable[[], Coroutine[Any, Any, T]] | None = None
    ) -> T:
        """Run a coroutine to its end, however often the caller is cancelled; its cancellation is raised afterwards.

        It may be started a second time, so repeating it must be harmless; or else `again` is started then.
        """
        ...

    def beside(self, start: Callable[[], Coroutine[Any, Any, T]], caller: object = None) -> T:
        """Run a coroutine that awaits nothing but this runner, for a thread that is not the runner's own.

        With a `caller` it runs on that task's event loop. Raises Closed after `close` or when that loop is closed,
        TimeoutError if that loop makes no progress for longer than `patience`.
        """
        ...

    def caller(self) -> object:
        """Return the thread (its number) or the task that is calling, and does nothing else until it is answered."""
        ...

    async def outside(self, function: Callable[..., T], *arguments: Any, timeout: float | None = None) -> T:
        """Call a user's function and return its result. Neither the store nor an event loop waits for it meanwhile.

        Raises TimeoutError after `timeout` seconds. A function cannot be stopped: it goes on in a daemon thread, and
        its result is dropped. If it raises asyncio's CancelledError, an Exception is raised here: a cancellation means
        only that the caller itself was cancelled.
        """
        ...

    async def wait(self, awaitable: Awaitable[T], timeout: float | None = None) -> T:
        """Await what a user's callable or a driver returned. After `timeout` seconds cancel it and raise TimeoutError.

        If it was cancelled, and the caller was not, an Exception is raised.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking anything else."""
        ...

    def meanwhile(self, function: Callable[[], object]) -> None:
        """Call a short function on the event loop while the caller awaits whatever it awaits next.

        The function ends before that is answered. Without an event loop it is not called.
        """
        ...

    def background(self, start: Job) -> None:
        """Run a coroutine in the background; its error is logged. Raises Closed after `close`."""
        ...

    async def settle(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds until no background work is left; return whether none is."""
        ...

    async def close(self, *, last: Last | None = None) -> None:
        """Settle, run `last`, then let go of threads and of the loop.

        Background work that does not settle within `patience` is cancelled if possible, else left to itself, and a
        warning says so. `last` gets the same time again: if that is over it is left to finish by itself.
        """
        ...


class Inline:
    """Runs blocking functions where they are called: no thread, no event loop, never suspends.

    Whatever needs a loop, such as a user's coroutine, gets one in a thread, which is started on first use. Background
    jobs run one after the other in another thread, which exists while there are any.
    """

    suspends = False

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}
        self.redact: Redact | None = None
        self.patience = PATIENCE
        self._lock = new_lock()
        self._waits: set[Future[Any]] = set()
        self._loop: LoopThread | None = None
        self._jobs: deque[Job] = deque()
        self._worker: Future[None] | None = None
        self._working = self._ending = 0
        self._closed = False

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    read = finish = run

    async def whole(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        return await start()

    async def surely(
        self, start: Callable[[], Coroutine[Any, Any, T]], again: Callable[[], Coroutine[Any, Any, T]] | None = None
    ) -> T:
        return await start()

    def beside(self, start: Callable[[], Coroutine[Any, Any, T]], caller: object = None) -> T:
        return drive(start())

    def caller(self) -> object:
        return get_ident()

    async def outside(self, function: Callable[..., T], *arguments: Any, timeout: float | None = None) -> T:
        return outcome(apart(function, *arguments), timeout)

    async def wait(self, awaitable: Awaitable[T], timeout: float | None = None) -> T:
        from concurrent.futures import CancelledError  # loads logging and threading

        coroutine = awaitable if isinstance(awaitable, Coroutine) else _awaited(awaitable)
        future = self._begin(coroutine)
        self._waits.add(future)
        try:
            return outcome(future, timeout)
        except CancelledError:
            if self._closed:
                raise Closed("the memory") from None
            raise
        finally:
            future.cancel()  # after a timeout or an interrupt; does nothing to a finished one
            self._waits.discard(future)

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Submit a coroutine to the loop, which is started if need be."""
        with self._lock:
            try:
                if self._closed and get_ident() != self._ending:
                    raise Closed("the memory")
                if self._loop is None:
                    from palimpsest.runtime.loop_thread import LoopThread  # late: it loads asyncio

                    self._loop = LoopThread(self._stray)
                return self._loop.submit(coroutine)
            except PalimpsestError:
                coroutine.close()
                raise

    def _stray(self, fault: BaseException | None, message: str) -> None:
        log_failure(self.redact, fault, "in the event loop: %s", message)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (there is no event loop here to hold up)

    def meanwhile(self, function: Callable[[], object]) -> None:
        return

    def background(self, start: Job) -> None:
        with self._lock:
            if self._closed:
                raise Closed("the memory")
            self._jobs.append(start)
            if self._worker is None:
                self._worker = apart(self._work)

    def _work(self) -> None:
        """Run the background jobs until none is left."""
        self._working = get_ident()
        while True:
            with self._lock:
                if not self._jobs:
                    self._worker, self._working = None, 0  # a later thread may get this thread's number
                    return
                start = self._jobs.popleft()
            try:
                drive(start())
            except BaseException as fault:  # noqa: BLE001 (the boundary of the thread: the next job has to run)
                log_failure(self.redact, fault, "work in the background failed")

    async def settle(self, timeout: float | None = None) -> bool:
        with self._lock:
            worker = self._worker
        if worker is None or get_ident() == self._working:  # a job does not wait for itself
            return not self._jobs
        try:
            outcome(worker, self.patience if timeout is None else timeout)
        except TimeoutError:
            return False
        return True

    async def close(self, *, last: Last | None = None) -> None:
        patience, settled = self.patience, await self.settle()
        with self._lock:
            self._closed = True
            self._jobs.clear()
        if not settled:
            warn(GIVEN_UP, patience)
            for wait in tuple(self._waits):
                wait.cancel()
            await self.settle(min(patience, GRACE))
        if last is not None:
            await self._finished(lambda: self._end(last), patience)
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close(patience if settled else min(patience, GRACE))

    async def _end(self, last: Last) -> None:
        """Run `last`, which may still use the loop."""
        self._ending = get_ident()
        try:
            await last()
        finally:
            self._ending = 0

    async def _finished(self, last: Last, patience: float) -> None:
        """Run `last` here; or with a timeout in a thread, if a background job may still hold what it needs."""
        if self._worker is None or get_ident() == self._working:
            await last()
            return
        try:
            outcome(apart(lambda: drive(last())), patience)
        except TimeoutError:
            warn(STILL_USED, patience)


GIVEN_UP = "work in the background did not end within %g seconds, and Palimpsest waits for it no longer"
STILL_USED = "the store was still in use after %g seconds; it is closed when that ends"


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end, and return its result. Raises Suspended if it does suspend."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise Suspended


@contextmanager
def within(block: Any, inside: T | None = None) -> Iterator[T]:
    """Enter, by `with`, an `@asynccontextmanager` that never suspends.

    The value of the block is `inside`, or if that is None, the manager's own.
    """
    try:
        entered: T = drive(block.__aenter__())
        try:
            yield entered if inside is None else inside
        except BaseException as error:
            if not drive(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            drive(block.__aexit__(None, None, None))
    finally:
        drive(block.gen.aclose())  # has an effect if an interrupt kept `__aexit__` from running
