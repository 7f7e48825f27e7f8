"""A client of MongoDB's own asynchronous driver, with the concerns that a store needs, and its transactions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from pymongo import AsyncMongoClient, ReadPreference
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from palimpsest.stores.mongodb import faults
from palimpsest.stores.mongodb.layout import COLLECTION, META
from palimpsest.stores.mongodb.listing import Listing
from palimpsest.stores.mongodb.reading import Reader

T = TypeVar("T")

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
