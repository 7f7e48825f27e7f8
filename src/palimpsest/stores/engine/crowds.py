"""Back-off of writers that get in each other's way over a driver.

Of many writers that write over the same heads at once one succeeds, and all others look at the new heads and try again.
If they do that at once, they collide each time. So from the second refusal in a row on a writer waits for a random
time, whose upper bound doubles with each refusal (full jitter), and then looks at the heads again. Nothing is held
while it waits: neither the turn of a session's queue nor anything in the store. Where writers wait for each other by a
lock, as on SQLite, nobody waits here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable

from palimpsest.stores.backend import Again, Backend, Batch, Look, Refusal
from palimpsest.stores.rules import heads_at

FIRST, LONGEST = 0.002, 0.25
"""Seconds: the upper bound of the first wait, and of any wait."""

KEPT = 4096
"""Entries kept in `Crowds.refused`."""


Chance = Callable[[], float]
"""Returns a number from 0 to 1."""


def by_chance() -> float:
    """Return a random number from 0 to 1. Importing `random` would cost a cold start a millisecond."""
    return int.from_bytes(os.urandom(4)) / 0xFFFFFFFF


class Crowds:
    """Counts refusals in a row, and makes writers wait. `refused` maps what was written over to that count."""

    def __init__(self, backend: Backend, chance: Chance = by_chance) -> None:
        self._backend, self._chance = backend, chance
        self.refused: dict[Hashable, int] = {}

    def note(self, key: Hashable, refused: bool) -> None:
        """Count a refusal of a write over these heads, or reset the count after a success."""
        if not refused:
            self.refused.pop(key, None)
        elif self._backend.remote:
            if len(self.refused) >= KEPT:
                self.refused.clear()
            self.refused[key] = self.refused.get(key, 0) + 1

    def is_at(self, key: Hashable) -> bool:
        """Return whether a writer refused here must `wait` and look at the heads again before it tries again."""
        return self.refused.get(key, 0) > 1

    async def wait(self, key: Hashable) -> None:
        """Wait for a random time, longer the more often writes were refused here; not at all without a crowd."""
        if self.is_at(key):
            longest = min(FIRST * 2 ** min(self.refused[key] - 2, 30), LONGEST)
            await self._backend.pause(longest * self._chance())

    async def write(self, batch: Batch, at: int, *, lasting: bool = True, again: Again | None = None) -> Refusal | None:
        """Write one batch, for a caller that holds no lock; return what refuses it, as `Backend.write` does.

        After a wait the heads are looked at again, in the places of the batch that was tried last.
        """
        tried = batch

        def remember_tried(number: int, given: Batch, heads: Refusal, look: Look) -> Batch | None:
            nonlocal tried
            instead = again(number, given, heads, look) if again is not None else None
            tried = tried if instead is None else instead
            return instead

        (refusal,) = await self._backend.write([batch], at, lasting=lasting, again=again and remember_tried)
        key = batch[0].place
        self.note(key, refusal is not None)
        if refusal is None or not self.is_at(key):
            return refusal
        await self.wait(key)
        meant = [step.place for step in tried if not step.rows_only]
        head_by_place = dict(zip(meant, await heads_at(self._backend, meant), strict=True))
        return tuple(head_by_place.get(step.place) for step in tried)
