"""The engine over sealed places: how an encrypted store is opened, and what it does about a change of keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from palimpsest.log.entry import now_us
from palimpsest.log.head import SessionKey
from palimpsest.log.spans import Span
from palimpsest.stores import Item
from palimpsest.stores.backend import Backend
from palimpsest.stores.encrypted.backend import SealedBackend
from palimpsest.stores.encrypted.batches import Layout
from palimpsest.stores.encrypted.keys import Keys
from palimpsest.stores.encrypted.mark import Markings
from palimpsest.stores.encrypted.sealing import Sealer
from palimpsest.stores.encrypted.values import Values
from palimpsest.stores.engine.forms import LAST, key_of, read_cold
from palimpsest.stores.engine.heads import where_of
from palimpsest.stores.engine.items import ITEMS, LEASES, Items
from palimpsest.stores.engine.store import Store

PAGE = 1000


class MarkedBackend:
    """A backend as its mark is kept in it: as an item, in clear."""

    def __init__(self, backend: Backend, clock: Callable[[], int]) -> None:
        self._backend, self.url, self.writable = backend, backend.url, backend.writable
        self._items = Items(backend, clock)

    async def get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        """As `Store.get_item`, from where the backend's verbs run."""
        return await self._items.get(tenant, namespace, key)

    async def put_item(self, tenant: str, namespace: str, key: str, value: bytes, *, expect: int) -> Item:
        """As `Store.put_item`. Raises Conflict."""
        return await self._items.put(tenant, namespace, key, value, None, expect)

    async def tenants(self) -> list[str]:
        """The tenants that have anything but leases."""
        found: list[str] = []
        last: str | None = None
        while page := await self._backend.tenants(after=last):
            for tenant in page:
                there = await self._backend.places(tenant, "", beneath=True, limit=PAGE)
                found += [tenant] if any(one.place.space != LEASES for one in there) else []
            last = page[-1]
        return found


class SealedEngine(Store):
    """The engine over a sealed backend. Large content stays in its place: nobody below can see that it is the same."""

    def __init__(self, backend: SealedBackend, clock: Callable[[], int] = now_us) -> None:
        super().__init__(backend, clock)
        self.sealed, self.markings = backend, backend.markings

    async def seal_anew(self, key: SessionKey) -> int:
        """Bring a session under the key that is written with; return how many of its rows were under another."""

        async def seal() -> int:
            known = await self._sessions.find(key)
            for place in (known.tree, where_of(key)):
                await self.sealed.anew.seal(place)
            return await self.sealed.anew.seal(known.place)

        return await self._run(lambda: self._surely(seal))

    async def _surely(self, seal: Callable[[], Awaitable[int]]) -> int:
        """Do this, and again where another change of keys has overtaken it."""
        changed = 0
        while True:
            own = self.markings.writing
            changed += await seal()
            await self.markings.refresh()
            if self.markings.writing == own:
                return changed

    async def seal_items_anew(self, tenant: str) -> int:
        """Bring the tenant's items under the key that is written with; return how many were under another."""

        async def seal() -> int:
            changed, last = 0, None
            while page := await self.sealed.below.places(tenant, ITEMS, beneath=True, after=last, limit=PAGE):
                changed += sum([await self.sealed.anew.seal(one.place) for one in page])
                last = page[-1].place
            return changed

        return await self._run(lambda: self._surely(seal))


async def sealed_engine(backend: Backend, mark: Item | None, keys: Keys, clock: Callable[[], int]) -> SealedEngine:
    """Return the engine over what a backend keeps under these keys; `mark` is what it says of its encryption.

    Raises WrongKey, ConfigError, StoreCorrupt, as `unlock` does.
    """
    sealer = Sealer(keys)

    async def opened() -> Markings:
        return await Markings.opened(MarkedBackend(backend, clock), keys, sealer, mark)

    markings = await backend.together(opened)
    return SealedEngine(SealedBackend(backend, Values(sealer), markings, LAYOUT), clock)


def _own(hot: bytes) -> Span:
    log = int(hot[1 : hot.index(b",")])
    return key_of(log, 0), key_of(log, LAST)


def _shared(cold: bytes) -> tuple[Span, ...]:
    return tuple((key_of(log, 0), key_of(log, last)) for last, log in read_cold(cold).shares)


LAYOUT = Layout(
    log="log",
    heads="session",
    tables=("entry", "record"),
    listed=frozenset(("record",)),
    own_tables={"tree": ("share",)},
    clear_spaces=frozenset((LEASES,)),
    clear_tables="tokens/",
    hidden_names=ITEMS,
    own=_own,
    shared=_shared,
)
"""How the engine lays out what it stores, as far as sealing goes by it."""
