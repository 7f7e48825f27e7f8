"""The lease of a turn: holders of `turn()` on one session go one after the other. Advice, never a lock."""

from __future__ import annotations

from palimpsest.entries import new_ids
from palimpsest.log import SessionKey
from palimpsest.runners import Runner
from palimpsest.stores import Store

LEASE_SECONDS = 30.0
"""How long the lease lasts unless it is renewed, which every add inside the turn does."""

WAIT_SECONDS = 5.0
"""How long `take` waits for another holder before the turn goes on without the lease."""


class TurnLease:
    """A lease in the session's own store, kept by whoever runs a turn."""

    def __init__(self, store: Store, runner: Runner, key: SessionKey) -> None:
        self._store, self._runner, self._tenant = store, runner, key.tenant
        self._name = f"turn:{key.session}"
        self._holder = new_ids(1, 0)[0]
        self._fence: int | None = None

    @property
    def held(self) -> bool:
        """Whether the lease was given to us."""
        return self._fence is not None

    async def take(self) -> None:
        """Wait, 5 seconds at most, until nobody else holds the lease, and take it."""
        waited, pause = 0.0, 0.005
        while self._fence is None and waited < WAIT_SECONDS:
            self._fence = await self._store.lease(self._tenant, self._name, self._holder, LEASE_SECONDS)
            if self._fence is None:
                await self._runner.sleep(pause)
                waited, pause = waited + pause, min(pause * 2, 0.1)

    async def renew(self) -> None:
        """Keep the lease for another while, where it is ours."""
        if self._fence is not None:
            await self._store.lease(self._tenant, self._name, self._holder, LEASE_SECONDS, fence=self._fence)

    async def give_back(self) -> None:
        """Let the next one in."""
        if self._fence is not None:
            await self._store.lease(self._tenant, self._name, self._holder, 0, fence=self._fence)
            self._fence = None
