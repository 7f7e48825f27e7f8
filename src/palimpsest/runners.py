"""Where blocking functions run, and how a coroutine is driven without an event loop.

The core is written once as coroutines. Over an embedded store in a synchronous memory they never suspend:
`drive` runs them to their end in one step. In an asynchronous memory the same functions run in a worker thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from palimpsest.errors import PalimpsestError

if TYPE_CHECKING:
    import anyio
    from anyio.from_thread import BlockingPortal

T = TypeVar("T")


class Runner(Protocol):
    """Where blocking functions run: inline, or in one worker thread at a time."""

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return what the function returns. A function that has started is waited for, even when cancelled."""
        ...

    async def finish(self, function: Callable[..., T], *arguments: Any) -> T:
        """As `run`, for a caller that has been cancelled already."""
        ...

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Await what a user's callable returned."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait without holding anything."""
        ...

    async def close(self) -> None:
        """Let go of threads."""
        ...


class Inline:
    """Runs blocking functions where they are called: no thread, no event loop, never suspends.

    Only a user's coroutine needs a loop; the first one starts it in a thread of its own.
    """

    def __init__(self) -> None:
        self._portal: tuple[Any, BlockingPortal] | None = None

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    async def finish(self, function: Callable[..., T], *arguments: Any) -> T:
        return function(*arguments)

    async def wait(self, awaitable: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await awaitable

        if self._portal is None:
            from anyio.from_thread import start_blocking_portal

            manager = start_blocking_portal()
            self._portal = (manager, manager.__enter__())
        return self._portal[1].call(awaited)

    async def sleep(self, seconds: float) -> None:
        import time

        time.sleep(seconds)  # noqa: ASYNC251 (there is no event loop here to hold up)

    async def close(self) -> None:
        if self._portal is not None:
            manager, self._portal = self._portal[0], None
            manager.__exit__(None, None, None)


class Threaded:
    """Runs blocking functions in a worker thread, one at a time, so that the event loop never waits for a disk."""

    def __init__(self) -> None:
        self._limiter: anyio.CapacityLimiter | None = None

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        import anyio

        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(1)
        job = _Job(function, arguments)
        try:
            return await anyio.to_thread.run_sync(job.work, limiter=self._limiter)
        except anyio.get_cancelled_exc_class():
            await job.wait_out()
            raise

    async def finish(self, function: Callable[..., T], *arguments: Any) -> T:
        import anyio

        with anyio.CancelScope(shield=True):
            outcome = await self.run(function, *arguments)
        return outcome  # noqa: RET504 (a type checker thinks that the scope may swallow)

    async def wait(self, awaitable: Awaitable[T]) -> T:
        return await awaitable

    async def sleep(self, seconds: float) -> None:
        import anyio

        await anyio.sleep(seconds)

    async def close(self) -> None:
        return None


class _Job:
    """A function in a worker thread whose caller may be cancelled by `Task.cancel`: anyio does not shield from that."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._function, self._arguments = function, arguments
        self._lock = Lock()
        self._begun = self._over = self._dropped = False
        self._tell: Callable[[], object] | None = None

    def work(self) -> Any:
        """Run the function, unless the caller has left before it began."""
        with self._lock:
            if self._dropped:
                return None
            self._begun = True
        try:
            return self._function(*self._arguments)
        finally:
            with self._lock:
                self._over = True
            if self._tell is not None:
                self._tell()

    async def wait_out(self) -> None:
        """Wait for a function that has begun, whoever cancels; one that has not begins no more."""
        import asyncio

        import anyio

        loop, over = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            self._dropped = not self._begun
            if self._dropped or self._over:
                return
            self._tell = lambda: loop.call_soon_threadsafe(over.set)
        with anyio.CancelScope(shield=True):
            while not over.is_set():
                try:
                    await over.wait()
                except asyncio.CancelledError:  # cancelled once more: the caller raises it at the end
                    continue


class Suspended(PalimpsestError, RuntimeError):
    """A coroutine of a synchronous memory waited for an event loop: a fault of the store, not of the caller."""

    def __init__(self) -> None:
        super().__init__("the store suspended inside a synchronous call; use AsyncMemory with this store")


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends to its end and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise Suspended
