"""The version of a store, and what brings an earlier one to the present one; how many others may be doing the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pymongo import ASCENDING, IndexModel
from pymongo.errors import DuplicateKeyError

from palimpsest.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from palimpsest.stores.mongodb.connected import Connected

VERSION = "version"


def _index(name: str, *fields: str) -> IndexModel:
    """An index of the documents that have one of these fields at least."""
    return IndexModel([(field, ASCENDING) for field in fields], name=name, sparse=True)


async def _first(connected: Connected) -> None:
    """Indexes: what is of a home is found by its key, with no index beside that of `_id`; these list a tenant's.

    Each costs every append, more on SecantusDB than on MongoDB, which changes those of what has changed.
    """
    await connected.written.create_indexes(
        [_index("by_list", "list", "mark", "at"), _index("by_due", "due.of", "due.rows", "due.at")]
    )


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
