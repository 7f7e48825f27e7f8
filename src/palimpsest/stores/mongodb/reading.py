"""Looks: one query, where the documents that have what is asked for are known; else several in a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bson import Binary
from pymongo.asynchronous.client_session import AsyncClientSession

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Ask, Cells, Named, Place, PlaceHead, Range, Seen
from palimpsest.stores.mongodb.documents import PARTS, Documents, Region, buckets_of, parts_of
from palimpsest.stores.mongodb.layout import (
    BUCKET,
    SUM,
    Apart,
    Cell,
    Doc,
    bucket_key,
    head_key,
    home_of,
    id_sum,
    part_key,
    piece_keys,
    place_sum,
    table_sum,
)

REMEMBERED = 8192
"""Parts of which it is remembered who has their tails, and how far they go."""

ROUNDS = 4
"""Queries after which a look becomes a transaction: beside somebody who never pauses, or where rows are far apart."""

BATCH = 10_000
"""Documents of one answer, as far as they fit into one."""


class Reader:
    """Reads documents. `collection` sees one state in each query."""

    def __init__(self, url: str, collection: Any) -> None:
        self.url, self.collection = url, collection
        self._parts = Documents()

    # --- queries

    async def docs(self, homes: Iterable[Binary], keys: Iterable[bytes], session: Any = None) -> list[Doc]:
        """The documents of these keys."""
        wanted = [Binary(key) for key in keys]
        there = list(dict.fromkeys(homes))
        if not wanted:
            return []
        where = there[0] if len(there) == 1 else {"$in": there}
        return await self._found({"home": where, "k": {"$in": wanted}}, session)

    async def between(
        self, home: Binary, low: bytes, high: bytes, session: Any, *, limit: int = 0, last_first: bool = False
    ) -> list[Doc]:
        """The documents between two keys, both included, in order or the other way round."""
        where = {"home": home, "k": {"$gte": Binary(low), "$lte": Binary(high)}}
        cursor = self.collection.find(where, session=session, batch_size=BATCH)
        found: list[Doc] = await cursor.sort([("home", 1), ("k", -1 if last_first else 1)]).limit(limit).to_list()
        return _without_ids(found)

    async def by_ids(self, home: Binary, sums: Sequence[Binary], session: Any) -> list[Doc]:
        """The documents that have rows of these ids."""
        return await self._found({"home": home, "i": {"$in": list(sums)}}, session)

    async def _found(self, where: Doc, session: Any) -> list[Doc]:
        found: list[Doc] = await self.collection.find(where, session=session, batch_size=BATCH).to_list()
        return _without_ids(found)

    # --- looks

    async def look(self, asks: Sequence[Ask]) -> list[Seen] | None:
        """What is asked for, if a few queries can tell, each of which sees one state."""
        homes = [home_of(ask.place.tenant, ask.place.home) for ask in asks]
        known, truth, had, grow = self._parts, False, set[bytes](), 1
        docs = Documents()
        for _ in range(ROUNDS):
            needed = self._needed(asks, known, grow)
            if needed is None or (truth and needed[0] <= had):
                return None
            had = needed[0]
            docs = Documents(await self.docs(homes, had))
            if self._learn(had, docs) or not needed[2]:
                needed = self._needed(asks, docs, grow)
            if needed is None:
                return None
            known, truth = docs, True
            if needed[0] <= had:
                seen, short = self._seen(asks, docs, needed[1])
                if not short:
                    return await self._with_values(homes, seen)
                grow, truth = grow * 4, False
        return None

    def _learn(self, had: Iterable[bytes], docs: Documents) -> bool:
        """Remember of the parts that were asked for how they are; return whether one is otherwise than remembered."""
        parts, news = self._parts, False
        if len(parts.by) > REMEMBERED:
            parts.by.clear()
        for key in had:
            if key[:1] == b"o":
                doc = docs.by.get(key)
                news = news or doc is None or parts.by.get(key) != doc
                if doc is None:
                    parts.by.pop(key, None)
                else:
                    parts.by[key] = doc
        return news

    def _needed(
        self, asks: Sequence[Ask], parts: Documents, grow: int
    ) -> tuple[set[bytes], list[list[list[Region]]], bool] | None:
        """The keys of what is asked for, by what is known of parts, what is read by them, and whether that is all.

        None where they cannot be told, or are many.
        """
        keys, regions, whole = set[bytes](), list[list[list[Region]]](), True
        remembered = parts is self._parts
        for ask in asks:
            if ask.head:
                keys.add(head_key(ask.place))
            regions.append([])
            for one in ask.rows:
                if isinstance(one, Named):
                    if one.ids:
                        return None
                    regions[-1].append([])
                    continue
                within = parts_of(ask.place, one)
                if within is None:
                    return None
                keys.update(within)
                keys.update(owner for key in within if (owner := parts.part(key).owner) is not None)
                if remembered and any(key not in parts.by for key in within) and not _is_narrow(one):
                    regions[-1].append([])
                    whole = False
                    continue
                found = buckets_of(ask.place, table_sum(ask.place, one.table), one, parts, grow)
                if found is None and remembered:
                    found, whole = ([], []), False  # what is remembered may be wrong
                if found is None:
                    return None
                keys.update(found[0])
                regions[-1].append(found[1])
        return keys, regions, whole

    def _seen(self, asks: Sequence[Ask], docs: Documents, regions: list[list[list[Region]]]) -> tuple[list[Seen], bool]:
        seen, short = list[Seen](), False
        for ask, own in zip(asks, regions, strict=True):
            rows = list[list[Cells]]()
            for one, some in zip(ask.rows, own, strict=True):
                if isinstance(one, Named):
                    rows.append([])
                else:
                    found, missing = self._rows(docs, ask.place, one, some)
                    rows.append(found)
                    short = short or missing
            seen.append(Seen(self.head_in(docs, ask.place) if ask.head else None, rows))
        return seen, short

    def _rows(self, docs: Documents, place: Place, ask: Range, regions: Sequence[Region]) -> tuple[list[Cells], bool]:
        try:
            return docs.rows(table_sum(place, ask.table), ask, regions)
        except (ValueError, TypeError, KeyError) as cause:
            raise self.corrupt(place, ask.table) from cause

    def corrupt(self, place: Place, table: str) -> StoreCorrupt:
        """The error that says which rows cannot be read."""
        return StoreCorrupt(self.url, f"rows of {table!r} of {place.space}/{place.name} in {place.home!r} are damaged")

    def head_in(self, docs: Documents, place: Place) -> PlaceHead | None:
        """A head of those that were read; values in pieces are as what refers to them."""
        doc = docs.by.get(head_key(place))
        if doc is None:
            return None
        try:
            hot, cold = doc.get("hot"), doc.get("cold", b"")
            return PlaceHead(
                Apart(doc["hotv"]) if hot is None else bytes(hot),
                Apart(doc["coldv"]) if "coldv" in doc else bytes(cold),
            )
        except (KeyError, TypeError) as cause:
            told = f"the head of {place.space}/{place.name} in {place.home!r} is damaged"
            raise StoreCorrupt(self.url, told) from cause

    # --- values in pieces

    async def _with_values(self, homes: Sequence[Binary], seen: list[Seen]) -> list[Seen] | None:
        """What was seen, with the values that are apart: None where one has gone meanwhile."""
        wanted = _apart_in(seen)
        if not wanted:
            return seen
        values = await self.values(homes, wanted)
        return _filled(seen, values) if len(values) == len(wanted) else None

    async def values(
        self, homes: Iterable[Binary], references: Iterable[bytes], session: Any = None
    ) -> dict[bytes, bytes]:
        """The values that these references are to, of which all pieces are there."""
        found: dict[bytes, bytes] = {}
        for one in references:  # each may be larger than an answer
            keys = piece_keys(one)
            pieces: dict[bytes, bytes] = {}
            for key in keys:
                pieces |= {bytes(doc["k"]): doc["v"] for doc in await self.docs(homes, [key], session)}
            value = b"".join(pieces.get(key, b"") for key in keys)
            if len(value) == int.from_bytes(one[SUM:]):
                found[one] = value
        return found

    # --- in a transaction

    async def look_within(self, asks: Sequence[Ask], session: AsyncClientSession) -> list[Seen]:
        """What is asked for, in a transaction that sees one state."""
        seen, homes = list[Seen](), [home_of(ask.place.tenant, ask.place.home) for ask in asks]
        heads = Documents(await self.docs(homes, {head_key(ask.place) for ask in asks if ask.head}, session))
        for ask, home in zip(asks, homes, strict=True):
            head = self.head_in(heads, ask.place) if ask.head else None
            rows = [
                await (
                    self._named(home, ask.place, one, session)
                    if isinstance(one, Named)
                    else self._ranged(home, ask.place, one, session)
                )
                for one in ask.rows
            ]
            seen.append(Seen(head, rows))
        wanted = _apart_in(seen)
        if not wanted:
            return seen
        values = await self.values(homes, wanted, session)
        if len(values) < len(wanted):
            raise StoreCorrupt(self.url, "pieces of a large value are missing: it is damaged")
        return _filled(seen, values)

    async def parts(self, home: Binary, place: Place, spans: Iterable[tuple[int, int]], session: Any) -> list[Doc]:
        """What says who has the tails of the parts of these spans."""
        whose, keys, found = place_sum(place), dict[bytes, None](), list[Doc]()
        for low, high in spans:
            if (high >> 32) - (low >> 32) < PARTS:
                keys.update((part_key(whose, one), None) for one in range(low >> 32, (high >> 32) + 1))
            else:
                found += await self.between(home, part_key(whose, low >> 32), part_key(whose, high >> 32), session)
        return found + await self.docs([home], keys, session)

    async def owners(self, home: Binary, parts: Iterable[Doc], session: Any) -> list[Doc]:
        """The heads that have the tails of these parts."""
        keys = dict.fromkeys(bytes(doc["owner"]) for doc in parts if doc.get("owner") is not None)
        return await self.docs([home], keys, session)

    async def _ranged(self, home: Binary, place: Place, ask: Range, session: Any) -> list[Cells]:
        parts = await self.parts(home, place, ask.spans, session)
        docs = Documents(await self.owners(home, parts, session))
        table, regions = table_sum(place, ask.table), list[Region]()
        limit = 0 if ask.limit is None else ask.limit + 2  # at both ends of a span a bucket may have other rows
        for low, high in reversed(ask.spans) if ask.newest_first else ask.spans:
            ends = bucket_key(table, low >> BUCKET), bucket_key(table, high >> BUCKET)
            found = await self.between(home, *ends, session, limit=limit, last_first=ask.newest_first)
            docs.add(found)
            end = int.from_bytes(found[-1]["k"][-8:]) if limit and len(found) == limit else None
            if end is None:
                regions.append(Region(low, high, whole=True))
            elif ask.newest_first:
                regions.append(Region(max(low, end << BUCKET), high, whole=True))
            else:
                regions.append(Region(low, min(high, (end + 1 << BUCKET) - 1), whole=True))
        return self._rows(docs, place, ask, regions)[0]

    async def _named(self, home: Binary, place: Place, ask: Named, session: Any) -> list[Cells]:
        table = table_sum(place, ask.table)
        docs = Documents(await self.by_ids(home, [id_sum(table, id) for id in ask.ids], session) if ask.ids else ())
        meant, ids = set[int](), set(ask.ids)
        for number in docs.buckets(table):
            meant.update(Cell.key(one) for one in docs.by[bucket_key(table, number)]["r"] if Cell.id(one) in ids)
        parts = await self.parts(home, place, {(key >> 32 << 32,) * 2 for key in meant}, session)
        docs.add(await self.owners(home, parts, session))
        meant.update(docs.tails().get(table, ()))
        cells = (one for key in sorted(meant) for one in docs.cells(table, key, key))
        return [Cell.row(one) for one in cells if Cell.id(one) in ids]


# --- values that are apart


def _without_ids(docs: list[Doc]) -> list[Doc]:
    """Documents without the ids that the server gave them, which cost it more to leave out than to send."""
    for doc in docs:
        doc.pop("_id", None)
    return docs


def _is_narrow(ask: Range) -> bool:
    """Whether it is asked for so few buckets that they need not be known of."""
    return sum((high >> BUCKET) - (low >> BUCKET) + 1 for low, high in ask.spans) <= 8


def _apart_in(seen: Iterable[Seen]) -> list[bytes]:
    """References to values, in what was seen."""
    found = dict[bytes, None]()
    for one in seen:
        if one.head is not None:
            found.update((bytes(value), None) for value in (one.head.hot, one.head.cold) if isinstance(value, Apart))
        for rows in one.rows:
            found.update((bytes(value), None) for _, value, *_ in rows if isinstance(value, Apart))
    return list(found)


def _filled(seen: Iterable[Seen], values: dict[bytes, bytes]) -> list[Seen]:
    """The same with the values in the places of references."""

    def full(value: bytes) -> bytes:
        return values[bytes(value)] if isinstance(value, Apart) else value

    return [
        Seen(
            None if one.head is None else PlaceHead(full(one.head.hot), full(one.head.cold)),
            [[(key, full(value), id, expires) for key, value, id, expires in rows] for rows in one.rows],
        )
        for one in seen
    ]
