"""Helpers for tests of the compatibility layer for AGTerm: both managers behind one interface, and user messages."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from palimpsest import AsyncMemory, Memory
from palimpsest.compat.agterm import AsyncMemoryManager, MemoryManager
from palimpsest.testing import FakeClock
from talks import words

STARTS = {"plain": 0, "awaited": 1}
"""The two managers, by their names in tests."""


class Awaited:
    """An `AsyncMemoryManager` behind synchronous methods, which run its coroutines on an event loop of their own."""

    def __init__(self, manager: AsyncMemoryManager, run: Callable[[Any], Any]) -> None:
        self._manager, self._run = manager, run

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._manager, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **options: self._run(found(*args, **options))


@contextmanager
def managed(kind: str, store: str = "memory://", config: Any = None, **options: Any) -> Iterator[Any]:
    """Yield a manager of this kind over an open memory, with a counter of words and a clock that stands still."""
    options = {"counter": words, **options}
    clock = options.pop("clock", None) or FakeClock()
    if kind == "plain":
        with Memory.open(store, clock=clock) as memory:
            yield MemoryManager(config, store=memory, **options)
        return
    with asyncio.Runner() as runner:
        core = AsyncMemory.open(store, clock=clock)
        try:
            yield Awaited(AsyncMemoryManager(config, store=core, **options), runner.run)
        finally:
            runner.run(core.close())


class Heard:
    """Records events with their arguments, in order."""

    def __init__(self, manager: Any, *events: str) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        for event in events:
            manager.on(event, lambda *args, event=event: self.calls.append((event, args)))

    def names(self) -> list[str]:
        """Return the names of the events, in order."""
        return [name for name, _ in self.calls]


def says(manager: Any, session: str, *costs: int, word: str = "word") -> None:
    """Add user messages of so many words each."""
    for i, cost in enumerate(costs):
        manager.add_user_message(session, " ".join([f"m{i}", *[word] * (cost - 1)]))


def covered(manager: Any, session: str) -> int:
    """Return how many entries are compressed."""
    return int(manager.get_stats(session).compressed_entries)
