"""Listings of a tenant's places: by their names, by their last write, by when they expire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bson import Timestamp

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Due, Listed, Place, PlaceHead
from palimpsest.stores.mongodb.documents import Documents
from palimpsest.stores.mongodb.layout import SUM, Apart, Cell, Doc, home_of, part_key, place_sum, table_sum
from palimpsest.stores.mongodb.reading import Reader

LOOK_BACK = 120 << 32
"""Marks, of two minutes: what is written is given its mark a while before others can see it, and of two who write at
once the later may be seen first. No transaction lives longer than one."""

_SHOWN = {"_id": 0, "k": 1, "hn": 1, "space": 1, "name": 1, "hot": 1, "hotv": 1, "cold": 1, "coldv": 1, "mark": 1}


class Listing:
    """Lists what `reader` reads."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def places(self, tenant: str, space: str, beneath: bool, after: Place | None, limit: int) -> list[Listed]:
        where: Doc = {"tenant": tenant, "space": space}
        if beneath:
            end = _behind(space)
            where["space"] = {"$gte": space} if end is None else {"$gte": space, "$lt": end}
        if after is not None:
            where["$or"] = [
                {"space": {"$gt": after.space}},
                {"space": after.space, **_past(after)},
            ]
        return await self._listed(tenant, where, [("space", 1), ("name", 1), ("hn", 1)], limit)

    async def recent(self, tenant: str, space: str, since: int, after: Place | None, limit: int) -> list[Listed]:
        if after is None:
            since = max(since - LOOK_BACK, 0)
        return await self._by_mark(tenant, space, 1, since, after, limit)

    async def newest(self, tenant: str, space: str, until: int | None, after: Place | None, limit: int) -> list[Listed]:
        return await self._by_mark(tenant, space, -1, until, after, limit)

    async def _by_mark(
        self, tenant: str, space: str, order: int, begin: int | None, after: Place | None, limit: int
    ) -> list[Listed]:
        where: Doc = {"tenant": tenant, "space": space}
        if begin is not None:
            edge = Timestamp(begin >> 32, begin & 0xFFFFFFFF)
            beyond, to = ("$gt", "$gte") if order > 0 else ("$lt", "$lte")
            where["mark"] = {to: edge}
            if after is not None:
                behind = _past(after) if after.space == space else {"name": None} if after.space > space else {}
                where["$or"] = [{"mark": {beyond: edge}}, {"mark": edge, **behind}]
        return await self._listed(tenant, where, [("mark", order), ("name", 1), ("hn", 1)], limit)

    async def _listed(self, tenant: str, where: Doc, order: Sequence[tuple[str, int]], limit: int) -> list[Listed]:
        if limit < 1:
            return []
        docs = await self._reader.collection.find(where, _SHOWN).sort(list(order)).limit(limit).to_list()
        found = list[Listed]()
        for doc in docs:
            place = Place(tenant, doc["hn"], doc["space"], doc["name"])
            head = self._reader.head_in(Documents([doc]), place)
            if head is not None and any(isinstance(one, Apart) for one in (head.hot, head.cold)):
                head = await self._whole(place, head)
            mark = doc.get("mark")
            if head is not None:
                found.append(Listed(place, head, mark.time << 32 | mark.inc if isinstance(mark, Timestamp) else 0))
        return found

    async def _whole(self, place: Place, head: PlaceHead) -> PlaceHead | None:
        """A head with its values; None where another one is there by now."""
        apart = [bytes(one) for one in (head.hot, head.cold) if isinstance(one, Apart)]
        values = await self._reader.values([home_of(place.tenant, place.home)], apart)
        if len(values) < len(apart):
            return None
        return PlaceHead(values.get(bytes(head.hot), head.hot), values.get(bytes(head.cold), head.cold))

    async def tenants(self, after: str | None, limit: int) -> list[str]:
        where: Doc = {"space": {"$exists": True}, "tenant": {"$gt": after} if after is not None else {"$exists": True}}
        stages = [{"$match": where}, {"$group": {"_id": "$tenant"}}, {"$sort": {"_id": 1}}, {"$limit": limit}]
        cursor = await self._reader.collection.aggregate(stages)
        return [doc["_id"] for doc in await cursor.to_list()]

    async def expired(self, tenant: str, now: int, after: Due | None, limit: int) -> list[Due]:
        found: list[Due] = []
        while len(found) < limit:
            page: list[Due] = []
            for by, read in (("exp", _of_head(tenant)), ("due", _of_rows(tenant))):
                await self._due(page, {"tenant": tenant, by: {"$lte": now}}, by, read, now, after, limit)
            page = sorted(set(page))[:limit]
            found += await self._current(page)
            if len(page) < limit:
                break
            after = page[-1]
        return found[:limit]

    async def _current(self, page: list[Due]) -> list[Due]:
        """What is due of a page of it, but rows in buckets that newer ones in a tail stand in the place of."""
        rows = [due for due in page if due.table]
        homes = {home_of(due.place.tenant, due.place.home) for due in rows}
        parts = {part_key(place_sum(due.place), due.key >> 32) for due in rows}
        docs = Documents(await self._reader.docs(homes, parts))
        owners = {owner for key in parts if (owner := docs.part(key).owner) is not None}
        tails = Documents(await self._reader.docs(homes, owners)).tails()
        newer = {due: tails.get(table_sum(due.place, due.table), {}).get(due.key) for due in rows}
        return [due for due in page if (cell := newer.get(due)) is None or Cell.expires(cell) == due.at]

    async def _due(
        self,
        found: list[Due],
        where: Doc,
        by: str,
        read: Callable[[Doc], list[Due]],
        now: int,
        after: Due | None,
        limit: int,
    ) -> None:
        """Add what is due of documents, oldest first, until there is a page of it that nothing can come before."""
        if by == "exp" and after is not None:
            where[by] = {"$gte": after.at, "$lte": now}
        cursor: Any = self._reader.collection.find(where, {"_id": 0, "hot": 0, "cold": 0}).sort([(by, 1)])
        own, damage = list[Due](), None
        async for doc in cursor:
            if len(own) >= limit and doc[by] > sorted(own)[limit - 1].at:
                break
            try:
                own += [one for one in read(doc) if one.at <= now and (after is None or one > after)]
            except (ValueError, KeyError, TypeError) as fault:
                damage = fault
        await cursor.close()
        found += own
        if damage is not None and not found:
            raise StoreCorrupt(self._reader.url, "what is due there cannot be read: it is damaged") from damage


def _of_rows(tenant: str) -> Callable[[Doc], list[Due]]:
    """What reads when the rows of a document are due, of a bucket or of a tail."""

    def read(doc: Doc) -> list[Due]:
        if "r" in doc:
            home, space, name, table = doc["at"]
            place = Place(tenant, home, space, name)
            return [Due(at, place, table, Cell.key(one)) for one in doc["r"] if (at := Cell.expires(one)) is not None]
        names = {bytes(one[0]): (Place(tenant, doc["hn"], one[2], one[3]), one[4]) for one in doc["of"]}
        newest = {(one[:SUM], Cell.key(one[SUM:])): one for one in doc["tail"]}
        return [
            Due(at, *names[table], key)
            for (table, key), one in newest.items()
            if (at := Cell.expires(one[SUM:])) is not None
        ]

    return read


def _of_head(tenant: str) -> Callable[[Doc], list[Due]]:
    return lambda doc: [Due(int(doc["exp"]), Place(tenant, doc["hn"], doc["space"], doc["name"]))]


def _past(after: Place) -> Doc:
    """What is behind a place in its space."""
    return {"$or": [{"name": {"$gt": after.name}}, {"name": after.name, "hn": {"$gt": after.home}}]}


def _behind(begin: str) -> str | None:
    """The first text behind all that begin so; None: there is none."""
    while begin:
        last = ord(begin[-1])
        if last < 0x10FFFF:
            return begin[:-1] + chr(0xE000 if last == 0xD7FF else last + 1)
        begin = begin[:-1]
    return None
