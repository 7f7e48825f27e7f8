"""What tests of the door for programs of AGTerm share: both managers with one face, and talks of known cost."""

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
"""The two managers, by what tests call them."""


class Awaited:
    """An `AsyncMemoryManager` whose coroutines are run to their end, one by one, on a loop of its own."""

    def __init__(self, manager: AsyncMemoryManager, run: Callable[[Any], Any]) -> None:
        self._manager, self._run = manager, run

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._manager, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **options: self._run(found(*args, **options))


@contextmanager
def managed(kind: str, store: str = "memory://", config: Any = None, **options: Any) -> Iterator[Any]:
    """A manager of this kind over an open memory, which counts words, and whose clock stands still."""
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
    """Notes events with their arguments, in order."""

    def __init__(self, manager: Any, *events: str) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        for event in events:
            manager.on(event, lambda *args, event=event: self.calls.append((event, args)))

    def names(self) -> list[str]:
        """The events heard, in order."""
        return [name for name, _ in self.calls]


def says(manager: Any, session: str, *costs: int, word: str = "word") -> None:
    """Add user messages of so many words each."""
    for i, cost in enumerate(costs):
        manager.add_user_message(session, " ".join([f"m{i}", *[word] * (cost - 1)]))


def covered(manager: Any, session: str) -> int:
    """How many entries are compressed."""
    return int(manager.get_stats(session).compressed_entries)
