"""Items: places that have nothing but a head, in namespaces, each of which is a home.

An item's hot value is what is compared, its cold value what it holds. Each namespace counts the items that came, which
tells their order whatever clocks say, and which namespaces there are. At the end are a store's verbs for side data.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from palimpsest.errors import Conflict
from palimpsest.log.codec import decoded, encoded
from palimpsest.stores.backend import Ask, Backend, Listed, Place, PlaceHead, Step
from palimpsest.stores.engine.crowds import Crowds
from palimpsest.stores.engine.forms import checked, read_as, stamped
from palimpsest.stores.engine.known import FAR
from palimpsest.stores.rules import all_places
from palimpsest.stores.values import Item, Put

if TYPE_CHECKING:
    from palimpsest.stores.engine.leases import Leases

T = TypeVar("T")

ITEMS = "item/"
ORDER = "order"
"""The space of a namespace's counter."""
TOGETHER = 256
"""Items that are removed in one step."""


class About(msgspec.Struct, frozen=True, array_like=True):
    """What is known of an item beside its value: its version, its place among the others, when it expires."""

    version: int
    order: int
    expires: int | None


class Items:
    """Items of tenants."""

    def __init__(self, backend: Backend, crowds: Crowds, clock: Callable[[], int]) -> None:
        self._backend, self._crowds, self._clock = backend, crowds, clock

    async def _heads(self, places: Sequence[Place]) -> list[PlaceHead | None]:
        return [seen.head for seen in await self._backend.look([Ask(place) for place in places])]

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
        found = map(self._live, places, await self._heads(places))
        return [None if live is None else live[1] for live in found]

    async def put(self, tenant: str, namespace: str, puts: Sequence[Put]) -> list[Item]:
        places = [place_of(tenant, namespace, put.key) for put in puts]
        counter = Place(tenant, namespace, ORDER, "")
        while True:
            heads = await self._heads([*places, counter])
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
            version = live[0].version if live is not None else 0
            if put.expect is not None and put.expect != version:
                told = f"has version {version}, not {put.expect}: read it again"
                raise Conflict(f"item {place.space.removeprefix(ITEMS)}/{put.key}", told)
            if live is None:
                number += 1
            about = About(version + 1, live[0].order if live is not None else number, put.expires)
            hot = head.hot if head is not None else None
            cells = stamped(encoded(about)), stamped(put.value)
            steps.append(Step(place, hot, *cells, expires=put.expires, destroys=put.destroys))
            items.append(Item(key=put.key, value=put.value, version=about.version, expires=put.expires))
        if number != before:
            steps.append(Step(counter, last.hot if last is not None else None, stamped(b"%d" % number)))
        return steps, items

    def _number(self, counter: Place, head: PlaceHead | None) -> int:
        if head is None:
            return 0
        what = f"how many items came to the namespace {counter.home}"
        return read_as(self._backend.url, what, lambda: int(checked(head.hot)))

    async def delete(self, tenant: str, namespace: str, key: str, expect: int | None, destroys: bool) -> bool:
        place = place_of(tenant, namespace, key)
        (head,) = await self._heads([place])
        while True:
            live = self._live(place, head)
            version = live[0].version if live is not None else 0
            if expect is not None and expect != version:
                raise Conflict(f"item {namespace}/{key}", f"has version {version}, not {expect}: read it again")
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

    async def namespaces(self, tenant: str, prefix: str) -> list[str]:
        """Those that have an item; each is counted since its first."""
        found = list[str]()
        before = Place(tenant, _before(prefix), ORDER, "") if prefix else None
        async for one in all_places(self._backend, tenant, ORDER, after=before):
            namespace = one.place.home
            if namespace.startswith(prefix):
                async for _ in self._all(tenant, namespace):
                    found.append(namespace)
                    break
            elif namespace > prefix:  # and so are all that come now
                break
        return found

    # --- taking away

    async def clear(self, tenant: str, namespace: str | None, dry_run: bool) -> dict[str, int]:
        """Remove a namespace's items, or all; what had expired counts, too."""
        found: dict[str, int] = {}
        gone: dict[str, list[Listed]] = {}
        space, beneath = (ITEMS, True) if namespace is None else (ITEMS + namespace, False)
        async for one in all_places(self._backend, tenant, space, beneath=beneath):
            name = one.place.space.removeprefix(ITEMS)
            found[name] = found.get(name, 0) + 1
            gone.setdefault(name, []).append(one)
        if not dry_run:
            for some in gone.values():
                for i in range(0, len(some), TOGETHER):
                    await self._removed(some[i : i + TOGETHER])
            if namespace is None:
                async for one in all_places(self._backend, tenant, ORDER):
                    await self._removed([one])
        return dict(sorted(found.items()))

    async def _removed(self, some: Sequence[Listed]) -> None:
        """Remove items of one namespace, whatever they hold by then."""
        places, heads = [one.place for one in some], list[PlaceHead | None](one.head for one in some)
        while True:
            there = [(place, head) for place, head in zip(places, heads, strict=True) if head is not None]
            steps = [Step(place, head.hot, destroys=True) for place, head in there]
            if not steps or await self._crowds.write(steps, self._clock()) is None:
                return
            heads = await self._heads(places)

    async def swept(self, place: Place, now: int) -> int:
        """Remove an item that has expired; how many were."""
        (head,) = await self._heads([place])
        if head is None:
            return 0
        about = self._about(place, head)
        if about.expires is None or about.expires > now:
            return 0
        refusal = await self._crowds.write([Step(place, head.hot)], self._clock())
        return int(refusal is None)


def _before(text: str) -> str:
    """A text that sorts before this one and all that begin so, with little between."""
    last = ord(text[-1])
    return f"{text[:-1]}{chr(0xD7FF if last == 0xE000 else last - 1)}{FAR}" if last else text[:-1]


def place_of(tenant: str, namespace: str, key: str) -> Place:
    """Where an item is."""
    return Place(tenant, namespace, ITEMS + namespace, key)


def _what(place: Place) -> str:
    return f"the item {place.space.removeprefix(ITEMS)}/{place.name}"


class SideData:
    """Items and leases of tenants: what `Store` has beside logs."""

    _items: Items
    _leases: Leases

    @property
    @abstractmethod
    def _seldom(self) -> Any: ...

    @abstractmethod
    async def _look(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T: ...

    @abstractmethod
    async def _run(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T: ...

    async def get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        """Return the item, or None where there is none or it has expired."""
        return await self._look(lambda: self._items.get(tenant, namespace, key))

    async def get_items(self, tenant: str, namespace: str, keys: Sequence[str]) -> list[Item | None]:
        """Return the items of several keys as they are at one moment, in the order of these; None as in `get_item`."""
        return await self._look(lambda: self._items.several(tenant, namespace, keys)) if keys else []

    async def put_item(
        self,
        tenant: str,
        namespace: str,
        key: str,
        value: bytes,
        *,
        expires: int | None = None,
        expect: int | None = None,
    ) -> Item:
        """Store the value under the key and return it with its new version.

        With `expect`, raises Conflict unless the present version is that number (0: none).
        """
        return (await self.put_items(tenant, namespace, [Put(key, value, expires, expect)]))[0]

    async def put_items(self, tenant: str, namespace: str, puts: Sequence[Put]) -> list[Item]:
        """Store several values, each under a key of its own, in one step; as `put_item` does, all or none."""
        if not puts:
            return []
        return await self._run(lambda: self._items.put(tenant, namespace, puts))

    async def delete_item(
        self, tenant: str, namespace: str, key: str, *, expect: int | None = None, destroys: bool = False
    ) -> bool:
        """Remove the item; return whether there was one.

        With `expect`, raises Conflict unless the present version is that number. `destroys` says that no byte of it may
        be left when the store has been scrubbed.
        """
        return await self._run(lambda: self._items.delete(tenant, namespace, key, expect, destroys))

    async def list_items(self, tenant: str, namespace: str, *, prefix: str = "") -> list[Item]:
        """Return the namespace's items that have not expired and whose keys begin so, in the order in which their keys
        came first."""
        return await self._look(lambda: self._items.listed(tenant, namespace, prefix))

    async def page_items(
        self, tenant: str, namespace: str, *, prefix: str = "", after: str = "", limit: int = 1000
    ) -> tuple[list[Item], str | None]:
        """Return a page of such items, by an order of the store's own that stays, and what is `after` for the next page
        (None: there is none). An item that comes meanwhile may be on no page; no other is missed."""
        return await self._look(lambda: self._items.page(tenant, namespace, prefix, after, limit))

    async def namespaces(self, tenant: str, *, prefix: str = "") -> list[str]:
        """Return the names of the tenant's namespaces that have an item and begin so, by code points."""
        return await self._look(lambda: self._items.namespaces(tenant, prefix))

    async def clear_items(self, tenant: str, namespace: str | None = None, *, dry_run: bool = False) -> dict[str, int]:
        """Remove all items of the tenant, or of one namespace, those that have expired, too, and return how many there
        were by namespace. With all of them its leases end. With `dry_run` nothing is removed.
        """
        if dry_run:
            return await self._look(lambda: self._items.clear(tenant, namespace, dry_run))
        if namespace is None:
            await self._run(lambda: self._seldom.wholes.clear(tenant))
            await self._run(lambda: self._leases.end_all(tenant))
        return await self._run(lambda: self._items.clear(tenant, namespace, dry_run))

    async def lease(
        self, tenant: str, name: str, holder: str, seconds: float, *, fence: int | None = None
    ) -> int | None:
        """Take, or with `fence` renew, the lease `name` for `seconds`; return its fence, None if another holds it.

        A fence is greater than every fence of this lease that was given out before; one of another lease may be the
        same. A lease ends by itself; until somebody takes it it can be renewed. `seconds` of 0 gives it back. Who takes
        what is his renews it: so one who never learned whether he has it may ask again, or give it back.
        """
        return await self._run(lambda: self._leases.lease(tenant, name, holder, seconds, fence))
