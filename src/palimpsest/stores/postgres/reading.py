"""Reads: `look` as one statement that sees one snapshot, and the pages of listings.

Marks are transaction numbers. A transaction that is still running may have a smaller number than a committed one, and
its writes are not visible yet. So `recent` first asks for the horizon, the number from which on transactions may still
be running, and then reads. A head with a mark at or beyond the horizon is listed with the mark just below it. A reader
who goes on from that mark is given such a head again, and misses none.
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
from palimpsest.stores.rules import after_prefix

ROUND = 1 << 32
"""Transaction numbers repeat after this many in `pg_locks`, which shows only their lower 32 bits."""


async def look_up(db: Connection, sql: Statements, asks: Sequence[Ask]) -> list[Seen]:
    """Answer each ask, in order. Foreign tables are asked home by home, since each home is on one server."""
    if not sql.foreign:
        return await _look_up(db, sql, asks)
    homes: dict[tuple[str, str], list[int]] = {}
    for n, ask in enumerate(asks):
        homes.setdefault(ask.place[:2], []).append(n)
    seen: dict[int, Seen] = {}
    for numbers in homes.values():
        seen.update(zip(numbers, await _look_up(db, sql, [asks[n] for n in numbers]), strict=True))
    return [seen[n] for n in range(len(asks))]


async def _look_up(db: Connection, sql: Statements, asks: Sequence[Ask]) -> list[Seen]:
    """Answer all asks with one statement.

    Its parameters are arrays, a column each: of heads, of ranges (with their spans), and of ids. Each row of the answer
    begins with the number of its ask and that of its range or list of ids in the ask, -1 for a head.
    """
    heads: list[list[Any]] = [[] for _ in range(3)]
    ranges: list[list[Any]] = [[] for _ in range(11)]
    named: list[list[Any]] = [[] for _ in range(6)]
    found: list[list[list[Cells]]] = []
    for n, ask in enumerate(asks):
        key = home_key(ask.place.tenant, ask.place.home), place_key(ask.place)
        if ask.head:
            _into(heads, n, *key)
        for i, wanted in enumerate(ask.rows):
            table = table_key(wanted.table)[0]
            if isinstance(wanted, Range):
                _into_ranges(ranges, n, i, key, table, wanted)
            else:
                for id in dict.fromkeys(wanted.ids):
                    _into(named, n, i, *key, table, text_of(id))
        found.append([[] for _ in ask.rows])

    if not ranges[0] and not named[0]:
        rows = await db.fetch(sql.heads, *heads) if heads[0] else ()
    elif named[0]:
        rows = await db.fetch(sql.look_named, *heads, *ranges, *named)
    else:
        rows = await db.fetch(sql.look, *heads, *ranges)
    found_heads: dict[int, PlaceHead] = {}
    for n, i, key_, value, id, expires, cold in rows:
        if i < 0:
            found_heads[n] = PlaceHead(value, cold)
        else:
            found[n][i].append((key_, value, name_of(id) if id is not None else "", expires))
    if named[0]:
        for n, i in set(zip(named[0], named[1], strict=True)):
            found[n][i].sort(key=lambda row: row[0])
    return [Seen(found_heads.get(n), found_rows) for n, found_rows in enumerate(found)]


def _into(columns: list[list[Any]], *values: Any) -> None:
    """Append one value to each column."""
    for column, value in zip(columns, values, strict=True):
        column.append(value)


def _into_ranges(ranges: list[list[Any]], n: int, i: int, key: tuple[Any, Any], table: str, range_: Range) -> None:
    """Append a range to the columns, with the positions (from 1) of its spans in the two last columns.

    The spans are in the order in which they are read. A range without spans is left out: it has no rows.
    """
    lows, highs = ranges[9], ranges[10]
    first = len(lows) + 1
    for low, high in reversed(range_.spans) if range_.newest_first else range_.spans:
        lows.append(low)
        highs.append(high)
    if len(lows) >= first:
        _into(ranges[:9], n, i, *key, table, first, len(lows), range_.limit, range_.newest_first)


# --- listings


class Listings:
    """The listings of a store over one connection. Each verb does what that of `Backend` with its name says."""

    def __init__(self, db: Connection, sql: Statements, url: str) -> None:
        self._db, self._sql, self._url = db, sql, url

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        prefix = text_of(tenant) + BETWEEN + text_of(space) + ("" if beneath else BETWEEN)
        low = prefix if after is None else max(prefix, address_of(after))
        rows = await self._db.fetch(self._sql.places, low, after_prefix(prefix), limit)
        return [Listed(listed.place, listed.head) for listed in self._listed(rows)]

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        horizon, after_address = await self._horizon(), address_of(after) if after is not None else ""
        arguments = text_of(tenant), text_of(space), since, horizon, after_address, limit
        return self._listed(await self._db.fetch(self._sql.recent, *arguments))

    async def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        last, after_address = LAST_KEY if until is None else until, address_of(after) if after is not None else ""
        rows = await self._db.fetch(self._sql.newest, text_of(tenant), text_of(space), last, after_address, limit)
        return self._listed(rows)

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        first = "" if after is None else text_of(after) + BEHIND
        return [name_of(tenant) for (tenant,) in await self._db.fetch(self._sql.tenants, first, limit)]

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        position: tuple[Any, ...] = (-LAST_KEY, "", "", 0)
        if after is not None:
            position = after.at, address_of(after.place), table_key(after.table)[0], after.key
        damaged = False
        while True:  # until a page holds something that is not damaged
            rows = await self._db.fetch(self._sql.expired, text_of(tenant), now, *position, limit)
            found = []
            for at, address, table, whole, key, key_of_place in rows:
                place = place_of(address)
                if place is None or place_key(place) != key_of_place:
                    damaged = True
                else:
                    found.append(Due(at, place, name_of(whole or table), key))
            if found or not rows:
                break
            position = rows[-1][0], rows[-1][1], rows[-1][2], rows[-1][4]
        if damaged and not found:
            raise StoreCorrupt(self._url, "the list of expired data cannot be read: it is damaged")
        return found

    async def _horizon(self) -> int:
        """Return the mark below which every write is committed and visible to reads from now on, or rolled back."""
        next_number, base, writing = await self._db.fetchrow(self._sql.horizon)
        low = next_number % ROUND
        # `pg_locks` shows only the lower 32 bits of a number. No running transaction is older than half a round.
        ages = [(low - number + ROUND // 2) % ROUND - ROUND // 2 for number in writing]
        return int(base) + int(next_number) - max((age for age in ages if age > 0), default=0)

    def _listed(self, rows: Iterable[Any]) -> list[Listed]:
        """Return the places of these rows. Raises StoreCorrupt for a damaged address."""
        found = []
        for address, hot, cold, mark in rows:
            place = place_of(address)
            if place is None:
                raise StoreCorrupt(self._url, "the address of a place cannot be read")
            found.append(Listed(place, PlaceHead(hot, cold), mark))
        return found
