"""Listings: pages of places, of tenants, and of what has expired.

Marks are numbers of transactions. One that is still going on may have a smaller number than one that is over, and what
it has written is not seen yet. So `recent` first asks from which number on transactions may still be going on, and then
reads: a head with such a number is told with the last number before these. Whoever goes on from there is given it
again, and misses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import LAST_KEY, Due, Listed, Place, PlaceHead
from palimpsest.stores.postgres.names import (
    BEHIND,
    BETWEEN,
    address_of,
    behind,
    name_of,
    place_key,
    place_of,
    table_key,
    text_of,
)
from palimpsest.stores.postgres.pool import Connection
from palimpsest.stores.postgres.statements import Statements

ROUND = 1 << 32
"""Numbers of transactions after which the server's locks name them alike."""


def _listed(url: str, rows: Iterable[Any]) -> list[Listed]:
    found = []
    for address, hot, cold, mark in rows:
        place = place_of(address)
        if place is None:
            raise StoreCorrupt(url, "the address of a place cannot be read")
        found.append(Listed(place, PlaceHead(hot, cold), mark))
    return found


async def places(
    db: Connection, sql: Statements, url: str, tenant: str, space: str, beneath: bool, after: Place | None, limit: int
) -> list[Listed]:
    """As `Backend.places`."""
    begin = text_of(tenant) + BETWEEN + text_of(space) + ("" if beneath else BETWEEN)
    low = begin if after is None else max(begin, address_of(after))
    rows = await db.fetch(sql.places, low, behind(begin), limit)
    return [Listed(one.place, one.head) for one in _listed(url, rows)]


async def recent(
    db: Connection, sql: Statements, url: str, tenant: str, space: str, since: int, after: Place | None, limit: int
) -> list[Listed]:
    """As `Backend.recent`."""
    horizon = await _horizon(db, sql)
    behind_this = address_of(after) if after is not None else ""
    rows = await db.fetch(sql.recent, text_of(tenant), text_of(space), since, horizon, behind_this, limit)
    return _listed(url, rows)


async def _horizon(db: Connection, sql: Statements) -> int:
    """The mark below which all that has been written is seen by whoever looks from now on."""
    at, base, writing = await db.fetchrow(sql.horizon)
    low = at % ROUND
    # Of those that write the lower half of the number is known. None of them is older than half a round.
    behind_us = [(low - one + ROUND // 2) % ROUND - ROUND // 2 for one in writing]
    return int(base) + int(at) - max((by for by in behind_us if by > 0), default=0)


async def newest(
    db: Connection,
    sql: Statements,
    url: str,
    tenant: str,
    space: str,
    until: int | None,
    after: Place | None,
    limit: int,
) -> list[Listed]:
    """As `Backend.newest`."""
    last = LAST_KEY if until is None else until
    behind_this = address_of(after) if after is not None else ""
    rows = await db.fetch(sql.newest, text_of(tenant), text_of(space), last, behind_this, limit)
    return _listed(url, rows)


async def tenants(db: Connection, sql: Statements, after: str | None, limit: int) -> list[str]:
    """As `Backend.tenants`."""
    begin = "" if after is None else text_of(after) + BEHIND
    return [name_of(tenant) for (tenant,) in await db.fetch(sql.tenants, begin, limit)]


async def expired(
    db: Connection, sql: Statements, url: str, tenant: str, now: int, after: Due | None, limit: int
) -> list[Due]:
    """As `Backend.expired`. What is damaged is passed over, unless there is nothing else."""
    where: tuple[Any, ...] = (-LAST_KEY, "", "", 0)
    if after is not None:
        where = after.at, address_of(after.place), table_key(after.table)[0], after.key
    damaged = False
    while True:
        rows = await db.fetch(sql.expired, text_of(tenant), now, *where, limit)
        found = []
        for at, address, table, whole, key, key_of_place in rows:
            place = place_of(address)
            if place is None or place_key(place) != key_of_place:
                damaged = True
            else:
                found.append(Due(at, place, name_of(whole or table), key))
        if found or not rows:
            break
        where = rows[-1][0], rows[-1][1], rows[-1][2], rows[-1][4]
    if damaged and not found:
        raise StoreCorrupt(url, "the address of something that has expired cannot be read: it is damaged")
    return found
