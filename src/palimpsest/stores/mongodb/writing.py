"""How a transaction writes a batch to the documents of a home."""

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
"""A span of fewer buckets than this is read by their keys, a wider one as a range of keys."""


class Changing(Home):
    """Writes one batch to the documents of a home, within a transaction."""

    # --- a batch

    async def take(self, batch: Batch) -> Refusal | None:
        """Write a batch, and return None; or return its refusal if a head is not as expected."""
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
        lock_doc = self._get(lock)
        number = Int64(lock_doc["n"] + 1 if lock_doc is not None else 0)
        self._put(lock, {"_id": lock, "home": self._home, "n": number})
        await self._flush()
        await self._tidy(batch)
        return None

    async def _head(self, place: Place) -> PlaceHead | None:
        """Return a head that was read, with its values in pieces."""
        seen = [Seen(self._reader.head_in(self._docs, place), ())]
        whole = await self._reader.with_values([Ask(place)], seen, self._session)
        return (whole or seen)[0].head

    def _touch(self, key: bytes) -> None:
        """Have a head written unchanged, but for its number: so an update outside of transactions conflicts with it."""
        doc = self._get(key)
        if doc is not None:
            self._put(key, doc)

    # --- tails

    async def _settle(self, batch: Batch) -> None:
        """Read the buckets that a batch changes, and empty the tails of its parts and of removed heads."""
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
            for pattern, low, high in step.drop:
                for name in self._tables(step.place, pattern):
                    spans.append((table_sum(step.place, name), low >> BUCKET, high >> BUCKET))
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
        """Move the rows of a head's tail to their buckets."""
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

    def _tables(self, place: Place, pattern: str) -> list[str]:
        """Return the tables of a place that `drop` names by this: a name, or a beginning with a `*`."""
        doc = self._get(tables_key(place))
        return [name for name in (doc["tables"] if doc is not None else ()) if is_meant(name, pattern)]

    def _cell(self, row: Cells) -> bytes:
        """Return the cell of a row, whose value is stored in pieces if it is large."""
        if len(row[1]) <= INLINE:
            return Cell.made(row)
        return Cell.made(row, self._put_pieces(row[1]))

    def _put_pieces(self, value: bytes) -> bytes:
        """Store a value in pieces, and return the reference to it."""
        refers = reference(os.urandom(SUM), len(value))
        for doc in in_pieces(self._home, refers, value):
            self._put(doc["_id"], doc)
        return refers

    def _remove_pieces(self, refers: bytes | None) -> None:
        for key in piece_keys(self._home, refers) if refers is not None else ():
            self._put(key, None)

    def _store(self, place: Place, name: str, cells: Collection[bytes]) -> None:
        """Put rows into their buckets, and note a new table, and a new last bucket of a part."""
        table, by_bucket = table_sum(place, name), dict[int, list[bytes]]()
        for cell in cells:
            by_bucket.setdefault(Cell.key(cell) >> BUCKET, []).append(cell)
        for number, bucket_cells in by_bucket.items():
            key = bucket_key(self._home, table, number)
            stored = self._get(key)
            rows = {Cell.key(cell): cell for cell in stored["r"]} if stored is not None else {}
            for cell in bucket_cells:
                replaced = rows.get(Cell.key(cell))
                self._remove_pieces(Cell.apart(replaced) if replaced is not None else None)
                rows[Cell.key(cell)] = cell
            self._put(key, bucket(key, place, name, rows.values()))
            of_part = part_key(place, number >> 32 - BUCKET)
            part = self._get(of_part)
            if part is not None and Part.of(part).tops.get(table, -1) < number:
                tops = Part.of(part).tops | {table: number}
                self._put(of_part, {**part, "tops": [[sum_, Int64(top)] for sum_, top in tops.items()]})
        of_tables = tables_key(place)
        new = {"_id": of_tables, "home": self._home, "ids": [of_tables], "tables": [], "owners": []}
        tables = self._get(of_tables) or new
        if cells and name not in tables["tables"]:
            self._put(of_tables, {**tables, "tables": [*tables["tables"], name]})

    def _drop(self, place: Place, pattern: str, low: int, high: int) -> None:
        """Drop rows from buckets, all of which `_settle` has read."""
        for name in self._tables(place, pattern):
            table = table_sum(place, name)
            numbers = [number for number in self._docs.buckets(table) if low >> BUCKET <= number <= high >> BUCKET]
            for number in numbers:
                key = bucket_key(self._home, table, number)
                cells: list[bytes] = self._docs.by[key]["r"]
                kept = [cell for cell in cells if not low <= Cell.key(cell) <= high]
                if len(kept) == len(cells):
                    continue
                for cell in cells:
                    if low <= Cell.key(cell) <= high:
                        self._remove_pieces(Cell.apart(cell))
                self._put(key, bucket(key, place, name, kept) if kept else None)

    # --- heads

    async def _move(self, step: Step) -> None:
        """Change, create or remove a head, with its names and the pieces of its values."""
        place, key = step.place, head_key(step.place)
        before = self._get(key)
        if before is not None:
            for name, replaced in (("hotv", True), ("coldv", step.hot is None or step.cold is not None)):
                if replaced and name in before:
                    self._remove_pieces(before[name])
        if step.hot is None:
            self._disown_all(before)
            self._put(names_key(place), None)
            return self._put(key, None)
        if before is None:
            self._put(names_key(place), names_of(place))
        base = before or new_head(place)
        doc = {name: value for name, value in base.items() if name not in {"hot", "hotv", *EXPIRING}}
        doc |= {"hot": bytes(NUMBER), **self._valued("hot", step.hot, bytes(NUMBER))}  # `_flush` writes the number
        doc |= expiring(self._tenant, step.expires, base.get("first"))
        if step.cold is not None:
            doc = {name: value for name, value in doc.items() if name not in {"cold", "coldv"}}
            doc |= self._valued("cold", step.cold)
        return self._put(key, {**doc, "moved": True})

    def _valued(self, name: str, value: bytes, number: bytes = b"") -> Doc:
        """Return the field that holds a value of a head: the value with its number, or a reference to its pieces."""
        if len(value) <= HEAD_INLINE:
            return {name: value + number}
        return {f"{name}v": self._put_pieces(value)}

    def _disown_all(self, head: Doc | None) -> None:
        """Leave the parts that a head owned without an owner."""
        if head is None:
            return
        for of_part in head["own"]:
            part, tables = self._get(of_part), self._get(tables_beside(of_part))
            if part is not None and part.get("owner") == head["_id"]:
                self._put(of_part, {**part, "owner": None})
            if tables is not None and head["_id"] in tables["owners"]:
                owners = [owner for owner in tables["owners"] if owner != head["_id"]]
                self._put(tables["_id"], {**tables, "owners": owners})

    async def _claim(self, batch: Batch) -> None:
        """Make the head of a batch the owner of the parts to which the batch puts rows, unless another head owns them.

        So the next append there is one update. Not if the batch has several heads, or rows of many parts.
        """
        heads = [step for step in batch if not step.rows_only and step.hot is not None]
        heads = [step for step in heads if step.moves] or heads
        wanted = {(step.place, row[0] >> 32) for step in batch for _, rows in step.put for row in rows}
        doc = self._get(head_key(heads[0].place)) if len(heads) == 1 else None
        if doc is None or not wanted or len(wanted) > PARTS:
            return
        own = list[bytes](doc["own"])
        for place, number in sorted(wanted):
            of_part, tables = part_key(place, number), self._docs.by[tables_key(place)]
            part = self._get(of_part)
            if part is None:
                tops = {table_sum(place, name): await self._top(place, name, number) for name in tables["tables"]}
                pairs = [[sum_, Int64(top)] for sum_, top in tops.items() if top >= 0]
                part = {"_id": of_part, "home": self._home, "owner": None, "tops": pairs}
            if part["owner"] is not None and part["owner"] != doc["_id"]:
                continue
            self._put(of_part, {**part, "owner": doc["_id"]})
            if of_part not in own:
                own.append(of_part)
            if doc["_id"] not in tables["owners"]:
                self._put(tables["_id"], {**tables, "owners": [*tables["owners"], doc["_id"]]})
        self._put(doc["_id"], {**doc, "own": own})

    async def _top(self, place: Place, name: str, part: int) -> int:
        """Return the last bucket of a table in a part, of those stored and those still to be written; -1: none."""
        table = table_sum(place, name)
        first, end = (number << 32 - BUCKET for number in (part, part + 1))
        buckets = [number for number in self._docs.buckets(table) if first <= number < end]
        if name in self._tables_before.get(tables_key(place), ()):
            ends = bucket_key(self._home, table, first), bucket_key(self._home, table, end - 1)
            docs = await self._reader.between(*ends, self._session, limit=1, last_first=True)
            buckets += [bucket_of(doc["_id"])[1] for doc in docs]
        return max(buckets, default=-1)

    # --- the end

    async def _tidy(self, batch: Batch) -> None:
        """Remove the documents of parts without rows, of the tables of places without rows, and of an empty home."""
        for step in batch:
            wide = [(low, high) for _, low, high in step.drop if high - low >= LAST_OF_PART]
            tables = self._tables(step.place, "*") if wide else []
            prefix = part_key(step.place, 0)[:-4]
            for key in [key for key in self._docs.by if key.startswith(prefix)]:
                number = int.from_bytes(key[len(prefix) :])
                first = number << 32
                dropped = any(low <= first and first | LAST_OF_PART <= high for low, high in wide)
                if dropped and not [name for name in tables if await self._top(step.place, name, number) >= 0]:
                    self._remove_part(key)
            if tables and not await self._is_used(step.place, tables):
                self._put(tables_key(step.place), None)
        await self._flush()
        removed = any(not step.rows_only and step.hot is None and step.expect is not None for step in batch)
        if removed and not (await self._any(b"h", SUM) or await self._any(b"r", SUM + 8)):
            useless = [*await self._all(b"t", SUM), *await self._all(b"o", SUM + 4)]
            for key in (lock_key(self._home), *(doc["_id"] for doc in useless)):
                self._put(key, None)
            await self._flush()

    async def _is_used(self, place: Place, tables: Iterable[str]) -> bool:
        """Whether a place has buckets of these tables, or may have rows in a tail."""
        doc = self._get(tables_key(place))
        if doc is not None and doc["owners"]:
            return True
        return any([await self._any(b"r" + table_sum(place, name), 8) for name in tables])

    def _remove_part(self, key: bytes) -> None:
        """Remove the document of a part, and the part from what its owner owns."""
        owner = Part.of(self._get(key)).owner
        head = self._get(owner) if owner is not None else None
        if head is not None:
            self._put(head["_id"], {**head, "own": [part for part in head["own"] if part != key]})
        self._put(key, None)
