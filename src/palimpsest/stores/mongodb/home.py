"""The documents of a home within a transaction: read, changed in memory, and written together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from pymongo import DeleteOne, ReplaceOne, UpdateOne
from pymongo.asynchronous.client_session import AsyncClientSession

from palimpsest.stores.mongodb.documents import Documents
from palimpsest.stores.mongodb.layout import NUMBER, by_key, home_of, kind_of
from palimpsest.stores.mongodb.reading import Reader
from palimpsest.stores.mongodb.rows import Doc
from palimpsest.stores.mongodb.updating import EXPIRING


class Home:
    """The documents of a home that a transaction has read, and the changes that it has not written yet."""

    def __init__(self, reader: Reader, session: AsyncClientSession, tenant: str, home: str) -> None:
        self._reader, self._session, self._tenant = reader, session, tenant
        self._home = home_of(tenant, home)
        self._docs = Documents()
        self._asked = set[bytes]()
        self._tables_before = dict[bytes, set[str]]()
        self._changed = dict[bytes, Doc | None]()

    async def _load(self, keys: Iterable[bytes]) -> None:
        """Read the documents of these keys that were not asked for before."""
        new = [key for key in dict.fromkeys(keys) if key not in self._asked]
        self._asked.update(new)
        found = await self._reader.docs(new, self._session)
        self._tables_before |= {doc["_id"]: set(doc["tables"]) for doc in found if kind_of(doc["_id"]) == b"t"}
        self._docs.add(found)

    def _get(self, key: bytes) -> Doc | None:
        return self._docs.by.get(key)

    def outcome(self) -> tuple[set[bytes], Documents]:
        """Return the keys of all heads and parts that were read or written, and the documents after the transaction.

        These are the arguments of `Reader.learn`.
        """
        return {key for key in self._asked | self._docs.by.keys() if kind_of(key) in {b"h", b"o"}}, self._docs

    def _put(self, key: bytes, doc: Doc | None) -> None:
        self._docs.put(key, doc)
        self._changed[key] = doc

    async def _flush(self) -> None:
        """Write the changes. Each head gets a new number behind its hot value, and a new `made`."""
        for key, doc in self._changed.items():
            if kind_of(key) == b"h" and doc is not None:
                doc["hot"], doc["made"] = doc["hot"][:-NUMBER] + os.urandom(NUMBER), os.urandom(NUMBER)
        ops = _operations(self._changed, self._reader.spread)
        self._changed.clear()
        if ops:
            await self._reader.collection.bulk_write(ops, ordered=False, session=self._session)

    async def _all(self, begin: bytes, more: int, limit: int = 0) -> list[Doc]:
        """Return the documents of the home whose keys have this beginning behind the home, and `more` bytes more."""
        ends = self._home + begin + bytes(more), self._home + begin + b"\xff" * more
        return await self._reader.between(*ends, self._session, limit=limit)

    async def _any(self, begin: bytes, more: int) -> bool:
        """Whether there is such a document."""
        return bool(await self._all(begin, more, 1))


# --- the operations that write documents

OPTIONAL = ("hotv", "cold", "coldv", *EXPIRING)
"""The fields that the document of a head may lack."""


def _operations(changed: Mapping[bytes, Doc | None], spread: bool) -> list[ReplaceOne[Doc] | UpdateOne | DeleteOne]:
    """Return the operations that write these documents, and delete those that are None."""
    operations: list[ReplaceOne[Doc] | UpdateOne | DeleteOne] = []
    for key, doc in changed.items():
        where = by_key(key, spread)
        if doc is None:
            operations.append(DeleteOne(where))
        elif kind_of(key) == b"h":
            operations.append(UpdateOne(where, _change_of(doc, where), upsert=True))
        else:
            operations.append(ReplaceOne(where, doc, upsert=True))
    return operations


def _change_of(doc: Doc, where: Doc) -> Doc:
    """Return the update that writes the document of a head, with a new mark of the server if `moved` is set in it."""
    assigned = {name: value for name, value in doc.items() if name not in {*where, "mark", "moved"}}
    change: Doc = {"$set": assigned, "$unset": {name: "" for name in OPTIONAL if name not in doc}}
    return change | {"$currentDate": {"mark": {"$type": "timestamp"}}} if doc.get("moved") else change
