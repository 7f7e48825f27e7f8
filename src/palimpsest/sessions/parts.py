"""Parts of sessions and memories that most programs do without: loaded when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from palimpsest.runtime.runner import Runner

T = TypeVar("T")


async def loaded(runner: Runner, make: Callable[[], T]) -> T:
    """Return what `make` returns, which imports what it needs: in a thread, where there is an event loop to hold up."""
    return await runner.read(make) if runner.suspends else make()


class Part(Generic[T]):
    """What `make` returns, made once, as `loaded` does."""

    def __init__(self, runner: Runner, make: Callable[[], T]) -> None:
        self._runner, self._make = runner, make
        self._made: T | None = None

    async def __call__(self) -> T:
        """Return the part, made once."""
        if self._made is None:
            self._made = await loaded(self._runner, self._make)
        return self._made
