"""Items and leases: places that have nothing but a head.

Each namespace of items is a home. An item's hot value is what is compared, its cold value what it holds. Each namespace
numbers the items that come, which tells their order whatever clocks say, and which namespaces there are. It begins at a
time, so that no number comes again when it was cleared, which takes the last number, too.

A lease that was given back stays, so that its fence goes on, until the clock has passed that; one that has ended by
itself stays for a day. No lease waits for the disk: what a loss of power could take of it, it takes with whoever held
it.

A lease ends by the clock. Who gave it may have had one that is ahead, or was set back since: so one that stays as it is
for its whole length, while somebody waits for it, is over as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from time import monotonic

import msgspec

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.log.codec import decoded, encoded, ready
from palimpsest.runtime.logs import warn
from palimpsest.stores.backend import Backend, Listed, Place, PlaceHead, Step
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.engine.forms import checked, due, read_as, stamped
from palimpsest.stores.engine.known import before_all
from palimpsest.stores.rules import all_places, expect_of, heads_at
from palimpsest.stores.values import Item, Put

ITEMS = "item/"
ORDER = "order"
"""The space of a namespace's counter."""
TOGETHER = 256
"""Items that are removed in one step."""

LEASES = "lease"
LATE = 86_400_000_000
"""For how many microseconds a lease stays that has ended by itself: who held it can renew it where nobody has come."""
KEPT = 4096
"""Leases that are remembered at once, so that who holds one renews it, and gives it back, in one call."""


class About(msgspec.Struct, frozen=True, array_like=True):
    """What is known of an item beside its value: its version, its place among the others, when it expires."""

    version: int
    order: int
    expires: int | None


ready(About)


class Items:
    """Items of tenants."""

    def __init__(self, backend: Backend, crowds: Crowds, clock: Callable[[], int]) -> None:
        self._backend, self._crowds, self._clock = backend, crowds, clock

    def _about(self, place: Place, head: PlaceHead) -> About:
        return read_as(self._backend.url, _what(place), lambda: decoded(checked(head.hot), About))

    def _live(self, place: Place, head: PlaceHead | None) -> tuple[About, Item] | None:
        """An item that is there and has not expired."""
        if head is None:
            return None
        about = self._about(place, head)
        if about.expires is not None and about.expires <= self._clock():
            return None
        value = read_as(self._backend.url, _what(place), lambda: checked(head.cold))
        return about, Item(key=place.name, value=value, version=about.version, expires=about.expires)

    async def get(self, tenant: str, namespace: str, key: str) -> Item | None:
        return (await self.several(tenant, namespace, [key]))[0]

    async def several(self, tenant: str, namespace: str, keys: Sequence[str]) -> list[Item | None]:
        places = [place_of(tenant, namespace, key) for key in keys]
        found = map(self._live, places, await heads_at(self._backend, places))
        return [None if live is None else live[1] for live in found]

    async def put(self, tenant: str, namespace: str, puts: Sequence[Put]) -> list[Item]:
        places = [place_of(tenant, namespace, put.key) for put in puts]
        counter = Place(tenant, namespace, ORDER, "")
        while True:
            heads = await heads_at(self._backend, [*places, counter])
            steps, items = self._steps(places, heads, puts, counter)
            if await self._crowds.write(steps, self._clock()) is None:
                return items

    def _steps(
        self, places: Sequence[Place], heads: Sequence[PlaceHead | None], puts: Sequence[Put], counter: Place
    ) -> tuple[list[Step], list[Item]]:
        """What stores these values, and the items that it makes. Raises Conflict."""
        last, steps, items = heads[-1], list[Step](), list[Item]()
        number = before = self._number(counter, last)
        for place, head, put in zip(places, heads, puts, strict=False):
            live = self._live(place, head)
            version = _version(place, live, put.expect)
            if live is None:
                number += 1
            about = About(version + 1, live[0].order if live is not None else number, put.expires)
            cells = stamped(encoded(about)), stamped(put.value)
            ends = None if put.expires is None else due(put.expires)
            steps.append(Step(place, expect_of(head), *cells, expires=ends, destroys=put.destroys))
            items.append(Item(key=put.key, value=put.value, version=about.version, expires=put.expires))
        if number != before:
            steps.append(Step(counter, expect_of(last), stamped(b"%d" % number)))
        return steps, items

    def _number(self, counter: Place, head: PlaceHead | None) -> int:
        if head is None:
            return self._clock()
        what = f"the number of the last item that came to the namespace {counter.home}"
        return read_as(self._backend.url, what, lambda: int(checked(head.hot)))

    async def delete(self, tenant: str, namespace: str, key: str, expect: int | None, destroys: bool) -> bool:
        place = place_of(tenant, namespace, key)
        (head,) = await heads_at(self._backend, [place])
        while True:
            live = self._live(place, head)
            _version(place, live, expect)
            if head is None or live is None:
                return False
            refusal = await self._crowds.write([Step(place, head.hot, destroys=destroys)], self._clock())
            if refusal is None:
                return True
            head = refusal[0]

    # --- listing

    async def _all(self, tenant: str, namespace: str, after: Place | None = None) -> AsyncIterator[tuple[About, Item]]:
        """Items in the store's order of places."""
        async for one in all_places(self._backend, tenant, ITEMS + namespace, after=after):
            if (live := self._live(one.place, one.head)) is not None:
                yield live

    async def listed(self, tenant: str, namespace: str, prefix: str) -> list[Item]:
        found = [live async for live in self._all(tenant, namespace) if live[1].key.startswith(prefix)]
        return [item for _, item in sorted(found, key=lambda live: live[0].order)]

    async def page(
        self, tenant: str, namespace: str, prefix: str, after: str, limit: int
    ) -> tuple[list[Item], str | None]:
        found = list[Item]()
        behind = place_of(tenant, namespace, after) if after else None
        async for _, item in self._all(tenant, namespace, behind):
            if item.key.startswith(prefix):
                if len(found) == limit:
                    return found, found[-1].key
                found.append(item)
        return found, None

    async def namespaces(self, tenant: str, prefix: str, *, emptied: bool) -> list[str]:
        """Those that have an item; each is counted since its first."""
        found = list[str]()
        before = Place(tenant, before_all(prefix), ORDER, "") if prefix else None
        async for one in all_places(self._backend, tenant, ORDER, after=before):
            namespace = one.place.home
            if namespace.startswith(prefix):
                if emptied or await self._has_any(tenant, namespace):
                    found.append(namespace)
            elif namespace > prefix:  # and so are all that come now
                break
        return found

    async def _has_any(self, tenant: str, namespace: str) -> bool:
        """Whether a namespace has an item, be it one that cannot be read, of which whoever asks for it is told."""
        try:
            async for _ in self._all(tenant, namespace):
                return True
        except StoreCorrupt:
            return True
        return False

    # --- taking away

    async def clear(self, tenant: str, namespace: str | None, dry_run: bool) -> dict[str, int]:
        """Remove a namespace's items, or all; what had expired counts, too. Then StoreCorrupt is for what is left."""
        found: dict[str, int] = {}
        gone: dict[str, list[Listed]] = {}
        counters = [] if dry_run else await self._counters(tenant, namespace)
        space, beneath = (ITEMS, True) if namespace is None else (ITEMS + namespace, False)
        async for one in all_places(self._backend, tenant, space, beneath=beneath):
            name = one.place.space.removeprefix(ITEMS)
            found[name] = found.get(name, 0) + 1
            gone.setdefault(name, []).append(one)
        damaged: dict[str, StoreCorrupt] = {}
        for name, some in gone.items():
            for i in range(0, 0 if dry_run else len(some), TOGETHER):
                try:
                    await self._removed(some[i : i + TOGETHER])
                except StoreCorrupt as fault:
                    damaged[name] = fault
        for counter, head in counters:
            if counter.home not in damaged:  # where an item has come since, it stays as it is then
                await self._crowds.write([Step(counter, head.hot, destroys=True)], self._clock())
        if damaged:
            raise next(iter(damaged.values()))
        return dict(sorted(found.items()))

    async def _counters(self, tenant: str, namespace: str | None) -> list[tuple[Place, PlaceHead]]:
        """The counter of a namespace, or of all, where there is one."""
        if namespace is None:
            return [(one.place, one.head) async for one in all_places(self._backend, tenant, ORDER)]
        (head,) = await heads_at(self._backend, [counter := Place(tenant, namespace, ORDER, "")])
        return [] if head is None else [(counter, head)]

    async def _removed(self, some: Sequence[Listed]) -> None:
        """Remove items of one namespace, whatever they hold by then."""
        places, heads = [one.place for one in some], list[PlaceHead | None](one.head for one in some)
        while True:
            there = [(place, head) for place, head in zip(places, heads, strict=True) if head is not None]
            steps = [Step(place, head.hot, destroys=True) for place, head in there]
            if not steps or await self._crowds.write(steps, self._clock()) is None:
                return
            heads = await heads_at(self._backend, places)

    async def swept(self, place: Place, now: int) -> int:
        """Remove an item that has expired; how many were."""
        (head,) = await heads_at(self._backend, [place])
        if head is None:
            return 0
        about = self._about(place, head)
        if about.expires is None or about.expires > now:
            return 0
        refusal = await self._crowds.write([Step(place, head.hot)], self._clock())
        return int(refusal is None)


def place_of(tenant: str, namespace: str, key: str) -> Place:
    """Where an item is."""
    return Place(tenant, namespace, ITEMS + namespace, key)


def _version(place: Place, live: tuple[About, Item] | None, expect: int | None) -> int:
    """The version of an item; 0: there is none. Raises Conflict where another is expected (None: any)."""
    version = live[0].version if live is not None else 0
    if expect is not None and expect != version:
        raise Conflict(_what(place).removeprefix("the "), f"has version {version}, not {expect}: read it again")
    return version


def _what(place: Place) -> str:
    return f"the item {place.space.removeprefix(ITEMS)}/{place.name}"


# --- leases


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A lease: its holder, its fence, until when, and for how many microseconds it was given."""

    holder: str
    fence: int
    until: int
    length: int


ready(Held)


class Leases:
    """Leases of tenants."""

    def __init__(self, backend: Backend, crowds: Crowds, clock: Callable[[], int]) -> None:
        self._backend, self._crowds, self._clock = backend, crowds, clock
        self._leases: dict[Place, PlaceHead] = {}
        self._waited: dict[Place, tuple[Held, float]] = {}
        self._fence = 0

    async def lease(self, tenant: str, name: str, holder: str, seconds: float, fence: int | None) -> int | None:
        place = Place(tenant, name, LEASES, name)
        head, fresh = self._leases.get(place), False
        while True:
            now = self._clock()
            before = self._held(place, head)
            # One that has ended by itself can still be renewed, while nobody has come since; one given back cannot.
            mine = before is not None and before.until and (before.holder, before.fence) == (holder, fence)
            held = before if before is not None and (before.until > now or mine) else None
            if held is not None:
                theirs = held.holder != holder
            else:  # nobody has it: there is nothing to renew, nor to give back by who was not the last to have it
                was_his = before is not None and before.until and before.holder == holder
                theirs = fence is not None or (seconds <= 0 and not was_his)
            if theirs or (held is not None and fence not in (None, held.fence)):
                if not fresh:
                    (head,), fresh = await heads_at(self._backend, [place]), True  # what was seen may be outdated
                    continue
                if held is None or fence is not None or seconds <= 0 or not self._was_left(place, held):
                    return None
                held = None
            if held is not None:
                number = held.fence
            else:
                self._fence = number = max(before.fence + 1 if before is not None else 0, self._fence + 1, now)
            length = int(seconds * 1_000_000)
            until = now + length if seconds > 0 else 0  # given back, also when the clock goes back
            lease = Held(holder, number, until, length)
            ends = max(until + LATE if until else 0, number + 1)
            step = Step(place, expect_of(head), stamped(encoded(lease)), expires=ends, fleeting=True)
            refusal = await self._crowds.write([step], now)
            if refusal is None:
                if len(self._leases) >= KEPT:
                    self._leases.clear()
                self._leases[place] = PlaceHead(step.hot or b"")
                return number
            head, fresh = refusal[0], True

    def _was_left(self, place: Place, held: Held) -> bool:
        """Whether another's lease has been as it is for its whole length, since it was first asked for here."""
        now = monotonic()
        seen = self._waited.get(place)
        if seen is None or seen[0] != held:
            if len(self._waited) >= KEPT:
                self._waited.clear()
            self._waited[place] = held, now
            return False
        return now >= seen[1] + held.length / 1_000_000

    async def swept(self, place: Place) -> None:
        """End a lease that is over, unless somebody has taken or renewed it since it was found to be."""
        (head,) = await heads_at(self._backend, [place])
        held = self._held(place, head)
        if head is not None and held is not None and held.until + LATE <= self._clock():
            await self.ended(place, head)

    async def end_all(self, tenant: str) -> None:
        """End the tenant's leases."""
        async for one in all_places(self._backend, tenant, LEASES):
            await self.ended(one.place, one.head)

    def _held(self, place: Place, head: PlaceHead | None) -> Held | None:
        """Who has a lease, or had it. One that cannot be read is over: who has it is refused when he renews it."""
        if head is None:
            return None
        try:
            return read_as(self._backend.url, f"the lease {place.name!r}", lambda: decoded(checked(head.hot), Held))
        except StoreCorrupt as fault:
            warn("%s", f"{fault}: it begins anew")
            return Held("", 0, 0, 0)

    async def ended(self, place: Place, head: PlaceHead) -> None:
        """End a lease, which goes when nobody needs its fence to give out a greater one."""
        before, now = self._held(place, head), self._clock()
        assert before is not None, "what is listed is there"
        hot = None if before.fence < now else stamped(encoded(Held("", before.fence, 0, 0)))
        if hot != head.hot:
            await self._crowds.write([Step(place, head.hot, hot, expires=before.fence + 1)], now)
