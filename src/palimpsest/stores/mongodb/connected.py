"""A connected client of MongoDB's driver: the concerns of a store's reads and writes, transactions, and migrations."""

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
"""The key of the document that holds the version of the store."""

FIRST, LONGEST = 0.005, 0.25
"""Seconds within which a transaction is tried again after a conflict: at most `FIRST`, then twice as long each time, up
to `LONGEST`."""


def is_router(hello: dict[str, Any]) -> bool:
    """Whether this answer to `hello` is that of a mongos, the router of a sharded cluster."""
    return hello.get("msg") == "isdbgrid"


class Connected:
    """A client, with the collections and readers of a store; `spread` says that its server is a router.

    `reader` reads a snapshot with each query. `within` is for queries in transactions, whose concern the transaction
    has. `written` is the collection for writes, `meta` the one that holds the version.
    """

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
        """Say what is lost with a server, by the write concern."""
        concern = self.writes.document
        if concern.get("w") == "majority" and concern.get("j") is not False:
            return "a crash of a server loses nothing that was acknowledged (w=majority, in its journal)"
        shown = ", ".join(f"{name}={value}" for name, value in concern.items()) or "the server's own"
        return (
            f"a crash of the first server can lose what no other has yet, by the write concern of the address ({shown})"
        )

    async def transaction(self, do: Callable[[Any], Awaitable[T]], committing: Callable[[bool], None]) -> T:
        """Return what `do` returns for the session of a transaction. After each conflict it is done again.

        `committing(True)` is called before the commit, from which on the transaction may have happened, and
        `committing(False)` when it certainly has not.
        """
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
    """Abort a transaction. If that fails, the server does it after a minute."""
    try:
        await session.abort_transaction()
    except PyMongoError:
        return


# --- the version of a store, and its migrations, which several processes may run at once


def _index(name: str, *fields: str) -> IndexModel:
    """Return an index of the documents that have at least one of these fields."""
    return IndexModel([(field, ASCENDING) for field in fields], name=name, sparse=True)


async def _first(connected: Connected) -> None:
    """Create the indexes. `by_ids` finds the buckets with rows of an id, the others serve a tenant's listings; all else
    in a home is found by `_id`.

    An index that holds heads costs every append. MongoDB updates only indexes of fields that have changed; SecantusDB,
    the server of the tests, updates all of them.
    """
    due = _index("by_due", "due.of", "due.rows", "due.at")
    await connected.written.create_indexes([_index("by_list", "list", "mark", "at"), due, _index("by_ids", "ids")])


Migration = Callable[[Connected], Awaitable[None]]

MIGRATIONS: tuple[Migration, ...] = (_first,)
"""The migrations: each makes the next version of the one before. It can be run twice, and by several at once."""


async def prepare(
    url: str, connected: Connected, *, writable: bool, migrations: tuple[Migration, ...] = MIGRATIONS
) -> None:
    """Bring the store in this database to the present version, and make it if there is none.

    Raises StoreTooNew for a later version, StoreCorrupt for one that cannot be read, and StoreUnavailable if the store
    is missing or too old and is not `writable`.
    """
    stored = await connected.meta.find_one({"_id": VERSION})
    version = stored.get("number") if stored is not None else 0
    newest = len(migrations)
    if not isinstance(version, int):
        raise StoreCorrupt(url, "its version cannot be read")
    if version > newest:
        raise StoreTooNew(url, version, newest)
    if version < newest and not writable:
        problem = (
            f"its version {version} needs migration to {newest}" if version else "there is no store in the database"
        )
        raise StoreUnavailable(url, f"{problem}: open it once without readonly=True")
    for number in range(version, newest):
        await migrations[number](connected)
        try:
            await connected.meta.update_one(
                {"_id": VERSION, "number": {"$not": {"$gt": number}}}, {"$set": {"number": number + 1}}, upsert=True
            )
        except DuplicateKeyError:
            continue  # another process has recorded this version, or a later one, meanwhile
