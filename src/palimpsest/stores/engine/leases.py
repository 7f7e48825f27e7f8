"""Leases: places that have nothing but a head.

One that was given back stays, so that its fence goes on, until the clock has passed that. No lease waits for the disk:
what a loss of power could take of it, it takes with whoever held it.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from palimpsest.log.codec import decoded, encoded
from palimpsest.stores.backend import Ask, Backend, Place, PlaceHead, Step
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.engine.forms import checked, read_as, stamped
from palimpsest.stores.rules import all_places

LEASES = "lease"
KEPT = 4096
"""Leases that are remembered at once, so that who holds one renews it, and gives it back, in one call."""


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A lease: its holder, its fence, until when."""

    holder: str
    fence: int
    until: int


class Leases:
    """Leases of tenants."""

    def __init__(self, backend: Backend, crowds: Crowds, clock: Callable[[], int]) -> None:
        self._backend, self._crowds, self._clock = backend, crowds, clock
        self._leases: dict[Place, PlaceHead] = {}
        self._fence = 0

    async def _look(self, place: Place) -> PlaceHead | None:
        (seen,) = await self._backend.look([Ask(place)])
        return seen.head

    async def lease(self, tenant: str, name: str, holder: str, seconds: float, fence: int | None) -> int | None:
        place = Place(tenant, name, LEASES, name)
        head, fresh = self._leases.get(place), False
        while True:
            now = self._clock()
            before = self._held(place, head)
            held = before if before is not None and before.until > now else None
            if (
                held is None
                and before is not None
                and before.until
                and (before.holder, before.fence) == (holder, fence)
            ):
                held = before  # it has ended by itself, and nobody has come since: it can still be renewed
            theirs = held.holder != holder if held is not None else fence is not None
            if theirs or (held is not None and fence not in (None, held.fence)):
                if fresh:
                    return None
                head, fresh = await self._look(place), True  # what was seen last may be outdated
                continue
            if held is not None:
                number = held.fence
            else:
                self._fence = number = max(before.fence + 1 if before is not None else 0, self._fence + 1, now)
            until = now + int(seconds * 1_000_000) if seconds > 0 else 0  # given back, also when the clock goes back
            lease = Held(holder, number, until)
            hot = head.hot if head is not None else None
            step = Step(place, hot, stamped(encoded(lease)), expires=max(lease.until, number + 1), fleeting=True)
            refusal = await self._crowds.write([step], now)
            if refusal is None:
                if len(self._leases) >= KEPT:
                    self._leases.clear()
                self._leases[place] = PlaceHead(step.hot or b"")
                return number
            head, fresh = refusal[0], True

    async def swept(self, place: Place) -> None:
        """End a lease that is over."""
        head = await self._look(place)
        if head is not None:
            await self.ended(place, head)

    async def end_all(self, tenant: str) -> None:
        """End the tenant's leases."""
        async for one in all_places(self._backend, tenant, LEASES):
            await self.ended(one.place, one.head)

    def _held(self, place: Place, head: PlaceHead | None) -> Held | None:
        if head is None:
            return None
        return read_as(self._backend.url, f"the lease {place.name!r}", lambda: decoded(checked(head.hot), Held))

    async def ended(self, place: Place, head: PlaceHead) -> None:
        """End a lease, which goes when nobody needs its fence to give out a greater one."""
        before, now = self._held(place, head), self._clock()
        assert before is not None, "what is listed is there"
        hot = None if before.fence < now else stamped(encoded(Held("", before.fence, 0)))
        if hot != head.hot:
            await self._crowds.write([Step(place, head.hot, hot, expires=before.fence + 1)], now)
