"""A thread with an event loop, for what a synchronous memory has to await. It loads asyncio, so it is imported late."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from palimpsest.errors import ForkedProcess
from palimpsest.runtime.logs import warn
from palimpsest.runtime.threads import Suspended, apart, outcome

T = TypeVar("T")


class LoopThread:
    """An event loop in a daemon thread of its own. Drivers bind to a loop, so it lives as long as its owner.

    `stray` is told of what went wrong in it for which nobody waits any more: the error (or None), and a message.
    """

    def __init__(self, stray: Callable[[BaseException | None, str], None]) -> None:
        self._loop, self._end, self._pid = asyncio.new_event_loop(), asyncio.Event(), os.getpid()
        self._loop.set_exception_handler(lambda _, told: stray(told.get("exception"), told["message"]))
        self._gone = apart(self._run)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # cancels what is left at the end
            runner.run(self._end.wait())

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run it. To cancel the future cancels the coroutine, and waits for nothing."""
        if os.getpid() != self._pid:
            raise ForkedProcess(self._pid, os.getpid())
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001 (the public one raises where there is none)
            raise Suspended("a synchronous call came from this memory's own event loop; use AsyncMemory there")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def end(self) -> None:
        """Have the thread end, without waiting for it."""
        self._loop.call_soon_threadsafe(self._end.set)

    def close(self, timeout: float) -> None:
        """Cancel everything and wait for the end of the thread, at most so many seconds."""
        if os.getpid() != self._pid:  # a fork takes no thread along
            return
        self.end()
        try:
            outcome(self._gone, timeout)
        except TimeoutError:
            warn("an event loop did not end within %g seconds", timeout)
