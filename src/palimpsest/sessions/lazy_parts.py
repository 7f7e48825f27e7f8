"""Lazy parts of sessions and memories, whose modules most programs do not need: imported at their first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from palimpsest.runtime.runner import Runner

T = TypeVar("T")


async def loaded(runner: Runner, make: Callable[[], T]) -> T:
    """Call `make`, which imports modules, and return its result. On an event loop it is called in a thread."""
    return await runner.read(make) if runner.suspends else make()


class Part(Generic[T]):
    """A part that `make` creates at its first use, by `loaded`."""

    def __init__(self, runner: Runner, make: Callable[[], T]) -> None:
        self._runner, self._make = runner, make
        self._part: T | None = None

    async def __call__(self) -> T:
        """Return the part, after creating it if this is the first use."""
        if self._part is None:
            self._part = await loaded(self._runner, self._make)
        return self._part

    def begin_anew(self) -> None:
        """Forget the part: the next use makes another one."""
        self._part = None
