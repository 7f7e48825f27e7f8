"""The documents of a home in a transaction: as they are, and as they become."""

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
    """These documents, by their keys, and what has changed of them."""

    def __init__(self, reader: Reader, session: AsyncClientSession, tenant: str, home: str) -> None:
        self._reader, self._session, self._tenant = reader, session, tenant
        self._home = home_of(tenant, home)
        self._docs = Documents()
        self._asked = set[bytes]()
        self._tables_before = dict[bytes, set[str]]()
        self._changed = dict[bytes, Doc | None]()

    async def _load(self, keys: Iterable[bytes]) -> None:
        new = [key for key in dict.fromkeys(keys) if key not in self._asked]
        self._asked.update(new)
        found = await self._reader.docs(new, self._session)
        self._tables_before |= {doc["_id"]: set(doc["tables"]) for doc in found if kind_of(doc["_id"]) == b"t"}
        self._docs.add(found)

    def _get(self, key: bytes) -> Doc | None:
        return self._docs.by.get(key)

    def said(self) -> tuple[set[bytes], Documents]:
        """The keys of heads and parts that were asked for or written, and the documents as they are now."""
        return {key for key in self._asked | self._docs.by.keys() if kind_of(key) in {b"h", b"o"}}, self._docs

    def _put(self, key: bytes, doc: Doc | None) -> None:
        self._docs.put(key, doc)
        self._changed[key] = doc

    async def _flush(self) -> None:
        """Write what has changed."""
        for key, doc in self._changed.items():
            if kind_of(key) == b"h" and doc is not None:
                doc["hot"], doc["made"] = doc["hot"][:-NUMBER] + os.urandom(NUMBER), os.urandom(NUMBER)
        ops = _operations(self._changed, self._reader.spread)
        self._changed.clear()
        if ops:
            await self._reader.collection.bulk_write(ops, ordered=False, session=self._session)

    async def _all(self, begin: bytes, more: int, limit: int = 0) -> list[Doc]:
        """The documents whose keys begin so in the home, and have so many bytes more."""
        ends = self._home + begin + bytes(more), self._home + begin + b"\xff" * more
        return await self._reader.between(*ends, self._session, limit=limit)

    async def _any(self, begin: bytes, more: int) -> bool:
        """Whether there is one."""
        return bool(await self._all(begin, more, 1))


# --- the operations that make documents so

OPTIONAL = ("hotv", "cold", "coldv", *EXPIRING)
"""What the document of a head may be without."""


def _operations(changed: Mapping[bytes, Doc | None], spread: bool) -> list[ReplaceOne[Doc] | UpdateOne | DeleteOne]:
    """What makes documents so, by their keys; those that are None go."""
    found: list[ReplaceOne[Doc] | UpdateOne | DeleteOne] = []
    for key, doc in changed.items():
        where = by_key(key, spread)
        if doc is None:
            found.append(DeleteOne(where))
        elif kind_of(key) == b"h":
            found.append(UpdateOne(where, _change_of(doc, where), upsert=True))
        else:
            found.append(ReplaceOne(where, doc, upsert=True))
    return found


def _change_of(doc: Doc, where: Doc) -> Doc:
    """The update that makes a head so, with a mark of the server's if it has moved."""
    assigned = {name: value for name, value in doc.items() if name not in {*where, "mark", "moved"}}
    change: Doc = {"$set": assigned, "$unset": {name: "" for name in OPTIONAL if name not in doc}}
    return change | {"$currentDate": {"mark": {"$type": "timestamp"}}} if doc.get("moved") else change
