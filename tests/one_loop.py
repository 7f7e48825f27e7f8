"""Runs conformance tests on one event loop, to which a driver is bound."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class OnALoop:
    """A mixin that runs everything in a test on one event loop, since a driver is bound to its loop."""

    _runner: asyncio.Runner | None = None

    @property
    def runner(self) -> asyncio.Runner:
        """The runner of the event loop, made at first use."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return self.runner.run(coroutine)

    def beside(self, jobs: Sequence[Any]) -> None:
        """Run the coroutines at the same time, each in a task."""

        async def all_of_them() -> None:
            async with asyncio.timeout(120):
                await asyncio.gather(*(job() for job in jobs))

        self.run(all_of_them())

    def teardown_method(self) -> None:
        """Close the loop."""
        if self._runner is not None:
            self._runner.close()
