"""Listings of a tenant's places: by names, by last write, and by expiry."""

from __future__ import annotations

from typing import Any

from bson import Timestamp

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Ask, Due, Listed, Place, Seen
from palimpsest.stores.mongodb.documents import Documents
from palimpsest.stores.mongodb.layout import (
    at_of,
    head_key,
    in_tail,
    of_marks,
    of_names,
    part_key,
    place_at,
    table_sum,
)
from palimpsest.stores.mongodb.reading import Reader
from palimpsest.stores.mongodb.rows import Cell, Doc
from palimpsest.stores.rules import after_prefix

LOOK_BACK = 120 << 32
"""How far `recent` goes back before the mark it is asked from: two minutes, in marks. A write has its mark before
others can see it, and of two concurrent writes the one with the higher mark may be seen first. A transaction lives at
most one minute."""

_SHOWN = {"home": 0, "own": 0, "tail": 0, "made": 0}
"""The projection of heads in listings: without these fields."""


class Listing:
    """The listings of a store. Each verb does what that of `Backend` with its name says."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        # First the names, then their heads; a head may be gone by then, so a page is filled from several queries.
        prefix = of_names(tenant, beneath=space) if beneath else of_names(tenant, space)
        bounds, found = {"$gte": prefix, "$lt": after_prefix(prefix)}, list[Listed]()
        if after is not None and (last := of_names(tenant, after.space, after.name, after.home)) >= prefix:
            bounds = {"$gt": last, "$lt": bounds["$lt"]}
        while len(found) < limit:
            wanted = limit - len(found)
            docs = await self._reader.collection.find({"list": bounds}).sort([("list", 1)]).limit(wanted).to_list()
            places = [Place(tenant, doc["hn"], doc["space"], doc["name"]) for doc in docs]
            heads = Documents(await self._reader.docs(map(head_key, places)))
            found += [listed for place in places if (listed := await self._listed(heads, place)) is not None]
            if len(docs) < wanted:
                break
            bounds = {"$gt": docs[-1]["list"], "$lt": bounds["$lt"]}
        return found

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        if after is None:
            since = max(since - LOOK_BACK, 0)
        return await self._by_mark(tenant, space, 1, since, after, limit)

    async def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        return await self._by_mark(tenant, space, -1, until, after, limit)

    async def _by_mark(
        self, tenant: str, space: str, order: int, begin: int | None, after: Place | None, limit: int
    ) -> list[Listed]:
        """Return a page in `order` of marks (1: rising, -1: falling) from the mark `begin` on, places behind `after` of
        that mark."""
        if limit < 1:
            return []
        where: Doc = {"list": of_marks(tenant, space)}
        if begin is not None:
            edge = Timestamp(begin >> 32, begin & 0xFFFFFFFF)
            beyond, to = ("$gt", "$gte") if order > 0 else ("$lt", "$lte")
            where["mark"] = {to: edge}
            if after is not None:
                same: Doc = {"mark": edge}
                if after.space == space:
                    same["at"] = {"$gt": at_of(after.name, after.home)}
                where["$or"] = [{"mark": {beyond: edge}}, *([] if after.space > space else [same])]
        cursor = self._reader.collection.find(where, _SHOWN).sort([("mark", order), ("at", 1)]).limit(limit)
        heads = Documents(await cursor.to_list())
        found = [await self._listed(heads, place_at(tenant, space, doc["at"])) for doc in heads.by.values()]
        return [listed for listed in found if listed is not None]

    async def _listed(self, heads: Documents, place: Place) -> Listed | None:
        """Return a place with its head, out of these, and mark; None if the head was not read, or its value in pieces
        is gone."""
        whole = await self._reader.with_values([Ask(place)], [Seen(self._reader.head_in(heads, place), ())])
        head = whole[0].head if whole is not None else None
        if head is None:
            return None
        mark = heads.by[head_key(place)].get("mark")
        return Listed(place, head, mark.time << 32 | mark.inc if isinstance(mark, Timestamp) else 0)

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        where: Doc = {"list": {"$gte": "n" if after is None else after_prefix(of_names(after)), "$lt": "o"}}
        stages = [{"$match": where}, {"$group": {"_id": "$tenant"}}, {"$sort": {"_id": 1}}, {"$limit": limit}]
        cursor = await self._reader.collection.aggregate(stages)
        return [doc["_id"] for doc in await cursor.to_list()]

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        found: list[Due] = []
        while len(found) < limit:
            page: list[Due] = []
            for rows in (False, True):
                await self._due(page, tenant, rows, now, after, limit)
            page = sorted(set(page))[:limit]
            found += await self._current(page)
            if len(page) < limit:
                break
            after = page[-1]
        return found[:limit]

    async def _current(self, page: list[Due]) -> list[Due]:
        """Leave out the rows of a page that were found in a bucket while a tail has a newer row of that key."""
        rows = [due for due in page if due.table]
        parts = {part_key(due.place, due.key >> 32) for due in rows}
        docs = Documents(await self._reader.docs(parts))
        owners = {owner for key in parts if (owner := docs.part(key).owner) is not None}
        try:
            tails = Documents(await self._reader.docs(owners)).tails()
        except (ValueError, KeyError, TypeError):
            tails = {}  # damaged: a look at that place raises StoreCorrupt
        newer = {due: tails.get(table_sum(due.place, due.table), {}).get(due.key) for due in rows}
        return [due for due in page if (cell := newer.get(due)) is None or Cell.expires(cell) == due.at]

    async def _due(self, found: list[Due], tenant: str, rows: bool, now: int, after: Due | None, limit: int) -> None:
        """Add to `found` what is due, out of the documents whose `due` has this value of `rows`.

        They are read by their first time, until nothing in the rest can come before the end of a page. A document with
        rows has later times, too, so with `rows` reading begins before `after`. A row that is both in a bucket and in a
        tail is added once if the times are the same.
        """
        least = {} if rows or after is None else {"$gte": after.at}
        where = {"due.of": tenant, "due.rows": rows, "due.at": {**least, "$lte": now}}
        cursor: Any = self._reader.collection.find(where, {"hot": 0, "cold": 0}).sort([("due.at", 1)])
        own, damage = set[Due](), None
        async for doc in cursor:
            if len(own) >= limit and doc["due"]["at"] > sorted(own)[limit - 1].at:
                break
            try:
                own.update(due for due in _due_in(tenant, doc) if due.at <= now and (after is None or due > after))
            except (ValueError, KeyError, TypeError) as fault:
                damage = fault
        await cursor.close()
        found += own
        if damage is not None and not found:
            raise StoreCorrupt(self._reader.url, "the list of expired data cannot be read: it is damaged") from damage


def _due_in(tenant: str, doc: Doc) -> list[Due]:
    """Return everything in a document that expires: rows of a bucket, or a head and rows in its tail. Raises
    ValueError, KeyError or TypeError for a damaged document."""
    if "r" in doc:
        home, space, name, table = doc["of"]
        place = Place(tenant, home, space, name)
        return [Due(at, place, table, Cell.key(cell)) for cell in doc["r"] if (at := Cell.expires(cell)) is not None]
    found = [Due(int(doc["exp"]), place_at(tenant, doc["space"], doc["at"]))] if "exp" in doc else []
    if "first" in doc:
        rows = ((place, table, cell) for place, table, cells in in_tail(doc) for cell in cells)
        newest = {(place, table, Cell.key(cell)): Cell.expires(cell) for place, table, cell in rows}
        found += [Due(at, *address) for address, at in newest.items() if at is not None]
    return found
