"""Items and leases: places that have nothing but a head.

An item's hot value is what is compared, its cold value what it holds. Each namespace counts the items that came, which
tells their order whatever clocks say. A lease that was given back stays, so that its fence goes on, until the clock has
passed that. No lease waits for the disk: what a loss of power could take of it, it takes with whoever held it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.codec import decoded, encoded
from palimpsest.stores.backend import Ask, Backend, Listed, Place, PlaceHead, Step
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.engine.forms import checked, stamped
from palimpsest.stores.rules import all_places
from palimpsest.stores.values import Item

T = TypeVar("T")

ITEMS = "item/"
LEASES = "lease"
ORDER = "order"
"""The space of a namespace's counter."""
KEPT = 4096
"""Leases that are remembered at once, so that who holds one renews it, and gives it back, in one call."""


class About(msgspec.Struct, frozen=True, array_like=True):
    """What is known of an item beside its value: its version, its place among the others, when it expires."""

    version: int
    order: int
    expires: int | None


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A lease: its holder, its fence, until when."""

    holder: str
    fence: int
    until: int


class Items:
    """Items and leases of tenants."""

    def __init__(self, backend: Backend, crowds: Crowds, clock: Callable[[], int]) -> None:
        self._backend, self._crowds, self._url, self._clock = backend, crowds, backend.url, clock
        self._leases: dict[Place, PlaceHead] = {}
        self._fence = 0

    # --- items

    async def _look(self, place: Place) -> PlaceHead | None:
        (seen,) = await self._backend.look([Ask(place)])
        return seen.head

    def _read(self, what: str, read: Callable[[bytes], T], value: bytes) -> T:
        """What a value says, which is that of `what`. Raises StoreCorrupt."""
        try:
            return read(checked(value))
        except ValueError as cause:
            raise StoreCorrupt(self._url, f"{what} cannot be read ({cause})") from cause

    def _about(self, place: Place, head: PlaceHead) -> About:
        return self._read(_what(place), lambda body: decoded(body, About), head.hot)

    def _live(self, place: Place, head: PlaceHead | None) -> tuple[About, Item] | None:
        """An item that is there and has not expired."""
        if head is None:
            return None
        about = self._about(place, head)
        if about.expires is not None and about.expires <= self._clock():
            return None
        value = self._read(_what(place), bytes, head.cold)
        return about, Item(key=place.name, value=value, version=about.version, expires=about.expires)

    async def get(self, tenant: str, namespace: str, key: str) -> Item | None:
        place = place_of(tenant, namespace, key)
        live = self._live(place, await self._look(place))
        return None if live is None else live[1]

    async def put(
        self, tenant: str, namespace: str, key: str, value: bytes, expires: int | None, expect: int | None
    ) -> Item:
        place, counter = place_of(tenant, namespace, key), Place(tenant, namespace, ORDER, "")
        seen, counted = await self._backend.look([Ask(place), Ask(counter)])
        head, last = seen.head, counted.head
        while True:
            live = self._live(place, head)
            version = live[0].version if live is not None else 0
            if expect is not None and expect != version:
                raise Conflict(f"item {namespace}/{key}", f"has version {version}, not {expect}: read it again")
            at = self._clock()
            order = live[0].order if live is not None else self._number(counter, last) + 1
            about = About(version + 1, order, expires)
            hot = head.hot if head is not None else None
            steps = [Step(place, hot, stamped(encoded(about)), stamped(value), expires)]
            if live is None:
                steps.append(Step(counter, last.hot if last is not None else None, stamped(b"%d" % order)))
            refusal = await self._crowds.write(steps, at)
            if refusal is None:
                return Item(key=key, value=value, version=about.version, expires=expires)
            head, last = refusal[0], refusal[1] if live is None else last

    def _number(self, counter: Place, head: PlaceHead | None) -> int:
        return self._read(f"how many items came to the namespace {counter.home}", int, head.hot) if head else 0

    async def delete(self, tenant: str, namespace: str, key: str) -> bool:
        place = place_of(tenant, namespace, key)
        head = await self._look(place)
        while head is not None and self._live(place, head) is not None:
            refusal = await self._crowds.write([Step(place, head.hot)], self._clock())
            if refusal is None:
                return True
            head = refusal[0]
        return False

    async def listed(self, tenant: str, namespace: str) -> list[Item]:
        found = []
        async for one in all_places(self._backend, tenant, ITEMS + namespace):
            live = self._live(one.place, one.head)
            if live is not None:
                found.append((live[0].order, live[1]))
        return [item for _, item in sorted(found, key=lambda one: one[0])]

    async def clear(self, tenant: str, dry_run: bool) -> dict[str, int]:
        found: dict[str, int] = {}
        gone: list[Listed] = []
        async for one in all_places(self._backend, tenant, ITEMS, beneath=True):
            namespace = one.place.space.removeprefix(ITEMS)
            found[namespace] = found.get(namespace, 0) + 1
            gone.append(one)
        if not dry_run:
            for one in gone:
                await self.removed(one.place, one.head)
            async for one in all_places(self._backend, tenant, ORDER):
                await self.removed(one.place, one.head)
            async for one in all_places(self._backend, tenant, LEASES):
                await self._ended(one.place, one.head)
        return dict(sorted(found.items()))

    async def removed(self, place: Place, head: PlaceHead | None) -> bool:
        """Remove an item, whatever it holds by then; whether there was one."""
        while head is not None:
            refusal = await self._crowds.write([Step(place, head.hot, destroys=True)], self._clock())
            if refusal is None:
                return True
            head = refusal[0]
        return False

    async def swept(self, place: Place, now: int) -> int:
        """Remove an item or lease that has expired; how many items were."""
        head = await self._look(place)
        if head is None:
            return 0
        if place.space == LEASES:
            await self._ended(place, head)
            return 0
        about = self._about(place, head)
        if about.expires is None or about.expires > now:
            return 0
        refusal = await self._crowds.write([Step(place, head.hot)], self._clock())
        return int(refusal is None)

    # --- leases

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

    def _held(self, place: Place, head: PlaceHead | None) -> Held | None:
        return self._read(f"the lease {place.name!r}", lambda body: decoded(body, Held), head.hot) if head else None

    async def _ended(self, place: Place, head: PlaceHead) -> None:
        """End a lease, which goes when nobody needs its fence to give out a greater one."""
        before, now = self._held(place, head), self._clock()
        assert before is not None, "what is listed is there"
        hot = None if before.fence < now else stamped(encoded(Held("", before.fence, 0)))
        if hot != head.hot:
            await self._crowds.write([Step(place, head.hot, hot, expires=before.fence + 1)], now)


def place_of(tenant: str, namespace: str, key: str) -> Place:
    """Where an item is."""
    return Place(tenant, namespace, ITEMS + namespace, key)


def _what(place: Place) -> str:
    return f"the item {place.space.removeprefix(ITEMS)}/{place.name}"
