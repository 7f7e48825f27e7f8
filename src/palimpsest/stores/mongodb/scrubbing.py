"""What is asked of the server after something was erased, and what remains in its files whatever it does."""

from __future__ import annotations

from typing import Any

from pymongo.errors import OperationFailure

from palimpsest.stores.backend import Scrubbed
from palimpsest.stores.mongodb.layout import COLLECTION

REMAINS = (
    "MongoDB keeps what was dropped in the free space of its files, and in its journal and its oplog, until it "
    "overwrites them: see the server's documentation of `compact` and of `oplogSizeMB`"
)
"""What is so after each erasure, whatever is done here."""

UNKNOWN = (
    "the server that answers at this address has no `compact`, as a mongos and other programs that speak MongoDB's "
    "protocol have none: free space stays in its files; on a sharded cluster run `compact` on each shard"
)
DENIED = (
    "the user of the address may not run `compact`, so that free space stays in the server's files: give it the role "
    "dbAdmin for the database, or have an administrator run it"
)
REFUSED = "the server did not run `compact` (code {}), so that free space stays in its files"
LATE = "`compact` was not over within {:g} seconds (timeout_seconds); an administrator can run it without that limit"

_UNKNOWN, _DENIED = (59, 115), (13, 8000)
"""Codes of a command that there is not, and of one that this user may not give."""


async def compacted(database: Any) -> Scrubbed:
    """Have the server give the free space of the collection's files back to its disk, as far as it does.

    Nothing is locked that sessions need. Where this is one server of several, the others keep their free space.
    """
    try:
        # `force`: a server that takes writes does it only when it is told to.
        said = await database.command({"compact": COLLECTION, "force": True})
    except OperationFailure as fault:
        told = UNKNOWN if fault.code in _UNKNOWN else DENIED if fault.code in _DENIED else REFUSED.format(fault.code)
        return Scrubbed((REMAINS, told))
    freed = said.get("bytesFreed", 0)  # servers before 4.4 do not tell
    return Scrubbed((REMAINS,), 0, int(freed))
