"""Writers who are in each other's way over a driver: who is refused again waits for a while that chance decides.

Of many who write at once over the same heads one has his way, and all others look at the heads that are there and try
again. Who does that at once each time meets the same others each time. So from the second refusal in a row on a writer
waits, up to twice as long with each (full jitter), and looks at the heads again after that. Nothing is held meanwhile:
neither the turn of a session's queue, nor anything of the store's. Where writers wait for each other by a lock, as on
SQLite, nobody waits here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable

from palimpsest.stores.backend import Again, Backend, Batch, Look, Refusal
from palimpsest.stores.rules import heads_at

FIRST, LONGEST = 0.002, 0.25
"""Seconds that the first wait takes at most, and that any does."""

KEPT = 4096
"""Crowds that are remembered at once."""


Chance = Callable[[], float]
"""Gives a number from 0 to 1."""


def by_chance() -> float:
    """A number from 0 to 1; `random` would cost a cold start a millisecond."""
    return int.from_bytes(os.urandom(4)) / 0xFFFFFFFF


class Crowds:
    """`refused` has where this process was refused in a row, and how often."""

    def __init__(self, backend: Backend, chance: Chance = by_chance) -> None:
        self._backend, self._chance = backend, chance
        self.refused: dict[Hashable, int] = {}

    def note(self, what: Hashable, refused: bool) -> None:
        """Note what came of a write over these heads."""
        if not refused:
            self.refused.pop(what, None)
        elif self._backend.remote:
            if len(self.refused) >= KEPT:
                self.refused.clear()
            self.refused[what] = self.refused.get(what, 0) + 1

    def is_at(self, what: Hashable) -> bool:
        """Whether who was refused there waits, with `wait`, and looks at the heads again, before he tries again."""
        return self.refused.get(what, 0) > 1

    async def wait(self, what: Hashable) -> None:
        """Wait a moment, longer the more often a write was refused there; not where there is no crowd."""
        if self.is_at(what):
            longest = min(FIRST * 2 ** min(self.refused[what] - 2, 30), LONGEST)
            await self._backend.pause(longest * self._chance())

    async def write(self, batch: Batch, at: int, *, lasting: bool = True, again: Again | None = None) -> Refusal | None:
        """Write one batch, for who holds nothing; where it is refused, the heads that are there once he has waited, in
        the places of what was tried last."""
        tried = batch

        def noted(number: int, given: Batch, heads: Refusal, look: Look) -> Batch | None:
            nonlocal tried
            other = again(number, given, heads, look) if again is not None else None
            tried = tried if other is None else other
            return other

        (refusal,) = await self._backend.write([batch], at, lasting=lasting, again=again and noted)
        what = batch[0].place
        self.note(what, refusal is not None)
        if refusal is None or not self.is_at(what):
            return refusal
        await self.wait(what)
        meant = [step.place for step in tried if not step.rows_only]
        there = dict(zip(meant, await heads_at(self._backend, meant), strict=True))
        return tuple(there.get(step.place) for step in tried)
