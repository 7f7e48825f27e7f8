"""What a batch changes in the documents of a home, in a transaction."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator

from bson import Int64

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Ask, Batch, Cells, Place, PlaceHead, Refusal, Seen, Step
from palimpsest.stores.mongodb.documents import PARTS, Part
from palimpsest.stores.mongodb.home import Home
from palimpsest.stores.mongodb.layout import (
    BUCKET,
    HEAD_INLINE,
    INLINE,
    NUMBER,
    bucket,
    bucket_key,
    bucket_of,
    head_key,
    in_pieces,
    in_tail,
    lock_key,
    names_key,
    names_of,
    new_head,
    part_key,
    piece_keys,
    reference,
    table_sum,
    tables_beside,
    tables_key,
)
from palimpsest.stores.mongodb.rows import SUM, Cell, Doc
from palimpsest.stores.mongodb.updating import EXPIRING, expiring
from palimpsest.stores.rules import is_meant, refused

LAST_OF_PART = 2**32 - 1

NARROW = 8
"""Buckets of a span that are asked for by their keys where rows are dropped."""


class Changing(Home):
    """What a batch makes of the documents of a home."""

    # --- a batch

    async def take(self, batch: Batch) -> Refusal | None:
        """Do a batch whose heads are as expected; else return those that are there."""
        lock = lock_key(self._home)
        keys = {lock, *(head_key(step.place) for step in batch if not step.rows_only)}
        for step in batch:
            if step.put or step.drop:
                keys.add(tables_key(step.place))
            for _, rows in step.put:
                keys.update(part_key(step.place, part) for part in {row[0] >> 32 for row in rows})
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
        before = self._get(lock)
        number = Int64(before["n"] + 1 if before is not None else 0)
        self._put(lock, {"_id": lock, "home": self._home, "n": number})
        await self._flush()
        await self._tidy(batch)
        return None

    async def _head(self, place: Place) -> PlaceHead | None:
        seen = [Seen(self._reader.head_in(self._docs, place), ())]
        whole = await self._reader.with_values([Ask(place)], seen, self._session)
        return (whole or seen)[0].head

    def _touch(self, key: bytes) -> None:
        """Write a head as it is, so that nobody changes it meanwhile who has no lock: with a number of its own."""
        doc = self._get(key)
        if doc is not None:
            self._put(key, doc)

    # --- tails

    async def _settle(self, batch: Batch) -> None:
        """Read the buckets that a batch changes, and empty the tails of its parts, and of heads that go."""
        owners, spans = set[bytes](), list[tuple[bytes, int, int]]()
        for step in batch:
            dropped = {(low, high) for _, low, high in step.drop}
            parts = await self._reader.parts(step.place, dropped, self._session) if dropped else []
            self._docs.add(parts)
            owners.update(doc["owner"] for doc in parts if doc.get("owner") is not None)
            for name, rows in step.put:
                for part in {row[0] >> 32 for row in rows}:
                    owner = self._docs.part(part_key(step.place, part)).owner
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
            for place, name, cells in self._tail(doc):
                numbers = {Cell.key(cell) >> BUCKET for cell in cells}
                spans += [(table_sum(place, name), number, number) for number in numbers]
            keys.update(doc["own"], map(tables_beside, doc["own"]))
        for table, first, last in spans:
            if last - first < NARROW:
                keys.update(bucket_key(self._home, table, number) for number in range(first, last + 1))
            else:
                ends = bucket_key(self._home, table, first), bucket_key(self._home, table, last)
                self._docs.add(await self._reader.between(*ends, self._session))
        await self._load(keys)
        for doc in folded:
            self._fold(doc)

    def _fold(self, doc: Doc) -> None:
        """Move the rows of a tail on."""
        by_table: dict[tuple[Place, str], list[bytes]] = {}
        for place, name, cells in self._tail(doc):
            by_table.setdefault((place, name), []).extend(cells)
        for (place, name), cells in by_table.items():
            self._store(place, name, cells)
        kept = {field: value for field, value in doc.items() if field not in EXPIRING}
        self._put(doc["_id"], {**kept, "tail": [], **expiring(self._tenant, doc.get("exp"), None)})

    def _tail(self, doc: Doc) -> Iterator[tuple[Place, str, list[bytes]]]:
        try:
            yield from in_tail(doc)
        except ValueError as cause:
            raise StoreCorrupt(self._reader.url, "the rows that came last are damaged") from cause

    # --- rows

    def _tables(self, place: Place, name: str) -> list[str]:
        there = self._get(tables_key(place))
        return [one for one in (there["tables"] if there is not None else ()) if is_meant(one, name)]

    def _cell(self, row: Cells) -> bytes:
        if len(row[1]) <= INLINE:
            return Cell.made(row)
        return Cell.made(row, self._kept_apart(row[1]))

    def _kept_apart(self, value: bytes) -> bytes:
        refers = reference(os.urandom(SUM), len(value))
        for doc in in_pieces(self._home, refers, value):
            self._put(doc["_id"], doc)
        return refers

    def _let_go(self, refers: bytes | None) -> None:
        for key in piece_keys(self._home, refers) if refers is not None else ():
            self._put(key, None)

    def _store(self, place: Place, name: str, cells: Collection[bytes]) -> None:
        """Put rows into their buckets."""
        table, by_bucket = table_sum(place, name), dict[int, list[bytes]]()
        for cell in cells:
            by_bucket.setdefault(Cell.key(cell) >> BUCKET, []).append(cell)
        for number, some in by_bucket.items():
            key = bucket_key(self._home, table, number)
            there = self._get(key)
            rows = {Cell.key(cell): cell for cell in there["r"]} if there is not None else {}
            for cell in some:
                before = rows.get(Cell.key(cell))
                self._let_go(Cell.apart(before) if before is not None else None)
                rows[Cell.key(cell)] = cell
            self._put(key, bucket(key, place, name, rows.values()))
            at = part_key(place, number >> 32 - BUCKET)
            part = self._get(at)
            if part is not None and Part.of(part).tops.get(table, -1) < number:
                tops = Part.of(part).tops | {table: number}
                self._put(at, {**part, "tops": [[one, Int64(top)] for one, top in tops.items()]})
        at = tables_key(place)
        tables = self._get(at) or {"_id": at, "home": self._home, "ids": [at], "tables": [], "owners": []}
        if cells and name not in tables["tables"]:
            self._put(at, {**tables, "tables": [*tables["tables"], name]})

    def _drop(self, place: Place, name: str, low: int, high: int) -> None:
        """Take rows out of buckets that were read."""
        for own in self._tables(place, name):
            table = table_sum(place, own)
            for number in [one for one in self._docs.buckets(table) if low >> BUCKET <= one <= high >> BUCKET]:
                key = bucket_key(self._home, table, number)
                cells: list[bytes] = self._docs.by[key]["r"]
                kept = [cell for cell in cells if not low <= Cell.key(cell) <= high]
                if len(kept) == len(cells):
                    continue
                for cell in cells:
                    if low <= Cell.key(cell) <= high:
                        self._let_go(Cell.apart(cell))
                self._put(key, bucket(key, place, own, kept) if kept else None)

    # --- heads

    async def _move(self, step: Step) -> None:
        """Change a head."""
        place, key = step.place, head_key(step.place)
        before = self._get(key)
        if before is not None:
            for name, given in (("hotv", True), ("coldv", step.hot is None or step.cold is not None)):
                if given and name in before:
                    self._let_go(before[name])
        if step.hot is None:
            self._let_owned_go(before)
            self._put(names_key(place), None)
            return self._put(key, None)
        if before is None:
            self._put(names_key(place), names_of(place))
        kept = before or new_head(place)
        doc = {name: value for name, value in kept.items() if name not in {"hot", "hotv", *EXPIRING}}
        doc |= {"hot": bytes(NUMBER), **self._valued("hot", step.hot, bytes(NUMBER))}
        doc |= expiring(self._tenant, step.expires, kept.get("first"))
        if step.cold is not None:
            doc = {name: value for name, value in doc.items() if name not in {"cold", "coldv"}}
            doc |= self._valued("cold", step.cold)
        return self._put(key, {**doc, "moved": True})

    def _valued(self, name: str, value: bytes, number: bytes = b"") -> Doc:
        if len(value) <= HEAD_INLINE:
            return {name: value + number}
        return {f"{name}v": self._kept_apart(value)}

    def _let_owned_go(self, doc: Doc | None) -> None:
        """Let nobody have the tails any more that a head had."""
        if doc is None:
            return
        for at in doc["own"]:
            part, tables = self._get(at), self._get(tables_beside(at))
            if part is not None and part.get("owner") == doc["_id"]:
                self._put(at, {**part, "owner": None})
            if tables is not None and doc["_id"] in tables["owners"]:
                owners = [one for one in tables["owners"] if one != doc["_id"]]
                self._put(tables["_id"], {**tables, "owners": owners})

    async def _claim(self, batch: Batch) -> None:
        """Give the tails of parts to the one head that was written together with their rows."""
        heads = [step for step in batch if not step.rows_only and step.hot is not None]
        heads = [step for step in heads if step.moves] or heads
        wanted = {(step.place, row[0] >> 32) for step in batch for _, rows in step.put for row in rows}
        doc = self._get(head_key(heads[0].place)) if len(heads) == 1 else None
        if doc is None or not wanted or len(wanted) > PARTS:
            return
        own = list[bytes](doc["own"])
        for place, number in sorted(wanted):
            at, tables = part_key(place, number), self._docs.by[tables_key(place)]
            part = self._get(at)
            if part is None:
                tops = {table_sum(place, one): await self._top(place, one, number) for one in tables["tables"]}
                pairs = [[one, Int64(top)] for one, top in tops.items() if top >= 0]
                part = {"_id": at, "home": self._home, "owner": None, "tops": pairs}
            if part["owner"] is not None and part["owner"] != doc["_id"]:
                continue
            self._put(at, {**part, "owner": doc["_id"]})
            if at not in own:
                own.append(at)
            if doc["_id"] not in tables["owners"]:
                self._put(tables["_id"], {**tables, "owners": [*tables["owners"], doc["_id"]]})
        self._put(doc["_id"], {**doc, "own": own})

    async def _top(self, place: Place, name: str, part: int) -> int:
        """The last bucket that a table has in a part, or will have; -1: none."""
        table = table_sum(place, name)
        first, last = (number << 32 - BUCKET for number in (part, part + 1))
        found = [one for one in self._docs.buckets(table) if first <= one < last]
        if name in self._tables_before.get(tables_key(place), ()):
            ends = bucket_key(self._home, table, first), bucket_key(self._home, table, last - 1)
            docs = await self._reader.between(*ends, self._session, limit=1, last_first=True)
            found += [bucket_of(doc["_id"])[1] for doc in docs]
        return max(found, default=-1)

    # --- the end

    async def _tidy(self, batch: Batch) -> None:
        """Remove what says something of parts, places and homes of which nothing is left."""
        for step in batch:
            wide = [(low, high) for _, low, high in step.drop if high - low >= LAST_OF_PART]
            tables = self._tables(step.place, "*") if wide else []
            begin = part_key(step.place, 0)[:-4]
            for key in [one for one in self._docs.by if one.startswith(begin)]:
                number = int.from_bytes(key[len(begin) :])
                first = number << 32
                within = any(low <= first and first | LAST_OF_PART <= high for low, high in wide)
                if within and not [one for one in tables if await self._top(step.place, one, number) >= 0]:
                    self._disown(key)
            if tables and not await self._is_used(step.place, tables):
                self._put(tables_key(step.place), None)
        await self._flush()
        gone = any(not step.rows_only and step.hot is None and step.expect is not None for step in batch)
        if gone and not (await self._any(b"h", SUM) or await self._any(b"r", SUM + 8)):
            saying = [*await self._all(b"t", SUM), *await self._all(b"o", SUM + 4)]
            for key in (lock_key(self._home), *(doc["_id"] for doc in saying)):
                self._put(key, None)
            await self._flush()

    async def _is_used(self, place: Place, tables: Iterable[str]) -> bool:
        """Whether somebody has rows of these tables of a place, or may have some in a tail."""
        there = self._get(tables_key(place))
        if there is not None and there["owners"]:
            return True
        return any([await self._any(b"r" + table_sum(place, one), 8) for one in tables])

    def _disown(self, key: bytes) -> None:
        """Remove what is known of a part, also where it is known who has its tail."""
        owner = Part.of(self._get(key)).owner
        head = self._get(owner) if owner is not None else None
        if head is not None:
            self._put(head["_id"], {**head, "own": [one for one in head["own"] if one != key]})
        self._put(key, None)
