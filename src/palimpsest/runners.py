"""Where blocking functions run, and how a coroutine is driven without an event loop.

The core is written once as coroutines. Over an embedded store in a synchronous memory they never suspend:
`drive` runs them to their end in one step. In an asynchronous memory the same functions run in a worker thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from palimpsest.errors import PalimpsestError

if TYPE_CHECKING:
    import asyncio

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

    async def whole(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine that waits for nothing but this runner, all of it in one place."""
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

    async def whole(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await start()

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
    """Runs blocking functions in one worker thread of its own, so that the event loop never waits for a disk.

    Plain asyncio: anyio would add 20 ms to a cold start and 10 us to each hop. Inside `whole`, `run` calls its
    function where it is, so that several verbs of a store are one hop.
    """

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor
        from threading import local

        self._here = local()
        self._worker = ThreadPoolExecutor(1, "palimpsest")

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        if getattr(self._here, "inside", False):
            return function(*arguments)
        import asyncio

        job = self._worker.submit(function, *arguments)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            if not job.cancel():  # it has begun: cancelled or not, it is waited for
                await _settled(asyncio.wrap_future(job))
            raise

    async def whole(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self.run(self._driven, start)

    def _driven(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._here.inside = True
        try:
            return drive(start())
        finally:
            self._here.inside = False

    async def finish(self, function: Callable[..., T], *arguments: Any) -> T:
        import asyncio

        future = asyncio.wrap_future(self._worker.submit(function, *arguments))
        await _settled(future)
        return future.result()

    async def wait(self, awaitable: Awaitable[T]) -> T:
        return await awaitable

    async def sleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)

    async def close(self) -> None:
        self._worker.shutdown(wait=False)


async def _settled(future: asyncio.Future[Any]) -> None:
    """Return when the future is done, however often the caller is cancelled meanwhile."""
    import asyncio

    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            continue
    if not future.cancelled():
        future.exception()  # seen: whoever was cancelled is told of that alone


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
