"""The background sweeper of an open memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from threading import Event
from typing import Any

from palimpsest.errors import Closed
from palimpsest.runtime.runner import Runner
from palimpsest.runtime.threads import apart


class Sweeper:
    """Sweeps every `seconds`, as background work of the runner. Two sweeps never overlap.

    The waiting is done in a thread of its own. What a sweep raises is logged and does not prevent the next one.
    """

    def __init__(self, runner: Runner, seconds: float, sweep: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._runner, self._sweep, self._end, self._sweeping = runner, sweep, Event(), False
        apart(self._wait, seconds, _poster(runner))

    def end(self) -> None:
        """Begin no further sweep."""
        self._end.set()

    def _wait(self, seconds: float, post: Callable[[Callable[[], None]], object]) -> None:
        while not self._end.wait(seconds):
            try:
                post(self._begin)
            except (Closed, RuntimeError):  # the memory, or its event loop, is closed
                return

    def _begin(self) -> None:
        if not self._sweeping and not self._end.is_set():
            with suppress(Closed):
                self._runner.background(self._once)
                self._sweeping = True

    async def _once(self) -> None:
        try:
            await self._sweep()
        except Closed:  # the memory was closed meanwhile
            self.end()
        finally:
            self._sweeping = False


def _poster(runner: Runner) -> Callable[[Callable[[], None]], object]:
    """Return a function that calls its argument where background work has to begin: at once, or on the event loop."""
    if not runner.suspends:
        return lambda begin: begin()
    import asyncio  # only under an event loop

    return asyncio.get_running_loop().call_soon_threadsafe
