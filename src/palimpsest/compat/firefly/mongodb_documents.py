"""Entries as documents of MongoDB, with the documented fields. A save is one update of one document.

`key` and `expires_at` are absent rather than null, so that the indexes over them are partial. Besides the documented
fields a document has `place`, which gives the order of the entries; `version`, which every change renews; `micros`, the
microseconds that MongoDB's dates leave out; and `coded`, the names of fields that are JSON in a text, because MongoDB
cannot hold their value.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import ConfigurationError, DuplicateKeyError, InvalidURI, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.uri_parser import parse_uri
from pymongo.write_concern import WriteConcern

from palimpsest.compat.firefly.entries import Packed
from palimpsest.compat.firefly.served import Server
from palimpsest.compat.firefly.store import elsewhere, spelled, unspelled
from palimpsest.errors import ConfigError, PalimpsestError, StoreUnavailable
from palimpsest.log.entry import microseconds_of, moment
from palimpsest.runtime.logs import warn
from palimpsest.stores.mongodb import faults
from palimpsest.stores.mongodb.address import driver_settings
from palimpsest.stores.options import discreet_address

T = TypeVar("T")

TRIES = 50
"""How often a write that conflicts with other writers is tried before it is an error."""

CROWDED = "other writers keep changing the same documents; try again"

DEEPEST = 60
"""How deep a value may be nested. MongoDB allows 100 levels in all, some of which the document takes."""

INDEXES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("namespace", {}),
    ("namespace key", {"partialFilterExpression": {"key": {"$exists": True}}}),
    ("expires_at", {"partialFilterExpression": {"expires_at": {"$exists": True}}}),
    ("entry_id", {"unique": True}),
    ("key namespace", {"unique": True, "partialFilterExpression": {"key": {"$exists": True}}}),
)
"""The documented indexes, and the one that allows one entry of each key."""

ONE_OF_EACH_KEY = "key_1_namespace_1"


class Documents(Server):
    """The collection of the entries, and the client."""

    faults = faults.FAULTS

    def __init__(self, address: str, database: str, collection: str, *, size: int, seconds: float) -> None:
        self._url, self._address, self._names = discreet_address(address), address, (database, collection)
        self._size, self._seconds = size, seconds
        self._client: AsyncMongoClient[dict[str, Any]] | None = None
        self._last = 0
        try:
            if not address.startswith("mongodb+srv:"):
                parse_uri(address)
        except (InvalidURI, ConfigurationError, OSError, ValueError, TypeError):  # OSError: a file that it names
            allowed = "mongodb://user:password@host:27017/, options of the driver behind a question mark"
            raise ConfigError("store", self._url, allowed) from None

    # --- the client

    async def connect(self) -> None:
        settings = driver_settings(self._address, self._size, self._seconds)
        client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(self._address, tz_aware=True, **settings)
        try:
            configured = client.write_concern
            self._writes = WriteConcern("majority", j=True) if configured.is_server_default else configured
            name, collection = self._names
            self._documents = client[name].get_collection(
                collection,
                read_preference=ReadPreference.PRIMARY,
                read_concern=ReadConcern("majority"),
                write_concern=self._writes,
            )
            await self._prepare()
        except BaseException:
            await client.close()
            raise
        self._client = client

    async def _prepare(self) -> None:
        """Create the indexes that are missing."""
        existing = await self._documents.index_information()
        if ONE_OF_EACH_KEY not in existing:
            await self._adopt()
        for names, index_options in INDEXES:
            fields = [(name, 1) for name in names.split()]
            if "_".join(f"{name}_1" for name, _ in fields) not in existing:
                await self._documents.create_index(fields, **index_options)

    async def _adopt(self) -> None:
        """Adapt documents of other programs: no field is null, each has a place, and each key has one document."""
        for name in ("key", "expires_at"):
            await self._documents.update_many({name: {"$type": "null"}}, {"$unset": {name: ""}})
        seen: set[tuple[Any, Any]] = set()
        order = [("created_at", -1), ("_id", -1)]
        documents = await self._documents.find({"place": {"$exists": False}}).sort(order).to_list()
        for number, document in enumerate(documents):
            change: dict[str, Any] = {"$set": {"place": -number}}
            namespaced_key = document.get("namespace", ""), document.get("key")
            if namespaced_key[1] is not None and namespaced_key in seen:  # a newer document keeps the key
                change["$unset"] = {"key": ""}
                change["$set"]["metadata.superseded_key"] = namespaced_key[1]
            seen.add(namespaced_key)
            await self._documents.update_one({"_id": document["_id"]}, change)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def translated(self, fault: BaseException, writes: bool) -> PalimpsestError:
        return faults.translate(self._url, fault, writes)

    # --- operations of a store

    async def save(self, namespace: str, row: Packed, now: int) -> None:
        for _ in range(TRIES):
            try:
                await self._put(spelled(namespace), row, now)
                return
            except DuplicateKeyError:
                if await self._resolve_conflict(spelled(namespace), row, now):
                    return
        raise StoreUnavailable(self._url, CROWDED)

    async def load(self, namespace: str, now: int) -> list[Packed]:
        documents = await self._documents.find({"namespace": spelled(namespace), **_alive(now - 1000)}).to_list()
        documents.sort(
            key=lambda doc: (doc.get("place", self._last), doc.get("created_at") or moment(0), doc["entry_id"])
        )
        rows = [self._row_of(document) for document in documents]
        return [row for row in rows if row is not None and not row.is_over(now)]

    async def load_by_key(self, namespace: str, key: str, now: int) -> Packed | None:
        document = await self._documents.find_one({"namespace": spelled(namespace), "key": spelled(key)})
        row = None if document is None else self._row_of(document)
        return None if row is None or row.is_over(now) else row

    async def delete(self, namespace: str, entry_id: str) -> None:
        await self._documents.delete_one({"namespace": spelled(namespace), "entry_id": spelled(entry_id)})

    async def clear(self, namespace: str) -> None:
        await self._documents.delete_many({"namespace": spelled(namespace)})

    async def cleanup(self, now: int) -> int:
        return (await self._documents.delete_many({"expires_at": {"$lte": moment(now)}})).deleted_count

    async def swap(self, namespace: str, key: str, row: Packed | None, was: Packed | None, now: int) -> bool:
        where = {"namespace": spelled(namespace), "key": spelled(key)}

        async def compared(session: Any) -> bool:
            document = await self._documents.find_one(where, session=session)
            current = None if document is None else self._row_of(document)
            if (None if current is None or current.is_over(now) else current) != was:
                return False
            if row is not None:
                await self._put_within(session, where["namespace"], row, now)
            elif was is not None:
                await self._documents.delete_one(where, session=session)
            return True

        return await self._transaction(compared)

    # --- documents

    async def _put(self, namespace: str, row: Packed, now: int) -> None:
        """Save with one update. Raises DuplicateKeyError if another document has the id or the key."""
        where = {"namespace": namespace}
        where |= {"entry_id": spelled(row.entry_id)} if row.key is None else {"key": spelled(row.key)}
        await self._documents.update_one({**where, **_alive(now)}, self._change(row, now, where), upsert=True)

    async def _resolve_conflict(self, namespace: str, row: Packed, now: int) -> bool:
        """Handle another document with the id or key of this entry. Return whether the entry is saved by that.

        If it has expired it is deleted, and the caller must try again. Raises Conflict for an id of another namespace.
        """
        if await self._namespace_of(row) not in {None, namespace}:
            raise elsewhere(row.entry_id)
        same_id_or_key = [{"entry_id": spelled(row.entry_id)}]
        same_id_or_key += [] if row.key is None else [{"key": spelled(row.key)}]
        expired = {"namespace": namespace, "expires_at": {"$lte": moment(now)}, "$or": same_id_or_key}
        if (await self._documents.delete_many(expired)).deleted_count or row.key is None:
            return False
        same_id = await self._documents.find_one({"namespace": namespace, "entry_id": spelled(row.entry_id)})
        if same_id is None or same_id.get("key") == spelled(row.key):
            return False
        await self._transaction(lambda session: self._put_within(session, namespace, row, now))
        return True

    async def _transaction(self, do: Callable[[Any], Awaitable[T]]) -> T:
        """Return the result of `do` in a transaction, which is tried again if it conflicts with other writers."""
        assert self._client is not None, "it is connected"
        for _ in range(TRIES):
            try:
                async with self._client.start_session() as session:
                    await session.start_transaction(ReadConcern("snapshot"), self._writes, ReadPreference.PRIMARY)
                    result = await do(session)
                    await session.commit_transaction()
                return result
            except PyMongoError as fault:
                if not faults.may_pass(fault):
                    raise
        raise StoreUnavailable(self._url, CROWDED)

    async def _put_within(self, session: Any, namespace: str, row: Packed, now: int) -> None:
        """Save within a transaction: the document of the id, or else of the key, becomes this entry; another one is
        deleted."""
        same_id_or_key: list[dict[str, Any]] = [{"entry_id": spelled(row.entry_id)}]
        if row.key is not None:
            same_id_or_key.append({"namespace": namespace, "key": spelled(row.key)})
        documents = await self._documents.find({"$or": same_id_or_key}, session=session).to_list()
        documents.sort(key=lambda document: document["entry_id"] != spelled(row.entry_id))  # that of the id first
        if documents and documents[0]["namespace"] != namespace:
            raise elsewhere(row.entry_id)
        kept = documents[:1] if documents and not _is_over(documents[0], now) else []
        for document in documents[len(kept) :]:
            await self._documents.delete_one({"_id": document["_id"]}, session=session)
        if kept:
            change = self._change(row, now, ("namespace",))
            del change["$setOnInsert"]
            await self._documents.update_one({"_id": kept[0]["_id"]}, change, session=session)
        else:
            await self._documents.insert_one(self._document(row, now, {"namespace": namespace}), session=session)

    async def _namespace_of(self, row: Packed) -> str | None:
        document = await self._documents.find_one({"entry_id": spelled(row.entry_id)}, {"namespace": 1})
        return None if document is None else str(document["namespace"])

    def _change(self, row: Packed, now: int, given: Iterable[str]) -> dict[str, Any]:
        """Return the update that makes a document this entry. The fields in `given` have their values already."""
        document = self._document(row, now, {})
        place = document.pop("place")
        absent = {name: "" for name in ("key", "expires_at", "coded") if name not in document and name not in given}
        change = {
            "$set": {name: value for name, value in document.items() if name not in given},
            "$setOnInsert": {"place": place},
        }
        return {**change, "$unset": absent} if absent else change

    def _document(self, row: Packed, now: int, fields: dict[str, str]) -> dict[str, Any]:
        """Return the document of an entry. `fields` are added to it."""
        self._last = max(self._last + 1, now)
        content, metadata = json.loads(row.content), json.loads(row.metadata)
        coded = [name for name, value in (("content", content), ("metadata", metadata)) if not _is_kept(value, 0)]
        document = {
            **fields,
            "entry_id": spelled(row.entry_id),
            "scope": row.scope,
            "key": None if row.key is None else spelled(row.key),
            "content": row.content if "content" in coded else content,
            "metadata": row.metadata if "metadata" in coded else metadata,
            "created_at": moment(row.created),
            "expires_at": None if row.expires is None else moment(row.expires),
            "importance": row.importance,
            "micros": [row.created % 1000, (row.expires or 0) % 1000],
            "place": self._last,
            "version": uuid4().hex,
            "coded": coded or None,
        }
        return {name: value for name, value in document.items() if value is not None or name == "content"}

    def _row_of(self, document: dict[str, Any]) -> Packed | None:
        """Return the entry of a document; None, and a line in the log, if it cannot be read."""
        try:
            coded, (created, expires) = document.get("coded") or (), document.get("micros") or (0, 0)
            key, ends = document.get("key"), document.get("expires_at")
            content, metadata = (
                document.get(name)
                if name in coded
                else json.dumps(document.get(name), separators=(",", ":"), default=_plain)
                for name in ("content", "metadata")
            )
            return Packed(
                unspelled(document["entry_id"]),
                document.get("scope", "working"),
                None if key is None else unspelled(key),
                str(content),
                "{}" if metadata == "null" else str(metadata),
                _micros(document["created_at"], created),
                None if ends is None else _micros(ends, expires),
                float(document.get("importance", 0.5)),
            )
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as fault:
            message = "%s: the entry %r cannot be read, and is left out: %s"
            warn(message, self._url, document.get("entry_id"), fault)
            return None


def _alive(now: int) -> dict[str, Any]:
    return {"$or": [{"expires_at": None}, {"expires_at": {"$gt": moment(now)}}]}


def _is_over(document: dict[str, Any], now: int) -> bool:
    ends = document.get("expires_at")
    return isinstance(ends, datetime) and _micros(ends, (document.get("micros") or (0, 0))[1]) <= now


def _micros(time: datetime, rest: int) -> int:
    """Return a date of MongoDB as microseconds since 1970; `rest` are the microseconds that the date leaves out."""
    whole = microseconds_of(time if time.tzinfo is not None else time.replace(tzinfo=UTC))
    return whole // 1000 * 1000 + rest


def _plain(value: object) -> Any:
    """Return a value of a type of MongoDB, which other programs may have stored, as JSON has it."""
    if isinstance(value, datetime):
        return {"$datetime": (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).isoformat()}
    return str(value)


def _is_kept(value: Any, depth: int) -> bool:
    """Return whether MongoDB gives a value of JSON back unchanged."""
    if isinstance(value, str):
        return not any(0xD800 <= ord(c) < 0xE000 for c in value)
    if isinstance(value, int) and not isinstance(value, bool):
        return -(2**63) <= value < 2**63
    if depth > DEEPEST:
        return False
    if isinstance(value, dict):
        names = all("\0" not in name and not name.startswith("$") and _is_kept(name, depth) for name in value)
        return names and all(_is_kept(item, depth + 1) for item in value.values())
    return not isinstance(value, list) or all(_is_kept(item, depth + 1) for item in value)
