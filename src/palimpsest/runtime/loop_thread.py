"""`LoopThread`: an event loop in a thread, for what synchronous memories await. It loads asyncio: import it late."""

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
    """An event loop in its own daemon thread. Drivers bind to a loop, so it lives as long as its owner.

    `stray` is called with an error (or None) and a message for each fault in it that nobody waits for any more.
    """

    def __init__(self, stray: Callable[[BaseException | None, str], None]) -> None:
        self._loop, self._end, self._pid = asyncio.new_event_loop(), asyncio.Event(), os.getpid()
        self._loop.set_exception_handler(lambda _, facts: stray(facts.get("exception"), facts["message"]))
        self._ended = apart(self._run)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # at the end it cancels all tasks that are left
            runner.run(self._end.wait())

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine. Cancelling the future cancels the coroutine, without waiting for it.

        Raises ForkedProcess in a forked child, Suspended when called on this loop, which would wait for itself.
        """
        if os.getpid() != self._pid:
            raise ForkedProcess(self._pid, os.getpid())
        if asyncio._get_running_loop() is self._loop:  # noqa: SLF001 (the public function raises if there is none)
            raise Suspended("a synchronous call came from this memory's own event loop; use AsyncMemory there")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def end(self) -> None:
        """Let the thread end, without waiting for it."""
        self._loop.call_soon_threadsafe(self._end.set)

    def close(self, timeout: float) -> None:
        """Cancel everything, and wait at most `timeout` seconds for the thread to end."""
        if os.getpid() != self._pid:  # a forked child does not have the thread
            return
        self.end()
        try:
            outcome(self._ended, timeout)
        except TimeoutError:
            warn("an event loop did not end within %g seconds", timeout)
