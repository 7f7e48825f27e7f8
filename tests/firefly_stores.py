"""The stores over which tests of the Firefly door run, and a store as a program might write its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import servers
from palimpsest.compat.firefly.entries import MemoryEntry
from palimpsest.compat.firefly.file_store import FileStore
from palimpsest.compat.firefly.in_memory import InMemoryStore
from palimpsest.compat.firefly.mongodb_store import MongoDBStore
from palimpsest.compat.firefly.postgres_store import PostgreSQLStore
from palimpsest.compat.firefly.redis_store import RedisStore
from palimpsest.compat.firefly.sqlite_store import SQLiteStore
from palimpsest.compat.firefly.store import EntryStore


def name_of(place: Path) -> str:
    """Return a name on a server that no other folder of any run has."""
    return f"firefly_{sha256(f'{os.environ.get(servers.FOLDER)}{place}'.encode()).hexdigest()[:20]}"


def address(kind: str) -> str:
    """Return the address of the run's server of a kind, without database and options."""
    return servers.address(kind).partition("?")[0]


def in_memory(place: Path, **options: Any) -> EntryStore:
    """A store in this process's memory."""
    return InMemoryStore(**options)


def sqlite(place: Path, **options: Any) -> EntryStore:
    """A store in an SQLite file of the folder."""
    return SQLiteStore(place / "entries.db", **options)


def file(place: Path, **options: Any) -> EntryStore:
    """A store in files of the folder."""
    return FileStore(place / "entries", **options)


LOCAL: dict[str, Callable[..., EntryStore]] = {"in_memory": in_memory, "sqlite": sqlite, "file": file}


def postgres(place: Path, **options: Any) -> PostgreSQLStore:
    """A store in a schema of the run's PostgreSQL server."""
    return PostgreSQLStore(address("postgres"), schema_name=name_of(place), **{"pool_min_size": 1, **options})


def redis(place: Path, **options: Any) -> RedisStore:
    """A store under a prefix of the run's Redis server."""
    return RedisStore(address("redis"), prefix=name_of(place), **options)


def mongodb(place: Path, **options: Any) -> MongoDBStore:
    """A store in a database of the run's server that speaks MongoDB's protocol."""
    return MongoDBStore(address("mongodb"), database=name_of(place), **options)


SERVED: dict[str, Callable[..., EntryStore]] = {"postgres": postgres, "redis": redis, "mongodb": mongodb}
EVERY = [*LOCAL, *(pytest.param(kind, marks=pytest.mark.wide) for kind in SERVED)]
"""Every kind of store as a parameter; those on servers are `wide`."""

DURABLE = [kind for kind in EVERY if kind != "in_memory"]
"""The kinds of stores that outlive a process."""


@contextmanager
def opened(kind: str, place: Path, **options: Any) -> Iterator[EntryStore]:
    """Yield a store of a kind, which is empty in a new place, and close it at the end."""
    store = {**LOCAL, **SERVED}[kind](place, **options)
    try:
        yield store
    finally:
        store.close_sync()


class FiveMethods:
    """A program's own store, with the documented methods and no others. It is false while it is empty.

    It keeps the objects it is given, or, if `written`, their JSON.
    """

    def __init__(self, *, written: bool = False) -> None:
        self.held: dict[str, dict[str, Any]] = {}
        self._written = written

    def __len__(self) -> int:
        return sum(map(len, self.held.values()))

    def save(self, namespace: str, entry: MemoryEntry) -> None:
        """Keep an entry."""
        kept = entry.model_dump_json() if self._written else entry
        self.held.setdefault(namespace, {})[entry.entry_id] = kept

    def load(self, namespace: str) -> list[MemoryEntry]:
        """Return all entries of a namespace."""
        kept = list(self.held.get(namespace, {}).values())
        return [MemoryEntry.model_validate_json(one) for one in kept] if self._written else kept

    def load_by_key(self, namespace: str, key: str) -> MemoryEntry | None:
        """Return the last entry of a key."""
        return next((one for one in reversed(self.load(namespace)) if one.key == key), None)

    def delete(self, namespace: str, entry_id: str) -> None:
        """Delete an entry."""
        self.held.get(namespace, {}).pop(entry_id, None)

    def clear(self, namespace: str) -> None:
        """Delete all entries."""
        self.held.pop(namespace, None)
