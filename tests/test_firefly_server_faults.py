"""Firefly stores on servers: unreachable servers, invalid options, and missing drivers."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import firefly_stores
import postgresstore
import servers
from on_servers import own_server
from palimpsest import StoreUnavailable
from palimpsest.compat.firefly import MemoryEntry, WorkingMemory
from palimpsest.compat.firefly.database_store import MongoDBStore, PostgreSQLStore, RedisStore
from palimpsest.errors import ConfigError, MissingExtra

DRIVERS = {"postgres": "asyncpg", "redis": "redis", "mongodb": "pymongo"}

SECRET = "tops3cret"
NOWHERE = {
    "postgres": (PostgreSQLStore, f"postgresql://me:{SECRET}@127.0.0.1:1/x"),
    "redis": (RedisStore, f"redis://me:{SECRET}@127.0.0.1:1/0"),
    "mongodb": (MongoDBStore, f"mongodb://me:{SECRET}@127.0.0.1:1/?serverSelectionTimeoutMS=50"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", NOWHERE)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_unreachable_server_is_one_error_without_secrets(kind: str) -> None:
    """An unreachable server raises StoreUnavailable with the driver's error as cause, and without user and password.

    The store can still be closed.
    """
    store_class, address = NOWHERE[kind]
    store = store_class(address, timeout=5)

    with pytest.raises(StoreUnavailable) as raised:
        store.load("n")
    with pytest.raises(StoreUnavailable):
        asyncio.run(store.initialize())

    assert raised.value.__cause__ is not None
    assert raised.value.written is False
    assert SECRET not in str(raised.value) + store.url + repr(store)
    assert "127.0.0.1" in store.url
    store.close_sync()
    del store, raised
    gc.collect()  # a driver leaves sockets to it, of which no later test is to hear


@pytest.mark.wide
@pytest.mark.parametrize("kind", firefly_stores.SERVED)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_store_works_again_when_its_server_is_back(kind: str) -> None:
    """A store raises StoreUnavailable while its server is away, and loses nothing acknowledged."""
    with own_server(kind) as server:
        store_class, _ = NOWHERE[kind]
        store = store_class(server.address.partition("?")[0], timeout=10)
        facts = WorkingMemory(store=store)
        facts.set("a", 1)
        server.kill()
        with pytest.raises(StoreUnavailable):
            facts.set("b", 2)
        server.start()
        for _ in range(20):  # connections that are lost are noticed one by one
            try:
                facts.set("c", 3)
                break
            except StoreUnavailable:
                continue
        assert facts.get("a") == 1
        assert facts.get("c") == 3
        store.close_sync()
    del store, facts
    gc.collect()  # a driver leaves sockets to it, of which no later test is to hear


@pytest.mark.parametrize(
    ("kind", "address"),
    [
        ("postgres", f"postgres//me:{SECRET}@host/x"),
        ("postgres", f"postgresql://me:{SECRET}@host:port/x"),
        ("postgres", None),
        ("redis", f"http://me:{SECRET}@host"),
        ("redis", f"redis://me:{SECRET}@host:99999/x"),
        ("mongodb", f"mongodb:/me:{SECRET}@host"),
        ("mongodb", f"mongodb://me:{SECRET}@host:port/x"),
        ("mongodb", f"mongodb://me:{SECRET}@host/x?tls=true&tlsCAFile=/none"),
    ],
)
def test_an_invalid_address_is_refused_without_secrets(kind: str, address: Any) -> None:
    """An invalid address raises ConfigError when the store is made, without user and password."""
    with pytest.raises(ConfigError) as raised:
        NOWHERE[kind][0](address)

    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("postgres", {"schema_name": 'x"; DROP SCHEMA public; --'}),
        ("postgres", {"schema_name": "1x"}),
        ("postgres", {"schema_name": "pg_own"}),
        ("postgres", {"schema_name": "x" * 64}),
        ("postgres", {"schema_name": None}),
        ("postgres", {"pool_size": 0}),
        ("postgres", {"pool_min_size": -1}),
        ("postgres", {"pool_min_size": 11}),
        ("postgres", {"timeout": 0}),
        ("redis", {"prefix": "{x}"}),
        ("redis", {"prefix": "x" * 61}),
        ("redis", {"pool_size": 0}),
        ("redis", {"timeout": -1}),
        ("mongodb", {"database": "a.b"}),
        ("mongodb", {"database": ""}),
        ("mongodb", {"collection": "a$b"}),
        ("mongodb", {"collection": "palimpsest"}),
        ("mongodb", {"pool_size": "many"}),
    ],
)
def test_an_invalid_option_is_named(kind: str, options: dict[str, Any]) -> None:
    """An invalid option raises ConfigError that names it when the store is made."""
    store_class, address = NOWHERE[kind]

    with pytest.raises(ConfigError, match=next(iter(options))):
        store_class(address, **options)


def test_schema_names_may_be_keywords_or_capitals(tmp_path: Path) -> None:
    """A schema may be named by a word of SQL, and in capitals, which PostgreSQL folds."""
    store = PostgreSQLStore(firefly_stores.address("postgres"), schema_name="Order", pool_min_size=0)
    try:
        store.save("n", MemoryEntry(key=str(tmp_path)))
        assert store.load_by_key("n", str(tmp_path)) is not None
        assert store.conversations_at().options["schema_name"] == "order_log"
    finally:
        store.close_sync()
        postgresstore.asked(servers.address("postgres"), 'DROP SCHEMA "order" CASCADE')


def test_conversations_use_the_database_of_the_entries() -> None:
    """The address of conversations names the entries' database and keeps the user's authentication source."""
    from palimpsest.compat.firefly.mongodb_store import within

    assert within("mongodb://host:27017/", "f") == "mongodb://host:27017/f"
    assert within("mongodb://host", "f") == "mongodb://host/f"
    assert within("mongodb://u:p@a,b/", "f") == "mongodb://u:p@a,b/f?authSource=admin"
    assert within("mongodb://u:p@a/x?w=1", "f") == "mongodb://u:p@a/f?w=1&authSource=x"
    assert within("mongodb://u:p@a/x?authSource=y", "f") == "mongodb://u:p@a/f?authSource=y"


# --- drivers


@pytest.mark.parametrize("kind", DRIVERS)
def test_a_missing_driver_raises_missing_extra(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a store without its driver raises MissingExtra, an ImportError that says what to install."""
    monkeypatch.setitem(sys.modules, DRIVERS[kind], None)
    store_class, address = NOWHERE[kind]

    with pytest.raises(ImportError, match=rf"pip install 'palimpsest-memory\[{kind}\]'") as raised:
        store_class(address)

    assert isinstance(raised.value, MissingExtra)


def test_importing_the_stores_loads_no_driver() -> None:
    """Importing every name of the package loads no driver."""
    program = (
        "import sys; from palimpsest.compat.firefly import *; from palimpsest.compat.firefly import database_store\n"
        "print([name for name in ('asyncpg', 'pymongo', 'redis', 'pydantic', 'motor') if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert output.stdout.strip() == "[]"
