"""Where blocking functions run, and how a coroutine is driven without an event loop.

The core is written once as coroutines. Over an embedded store in a synchronous memory they never suspend:
`drive` runs them to their end in one step. In an asynchronous memory the same functions run in a worker thread.
"""

from __future__ import annotations

import time
from _thread import allocate_lock, get_ident  # `threading` costs a cold start a millisecond
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from palimpsest.errors import Closed, PalimpsestError
from palimpsest.runtime.logs import Redact, log_failure, warn
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
"""Seconds that background work which is given up has to tidy up, such as to give a lease back."""


class Runner(Protocol):
    """Where blocking functions run: inline, or in worker threads.

    `kept` holds what lives as long as the runner and is shared by all who use it, by key. `redact` cleans what is
    logged. `patience` is how many seconds settling and closing wait where they are not told.
    """

    kept: dict[Any, Any]
    redact: Redact | None
    patience: float
    suspends: bool
    """Whether what it runs may wait for an event loop of its caller's."""

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what the function returns, which is waited for once it has started, even when cancelled."""
        ...

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """As `run`, for a function that only reads: it waits for none that `run` was given."""
        ...

    async def finish(self, function: Callable[..., T], *arguments: Any) -> T:
        """As `run`, for a caller that has been cancelled already."""
        ...

    async def whole(self, start: Callable[[], Coroutine[Any, Any, T]], *, reads: bool = False) -> T:
        """Run a coroutine that waits for nothing but this runner, in one place: where `read` would, if it `reads`."""
        ...

    async def surely(
        self, start: Callable[[], Coroutine[Any, Any, T]], again: Callable[[], Coroutine[Any, Any, T]] | None = None
    ) -> T:
        """Run a coroutine to its end, however often the caller is cancelled, who learns of that afterwards.

        It may be started twice, so it does what does no harm when it is repeated, or `again` is what is done then.
        """
        ...

    def beside(self, start: Callable[[], Coroutine[Any, Any, T]], caller: object = None) -> T:
        """Run a coroutine that waits for nothing but this runner, for a thread that the runner knows nothing of.

        One that waits for an event loop runs on that of the `caller` who began it all. Raises Closed after `close`, or
        when that loop is, TimeoutError where it stands still for longer than `patience`.
        """
        ...

    def caller(self) -> object:
        """Who calls, and can do nothing else until he is answered: a thread, or a task."""
        ...

    async def outside(self, function: Callable[..., T], *arguments: Any, timeout: float | None = None) -> T:
        """Return what a user's function returns; neither the store nor an event loop waits for it meanwhile.

        Raises TimeoutError after `timeout` seconds. A function cannot be stopped: it goes on in its thread, which no
        process waits for at its end, and what it returns is dropped. Where it raises asyncio's CancelledError, that is
        an Exception here: only who is cancelled himself hears of a cancellation.
        """
        ...

    async def wait(self, awaitable: Awaitable[T], timeout: float | None = None) -> T:
        """Await what a user's callable or a driver returned. After `timeout` seconds it is cancelled: TimeoutError.

        Where it was cancelled, and the caller was not, that is an Exception.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without holding anything."""
        ...

    def meanwhile(self, function: Callable[[], object]) -> None:
        """Have a short function called on the event loop while its caller awaits what he awaits next.

        It is over before that is answered. Where there is no loop it is not called.
        """
        ...

    def background(self, start: Job) -> None:
        """Run a coroutine beside everything else; one that raises is logged. Raises Closed after `close`."""
        ...

    async def settle(self, timeout: float | None = None) -> bool:
        """Wait until no background work is left, at most `timeout` seconds; return whether that is so."""
        ...

    async def close(self, timeout: float | None = None, *, last: Last | None = None) -> None:
        """Settle, do what is `last`, then let go of threads and of the loop.

        Background work that does not settle in time is cancelled, where it can be, and left to itself else; a warning
        says so. `last` gets as much time once more: after that it is left to be done when it can be.
        """
        ...


class Inline:
    """Runs blocking functions where they are called: no thread, no event loop, never suspends.

    What needs a loop, such as a user's coroutine, gets one in a thread of its own, started for the first. Background
    work goes one after the other in another, which is there while there is any.
    """

    suspends = False

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}
        self.redact: Redact | None = None
        self.patience = PATIENCE
        self._lock = allocate_lock()
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
            future.cancel()  # for who gave up or was interrupted; does nothing to one that is done
            self._waits.discard(future)

    def _begin(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            try:
                if self._closed and get_ident() != self._ending:
                    raise Closed("the memory")
                if self._loop is None:
                    from palimpsest.runtime.loop_thread import LoopThread  # asyncio: only where something is awaited

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
        self._working = get_ident()
        while True:
            with self._lock:
                if not self._jobs:
                    self._worker, self._working = None, 0  # a thread that begins now may get this one's number
                    return
                start = self._jobs.popleft()
            try:
                drive(start())
            except BaseException as fault:  # noqa: BLE001 (the boundary of the thread: the next job is not to blame)
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

    async def close(self, timeout: float | None = None, *, last: Last | None = None) -> None:
        patience = self.patience if timeout is None else timeout
        settled = await self.settle(patience)
        with self._lock:
            self._closed = True
            self._jobs.clear()
        if not settled:
            warn(GIVEN_UP, patience)
            for wait in tuple(self._waits):
                wait.cancel()
            await self.settle(min(patience, GRACE))
        if last is not None:
            await self._done(lambda: self._end(last), patience)
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close(patience if settled else min(patience, GRACE))

    async def _end(self, last: Last) -> None:
        """Do it, which may still want the loop."""
        self._ending = get_ident()
        try:
            await last()
        finally:
            self._ending = 0

    async def _done(self, last: Last, patience: float) -> None:
        """Do it here, or beside where somebody in the background may have what it needs."""
        if self._worker is None or get_ident() == self._working:
            await last()
            return
        try:
            outcome(apart(lambda: drive(last())), patience)
        except TimeoutError:
            warn(STILL_USED, patience)


GIVEN_UP = "work in the background did not end within %g seconds and is given up"
STILL_USED = "the store was still in use after %g seconds; it is closed when that ends"


async def _awaited(awaitable: Awaitable[T]) -> T:
    return await awaitable


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise Suspended


@contextmanager
def within(block: Any, inside: T | None = None) -> Iterator[T]:
    """Enter an asynchronous context manager that a generator was made, and that never suspends, by `with`.

    It gives `inside`, or where that is None what the block gives.
    """
    try:
        given: T = drive(block.__aenter__())
        try:
            yield given if inside is None else inside
        except BaseException as error:
            if not drive(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            drive(block.__aexit__(None, None, None))
    finally:
        drive(block.gen.aclose())  # does something where an interrupt came before the block heard of its end
