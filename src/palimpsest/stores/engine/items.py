"""Items and leases: places that have nothing but a head.

Each namespace of items is a home. An item's hot value is what is compared, its cold value the content. Each namespace
numbers its items as they come: this tells their order whatever clocks say, and which namespaces exist. The numbers
begin at a time, so that clearing a namespace, which drops its last number, brings no number back.

A lease ends by the clock. The clock of whoever gave it may have been ahead, or been set back since: so a lease that
does not change for its whole length, while somebody waits for it, is over as well. A lease that was given back is kept
until the clock has passed its fence, so that fences go on rising; one that ended by itself is kept for a day. No lease
waits for the disk: a power loss that takes the lease takes its holder, too.
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
"""Items removed in one step."""

LEASES = "lease"
LATE = 86_400_000_000
"""Microseconds for which a lease that ended by itself is kept: its holder can renew it if nobody has taken it."""
KEPT = 4096
"""Leases kept in memory at once, so that a holder renews its lease, or gives it back, with one call."""


class About(msgspec.Struct, frozen=True, array_like=True):
    """What is stored of an item beside its value: its version, its rank among the items, when it expires."""

    version: int
    order: int
    expires: int | None


ready(About)


class Items:
    """The items of tenants."""

    def __init__(self, backend: Backend, crowds: Crowds, clock: Callable[[], int]) -> None:
        self._backend, self._crowds, self._clock = backend, crowds, clock

    def _about(self, place: Place, head: PlaceHead) -> About:
        return read_as(self._backend.url, _describe(place), lambda: decoded(checked(head.hot), About))

    def _live(self, place: Place, head: PlaceHead | None) -> tuple[About, Item] | None:
        """Return an item that exists and has not expired."""
        if head is None:
            return None
        about = self._about(place, head)
        if about.expires is not None and about.expires <= self._clock():
            return None
        value = read_as(self._backend.url, _describe(place), lambda: checked(head.cold))
        return about, Item(key=place.name, value=value, version=about.version, expires=about.expires)

    async def get(self, tenant: str, namespace: str, key: str) -> Item | None:
        return (await self.several(tenant, namespace, [key]))[0]

    async def several(self, tenant: str, namespace: str, keys: Sequence[str]) -> list[Item | None]:
        places = [place_of(tenant, namespace, key) for key in keys]
        live_items = map(self._live, places, await heads_at(self._backend, places))
        return [None if live is None else live[1] for live in live_items]

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
        """Return the steps that store these values, and the resulting items. Raises Conflict."""
        counter_head, steps, items = heads[-1], list[Step](), list[Item]()
        last_number = stored_number = self._number(counter, counter_head)
        for place, head, put in zip(places, heads, puts, strict=False):
            live = self._live(place, head)
            version = _checked_version(place, live, put.expect)
            last_number += live is None
            about = About(version + 1, live[0].order if live is not None else last_number, put.expires)
            cells = stamped(encoded(about)), stamped(put.value)
            due_at = None if put.expires is None else due(put.expires)
            destroys = put.destroys or (live is None and head is not None)  # one that has expired: a sweep was to do it
            steps.append(Step(place, expect_of(head), *cells, expires=due_at, destroys=destroys))
            items.append(Item(key=put.key, value=put.value, version=about.version, expires=put.expires))
        if last_number != stored_number:
            steps.append(Step(counter, expect_of(counter_head), stamped(b"%d" % last_number)))
        return steps, items

    def _number(self, counter: Place, head: PlaceHead | None) -> int:
        """Return the last number that was given to an item of the namespace; the time, if none was."""
        if head is None:
            return self._clock()
        what = f"the counter of items of the namespace {counter.home}"
        return read_as(self._backend.url, what, lambda: int(checked(head.hot)))

    async def delete(self, tenant: str, namespace: str, key: str, expect: int | None, destroys: bool) -> bool:
        place = place_of(tenant, namespace, key)
        (head,) = await heads_at(self._backend, [place])
        while True:
            live = self._live(place, head)
            _checked_version(place, live, expect)
            if head is None or live is None:
                return False
            refusal = await self._crowds.write([Step(place, head.hot, destroys=destroys)], self._clock())
            if refusal is None:
                return True
            head = refusal[0]

    # --- listing

    async def _all(self, tenant: str, namespace: str, after: Place | None = None) -> AsyncIterator[tuple[About, Item]]:
        """Yield the unexpired items of a namespace in the store's order of places."""
        async for listed in all_places(self._backend, tenant, ITEMS + namespace, after=after):
            if (live := self._live(listed.place, listed.head)) is not None:
                yield live

    async def listed(self, tenant: str, namespace: str, prefix: str) -> list[Item]:
        """Return the items whose keys begin with `prefix`, in the order in which their keys were first put."""
        matching = [live async for live in self._all(tenant, namespace) if live[1].key.startswith(prefix)]
        return [item for _, item in sorted(matching, key=lambda live: live[0].order)]

    async def page(
        self, tenant: str, namespace: str, prefix: str, after: str, limit: int
    ) -> tuple[list[Item], str | None]:
        items = list[Item]()
        after_place = place_of(tenant, namespace, after) if after else None
        async for _, item in self._all(tenant, namespace, after_place):
            if item.key.startswith(prefix):
                if len(items) == limit:
                    return items, items[-1].key
                items.append(item)
        return items, None

    async def namespaces(self, tenant: str, prefix: str, *, emptied: bool) -> list[str]:
        """Return the namespaces that have a counter; without `emptied` only those that have an item."""
        names = list[str]()
        before_first = Place(tenant, before_all(prefix), ORDER, "") if prefix else None
        async for listed in all_places(self._backend, tenant, ORDER, after=before_first):
            namespace = listed.place.home
            if namespace.startswith(prefix):
                if emptied or await self._has_any(tenant, namespace):
                    names.append(namespace)
            elif namespace > prefix:  # and so is every later one
                break
        return names

    async def _has_any(self, tenant: str, namespace: str) -> bool:
        """Return whether a namespace has an item. An unreadable one counts: whoever asks for it gets the error."""
        try:
            async for _ in self._all(tenant, namespace):
                return True
        except StoreCorrupt:
            return True
        return False

    # --- taking away

    async def clear(self, tenant: str, namespace: str | None, dry_run: bool) -> dict[str, int]:
        """Remove a namespace's items, or all; return how many by namespace. StoreCorrupt for damage comes last."""
        counts: dict[str, int] = {}
        listed_by_name: dict[str, list[Listed]] = {}
        counters = [] if dry_run else await self._counters(tenant, namespace)
        space, beneath = (ITEMS, True) if namespace is None else (ITEMS + namespace, False)
        async for one in all_places(self._backend, tenant, space, beneath=beneath):
            name = one.place.space.removeprefix(ITEMS)
            counts[name] = counts.get(name, 0) + 1
            listed_by_name.setdefault(name, []).append(one)
        damaged: dict[str, StoreCorrupt] = {}
        for name, listed in listed_by_name.items():
            for i in range(0, 0 if dry_run else len(listed), TOGETHER):
                try:
                    await self._remove_all(listed[i : i + TOGETHER])
                except StoreCorrupt as fault:
                    damaged[name] = fault
        for counter, head in counters:
            if counter.home not in damaged:  # refused, and so kept, if an item was added meanwhile
                await self._crowds.write([Step(counter, head.hot, destroys=True)], self._clock())
        if damaged:
            raise next(iter(damaged.values()))
        return dict(sorted(counts.items()))

    async def _counters(self, tenant: str, namespace: str | None) -> list[tuple[Place, PlaceHead]]:
        """Return the counter of a namespace, or of all, with its head, if it exists."""
        if namespace is None:
            return [(one.place, one.head) async for one in all_places(self._backend, tenant, ORDER)]
        (head,) = await heads_at(self._backend, [counter := Place(tenant, namespace, ORDER, "")])
        return [] if head is None else [(counter, head)]

    async def _remove_all(self, listed: Sequence[Listed]) -> None:
        """Remove items of one namespace, whatever they contain by now."""
        places, heads = [one.place for one in listed], list[PlaceHead | None](one.head for one in listed)
        while True:
            present = [(place, head) for place, head in zip(places, heads, strict=True) if head is not None]
            steps = [Step(place, head.hot, destroys=True) for place, head in present]
            if not steps or await self._crowds.write(steps, self._clock()) is None:
                return
            heads = await heads_at(self._backend, places)

    async def sweep(self, place: Place, now: int) -> int:
        """Remove an item if it has expired; return how many were removed."""
        (head,) = await heads_at(self._backend, [place])
        if head is None:
            return 0
        about = self._about(place, head)
        if about.expires is None or about.expires > now:
            return 0
        return int(await self._crowds.write([Step(place, head.hot, destroys=True)], self._clock()) is None)


def place_of(tenant: str, namespace: str, key: str) -> Place:
    """Return the place of an item."""
    return Place(tenant, namespace, ITEMS + namespace, key)


def _checked_version(place: Place, live: tuple[About, Item] | None, expect: int | None) -> int:
    """Return the version of an item (0: none). Raises Conflict if `expect` is another (None: any)."""
    version = live[0].version if live is not None else 0
    if expect is not None and expect != version:
        raise Conflict(_describe(place).removeprefix("the "), f"has version {version}, not {expect}: read it again")
    return version


def _describe(place: Place) -> str:
    return f"the item {place.space.removeprefix(ITEMS)}/{place.name}"


# --- leases


class Held(msgspec.Struct, frozen=True, array_like=True):
    """A lease: its holder, its fence, until when it holds, and for how many microseconds it was given."""

    holder: str
    fence: int
    until: int
    length: int


ready(Held)


class Leases:
    """The leases of tenants."""

    def __init__(self, backend: Backend, crowds: Crowds, clock: Callable[[], int]) -> None:
        self._backend, self._crowds, self._clock = backend, crowds, clock
        self._leases, self._fence = dict[Place, PlaceHead](), 0
        self._waited: dict[Place, tuple[Held, float]] = {}

    async def lease(self, tenant: str, name: str, holder: str, seconds: float, fence: int | None) -> int | None:
        """Take, renew or give back a lease, as `Opened.lease` says."""
        place = Place(tenant, name, LEASES, name)
        head, fresh = self._leases.get(place), False
        while True:
            now = self._clock()
            stored = self._held(place, head)
            # A lease that ended by itself can still be renewed until somebody takes it; one that was given back cannot.
            renewable = stored is not None and stored.until and (stored.holder, stored.fence) == (holder, fence)
            current = stored if stored is not None and (stored.until > now or renewable) else None
            if current is not None:
                of_another, bars = current.holder != holder, False
            else:  # nobody holds it: it cannot be renewed, and only its last holder may give it back
                own = stored if stored is not None and stored.holder == holder else None
                of_another = fence is not None or (seconds <= 0 and not (own and own.until))
                bars = of_another and fence is None and own is None
            if not bars and (of_another or (current is not None and fence not in (None, current.fence))):
                if not fresh:
                    (head,), fresh = await heads_at(self._backend, [place]), True  # the cached one may be outdated
                    continue
                if current is None or fence is not None or seconds <= 0 or not self._was_abandoned(place, current):
                    return None
                current = None
            if current is not None:
                new_fence = current.fence
            else:
                self._fence = new_fence = max(stored.fence + 1 if stored is not None else 0, self._fence + 1, now)
            length = int(seconds * 1_000_000)
            lease = Held(holder, new_fence, now + length if seconds > 0 else 0, length)  # 0: even if clocks go back
            if bars:  # change what a request of this holder that is still on its way compares, and nothing else
                lease = lease if stored is None else msgspec.structs.replace(stored, length=stored.length + 1)
            kept_until = max(lease.until + LATE if lease.until else 0, lease.fence + 1)
            step = Step(place, expect_of(head), stamped(encoded(lease)), expires=kept_until, fleeting=True)
            refusal = await self._crowds.write([step], now)
            if refusal is None:
                if len(self._leases) >= KEPT:
                    self._leases.clear()
                self._leases[place] = PlaceHead(step.hot or b"")
                return None if bars else new_fence
            head, fresh = refusal[0], True

    def _was_abandoned(self, place: Place, held: Held) -> bool:
        """Return whether this process has seen another's lease unchanged for the lease's whole length."""
        now, seen = monotonic(), self._waited.get(place)
        if seen is None or seen[0] != held:
            if len(self._waited) >= KEPT:
                self._waited.clear()
            self._waited[place] = held, now
            return False
        return now >= seen[1] + held.length / 1_000_000

    async def sweep(self, place: Place) -> None:
        """Remove a lease that is over, unless somebody has taken or renewed it meanwhile."""
        (head,) = await heads_at(self._backend, [place])
        held = self._held(place, head)
        if head is not None and held is not None and held.until + LATE <= self._clock():
            await self.end(place, head)

    async def end_all(self, tenant: str) -> None:
        """End all leases of the tenant."""
        async for listed in all_places(self._backend, tenant, LEASES):
            await self.end(listed.place, listed.head)

    def _held(self, place: Place, head: PlaceHead | None) -> Held | None:
        """Decode a lease. An unreadable one counts as over: its holder is refused when it renews."""
        if head is None:
            return None
        try:
            return read_as(self._backend.url, f"the lease {place.name!r}", lambda: decoded(checked(head.hot), Held))
        except StoreCorrupt as fault:
            warn("%s", f"{fault}; a new lease takes its place")
            return Held("", 0, 0, 0)

    async def end(self, place: Place, head: PlaceHead) -> None:
        """End a lease. It is kept as long as its fence is needed to give out a greater one."""
        before, now = self._held(place, head), self._clock()
        assert before is not None, "what is listed is there"
        hot = None if before.fence < now else stamped(encoded(Held("", before.fence, 0, 0)))
        if hot != head.hot:
            await self._crowds.write([Step(place, head.hot, hot, expires=before.fence + 1)], now)
