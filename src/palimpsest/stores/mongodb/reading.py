"""Looks: one query, where the documents that have what is asked for are known; else several in a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pymongo.asynchronous.client_session import AsyncClientSession

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Ask, Cells, Named, Place, PlaceHead, Range, Seen
from palimpsest.stores.mongodb.documents import PARTS, Documents, Region, apart_in, buckets_of, filled, parts_of
from palimpsest.stores.mongodb.layout import (
    BUCKET,
    HOME,
    NUMBER,
    Known,
    bucket_key,
    bucket_of,
    by_key,
    head_key,
    home_of,
    id_sum,
    kind_of,
    part_key,
    piece_keys,
    table_sum,
    tables_key,
)
from palimpsest.stores.mongodb.rows import SUM, Apart, Cell, Doc

REMEMBERED = 8192
"""Parts of which it is remembered who has their tails, and how far they go; and heads of which it is how they are."""

ROUNDS = 4
"""Queries after which a look becomes a transaction: beside somebody who never pauses, or where rows are far apart."""

BATCH = 10_000
"""Documents of one answer, as far as they fit into one."""


class Reader:
    """Reads documents. `collection` sees one state in each query; `spread`: what is asked of it names homes."""

    def __init__(self, url: str, collection: Any, spread: bool) -> None:
        self.url, self.collection, self.spread = url, collection, spread
        self._parts = Documents()
        self._vouched: dict[bytes, tuple[Doc, bytes]] = {}
        self._heads: dict[bytes, Known] = {}

    # --- queries

    async def docs(self, keys: Iterable[bytes], session: Any = None) -> list[Doc]:
        """The documents of these keys."""
        wanted = list(keys)
        if not wanted:
            return []
        where: Doc = {"_id": {"$in": wanted}}
        if self.spread:
            homes = list(dict.fromkeys(key[:HOME] for key in wanted))
            where["home"] = homes[0] if len(homes) == 1 else {"$in": homes}
        return await self._found(where, session)

    async def _found(self, where: Doc, session: Any) -> list[Doc]:
        found: list[Doc] = await self.collection.find(where, session=session, batch_size=BATCH).to_list()
        return found

    async def between(
        self, low: bytes, high: bytes, session: Any, *, limit: int = 0, last_first: bool = False
    ) -> list[Doc]:
        """The documents between two keys of one home and kind, both included, in order or the other way round."""
        where = by_key(low, self.spread) | {"_id": {"$gte": low, "$lte": high}}
        cursor = self.collection.find(where, session=session, batch_size=BATCH)
        found: list[Doc] = await cursor.sort([("_id", -1 if last_first else 1)]).limit(limit).to_list()
        return found

    # --- what is remembered of heads

    def known(self, place: Place) -> Known | None:
        """What is remembered of a head."""
        return self._heads.get(head_key(place))

    async def found(self, place: Place) -> tuple[Known, PlaceHead] | None:
        """How a head is now; values in pieces are as what refers to them."""
        docs = await self.docs([head_key(place)])
        head = self.head_in(Documents(docs), place)
        if head is None:
            return None
        if (known := _known(docs[0])) is None:
            raise self._damaged(place)
        return known, head

    def remember(self, key: bytes, known: Known | None) -> None:
        """Remember how a head is; None: forget it."""
        if known is None:
            self._heads.pop(key, None)
            return
        if len(self._heads) >= REMEMBERED:
            self._heads.clear()
        self._heads[key] = known

    # --- looks

    async def look(self, asks: Sequence[Ask]) -> list[Seen] | None:
        """What is asked for, if a few queries can tell, each of which sees one state."""
        known, truth, had = self._parts, False, set[bytes]()
        for _ in range(ROUNDS):
            needed = self._needed(asks, known)
            if needed is None or (truth and needed[0] <= had):
                return None
            had = needed[0]
            vouched = {key: self._vouched[key] for key in had if key in self._vouched} if not truth else {}
            docs = Documents(await self.docs(had - vouched.keys()))
            if not self._vouch(docs, vouched):
                continue
            if self.learn(had, docs) or not needed[2]:
                needed = self._needed(asks, docs)
            if needed is None:
                return None
            if needed[0] <= had:
                seen, short = self._seen(asks, docs, needed[1])
                return None if short else await self.with_values(asks, seen)
            known, truth = docs, True
        return None

    def _vouch(self, docs: Documents, vouched: dict[bytes, tuple[Doc, bytes]]) -> bool:
        """Add to documents what is remembered of parts and was not asked for: whether it is still so.

        Whoever changes what is said of a part writes the head that has its tail, too, and a transaction gives each head
        that it writes another `made`.
        """
        stands = True
        for key, (part, made) in vouched.items():
            if docs.by.get(part["owner"], {}).get("made") == made:
                docs.put(key, part)
            else:
                self._vouched.pop(key, None)
                stands = False
        return stands

    def learn(self, had: Iterable[bytes], docs: Documents) -> bool:
        """Remember how these parts and heads are; return whether a part is otherwise than remembered."""
        parts, news = self._parts, False
        if len(parts.by) > REMEMBERED:
            parts.by.clear()
            self._vouched.clear()
        for key in had:
            kind, doc = kind_of(key), docs.by.get(key)
            if kind == b"h":
                self.remember(key, _known(doc))
            elif kind == b"o":
                news = news or doc is None or parts.by.get(key) != doc
                self._vouched.pop(key, None)
                if doc is None:
                    parts.by.pop(key, None)
                    continue
                parts.by[key] = doc
                owner = docs.by.get(doc.get("owner") or b"")
                if owner is not None and "made" in owner:
                    self._vouched[key] = doc, owner["made"]
        return news

    def _needed(
        self, asks: Sequence[Ask], parts: Documents
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
                found = buckets_of(ask.place, table_sum(ask.place, one.table), one, parts)
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
            return PlaceHead(
                Apart(doc["hotv"]) if "hotv" in doc else doc["hot"][:-NUMBER],
                Apart(doc["coldv"]) if "coldv" in doc else bytes(doc.get("cold", b"")),
            )
        except (KeyError, TypeError) as cause:
            raise self._damaged(place) from cause

    def _damaged(self, place: Place) -> StoreCorrupt:
        return StoreCorrupt(self.url, f"the head of {place.space}/{place.name} in {place.home!r} is damaged")

    # --- values in pieces

    async def with_values(self, asks: Sequence[Ask], seen: list[Seen], session: Any = None) -> list[Seen] | None:
        """What was seen, with the values that are apart: None where one is not there, or has gone meanwhile."""
        wanted = apart_in(asks, seen)
        if not wanted:
            return seen
        values = await self._values(wanted, session)
        return filled(seen, values) if len(values) == len(wanted) else None

    async def _values(self, references: Iterable[tuple[bytes, bytes]], session: Any) -> dict[bytes, bytes]:
        """The values that these references, with their homes, are to: of which all pieces are there."""
        found: dict[bytes, bytes] = {}
        for home, one in references:  # each may be larger than an answer
            pieces: dict[bytes, bytes] = {}
            keys = piece_keys(home, one)
            for key in keys:
                pieces |= {doc["_id"]: doc["v"] for doc in await self.docs([key], session)}
            value = b"".join(pieces.get(key, b"") for key in keys)
            if len(value) == int.from_bytes(one[SUM:]):
                found[one] = value
        return found

    # --- in a transaction

    async def look_within(self, asks: Sequence[Ask], session: AsyncClientSession) -> list[Seen]:
        """What is asked for, in a transaction that sees one state."""
        seen = list[Seen]()
        heads = Documents(await self.docs({head_key(ask.place) for ask in asks if ask.head}, session))
        for ask in asks:
            head = self.head_in(heads, ask.place) if ask.head else None
            rows = [
                await (
                    self._named(ask.place, one, session)
                    if isinstance(one, Named)
                    else self._ranged(ask.place, one, session)
                )
                for one in ask.rows
            ]
            seen.append(Seen(head, rows))
        whole = await self.with_values(asks, seen, session)
        if whole is None:
            raise StoreCorrupt(self.url, "pieces of a large value are missing: it is damaged")
        return whole

    async def parts(self, place: Place, spans: Iterable[tuple[int, int]], session: Any) -> list[Doc]:
        """What says who has the tails of the parts of these spans."""
        keys, found = dict[bytes, None](), list[Doc]()
        for low, high in spans:
            if (high >> 32) - (low >> 32) < PARTS:
                keys.update((part_key(place, one), None) for one in range(low >> 32, (high >> 32) + 1))
            else:
                found += await self.between(part_key(place, low >> 32), part_key(place, high >> 32), session)
        return found + await self.docs(keys, session)

    async def owners(self, parts: Iterable[Doc], session: Any) -> list[Doc]:
        """The heads that have the tails of these parts."""
        return await self.docs({doc["owner"] for doc in parts if doc.get("owner") is not None}, session)

    async def _ranged(self, place: Place, ask: Range, session: Any) -> list[Cells]:
        docs = Documents(await self.owners(await self.parts(place, ask.spans, session), session))
        home, table, regions = home_of(place.tenant, place.home), table_sum(place, ask.table), list[Region]()
        limit = 0 if ask.limit is None else ask.limit + 2  # at both ends of a span a bucket may have other rows
        for low, high in reversed(ask.spans) if ask.newest_first else ask.spans:
            ends = bucket_key(home, table, low >> BUCKET), bucket_key(home, table, high >> BUCKET)
            found = await self.between(*ends, session, limit=limit, last_first=ask.newest_first)
            docs.add(found)
            end = bucket_of(found[-1]["_id"])[1] if limit and len(found) == limit else None
            if end is None:
                regions.append(Region(low, high, whole=True))
            elif ask.newest_first:
                regions.append(Region(max(low, end << BUCKET), high, whole=True))
            else:
                regions.append(Region(low, min(high, (end + 1 << BUCKET) - 1), whole=True))
        return self._rows(docs, place, ask, regions)[0]

    async def _named(self, place: Place, ask: Named, session: Any) -> list[Cells]:
        """The rows of these ids: those in buckets, and in the tails of heads that may have rows of the place."""
        if not ask.ids:
            return []
        table, tables, ids = table_sum(place, ask.table), tables_key(place), set(ask.ids)
        where: Doc = {"ids": {"$in": [tables, *(id_sum(table, id) for id in ids)]}}
        found = await self._found(where | {"home": tables[:HOME]} if self.spread else where, session)
        docs = Documents(found)
        docs.add(await self.docs({owner for doc in found for owner in doc.get("owners", ())}, session))
        try:
            meant = {Cell.key(one) for doc in docs.buckets(table).values() for one in doc["r"] if Cell.id(one) in ids}
            meant.update(docs.tails().get(table, ()))
            cells = [one for key in sorted(meant) for one in docs.cells(table, key, key)]
            return [Cell.row(one) for one in cells if Cell.id(one) in ids]
        except ValueError as cause:
            raise self.corrupt(place, ask.table) from cause


# --- rules


def _known(doc: Doc | None) -> Known | None:
    """How a head is by its document; None for none, and for one that is damaged, which is told where it is read."""
    try:
        return Known.of(doc) if doc is not None else None
    except (KeyError, TypeError):
        return None


def _is_narrow(ask: Range) -> bool:
    """Whether it is asked for so few buckets that they need not be known of."""
    return sum((high >> BUCKET) - (low >> BUCKET) + 1 for low, high in ask.spans) <= 8
