"""What `look` asks as one statement, which sees one moment, and what comes back put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from palimpsest.stores.backend import Ask, Cells, PlaceHead, Range, Seen
from palimpsest.stores.postgres.names import home_key, name_of, place_key, table_key, text_of
from palimpsest.stores.postgres.pool import Connection
from palimpsest.stores.postgres.statements import Statements


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
