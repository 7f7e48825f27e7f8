"""Firefly stores on servers: event loops, threads, connections, tables and documents, and the number of requests."""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import firefly_stores
import postgresstore
import redisstore
import servers
from palimpsest import PalimpsestError
from palimpsest.compat.firefly import MemoryEntry, WorkingMemory
from palimpsest.compat.firefly.database_store import PostgreSQLStore, RedisStore
from palimpsest.compat.firefly.served import ServedStore
from palimpsest.errors import Closed, ConfigError
from processes import at_once

EACH = [pytest.param(kind, marks=() if kind == "postgres" else (pytest.mark.wide,)) for kind in firefly_stores.SERVED]


def sql(*statements: str) -> list[Any]:
    """Run SQL on the test server and return the rows of the last statement."""
    return postgresstore.asked(servers.address("postgres"), *statements)


@contextmanager
def documents(place: Path) -> Iterator[Any]:
    """Yield a MongoDB store's collection as the driver shows it."""
    from pymongo import MongoClient

    with MongoClient(firefly_stores.address("mongodb"), tz_aware=True) as client:
        yield client[firefly_stores.name_of(place)]["entries"]


def opened(kind: str, place: Path, **options: Any) -> ServedStore:
    """Open a store on a server."""
    store = firefly_stores.SERVED[kind](place, **options)
    assert isinstance(store, ServedStore)
    return store


# --- loops and threads


@pytest.mark.parametrize("kind", EACH)
def test_the_documented_program_works(kind: str, tmp_path: Path) -> None:
    """The documented program works: make a store, initialise it, use it, close it."""

    async def program() -> None:
        store = opened(kind, tmp_path)
        await store.initialize()
        memory = WorkingMemory(store=store)
        memory.set("doc_type", "invoice")
        assert memory.get("doc_type") == "invoice"
        await store.close()
        with pytest.raises(Closed):
            memory.get("doc_type")

    asyncio.run(program())


@pytest.mark.parametrize("kind", EACH)
def test_many_may_initialise_at_once(kind: str, tmp_path: Path) -> None:
    """Any number of stores may be initialised at once in an empty database, and again later."""

    async def program() -> None:
        stores = [opened(kind, tmp_path) for _ in range(4)]
        await asyncio.gather(*(store.initialize() for store in stores for _ in range(5)))
        for i, store in enumerate(stores):
            await store.async_save("n", MemoryEntry(content=i))
        await stores[0].initialize()
        assert [entry.content for entry in await stores[3].async_load("n")] == [0, 1, 2, 3]
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(program())


@pytest.mark.parametrize("kind", EACH)
def test_every_loop_and_thread_may_use_one_store(kind: str, tmp_path: Path) -> None:
    """One store may be used from several event loops and threads, plain or awaited, without `initialize`."""
    store = opened(kind, tmp_path)
    entries = [MemoryEntry(key=f"k{i}", content=i) for i in range(5)]
    store.save("n", entries[0])

    async def inside() -> None:
        await store.async_save("n", entries[1])
        store.save("n", entries[2])

    async def again() -> None:
        assert await store.async_load_by_key("n", "k2") == store.load_by_key("n", "k2") == entries[2]
        await asyncio.gather(*(store.async_save("n", one) for one in entries[3:]))

    asyncio.run(inside())
    asyncio.run(again())
    seen: list[int] = []
    at_once(lambda _: seen.append(len(store.load("n"))), 4)

    assert seen == [5] * 4
    store.close_sync()


@pytest.mark.parametrize("kind", EACH)
def test_expired_entries_are_counted_when_removed(kind: str, tmp_path: Path) -> None:
    """`cleanup_expired` returns how many entries it removed, awaited or through its plain twin."""
    store = opened(kind, tmp_path)
    past = datetime.now(UTC) - timedelta(seconds=1)
    for i in range(5):
        store.save(f"n{i % 2}", MemoryEntry(content=i, expires_at=past if i < 3 else past + timedelta(days=1)))

    assert asyncio.run(store.cleanup_expired()) == 3
    assert store.cleanup_expired_sync() == 0
    assert [entry.content for n in ("n0", "n1") for entry in store.load(n)] == [4, 3]
    store.close_sync()


@pytest.mark.parametrize("kind", EACH)
def test_a_cancelled_save_leaves_a_working_store(kind: str, tmp_path: Path) -> None:
    """A cancelled save has either happened or not, and all later saves happen."""
    store = opened(kind, tmp_path, pool_size=2)

    async def program() -> None:
        await store.initialize()
        tasks = [asyncio.create_task(store.async_save("n", MemoryEntry(content=i))) for i in range(20)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.async_save("n", MemoryEntry(content="last"))

    asyncio.run(program())
    found = [entry.content for entry in store.load("n")]
    assert set(range(1, 20, 2)) <= set(found)
    assert "last" in found
    store.close_sync()
    with warnings.catch_warnings():  # PyMongo does not close a socket when connecting it is cancelled
        warnings.filterwarnings("ignore", "unclosed <socket", ResourceWarning)
        gc.collect()


@pytest.mark.parametrize("kind", EACH)
def test_a_closed_store_leaves_no_thread(kind: str, tmp_path: Path) -> None:
    """A closed store leaves no thread, even if it was never used."""
    gc.collect()
    before = len(sys._current_frames())
    for _ in range(3):
        store = opened(kind, tmp_path)
        store.save("n", MemoryEntry())
        store.conversations()
        store.close_sync()
    opened(kind, tmp_path).close_sync()

    end_by = time.monotonic() + servers.PATIENCE
    while len(sys._current_frames()) > before and time.monotonic() < end_by:
        time.sleep(0.01)  # a thread that is over takes a moment to be gone
    assert len(sys._current_frames()) <= before


@pytest.mark.parametrize("kind", EACH)
def test_a_dropped_store_ends_its_thread(kind: str, tmp_path: Path) -> None:
    """A store that is dropped without being closed ends its thread."""
    store = opened(kind, tmp_path)
    store.save("n", MemoryEntry())
    assert store._thread is not None
    ended = store._thread._ended

    del store
    gc.collect()

    assert ended.result(30) is None


def test_connections_end_with_the_store(tmp_path: Path) -> None:
    """A store opens `pool_min_size` connections and leaves none when it is closed."""
    address = servers.with_options(
        firefly_stores.address("postgres"), application_name=firefly_stores.name_of(tmp_path)
    )
    store = PostgreSQLStore(address, pool_min_size=3, schema_name=firefly_stores.name_of(tmp_path))
    asked = f"SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = '{firefly_stores.name_of(tmp_path)}'"
    store.initialize_sync()

    assert sql(asked)[0]["n"] == 3
    store.close_sync()
    assert sql("SELECT pg_sleep(0)", asked)[0]["n"] == 0


@pytest.mark.parametrize("kind", EACH)
def test_a_store_refuses_use_in_a_forked_child(kind: str, tmp_path: Path) -> None:
    """A forked child gets ForkedProcess, since it cannot use the parent's connections; the parent goes on."""
    import os

    store = opened(kind, tmp_path)
    store.save("n", MemoryEntry(content=1))
    child = os.fork()
    if child == 0:
        try:
            store.load("n")
        except PalimpsestError as fault:
            store.close_sync()
            os._exit(0 if type(fault).__name__ == "ForkedProcess" else 2)
        os._exit(1)

    assert os.waitpid(child, 0)[1] == 0
    assert len(store.load("n")) == 1
    store.close_sync()


# --- what stands there


def test_the_table_is_as_documented(tmp_path: Path) -> None:
    """The table has Firefly's documented columns, key, check and indexes, and one more unique index for keys."""
    schema = firefly_stores.name_of(tmp_path)
    with firefly_stores.opened("postgres", tmp_path) as store:
        store.load("n")
        columns = sql(
            "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns "
            f"WHERE table_schema = '{schema}' AND table_name = 'memory_entries' ORDER BY ordinal_position"
        )
        checks = sql(
            "SELECT contype::text, pg_get_constraintdef(oid) AS said FROM pg_constraint "
            f"WHERE conrelid = '{schema}.memory_entries'::regclass AND contype <> 'n' ORDER BY contype"
        )
        indexes = sql(f"SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = '{schema}' ORDER BY indexname")

    assert [tuple(row) for row in columns] == [
        ("entry_id", "text", "NO", None),
        ("namespace", "text", "NO", None),
        ("scope", "text", "NO", None),
        ("key", "text", "YES", None),
        ("content", "jsonb", "NO", None),
        ("metadata", "jsonb", "NO", "'{}'::jsonb"),
        ("created_at", "timestamp with time zone", "NO", "now()"),
        ("expires_at", "timestamp with time zone", "YES", None),
        ("importance", "double precision", "NO", "0.5"),
    ]
    assert [row["contype"] for row in checks] == ["c", "p"]
    assert "importance >= (0.0)" in checks[0]["said"]
    assert checks[1]["said"] == "PRIMARY KEY (entry_id)"
    on = f"ON {schema}.memory_entries USING btree"
    assert {row["indexname"]: row["indexdef"] for row in indexes} == {
        "memory_entries_pkey": f"CREATE UNIQUE INDEX memory_entries_pkey {on} (entry_id)",
        "idx_namespace": f"CREATE INDEX idx_namespace {on} (namespace)",
        "idx_namespace_key": f"CREATE INDEX idx_namespace_key {on} (namespace, key) WHERE (key IS NOT NULL)",
        "idx_expires_at": f"CREATE INDEX idx_expires_at {on} (expires_at) WHERE (expires_at IS NOT NULL)",
        "idx_one_of_each_key": f"CREATE UNIQUE INDEX idx_one_of_each_key {on} (namespace, key) WHERE (key IS NOT NULL)",
    }


def test_content_is_stored_as_json(tmp_path: Path) -> None:
    """Other programs can read contents with PostgreSQL's JSONB operators."""
    schema = firefly_stores.name_of(tmp_path)
    with firefly_stores.opened("postgres", tmp_path) as store:
        store.save("n", MemoryEntry(key="k", content={"vendor": "Acme", "b": [1.5, None]}, metadata={"by": "ann"}))

        (row,) = sql(
            f"SELECT content ->> 'vendor' AS vendor, content, metadata ->> 'by' AS by FROM {schema}.memory_entries"
        )

    assert (row["vendor"], row["by"]) == ("Acme", "ann")
    assert json.loads(row["content"]) == {"vendor": "Acme", "b": [1.5, None]}


def test_a_table_filled_by_firefly_is_read(tmp_path: Path) -> None:
    """A table that Firefly filled is read; of several rows with one key the newest keeps the key."""
    schema = firefly_stores.name_of(tmp_path)
    nested_entry = {
        "entry_id": "w",
        "scope": "working",
        "key": None,
        "content": "inner",
        "metadata": {},
        "created_at": "x",
        "expires_at": None,
        "importance": 0.5,
    }
    columns = "(entry_id, namespace, scope, key, content, metadata, created_at)"
    sql(
        f"CREATE SCHEMA {schema}",
        f"""CREATE TABLE {schema}.memory_entries (entry_id TEXT PRIMARY KEY, namespace TEXT NOT NULL,
            scope TEXT NOT NULL, key TEXT, content JSONB NOT NULL, metadata JSONB NOT NULL DEFAULT '{{}}',
            created_at TIMESTAMPTZ NOT NULL DEFAULT NOW(), expires_at TIMESTAMPTZ,
            importance FLOAT NOT NULL DEFAULT 0.5)""",
        f"""INSERT INTO {schema}.memory_entries {columns} VALUES
            ('new', 'n', 'working', 'k', '2', '{{"by": "x"}}', '2026-01-03'),
            ('old', 'n', 'working', 'k', '{{"a": 1}}', '{{}}', '2026-01-01'),
            ('w', 'n', 'long_term', NULL, '{json.dumps(nested_entry)}', '{{}}', '2026-01-02'),
            ('bad', 'n', 'no such scope', NULL, '1', '{{}}', '2026-01-02'),
            ('worse', 'n', 'working', NULL, '1', '[]', '2026-01-02')""",
    )

    with firefly_stores.opened("postgres", tmp_path) as store:
        entries = store.load("n")
        assert [(one.entry_id, one.key, one.content) for one in entries] == [
            ("old", None, {"a": 1}),
            ("w", None, "inner"),
            ("new", "k", 2),
        ]
        assert entries[0].metadata == {"superseded_key": "k"}
        assert entries[2].metadata == {"by": "x"}
        store.save("n", MemoryEntry(key="k", content=3))
        assert [one.content for one in store.load("n")] == [{"a": 1}, "inner", 3]
        sql(
            f"INSERT INTO {schema}.memory_entries {columns} "
            "VALUES ('late', 'n', 'working', NULL, '4', '{}', '2025-01-01')"
        )
        assert [one.content for one in store.load("n")] == [{"a": 1}, "inner", 3, 4]


@pytest.mark.wide
def test_documents_and_indexes_are_as_documented(tmp_path: Path) -> None:
    """Documents have dates as dates and omit missing fields; one more unique index holds one entry per key."""
    expires = datetime(2100, 1, 1, tzinfo=UTC)
    with firefly_stores.opened("mongodb", tmp_path) as store, documents(tmp_path) as collection:
        store.save(
            "working:session-42", MemoryEntry(entry_id="abc123", key="doc_type", content={"a": 1}, expires_at=expires)
        )
        store.save("n", MemoryEntry(entry_id="bare", content=None))

        document, bare = collection.find_one({"entry_id": "abc123"}), collection.find_one({"entry_id": "bare"})
        indexes = collection.index_information()

    assert {name: document[name] for name in ("namespace", "scope", "key", "content", "metadata", "importance")} == {
        "namespace": "working:session-42",
        "scope": "working",
        "key": "doc_type",
        "content": {"a": 1},
        "metadata": {},
        "importance": 0.5,
    }
    assert isinstance(document["created_at"], datetime)
    assert document["expires_at"] == expires
    assert "key" not in bare
    assert "expires_at" not in bare
    index_shapes = {
        name: (how["key"], how.get("unique", False), how.get("partialFilterExpression"))
        for name, how in indexes.items()
    }
    keyed = {"key": {"$exists": True}}
    assert index_shapes == {
        "_id_": ([("_id", 1)], False, None),
        "namespace_1": ([("namespace", 1)], False, None),
        "namespace_1_key_1": ([("namespace", 1), ("key", 1)], False, keyed),
        "expires_at_1": ([("expires_at", 1)], False, {"expires_at": {"$exists": True}}),
        "entry_id_1": ([("entry_id", 1)], True, None),
        "key_1_namespace_1": ([("key", 1), ("namespace", 1)], True, keyed),
    }


@pytest.mark.wide
def test_documents_of_firefly_are_read(tmp_path: Path) -> None:
    """Documents that Firefly wrote, with nulls, are read; of several with one key the newest keeps the key."""
    with documents(tmp_path) as collection:
        defaults = {"namespace": "n", "scope": "working", "metadata": {}, "importance": 0.5, "expires_at": None}
        collection.insert_many(
            [
                {
                    **defaults,
                    "entry_id": "new",
                    "key": "k",
                    "content": 2,
                    "created_at": datetime(2026, 1, 3, tzinfo=UTC),
                },
                {
                    **defaults,
                    "entry_id": "old",
                    "key": "k",
                    "content": 1,
                    "created_at": datetime(2026, 1, 1, tzinfo=UTC),
                },
                {
                    **defaults,
                    "entry_id": "a",
                    "key": None,
                    "content": [datetime(2026, 1, 1, tzinfo=UTC)],
                    "created_at": datetime(2026, 1, 2, tzinfo=UTC),
                },
                {**defaults, "entry_id": "b", "key": None, "content": "b", "created_at": "no date"},
            ]
        )

        with firefly_stores.opened("mongodb", tmp_path) as store:
            entries = store.load("n")
            assert [(one.entry_id, one.key, one.content) for one in entries] == [
                ("old", None, 1),
                ("a", None, [datetime(2026, 1, 1, tzinfo=UTC)]),
                ("new", "k", 2),
            ]
            store.save("n", MemoryEntry(key="k", content=3))
            assert [one.content for one in store.load("n")][-1] == 3


def test_a_set_is_one_statement_and_a_get_another(tmp_path: Path) -> None:
    """Setting or getting a fact sends PostgreSQL one statement, whether the key is new or not."""
    from palimpsest.compat.firefly.postgres_table import Table

    sent: list[str] = []
    original = Table._connection

    async def watching(self: Any) -> Any:
        db = await original(self)
        db.add_query_logger(lambda record: sent.append(record.query))
        return db

    Table._connection = watching
    try:
        with firefly_stores.opened("postgres", tmp_path) as store:
            facts = WorkingMemory(store=store)
            facts.set("key", 1)
            sent.clear()
            facts.set("key", 2)
            facts.set("new", 2)
            facts.get("key")
            facts.has("nothing")
    finally:
        Table._connection = original

    assert [statement.split()[0] for statement in sent] == ["INSERT", "INSERT", "SELECT", "SELECT"]


def test_a_set_is_one_script_and_a_get_another(tmp_path: Path) -> None:
    """Setting or getting a fact asks Redis once."""
    with redisstore.watched() as sent, firefly_stores.opened("redis", tmp_path) as store:
        facts = WorkingMemory(store=store)
        facts.set("key", 1)
        facts.get("key")
        sent.clear()
        facts.set("key", 2)
        facts.set("new", 2)
        facts.get("key")
        facts.has("nothing")

    assert [command[0] for command in sent] == [b"EVALSHA"] * 4


@pytest.mark.wide
def test_nothing_deleted_is_left_on_redis(tmp_path: Path) -> None:
    """Redis keeps no key and no set member of entries that are gone.

    A cluster stores the same as a single server.
    """
    with firefly_stores.opened("redis", tmp_path) as store:
        past = datetime.now(UTC) - timedelta(seconds=1)
        for i in range(1_200):
            store.save(f"n{i % 3}", MemoryEntry(key=f"k{i}", content=i, expires_at=past))
        store.save("n0", MemoryEntry(key="k", content=1))
        store.save("n0", MemoryEntry(key="k", content=2))
        assert asyncio.run(store.async_cleanup_expired()) == 1_200
        store.clear("n0")
        with redisstore.raw(firefly_stores.address("redis")) as client:
            remaining = list(client.scan_iter(f"{{{firefly_stores.name_of(tmp_path)}}}*"))
    assert remaining == [f"{{{firefly_stores.name_of(tmp_path)}}}:place".encode()]

    with servers.valkey_cluster(tmp_path / "cluster") as nodes:
        address = nodes[0].address
        with pytest.raises(ConfigError, match="cluster"):
            RedisStore(address).load("n")
        store = RedisStore(address, cluster=True)
        facts = WorkingMemory(store=store)
        facts.set("a", (1,))
        assert facts.to_dict() == {"a": (1,)}
        store.conversations().session("s").add_user_message("Hello")
        store.close_sync()
