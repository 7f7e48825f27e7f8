"""What is read: what `look` asks, as one statement that sees one moment, and pages of listings.

Marks are numbers of transactions. One that is still going on may have a smaller number than one that is over, and what
it has written is not seen yet. So `recent` first asks from which number on transactions may still be going on, and then
reads: a head with such a number is told with the last number before these. Whoever goes on from there is given it
again, and misses nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import LAST_KEY, Ask, Cells, Due, Listed, Place, PlaceHead, Range, Seen
from palimpsest.stores.postgres.names import (
    BEHIND,
    BETWEEN,
    address_of,
    home_key,
    name_of,
    place_key,
    place_of,
    table_key,
    text_of,
)
from palimpsest.stores.postgres.pool import Connection
from palimpsest.stores.postgres.statements import Statements
from palimpsest.stores.rules import behind

ROUND = 1 << 32
"""Numbers of transactions after which the server's locks name them alike."""


async def looked(db: Connection, sql: Statements, asks: Sequence[Ask]) -> list[Seen]:
    """What there is of each place that is asked for; home by home where the tables are on other servers."""
    if not sql.foreign:
        return await _looked(db, sql, asks)
    homes: dict[tuple[str, str], list[int]] = {}
    for n, ask in enumerate(asks):
        homes.setdefault(ask.place[:2], []).append(n)
    found: dict[int, Seen] = {}
    for mine in homes.values():
        found.update(zip(mine, await _looked(db, sql, [asks[n] for n in mine]), strict=True))
    return [found[n] for n in range(len(asks))]


async def _looked(db: Connection, sql: Statements, asks: Sequence[Ask]) -> list[Seen]:
    heads: list[list[Any]] = [[] for _ in range(3)]
    ranges: list[list[Any]] = [[] for _ in range(11)]
    named: list[list[Any]] = [[] for _ in range(6)]
    found: list[list[list[Cells]]] = []
    for n, ask in enumerate(asks):
        key = home_key(ask.place.tenant, ask.place.home), place_key(ask.place)
        if ask.head:
            _into(heads, n, *key)
        for i, one in enumerate(ask.rows):
            table = table_key(one.table)[0]
            if isinstance(one, Range):
                _into_ranges(ranges, n, i, key, table, one)
            else:
                for id in dict.fromkeys(one.ids):
                    _into(named, n, i, *key, table, text_of(id))
        found.append([[] for _ in ask.rows])

    if not ranges[0] and not named[0]:
        rows = await db.fetch(sql.heads, *heads) if heads[0] else ()
    elif named[0]:
        rows = await db.fetch(sql.look_named, *heads, *ranges, *named)
    else:
        rows = await db.fetch(sql.look, *heads, *ranges)
    there: dict[int, PlaceHead] = {}
    for n, i, key_, value, id, expires, cold in rows:
        if i < 0:
            there[n] = PlaceHead(value, cold)
        else:
            found[n][i].append((key_, value, name_of(id) if id is not None else "", expires))
    if named[0]:
        for n, i in set(zip(named[0], named[1], strict=True)):
            found[n][i].sort(key=lambda row: row[0])
    return [Seen(there.get(n), some) for n, some in enumerate(found)]


def _into(columns: list[list[Any]], *values: Any) -> None:
    for column, value in zip(columns, values, strict=True):
        column.append(value)


def _into_ranges(ranges: list[list[Any]], n: int, i: int, key: tuple[Any, Any], table: str, one: Range) -> None:
    """A range, and its spans behind those that are there, in the order in which they are read."""
    lows, highs = ranges[9], ranges[10]
    first = len(lows) + 1
    for low, high in reversed(one.spans) if one.newest_first else one.spans:
        lows.append(low)
        highs.append(high)
    if len(lows) >= first:
        _into(ranges[:9], n, i, *key, table, first, len(lows), one.limit, one.newest_first)


# --- listings


class Listings:
    """The listings of a store, as one connection reads them: each verb as the `Backend`'s of its name."""

    def __init__(self, db: Connection, sql: Statements, url: str) -> None:
        self._db, self._sql, self._url = db, sql, url

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        begin = text_of(tenant) + BETWEEN + text_of(space) + ("" if beneath else BETWEEN)
        low = begin if after is None else max(begin, address_of(after))
        rows = await self._db.fetch(self._sql.places, low, behind(begin), limit)
        return [Listed(one.place, one.head) for one in self._listed(rows)]

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        horizon, beyond = await self._horizon(), address_of(after) if after is not None else ""
        where = text_of(tenant), text_of(space), since, horizon, beyond, limit
        return self._listed(await self._db.fetch(self._sql.recent, *where))

    async def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        last, beyond = LAST_KEY if until is None else until, address_of(after) if after is not None else ""
        rows = await self._db.fetch(self._sql.newest, text_of(tenant), text_of(space), last, beyond, limit)
        return self._listed(rows)

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        begin = "" if after is None else text_of(after) + BEHIND
        return [name_of(tenant) for (tenant,) in await self._db.fetch(self._sql.tenants, begin, limit)]

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        where: tuple[Any, ...] = (-LAST_KEY, "", "", 0)
        if after is not None:
            where = after.at, address_of(after.place), table_key(after.table)[0], after.key
        damaged = False
        while True:  # what is damaged is passed over
            rows = await self._db.fetch(self._sql.expired, text_of(tenant), now, *where, limit)
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
            raise StoreCorrupt(self._url, "the address of something that has expired cannot be read: it is damaged")
        return found

    async def _horizon(self) -> int:
        """The mark below which all that has been written is seen by whoever looks from now on."""
        at, base, writing = await self._db.fetchrow(self._sql.horizon)
        low = at % ROUND
        # Of those that write the lower half of the number is known. None of them is older than half a round.
        behind_us = [(low - one + ROUND // 2) % ROUND - ROUND // 2 for one in writing]
        return int(base) + int(at) - max((by for by in behind_us if by > 0), default=0)

    def _listed(self, rows: Iterable[Any]) -> list[Listed]:
        found = []
        for address, hot, cold, mark in rows:
            place = place_of(address)
            if place is None:
                raise StoreCorrupt(self._url, "the address of a place cannot be read")
            found.append(Listed(place, PlaceHead(hot, cold), mark))
        return found
