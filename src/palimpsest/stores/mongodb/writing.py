"""What a batch changes in the documents of a home, in a transaction."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from bson import Binary, Int64
from pymongo.asynchronous.client_session import AsyncClientSession

from palimpsest.stores.backend import Batch, Cells, Place, PlaceHead, Refusal, Step
from palimpsest.stores.mongodb.documents import PARTS, Documents, Part
from palimpsest.stores.mongodb.layout import (
    BUCKET,
    HEAD_INLINE,
    INLINE,
    LOCK,
    SUM,
    Apart,
    Cell,
    Doc,
    bucket,
    bucket_key,
    bucket_of,
    claim,
    head_key,
    home_of,
    in_pieces,
    names_key,
    new_head,
    part_key,
    piece_keys,
    place_sum,
    reference,
    table_sum,
)
from palimpsest.stores.mongodb.reading import Reader
from palimpsest.stores.mongodb.updating import operations
from palimpsest.stores.rules import is_meant, refused

SAYING, MANY = (LOCK, b"t", b"o"), 64
"""What keys begin with of documents that only say something of others; and how many are looked through for them."""

LAST_OF_PART = 2**32 - 1

NARROW = 8
"""Buckets of a span that are asked for by their keys where rows are dropped."""


class Changing:
    """The documents of a home in a transaction, as they are, and what becomes of them."""

    def __init__(self, reader: Reader, session: AsyncClientSession, tenant: str, home: str) -> None:
        self._reader, self._session, self._tenant = reader, session, tenant
        self._home = home_of(tenant, home)
        self._docs = Documents()
        self._asked = set[bytes]()
        self._changed = dict[bytes, Doc | None]()

    async def _load(self, keys: Iterable[bytes]) -> None:
        new = [key for key in dict.fromkeys(keys) if key not in self._asked]
        self._asked.update(new)
        self._docs.add(await self._reader.docs([self._home], new, self._session))

    def _get(self, key: bytes) -> Doc | None:
        return self._docs.by.get(key)

    def _put(self, key: bytes, doc: Doc | None) -> None:
        self._docs.put(key, doc)
        self._changed[key] = doc

    # --- a batch

    async def take(self, batch: Batch) -> Refusal | None:
        """Do a batch whose heads are as expected; else return those that are there."""
        keys = {LOCK, *(head_key(step.place) for step in batch if not step.rows_only)}
        for step in batch:
            if step.put or step.drop:
                keys.add(names_key(step.place))
            for _, rows in step.put:
                keys.update(part_key(place_sum(step.place), part) for part in {row[0] >> 32 for row in rows})
        await self._load(keys)
        heads = [None if step.rows_only else await self._head(step.place) for step in batch]
        if (refusal := refused(batch, heads)) is not None:
            return refusal
        for step in batch:
            if not (step.rows_only or step.moves):
                self._touch(head_key(step.place))
        await self._settle(batch)
        for step in batch:
            for name, low, high in step.drop:
                self._drop(step.place, name, low, high)
            for name, rows in step.put:
                self._store(step.place, name, [self._cell(row) for row in rows])
            if step.moves:
                await self._move(step)
        await self._claim(batch)
        lock = self._get(LOCK)
        number = Int64(lock["n"] + 1 if lock is not None else 0)
        self._put(LOCK, {"home": self._home, "k": Binary(LOCK), "n": number})
        await self._flush()
        await self._tidy(batch)
        return None

    async def _head(self, place: Place) -> PlaceHead | None:
        head = self._reader.head_in(self._docs, place)
        apart = [bytes(one) for one in (head.hot, head.cold) if isinstance(one, Apart)] if head is not None else []
        if head is None or not apart:
            return head
        values = await self._reader.values([self._home], apart, self._session)
        return PlaceHead(values.get(bytes(head.hot), head.hot), values.get(bytes(head.cold), head.cold))

    def _touch(self, key: bytes) -> None:
        """Write a head as it is, so that nobody changes it meanwhile who has no lock."""
        doc = self._get(key)
        if doc is not None:
            self._put(key, {**doc, "by": Binary(os.urandom(8))})

    # --- tails

    async def _settle(self, batch: Batch) -> None:
        """Read the buckets that a batch changes, and empty the tails of its parts, and of heads that go."""
        owners, spans = set[bytes](), list[tuple[bytes, int, int]]()
        for step in batch:
            dropped = {(low, high) for _, low, high in step.drop}
            parts = await self._reader.parts(self._home, step.place, dropped, self._session) if dropped else []
            self._docs.add(parts)
            owners.update(bytes(doc["owner"]) for doc in parts if doc.get("owner") is not None)
            for name, rows in step.put:
                for part in {row[0] >> 32 for row in rows}:
                    owner = self._docs.part(part_key(place_sum(step.place), part)).owner
                    owners.update([] if owner is None else [owner])
                table = table_sum(step.place, name)
                spans += [(table, number, number) for number in {row[0] >> BUCKET for row in rows}]
            for name, low, high in step.drop:
                for own in self._tables(step.place, name):
                    spans.append((table_sum(step.place, own), low >> BUCKET, high >> BUCKET))
            if not step.rows_only and step.hot is None:
                owners.add(head_key(step.place))
        await self._load(owners)
        folded = [doc for owner in owners if (doc := self._get(owner)) is not None]
        keys = set[bytes]()
        for doc in folded:
            for cell in doc.get("tail", ()):
                spans.append((cell[:SUM], *(Cell.key(cell[SUM:]) >> BUCKET,) * 2))
            whose = {bytes(table): bytes(place) for table, place, *_ in doc.get("of", ())}
            keys.update(b"t" + place for place in whose.values())
            keys.update(part_key(whose[one[:SUM]], int.from_bytes(one[SUM:])) for one in doc.get("own", ()))
        for table, first, last in spans:
            if last - first < NARROW:
                keys.update(bucket_key(table, number) for number in range(first, last + 1))
            else:
                ends = bucket_key(table, first), bucket_key(table, last)
                found = await self._reader.between(self._home, *ends, self._session)
                self._docs.add(doc for doc in found if bytes(doc["k"]) not in self._changed)
        await self._load(keys)
        for doc in folded:
            self._fold(doc)

    def _fold(self, doc: Doc) -> None:
        """Move the rows of a tail on."""
        tail = doc.get("tail")
        if not tail:
            return self._touch(bytes(doc["k"]))
        names = {bytes(table): (space, name, own) for table, _, space, name, own in doc["of"]}
        by_table: dict[bytes, list[bytes]] = {}
        for cell in tail:
            by_table.setdefault(cell[:SUM], []).append(cell[SUM:])
        for table, cells in by_table.items():
            space, name, own = names[table]
            self._store(Place(self._tenant, doc["hn"], space, name), own, cells)
        kept = {field: value for field, value in doc.items() if field not in {"i", "due"}}
        return self._put(bytes(doc["k"]), {**kept, "tail": [], "size": 0})

    # --- rows

    def _tables(self, place: Place, name: str) -> list[str]:
        there = self._get(names_key(place))
        return [one for one in (there["tables"] if there is not None else ()) if is_meant(one, name)]

    def _cell(self, row: Cells) -> bytes:
        if len(row[1]) <= INLINE:
            return Cell.made(row)
        return Cell.made(row, self._kept_apart(row[1]))

    def _kept_apart(self, value: bytes) -> bytes:
        refers = reference(os.urandom(SUM), len(value))
        for doc in in_pieces(self._home, refers, value):
            self._put(bytes(doc["k"]), doc)
        return refers

    def _let_go(self, refers: bytes | None) -> None:
        for key in piece_keys(refers) if refers is not None else ():
            self._put(key, None)

    def _store(self, place: Place, name: str, cells: Collection[bytes]) -> None:
        """Put rows into their buckets."""
        table, by_bucket = table_sum(place, name), dict[int, list[bytes]]()
        for cell in cells:
            by_bucket.setdefault(Cell.key(cell) >> BUCKET, []).append(cell)
        for number, some in by_bucket.items():
            key = bucket_key(table, number)
            there = self._get(key)
            rows = {Cell.key(cell): bytes(cell) for cell in there["r"]} if there is not None else {}
            for cell in some:
                before = rows.get(Cell.key(cell))
                self._let_go(Cell.apart(before) if before is not None else None)
                rows[Cell.key(cell)] = cell
            self._put(key, bucket(self._home, key, place, name, rows.values()))
            at = part_key(place_sum(place), number >> 32 - BUCKET)
            part = self._get(at)
            if part is not None and Part.of(part).tops.get(table, -1) < number:
                tops = Part.of(part).tops | {table: number}
                self._put(at, {**part, "tops": [[Binary(one), Int64(top)] for one, top in tops.items()]})
        names = self._get(names_key(place))
        if cells and (names is None or name not in names["tables"]):
            tables = [*(names["tables"] if names is not None else ()), name]
            self._put(names_key(place), {"home": self._home, "k": Binary(names_key(place)), "tables": tables})

    def _drop(self, place: Place, name: str, low: int, high: int) -> None:
        """Take rows out of buckets that were read."""
        for own in self._tables(place, name):
            table = table_sum(place, own)
            for number in [one for one in self._docs.buckets(table) if low >> BUCKET <= one <= high >> BUCKET]:
                key = bucket_key(table, number)
                cells = [bytes(cell) for cell in self._docs.by[key]["r"]]
                kept = [cell for cell in cells if not low <= Cell.key(cell) <= high]
                if len(kept) == len(cells):
                    continue
                for cell in cells:
                    if low <= Cell.key(cell) <= high:
                        self._let_go(Cell.apart(cell))
                self._put(key, bucket(self._home, key, place, own, kept) if kept else None)

    # --- heads

    async def _move(self, step: Step) -> None:
        """Change a head."""
        place, key = step.place, head_key(step.place)
        before = self._get(key)
        if before is not None:
            for name, given in (("hotv", True), ("coldv", step.hot is None or step.cold is not None)):
                if given and name in before:
                    self._let_go(bytes(before[name]))
        if step.hot is None:
            self._let_owned_go(before)
            return self._put(key, None)
        kept = before or new_head(place)
        doc = {name: value for name, value in kept.items() if name not in {"hot", "hotv", "exp", "by"}}
        if step.expires is not None:
            doc["exp"] = step.expires
        doc |= self._valued("hot", step.hot)
        if step.cold is not None:
            doc = {name: value for name, value in doc.items() if name not in {"cold", "coldv"}}
            doc |= self._valued("cold", step.cold)
        return self._put(key, {**doc, "moved": True})

    def _valued(self, name: str, value: bytes) -> Doc:
        if len(value) <= HEAD_INLINE:
            return {name: Binary(value)}
        return {f"{name}v": Binary(self._kept_apart(value))}

    def _let_owned_go(self, doc: Doc | None) -> None:
        """Let nobody have the tails any more that a head had."""
        whose = {bytes(table): bytes(place) for table, place, *_ in doc["of"]} if doc is not None else {}
        for one in doc["own"] if doc is not None else ():
            at = part_key(whose[one[:SUM]], int.from_bytes(one[SUM:]))
            part = self._get(at)
            if part is not None and part.get("owner") == doc["k"]:  # type: ignore[index]
                self._put(at, {**part, "owner": None})

    async def _claim(self, batch: Batch) -> None:
        """Give the tails of parts to the one head that was written together with their rows."""
        heads = [step for step in batch if not step.rows_only and step.hot is not None]
        heads = [step for step in heads if step.moves] or heads
        wanted = {(step.place, row[0] >> 32, name) for step in batch for name, rows in step.put for row in rows}
        doc = self._get(head_key(heads[0].place)) if len(heads) == 1 else None
        if doc is None or not wanted or len(wanted) > PARTS:
            return
        own, of = list(doc["own"]), {bytes(one[0]): one for one in doc["of"]}
        for place, number, name in sorted(wanted):
            at, table = part_key(place_sum(place), number), table_sum(place, name)
            part = self._get(at)
            if part is None:
                tops = {
                    table_sum(place, one): await self._top(table_sum(place, one), number)
                    for one in self._tables(place, "*")
                }
                pairs = [[Binary(one), Int64(top)] for one, top in tops.items() if top >= 0]
                part = {"home": self._home, "k": Binary(at), "owner": None, "tops": pairs}
            if part["owner"] is not None and part["owner"] != doc["k"]:
                continue
            self._put(at, {**part, "owner": doc["k"]})
            if claim(table, number) not in own:
                own.append(claim(table, number))
            of[table] = [Binary(table), Binary(place_sum(place)), place.space, place.name, name]
        self._put(bytes(doc["k"]), {**doc, "own": own, "of": list(of.values())})

    async def _top(self, table: bytes, part: int) -> int:
        """The last bucket that a table has in a part, or will have; -1: none."""
        first, last = (number << 32 - BUCKET for number in (part, part + 1))
        ends = bucket_key(table, first), bucket_key(table, last - 1)
        found = await self._reader.between(self._home, *ends, self._session, limit=1, last_first=True)
        here = [one for one in self._docs.buckets(table) if first <= one < last]
        return max([*here, *(bucket_of(bytes(doc["k"]))[1] for doc in found)], default=-1)

    # --- the end

    async def _flush(self) -> None:
        """Write what has changed."""
        ops = operations(self._home, self._changed)
        self._changed.clear()
        if ops:
            await self._reader.collection.bulk_write(ops, ordered=False, session=self._session)

    async def _tidy(self, batch: Batch) -> None:
        """Remove what says something of parts, places and homes of which nothing is left."""
        for step in batch:
            wide = [(low, high) for _, low, high in step.drop if high - low >= LAST_OF_PART]
            tables = [table_sum(step.place, one) for one in self._tables(step.place, "*")] if wide else []
            for key in [one for one in self._docs.by if one[: 1 + SUM] == b"o" + place_sum(step.place)]:
                number = int.from_bytes(key[1 + SUM :])
                first = number << 32
                within = any(low <= first and first | LAST_OF_PART <= high for low, high in wide)
                if within and not [one for one in tables if await self._top(one, number) >= 0]:
                    self._disown(key, tables)
            if tables and not [one for one in tables if await self._any(b"r" + one, 8)]:
                self._put(names_key(step.place), None)
        await self._flush()
        if any(not step.rows_only and step.hot is None and step.expect is not None for step in batch):
            cursor = self._reader.collection.find({"home": self._home}, {"k": 1}, session=self._session).limit(MANY)
            left = [bytes(doc["k"]) for doc in await cursor.to_list()]
            if len(left) < MANY and all(key[:1] in SAYING for key in left):
                for key in left:
                    self._put(key, None)
                await self._flush()

    async def _any(self, begin: bytes, more: int) -> bool:
        """Whether there is a document whose key begins so."""
        ends = begin + bytes(more), begin + b"\xff" * more
        return bool(await self._reader.between(self._home, *ends, self._session, limit=1))

    def _disown(self, key: bytes, tables: Iterable[bytes]) -> None:
        """Remove what is known of a part, also where it is known who has its tail."""
        owner, number = Part.of(self._get(key)).owner, int.from_bytes(key[1 + SUM :])
        head = self._get(bytes(owner)) if owner is not None else None
        if head is not None:
            gone = {claim(table, number) for table in tables}
            self._put(bytes(head["k"]), {**head, "own": [one for one in head["own"] if one not in gone]})
        self._put(key, None)
