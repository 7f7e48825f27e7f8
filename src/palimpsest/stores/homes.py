"""Whose the homes of a store are, and which of them go along when what a tenant has is taken into another store.

Beside the tenants that users name there are some of ours, which no user can name: they begin with U+0001 and a word
that says what they keep. Whose that is stands behind it (U+0001 knowledge U+0001 acme), or in the name of the home. A
tenant of ours that has still more behind that holds logs, and the others hold lists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from palimpsest.errors import StoreCorrupt
from palimpsest.stores import MARK
from palimpsest.stores.backend import LAST_KEY, Backend, Place, PlaceHead
from palimpsest.stores.derivers import INDEX
from palimpsest.stores.derivers import OWNER as DERIVERS
from palimpsest.stores.engine.forms import DAMAGED, checked, read_cold, read_hot
from palimpsest.stores.engine.items import ITEMS, LEASES
from palimpsest.stores.engine.known import BARRED, LAID
from palimpsest.stores.rules import PAGE, all_places, all_tenants

BESIDE = "\x01"
"""What our own tenants begin with, and what stands between the parts of such names."""

PASSING = (LEASES, BARRED)
"""Spaces of what is under way, and says nothing about rows."""

WORKERS = "\x01worker"
"""The tenant of ours whose items say how far workers have come with sessions, and which they have in hand."""

OURS = (MARK[0], WORKERS)
"""Tenants of ours that are about this store alone."""

Home = tuple[str, str]
"""A tenant, and the name of one of its homes."""

Listing = dict[Place, int | None]
"""The places of a home, each with when it expires, if it does."""


def is_users(tenant: str) -> bool:
    """Whether a tenant is one that users name."""
    return not tenant.startswith(BESIDE)


def is_list(home: Home) -> bool:
    """Whether it is a list of ours: what two stores have in such a home stands side by side in one."""
    return not is_users(home[0]) and home[0].count(BESIDE) < 3


def owner_of(home: Home) -> str:
    """Return the tenant, as users name it, whose a home is."""
    tenant, name = home
    first, *more = (tenant if is_users(tenant) or tenant.count(BESIDE) > 1 else name).split(BESIDE)
    return more[1] if not first and len(more) > 1 else first


async def tenants_of(backend: Backend) -> list[str]:
    """Return the tenants, as users name them, of whom a store has sessions, items or knowledge bases."""
    found = [owner_of((tenant, "")) async for tenant in all_tenants(backend) if tenant not in (*OURS, DERIVERS)]
    return list(dict.fromkeys(found))


async def homes_of(backend: Backend, owners: Collection[str]) -> dict[Home, list[Place]]:
    """Return the homes that are these tenants', each with its places that have a head.

    What is under way is left out, but for what says that rows of a log are nobody's yet; and so is what is of this
    store alone: how far workers have come, and its search index, which is made anew of whatever logs are there.
    """
    found: dict[Home, list[Place]] = {}
    async for tenant in all_tenants(backend):
        if tenant not in OURS and (tenant.count(BESIDE) == 1 or owner_of((tenant, "")) in owners):
            async for one in all_places(backend, tenant, "", beneath=True):
                home = tenant, one.place.home
                if one.place.space not in PASSING and owner_of(home) in owners and not _is_of_an_index(one.place):
                    found.setdefault(home, []).append(one.place)
    return {home: places for home, places in found.items() if any(place.space != LAID for place in places)}


async def listed_of(backend: Backend, owners: Collection[str], damaged: list[StoreCorrupt]) -> dict[Home, Listing]:
    """Return the same with when places expire, but for those of logs that are being laid, which is put off again. What
    is found that cannot be read is added to what is `damaged`."""
    homes, ends = await homes_of(backend, owners), dict[Place, int]()
    for tenant in dict.fromkeys(tenant for tenant, _ in homes):
        last, limit = None, PAGE
        try:
            while page := await backend.expired(tenant, LAST_KEY, after=last, limit=limit):
                ends |= {due.place: due.at for due in page if not due.table and due.place.space != LAID}
                last, limit = page[-1], 2 * limit  # a store may look at all of it for each page
        except StoreCorrupt as fault:  # behind all others, of a home that cannot be read
            damaged.append(fault)
    return {home: {place: ends.get(place) for place in places} for home, places in homes.items()}


async def unread_of(backend: Backend, owners: Collection[str] | None) -> list[StoreCorrupt]:
    """Return why something of these tenants (None: of all) cannot be read that no listing tells of."""
    if owners is None:
        return [StoreCorrupt(backend.url, why) for why in await backend.unread()]
    several = [tenant async for tenant in all_tenants(backend) if owner_of((tenant, "")) in owners]
    found = [await backend.unread(tenant) for tenant in dict.fromkeys([*owners, *several])]
    return [StoreCorrupt(backend.url, why) for each in found for why in each]


def check_heads(url: str, heads: Mapping[Place, PlaceHead | None]) -> None:
    """Raise StoreCorrupt for a head that cannot be read; those of an encrypted store only their keys can tell."""
    for place, head in heads.items():
        if head is None:
            continue
        try:
            if place.space == "session":
                read_hot(head.hot), read_cold(head.cold)
            elif place.space.startswith(ITEMS):
                checked(head.hot), checked(head.cold)
        except DAMAGED as fault:
            what = f"session {place.name!r}" if place.space == "session" else f"item {place.name!r} of {place.home!r}"
            why = getattr(head.hot, "why", None) or f"the head of {what} cannot be read ({fault})"
            raise StoreCorrupt(url, why) from fault


def _is_of_an_index(place: Place) -> bool:
    """Whether it is the mark of a search index, or a note of what that has to remove."""
    names = (place.name, place.home.rpartition(BESIDE)[2])
    return place.tenant == DERIVERS and any(name.startswith(INDEX) for name in names)
