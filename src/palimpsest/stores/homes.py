"""To which tenant the homes of a store belong, and which of them are copied when a tenant moves to another store.

Beside the tenants that users name there are some of Palimpsest's own, whose names no user can give: they begin with
U+0001 and a word that says what they keep. The user's tenant follows (U+0001 knowledge U+0001 acme), or is in the name
of the home. A tenant of ours whose name has a further part holds logs; the others hold lists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.stores import MARK
from palimpsest.stores.backend import LAST_KEY, Backend, Place, PlaceHead
from palimpsest.stores.derivers import INDEX
from palimpsest.stores.derivers import OWNER as DERIVERS
from palimpsest.stores.engine.forms import DAMAGED, checked, read_cold, read_hot
from palimpsest.stores.engine.items import ITEMS, LEASES, place_of
from palimpsest.stores.engine.known import BARRED, LAID
from palimpsest.stores.rules import PAGE, all_places, all_tenants, heads_at

BESIDE = "\x01"
"""Begins the names of our own tenants, and separates their parts."""

PASSING = (LEASES, BARRED)
"""Spaces of passing things that say nothing about rows."""

WORKERS = "\x01worker"
"""Our tenant whose items say how far workers have come with sessions, and which sessions they are working on."""

OURS = (MARK[0], WORKERS)
"""Our tenants that concern this store alone."""

Home = tuple[str, str]
"""A tenant, and the name of one of its homes."""

Listing = dict[Place, int | None]
"""The places of a home, each with its expiry, if it has one."""


def is_users(tenant: str) -> bool:
    """Return whether users can name this tenant."""
    return not tenant.startswith(BESIDE)


def is_list(home: Home) -> bool:
    """Whether it is a list of ours: what two stores have in such a home stands side by side in one."""
    return not is_users(home[0]) and home[0].count(BESIDE) < 3


def owner_of(home: Home) -> str:
    """Return the user's tenant to which a home belongs."""
    tenant, name = home
    first, *more = (tenant if is_users(tenant) or tenant.count(BESIDE) > 1 else name).split(BESIDE)
    return more[1] if not first and len(more) > 1 else first


async def tenants_of(backend: Backend) -> list[str]:
    """Return the users' tenants that have sessions, items or knowledge bases in a store."""
    owners = [owner_of((tenant, "")) async for tenant in all_tenants(backend) if tenant not in (*OURS, DERIVERS)]
    return list(dict.fromkeys(owners))


async def homes_of(backend: Backend, owners: Collection[str]) -> dict[Home, list[Place]]:
    """Return the homes of these tenants, each with its places that have a head.

    Left out is what is under way, except for places that say that the rows of a log are nobody's yet. Also left out is
    what concerns this store alone: how far workers have come, and the search index, which any store makes anew.
    """
    homes: dict[Home, list[Place]] = {}
    async for tenant in all_tenants(backend):
        if tenant not in OURS and (tenant.count(BESIDE) == 1 or owner_of((tenant, "")) in owners):
            async for listed in all_places(backend, tenant, "", beneath=True):
                home = tenant, listed.place.home
                if listed.place.space not in PASSING and owner_of(home) in owners and not _is_of_an_index(listed.place):
                    homes.setdefault(home, []).append(listed.place)
    return {home: places for home, places in homes.items() if any(place.space != LAID for place in places)}


async def listed_of(backend: Backend, owners: Collection[str], damaged: list[StoreCorrupt]) -> dict[Home, Listing]:
    """Return the same with the expiry of each place, except for logs that are being laid, whose expiry is put off.

    Damage that is found is added to `damaged`.
    """
    homes, expiries = await homes_of(backend, owners), dict[Place, int]()
    for tenant in dict.fromkeys(tenant for tenant, _ in homes):
        last, limit = None, PAGE
        try:
            while page := await backend.expired(tenant, LAST_KEY, after=last, limit=limit):
                expiries |= {due.place: due.at for due in page if not due.table and due.place.space != LAID}
                last, limit = page[-1], 2 * limit  # larger and larger, as a store may go through everything for each
        except StoreCorrupt as fault:  # comes after everything else, for a home that cannot be read
            damaged.append(fault)
    return {home: {place: expiries.get(place) for place in places} for home, places in homes.items()}


async def mark_of(backend: Backend) -> PlaceHead | None:
    """Return the head of an encrypted store's note of its keys; None for a store that is not encrypted."""
    return (await heads_at(backend, [place_of(*MARK)]))[0]


async def check_mark(backend: Backend, before: PlaceHead | None) -> None:
    """Raise Conflict if the store's note of its keys is another than before: a copy has the earlier one."""
    if await mark_of(backend) != before:
        problem = (
            "keys were changed while it was made, and it knows only the earlier ones: delete it, and copy it again"
        )
        raise Conflict("the copy", problem)


async def unread_of(backend: Backend, owners: Collection[str] | None) -> list[StoreCorrupt]:
    """Return why something of these tenants (None: of all) cannot be read and is in no listing."""
    if owners is None:
        return [StoreCorrupt(backend.url, why) for why in await backend.unread()]
    present = [tenant async for tenant in all_tenants(backend) if owner_of((tenant, "")) in owners]
    unread = [await backend.unread(tenant) for tenant in dict.fromkeys([*owners, *present])]
    return [StoreCorrupt(backend.url, why) for reasons in unread for why in reasons]


def check_heads(url: str, heads: Mapping[Place, PlaceHead | None]) -> None:
    """Raise StoreCorrupt for a head that cannot be read. Not for an encrypted store: its heads need its keys."""
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
    """Return whether a place is the mark of a search index, or a note of what that has to remove."""
    names = (place.name, place.home.rpartition(BESIDE)[2])
    return place.tenant == DERIVERS and any(name.startswith(INDEX) for name in names)
