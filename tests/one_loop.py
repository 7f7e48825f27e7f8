"""Contracts on one event loop, which a driver belongs to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class OnALoop:
    """Runs what a contract asks for on one event loop, which a driver belongs to: one for all that a test does."""

    _runner: asyncio.Runner | None = None

    @property
    def runner(self) -> asyncio.Runner:
        """What runs it."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self.runner.run(coroutine)

    def beside(self, jobs: Sequence[Any]) -> None:
        """Run these at the same time, a task each."""

        async def all_of_them() -> None:
            async with asyncio.timeout(120):
                await asyncio.gather(*(job() for job in jobs))

        self.run(all_of_them())

    def teardown_method(self) -> None:
        """Let go of the loop."""
        if self._runner is not None:
            self._runner.close()
