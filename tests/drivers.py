"""A backend that behaves like one with an asynchronous driver: each verb suspends; a write or its answer may fail."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from palimpsest.errors import StoreUnavailable
from palimpsest.runtime.runner import Inline
from palimpsest.stores.backend import Again, Backend, Batch, Refusal
from palimpsest.stores.memory import MemoryBackend


def _suspended(name: str, verb: Callable[..., Any]) -> Any:
    @wraps(verb, updated=())
    async def suspended(self: DrivenBackend, *given: Any, **named: Any) -> Any:
        self.calls.append(name)
        await asyncio.sleep(0)
        return await getattr(self.below, name)(*given, **named)

    return suspended


_VERBS = ("look", "places", "recent", "expired", "tenants", "scrub", "close")


class DrivenBackend(Backend):
    """A memory backend behind a driver that suspends. `calls` has the names of the verbs that were called.

    With `dice`, some writes fail: before they are done, or after that, as if their answer had been lost.
    """

    url = "driven://"

    def __init__(self, dice: random.Random | None = None, failing: float = 0.2) -> None:
        self.below = MemoryBackend(Inline())
        self.calls: list[str] = []
        self._dice, self._failing = dice, failing

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        self.calls.append("write")
        for _ in range(self._dice.randrange(4) if self._dice is not None else 1):
            await asyncio.sleep(0)
        fails = self._dice is not None and self._dice.random() < self._failing
        if fails and self._dice is not None and self._dice.random() < 0.5:
            raise StoreUnavailable(self.url, "it is away")
        refusals = await self.below.write(batches, at, lasting=lasting)
        await asyncio.sleep(0)
        if fails:
            raise StoreUnavailable(self.url, "the answer was lost", written=None)
        return refusals

    vars().update({name: _suspended(name, dict(inspect.getmembers(Backend))[name]) for name in _VERBS})


def driven(dice: random.Random | None = None) -> DrivenBackend:
    """Return an empty driven backend."""
    kind: Any = DrivenBackend  # most verbs are added by `vars().update`, which no type checker sees
    backend: DrivenBackend = kind(dice)
    return backend
