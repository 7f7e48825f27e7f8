"""Leases of one session: whoever holds one goes first. Advice that saves work, never a lock."""

from __future__ import annotations

from palimpsest.entries import new_ids
from palimpsest.errors import PalimpsestError
from palimpsest.log import SessionKey
from palimpsest.runners import Runner
from palimpsest.stores import Store

TURN_SECONDS = 30.0
"""How long the lease of a turn lasts unless it is renewed, which every add inside the turn does."""

WAIT_SECONDS = 5.0
"""How long `take` waits for another holder before its caller goes on without the lease."""


class Lease:
    """A lease in the session's own store, for `what` (a turn, a compaction). It ends by itself after `seconds`."""

    def __init__(self, store: Store, runner: Runner, key: SessionKey, what: str, seconds: float) -> None:
        self._store, self._runner, self._tenant, self._seconds = store, runner, key.tenant, seconds
        self._name = f"{what}:{key.session}"
        self._holder = new_ids(1, 0)[0]
        self._fence: int | None = None
        self._may_hold = False

    @property
    def held(self) -> bool:
        """Whether the lease was given to us."""
        return self._fence is not None

    async def try_to_take(self) -> bool:
        """Take the lease unless somebody else holds it, and say whether it is ours."""
        self._may_hold = True  # whoever is interrupted here never learns whether it was given to him
        self._fence = await self._store.lease(self._tenant, self._name, self._holder, self._seconds)
        self._may_hold = self.held
        return self.held

    async def take(self) -> None:
        """Wait, 5 seconds at most, until nobody else holds the lease, and take it."""
        waited, pause = 0.0, 0.005
        while waited < WAIT_SECONDS and not await self.try_to_take():
            await self._runner.sleep(pause)
            waited, pause = waited + pause, min(pause * 2, 0.1)

    async def renew(self) -> bool:
        """Keep the lease for another while, where it is ours; say whether it still is."""
        if self._fence is None:
            return False
        fence = await self._store.lease(self._tenant, self._name, self._holder, self._seconds, fence=self._fence)
        return fence is not None

    async def give_back(self) -> None:
        """Let the next one in, whatever was interrupted before, and even where the caller is cancelled meanwhile."""
        if self._may_hold:
            await self._runner.surely(self._given_back)

    async def _given_back(self) -> None:
        try:
            await self._store.lease(self._tenant, self._name, self._holder, 0)
        except PalimpsestError:  # the store cannot: the lease ends by itself
            self._fence, self._may_hold = None, False
            raise
        self._fence, self._may_hold = None, False
