"""A client of MongoDB's own driver: the concerns that a store needs, its transactions, and the version that it has."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pymongo import ASCENDING, AsyncMongoClient, IndexModel, ReadPreference
from pymongo.errors import DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from palimpsest.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from palimpsest.stores.mongodb import faults
from palimpsest.stores.mongodb.layout import COLLECTION, META
from palimpsest.stores.mongodb.listing import Listing
from palimpsest.stores.mongodb.reading import Reader

T = TypeVar("T")

VERSION = "version"
"""The key of the document that has it."""

FIRST, LONGEST = 0.005, 0.25
"""Seconds that a transaction waits at most when others were in its way, the first time and ever."""


def is_router(hello: dict[str, Any]) -> bool:
    """Whether it is a mongos that has said this, which spreads documents over servers."""
    return hello.get("msg") == "isdbgrid"


class Connected:
    """A client, and what reads and writes with it; `spread` says that its server is a router."""

    def __init__(self, url: str, client: AsyncMongoClient[dict[str, Any]], name: str, spread: bool) -> None:
        self.client, self.database = client, client.get_database(name)
        own = client.write_concern
        self.writes = WriteConcern("majority", j=True) if own.is_server_default else own
        how: Any = {"read_preference": ReadPreference.PRIMARY, "write_concern": self.writes}
        self.written = self.database.get_collection(COLLECTION, **how)
        self.meta = self.database.get_collection(META, read_concern=ReadConcern("majority"), **how)
        snapshot = self.database.get_collection(COLLECTION, read_concern=ReadConcern("snapshot"), **how)
        self.reader, self.within = Reader(url, snapshot, spread), Reader(url, self.written, spread)
        self.listing = Listing(
            Reader(url, self.database.get_collection(COLLECTION, read_concern=ReadConcern("majority"), **how), spread)
        )

    async def durability(self) -> str:
        """What is lost with a server, by the concern that writes have."""
        concern = self.writes.document
        if concern.get("w") == "majority" and concern.get("j") is not False:
            return "a crash of a server loses nothing that was acknowledged (w=majority, in its journal)"
        told = ", ".join(f"{name}={value}" for name, value in concern.items()) or "the server's own"
        return (
            f"a crash of the first server can lose what no other has yet, by the write concern of the address ({told})"
        )

    async def transaction(self, do: Callable[[Any], Awaitable[T]], committing: Callable[[bool], None]) -> T:
        """Do this in a transaction, anew whenever others were in its way; `committing` hears whether it may be over."""
        longest = FIRST
        while True:
            try:
                async with self.client.start_session() as session:
                    await session.start_transaction(
                        read_concern=ReadConcern("snapshot"),
                        write_concern=self.writes,
                        read_preference=ReadPreference.PRIMARY,
                    )
                    try:
                        result = await do(session)
                    except BaseException:
                        await _ended(session)
                        raise
                    committing(True)
                    await session.commit_transaction()
                    return result
            except PyMongoError as fault:
                if not faults.may_pass(fault):
                    raise
                committing(False)
            await asyncio.sleep(longest * random.random())  # noqa: S311 (chance guards nothing here)
            longest = min(2 * longest, LONGEST)


async def _ended(session: Any) -> None:
    """Take a transaction back; where that fails the server does it, in a minute."""
    try:
        await session.abort_transaction()
    except PyMongoError:
        return


# --- the version of a store, and what brings an earlier one to the present one, with others perhaps doing the same


def _index(name: str, *fields: str) -> IndexModel:
    """An index of the documents that have one of these fields at least."""
    return IndexModel([(field, ASCENDING) for field in fields], name=name, sparse=True)


async def _first(connected: Connected) -> None:
    """Indexes: what is of a home is found by its key, or by the ids of its rows; the others list a tenant's.

    One that has heads costs every append, more on SecantusDB than on MongoDB, which changes those of what has changed.
    """
    due = _index("by_due", "due.of", "due.rows", "due.at")
    await connected.written.create_indexes([_index("by_list", "list", "mark", "at"), due, _index("by_ids", "ids")])


Migration = Callable[[Connected], Awaitable[None]]

MIGRATIONS: tuple[Migration, ...] = (_first,)
"""What makes each version out of the one before; each can be done twice, and by several at once."""


async def prepared(
    url: str, connected: Connected, *, writable: bool, migrations: tuple[Migration, ...] = MIGRATIONS
) -> None:
    """See that the database has a store of the present version.

    Raises StoreTooNew for one of a later version, StoreUnavailable where something is missing and must not be made.
    """
    there = await connected.meta.find_one({"_id": VERSION})
    version = there.get("number") if there is not None else 0
    newest = len(migrations)
    if not isinstance(version, int):
        raise StoreCorrupt(url, "its version cannot be read")
    if version > newest:
        raise StoreTooNew(url, version, newest)
    if version < newest and not writable:
        what = f"its version {version} needs migration to {newest}" if version else "there is no store in the database"
        raise StoreUnavailable(url, f"{what}: open it writable once")
    for number in range(version, newest):
        await migrations[number](connected)
        try:
            await connected.meta.update_one(
                {"_id": VERSION, "number": {"$not": {"$gt": number}}}, {"$set": {"number": number + 1}}, upsert=True
            )
        except DuplicateKeyError:
            continue  # somebody else has come further
