"""Where logs live: `Store`, the values it takes and returns, and the table of backends.

A store is `palimpsest.stores.engine` over a `palimpsest.stores.backend.Backend`: the meaning of a log is written once,
and backends stay small. `palimpsest.testing.StoreConformance` is the contract of backends; a new one gets a line in
`STORES`.
"""

from __future__ import annotations

from collections.abc import Awaitable

from palimpsest.errors import StoreUnavailable
from palimpsest.log.head import SessionKey
from palimpsest.log.summary import Compaction
from palimpsest.runtime.registry import Registry
from palimpsest.stores.engine.store import Store
from palimpsest.stores.values import LARGE, Appended, Dump, Item, Put, SessionInfo

__all__ = [
    "LARGE",
    "MARK",
    "STORES",
    "Appended",
    "Dump",
    "Item",
    "Put",
    "SessionInfo",
    "Store",
    "best_effort",
    "compaction_of",
]


async def compaction_of(store: Store, key: SessionKey, revision: int) -> Compaction:
    """Return the state of compaction in the record of this revision; an empty one if there is no such record."""
    if not revision:
        return Compaction()
    records = await store.records(key, after=revision - 1, before=revision + 1)
    return (records[0].compaction if records else None) or Compaction()


async def best_effort(storing: Awaitable[None]) -> str | None:
    """Store figures that a read has computed, if that is possible now; return why not otherwise.

    A full disk must not stop a read: figures that were not stored are computed again.
    """
    try:
        await storing
    except StoreUnavailable as fault:
        return str(fault)
    return None


# --- backends


STORES = Registry(
    "store",
    "palimpsest.stores",
    {
        "file": "palimpsest.stores.file:open_file",
        "memory": "palimpsest.stores.memory:open_memory",
        "mongodb": "palimpsest.stores.mongodb:open_mongodb",
        "mongodb+srv": "palimpsest.stores.mongodb:open_mongodb",
        "postgres": "palimpsest.stores.postgres:open_postgres",
        "postgresql": "palimpsest.stores.postgres:open_postgres",
        "redis": "palimpsest.stores.redis:open_redis",
        "rediss": "palimpsest.stores.redis:open_redis",
        "sqlite": "palimpsest.stores.sqlite:open_sqlite",
    },
    form="{}:…",
)
"""Openers by the scheme of their addresses. `STORES.register("mine", open_mine)` adds one."""

MARK = ("\x01palimpsest", "store", "encryption")
"""Tenant, namespace and key of the item that says how a store is encrypted. No user's tenant has such a name."""
