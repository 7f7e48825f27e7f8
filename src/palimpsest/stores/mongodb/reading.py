"""Looks: one query if the keys of the documents to read are known, else several queries in a transaction.

The keys follow from what is remembered of parts: which head owns a part, whose tail has rows of it, and which bucket of
each table is the last. The documents that are read show whether this still holds; if not, the look asks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pymongo.asynchronous.client_session import AsyncClientSession

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Ask, Cells, Named, Place, PlaceHead, Range, Seen
from palimpsest.stores.mongodb.documents import PARTS, Documents, Region, apart_in, filled, needed_for
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
"""How many parts are remembered at most, and how many heads."""

ROUNDS = 4
"""Queries after which a look becomes a transaction: when others keep writing, or the rows are far apart."""

BATCH = 10_000
"""The most documents in one answer of the server, as far as they fit into one."""


class Reader:
    """Reads documents, and remembers how heads and parts are.

    For `look` each query of `collection` must see one snapshot. `spread` says that the server is a router, to which
    each query names the home. `_vouched` holds, by the key of a part, its document and the `made` that its owner had
    then: while the owner still has it, the document need not be read again.
    """

    def __init__(self, url: str, collection: Any, spread: bool) -> None:
        self.url, self.collection, self.spread = url, collection, spread
        self._parts = Documents()
        self._vouched: dict[bytes, tuple[Doc, bytes]] = {}
        self._heads: dict[bytes, Known] = {}

    # --- queries

    async def docs(self, keys: Iterable[bytes], session: Any = None) -> list[Doc]:
        """Return the documents of these keys, those that exist, in any order."""
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
        """Return the documents between two keys of one home and kind, both included, in the order of their keys."""
        where = by_key(low, self.spread) | {"_id": {"$gte": low, "$lte": high}}
        cursor = self.collection.find(where, session=session, batch_size=BATCH)
        found: list[Doc] = await cursor.sort([("_id", -1 if last_first else 1)]).limit(limit).to_list()
        return found

    # --- what is remembered of heads

    def known(self, place: Place) -> Known | None:
        """Return what is remembered of a head, or None."""
        return self._heads.get(head_key(place))

    async def found(self, place: Place) -> tuple[Known, PlaceHead] | None:
        """Read a head. Its values in pieces are references. None if there is none; raises StoreCorrupt."""
        docs = await self.docs([head_key(place)])
        head = self.head_in(Documents(docs), place)
        if head is None:
            return None
        if (known := _known(docs[0])) is None:
            raise self._damaged(place)
        return known, head

    def remember(self, key: bytes, known: Known | None) -> None:
        """Remember what is known of a head; None: forget it."""
        if known is None:
            self._heads.pop(key, None)
            return
        if len(self._heads) >= REMEMBERED:
            self._heads.clear()
        self._heads[key] = known

    # --- looks

    async def look(self, asks: Sequence[Ask]) -> list[Seen] | None:
        """Answer the asks with a few queries, the last of which has read all that is needed; None if that fails.

        The first query goes by the remembered parts. If the parts that it reads differ, the next one goes by these.
        """
        parts, as_read, asked = self._parts, False, set[bytes]()
        for _ in range(ROUNDS):
            needed = needed_for(asks, parts, remembered=not as_read)
            if needed is None or (as_read and needed.keys <= asked):
                return None
            asked = needed.keys
            vouched = {key: self._vouched[key] for key in asked if key in self._vouched} if not as_read else {}
            docs = Documents(await self.docs(asked - vouched.keys()))
            if not self._vouch(docs, vouched):
                continue
            if self.learn(asked, docs) or not needed.whole:
                needed = needed_for(asks, docs)
            if needed is None:
                return None
            if needed.keys <= asked:
                seen, missing = self._seen(asks, docs, needed.regions)
                return None if missing else await self.with_values(asks, seen)
            parts, as_read = docs, True
        return None

    def _vouch(self, docs: Documents, vouched: dict[bytes, tuple[Doc, bytes]]) -> bool:
        """Add to `docs` the remembered documents of parts that were not asked for; return whether all still hold.

        A transaction that changes the document of a part also writes the head that owns it, and gives each head that it
        writes a new `made`. So a document holds while its owner has the same `made`.
        """
        hold = True
        for key, (part, made) in vouched.items():
            if docs.by.get(part["owner"], {}).get("made") == made:
                docs.put(key, part)
            else:
                self._vouched.pop(key, None)
                hold = False
        return hold

    def learn(self, keys: Iterable[bytes], docs: Documents) -> bool:
        """Remember the parts and heads of these keys as they are in `docs`; return whether a part was not remembered
        like that."""
        parts, differs = self._parts, False
        if len(parts.by) > REMEMBERED:
            parts.by.clear()
            self._vouched.clear()
        for key in keys:
            kind, doc = kind_of(key), docs.by.get(key)
            if kind == b"h":
                self.remember(key, _known(doc))
            elif kind == b"o":
                differs = differs or doc is None or parts.by.get(key) != doc
                self._vouched.pop(key, None)
                if doc is None:
                    parts.by.pop(key, None)
                    continue
                parts.by[key] = doc
                owner = docs.by.get(doc.get("owner") or b"")
                if owner is not None and "made" in owner:
                    self._vouched[key] = doc, owner["made"]
        return differs

    def _seen(self, asks: Sequence[Ask], docs: Documents, regions: list[list[list[Region]]]) -> tuple[list[Seen], bool]:
        """Return the answers, and whether the regions that were read turned out too small for a limit."""
        seen, incomplete = list[Seen](), False
        for ask, regions_of_ask in zip(asks, regions, strict=True):
            rows = list[list[Cells]]()
            for wanted, regions_of_range in zip(ask.rows, regions_of_ask, strict=True):
                if isinstance(wanted, Named):
                    rows.append([])
                else:
                    found, missing = self._rows(docs, ask.place, wanted, regions_of_range)
                    rows.append(found)
                    incomplete = incomplete or missing
            seen.append(Seen(self.head_in(docs, ask.place) if ask.head else None, rows))
        return seen, incomplete

    def _rows(self, docs: Documents, place: Place, ask: Range, regions: Sequence[Region]) -> tuple[list[Cells], bool]:
        try:
            return docs.rows(table_sum(place, ask.table), ask, regions)
        except (ValueError, TypeError, KeyError) as cause:
            raise self.corrupt(place, ask.table) from cause

    def corrupt(self, place: Place, table: str) -> StoreCorrupt:
        """Return the error that says which rows cannot be read."""
        return StoreCorrupt(self.url, f"rows of {table!r} of {place.space}/{place.name} in {place.home!r} are damaged")

    def head_in(self, docs: Documents, place: Place) -> PlaceHead | None:
        """Return a head out of these documents, None if it is not there. Its values in pieces are references.

        Raises StoreCorrupt for a damaged one.
        """
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
        """Return the answers with references replaced by their values, which are read; None if one has gone meanwhile
        or is missing."""
        wanted = apart_in(asks, seen)
        if not wanted:
            return seen
        values = await self._values(wanted, session)
        return filled(seen, values) if len(values) == len(wanted) else None

    async def _values(self, references: Iterable[tuple[bytes, bytes]], session: Any) -> dict[bytes, bytes]:
        """Return the values of these references (each given with its home) whose pieces are all there."""
        values: dict[bytes, bytes] = {}
        for home, reference in references:
            pieces: dict[bytes, bytes] = {}
            keys = piece_keys(home, reference)
            for key in keys:  # one by one: together they may be larger than an answer can be
                pieces |= {doc["_id"]: doc["v"] for doc in await self.docs([key], session)}
            value = b"".join(pieces.get(key, b"") for key in keys)
            if len(value) == int.from_bytes(reference[SUM:]):
                values[reference] = value
        return values

    # --- in a transaction

    async def look_within(self, asks: Sequence[Ask], session: AsyncClientSession) -> list[Seen]:
        """Answer the asks with queries of a transaction, which all see one snapshot. Raises StoreCorrupt."""
        seen = list[Seen]()
        heads = Documents(await self.docs({head_key(ask.place) for ask in asks if ask.head}, session))
        for ask in asks:
            head = self.head_in(heads, ask.place) if ask.head else None
            rows = [
                await (
                    self._named(ask.place, wanted, session)
                    if isinstance(wanted, Named)
                    else self._ranged(ask.place, wanted, session)
                )
                for wanted in ask.rows
            ]
            seen.append(Seen(head, rows))
        whole = await self.with_values(asks, seen, session)
        if whole is None:
            raise StoreCorrupt(self.url, "pieces of a large value are missing: it is damaged")
        return whole

    async def parts(self, place: Place, spans: Iterable[tuple[int, int]], session: Any) -> list[Doc]:
        """Return the documents of the parts that these spans reach into."""
        keys, found = dict[bytes, None](), list[Doc]()
        for low, high in spans:
            if (high >> 32) - (low >> 32) < PARTS:
                keys.update((part_key(place, part), None) for part in range(low >> 32, (high >> 32) + 1))
            else:
                found += await self.between(part_key(place, low >> 32), part_key(place, high >> 32), session)
        return found + await self.docs(keys, session)

    async def owners(self, parts: Iterable[Doc], session: Any) -> list[Doc]:
        """Return the documents of the heads that own these parts."""
        return await self.docs({doc["owner"] for doc in parts if doc.get("owner") is not None}, session)

    async def _ranged(self, place: Place, ask: Range, session: Any) -> list[Cells]:
        """Return the rows of a range: those in the tails of the owners of its parts, and in its buckets."""
        docs = Documents(await self.owners(await self.parts(place, ask.spans, session), session))
        home, table, regions = home_of(place.tenant, place.home), table_sum(place, ask.table), list[Region]()
        # Buckets, each of at least one row; at both ends of a span one may hold only rows outside of it.
        limit = 0 if ask.limit is None else ask.limit + 2
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
        """Return the rows of these ids, in buckets and in the tails of heads that may have rows of the place."""
        if not ask.ids:
            return []
        table, tables, ids = table_sum(place, ask.table), tables_key(place), set(ask.ids)
        where: Doc = {"ids": {"$in": [tables, *(id_sum(table, id) for id in ids)]}}
        found = await self._found(where | {"home": tables[:HOME]} if self.spread else where, session)
        docs = Documents(found)
        docs.add(await self.docs({owner for doc in found for owner in doc.get("owners", ())}, session))
        try:
            keys = {Cell.key(cell) for doc in docs.buckets(table).values() for cell in doc["r"] if Cell.id(cell) in ids}
            keys.update(docs.tails().get(table, ()))
            cells = [cell for key in sorted(keys) for cell in docs.cells(table, key, key)]
            return [Cell.row(cell) for cell in cells if Cell.id(cell) in ids]
        except ValueError as cause:
            raise self.corrupt(place, ask.table) from cause


# --- rules


def _known(doc: Doc | None) -> Known | None:
    """Return what is known of a head by its document; None without one, and for a damaged one, which raises an error
    where its value is read."""
    try:
        return Known.of(doc) if doc is not None else None
    except (KeyError, TypeError):
        return None
