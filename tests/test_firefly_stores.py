"""Every Firefly store: the five documented methods, and those that ours have beside them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import firefly_stores
from palimpsest.compat.firefly import FileStore, InMemoryStore, MemoryEntry, MemoryScope, MemoryStore, SQLiteStore
from palimpsest.compat.firefly.store import EntryStore
from palimpsest.errors import Closed, ConfigError, Conflict
from palimpsest.testing import FakeClock

YEAR = timedelta(days=365)


@pytest.fixture(params=firefly_stores.EVERY)
def kind(request: pytest.FixtureRequest) -> str:
    """Yield each kind of store."""
    return request.param


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[EntryStore]:
    """Yield an empty store of each kind."""
    with firefly_stores.opened(kind, tmp_path) as store:
        yield store


def over(**fields: object) -> MemoryEntry:
    """Return an entry that has expired."""
    return MemoryEntry(expires_at=datetime.now(UTC) - timedelta(seconds=1), **fields)


def contents(store: MemoryStore, namespace: str = "n") -> list[object]:
    """Return the contents of a namespace in order."""
    return [entry.content for entry in store.load(namespace)]


# --- the five methods


def test_a_field_made_invalid_later_is_refused_on_save(store: EntryStore) -> None:
    """An entry's fields are checked again when it is saved, since they can be changed."""
    entry = MemoryEntry(content=1)
    entry.importance = float("nan")

    with pytest.raises(ConfigError, match="importance"):
        store.save("n", entry)

    assert store.load("n") == []


def test_every_store_is_a_memory_store(store: EntryStore) -> None:
    """Every store, and any object with the five methods, is an instance of the protocol MemoryStore."""
    assert isinstance(store, MemoryStore)
    assert isinstance(firefly_stores.FiveMethods(), MemoryStore)
    assert not isinstance(object(), MemoryStore)


def test_entries_load_in_the_order_they_were_saved(store: EntryStore) -> None:
    """Entries load in the order in which they were first saved, whatever their own times say."""
    saved = [MemoryEntry(content=i, created_at=datetime(2026, 1, 30 - i, tzinfo=UTC)) for i in range(20)]
    for entry in saved:
        store.save("n", entry)

    assert store.load("n") == saved
    assert store.load("other") == []


def test_saving_an_id_again_overwrites_in_place(store: EntryStore) -> None:
    """Saving an entry again overwrites it at its place in the order."""
    entries = [MemoryEntry(content=i) for i in range(3)]
    for entry in entries:
        store.save("n", entry)
    entries[0].content, entries[0].key = "new", "k"

    store.save("n", entries[0])

    assert contents(store) == ["new", 1, 2]
    loaded = store.load_by_key("n", "k")
    assert loaded is not None
    assert loaded.content == "new"


def test_a_key_has_only_its_newest_entry(store: EntryStore) -> None:
    """An entry with a key replaces the earlier entry with that key."""
    store.save("n", MemoryEntry(key="k", content="first"))
    store.save("n", MemoryEntry(key="other", content="between"))
    newest = MemoryEntry(key="k", content="second")

    store.save("n", newest)

    assert store.load_by_key("n", "k") == newest
    assert contents(store) == ["second", "between"]


def test_an_entry_may_take_another_key(store: EntryStore) -> None:
    """An entry saved under another key is found by the new key only, and replaces the entry that had it."""
    first, second, third = (MemoryEntry(key=key, content=key) for key in "abc")
    for entry in (first, second, third):
        store.save("n", entry)
    third.key, third.content = "a", "moved"

    store.save("n", third)

    assert contents(store) == ["b", "moved"]
    assert store.load_by_key("n", "c") is None
    third.key = None
    store.save("n", third)
    assert store.load_by_key("n", "a") is None
    assert contents(store) == ["b", "moved"]


def test_an_id_of_another_namespace_is_a_conflict(store: EntryStore) -> None:
    """Saving an entry whose id another namespace has raises Conflict and writes nothing."""
    entry, keyed = MemoryEntry(content="mine"), MemoryEntry(content="mine", key="k")
    store.save("n", entry)
    store.save("n", keyed)
    store.save("other", MemoryEntry(content="theirs", key="k"))
    entry.content = keyed.content = "stolen"

    for taken in (entry, keyed):
        with pytest.raises(Conflict, match="another namespace"):
            store.save("other", taken)

    assert contents(store) == ["mine", "mine"]
    assert contents(store, "other") == ["theirs"]


def test_an_id_is_free_again_when_its_entry_is_gone(store: EntryStore) -> None:
    """The id of a deleted or cleared entry may be used in another namespace."""
    first, second = MemoryEntry(content=1), MemoryEntry(content=2)
    store.save("n", first)
    store.save("n", second)
    store.delete("n", first.entry_id)
    store.save("other", first)
    store.clear("n")
    store.save("other", second)

    assert contents(store, "other") == [1, 2]


def test_delete_removes_one_entry(store: EntryStore) -> None:
    """`delete` removes one entry; an unknown id or one of another namespace is no error."""
    kept, gone = MemoryEntry(content="kept", key="k"), MemoryEntry(content="gone", key="g")
    store.save("n", kept)
    store.save("n", gone)

    store.delete("n", gone.entry_id)
    store.delete("n", "unknown")
    store.delete("nowhere", "unknown")
    store.delete("other", kept.entry_id)

    assert contents(store) == ["kept"]
    assert store.load_by_key("n", "g") is None


def test_clear_empties_one_namespace(store: EntryStore) -> None:
    """`clear` empties one namespace, which can be used again; an unknown namespace is no error."""
    store.save("n", MemoryEntry(content=1, key="k"))
    store.save("other", MemoryEntry(content=2))

    store.clear("n")
    store.clear("unknown")

    assert store.load("n") == []
    assert store.load_by_key("n", "k") is None
    assert contents(store, "other") == [2]
    store.save("n", MemoryEntry(content=3))
    assert contents(store) == [3]


def test_all_fields_of_an_entry_come_back(store: EntryStore) -> None:
    """Scope, metadata and times come back, times to the microsecond and in UTC."""
    zone = datetime.fromisoformat("2026-01-31T12:00:00.123456+05:30")
    entry = MemoryEntry(
        scope=MemoryScope.LONG_TERM,
        content=None,
        metadata={"$place": 1, "tags": ("a", "b"), "\0": "\ud800"},
        created_at=zone,
        expires_at=zone + 100 * YEAR,
        importance=1,
    )
    store.save("n", entry)

    (loaded,) = store.load("n")

    assert loaded == entry
    assert loaded.scope is MemoryScope.LONG_TERM
    assert loaded.created_at.utcoffset() == timedelta(0)


def test_a_store_keeps_and_returns_copies(store: EntryStore) -> None:
    """Changing what was saved or loaded changes nothing that is stored."""
    content = {"list": [1]}
    entry = MemoryEntry(key="k", content=content, metadata={"a": [1]})
    store.save("n", entry)

    content["list"].append(2)
    loaded = store.load_by_key("n", "k")
    assert loaded is not None
    loaded.content["list"].append(3)
    loaded.metadata["a"].append(4)
    store.load("n")[0].content["list"].append(5)

    assert contents(store) == [{"list": [1]}]
    assert store.load("n")[0].metadata == {"a": [1]}


# --- expiry


def test_an_expired_entry_is_invisible_and_counted_on_cleanup(store: EntryStore) -> None:
    """An expired entry is not loaded; cleanup removes it and counts it."""
    for i in range(3):
        store.save("n", over(content=i, key=f"over {i}"))
    store.save("n", MemoryEntry(content="soon", key="soon", expires_at=datetime.now(UTC) + YEAR))
    store.save("other", MemoryEntry(content="ever"))

    assert contents(store) == ["soon"]
    assert store.load_by_key("n", "over 1") is None
    assert store.load_by_key("n", "soon") is not None
    assert asyncio.run(store.async_cleanup_expired()) == 3
    assert asyncio.run(store.async_cleanup_expired()) == 0
    assert contents(store) == ["soon"]
    assert contents(store, "other") == ["ever"]


def test_an_entry_is_seen_until_the_moment_of_its_expiry(kind: str, tmp_path: Path) -> None:
    """An entry is loaded until the moment of its expiry and not from that moment on."""
    clock = FakeClock()
    now = clock()
    ends = datetime.fromtimestamp(now / 1_000_000, UTC) + timedelta(seconds=10)
    with firefly_stores.opened(kind, tmp_path, clock=clock) as store:
        store.save("n", MemoryEntry(key="k", content=1, expires_at=ends))

        clock.advance(seconds=9)
        assert contents(store) == [1]
        clock.advance(seconds=1)
        assert contents(store) == []
        assert store.load_by_key("n", "k") is None


def test_an_entry_that_replaces_an_expired_one_comes_last(store: EntryStore) -> None:
    """An entry that replaces an expired one comes last in the order, since the old one was not visible."""
    old = over(content="old", key="k")
    store.save("n", old)
    store.save("n", MemoryEntry(content="between"))

    store.save("n", MemoryEntry(content="new", key="k"))
    assert contents(store) == ["between", "new"]

    again = over(content="old", entry_id="same")
    store.save("n", again)
    store.save("n", MemoryEntry(content="later"))
    again.expires_at, again.content = None, "again"
    store.save("n", again)
    assert contents(store) == ["between", "new", "later", "again"]


# --- compare and set


def test_compare_and_set_writes_only_if_nothing_has_changed(store: EntryStore) -> None:
    """`compare_and_set` writes only if the stored entry is the expected one, and returns whether it has.

    None stands for no entry, as expectation and as value.
    """
    first = MemoryEntry(key="k", content={"b": 1, "a": (1,)})
    second = MemoryEntry(key="k", content=2)
    assert store.compare_and_set("n", "k", first, None)
    assert not store.compare_and_set("n", "k", second, None)
    seen = store.load_by_key("n", "k")
    assert store.compare_and_set("n", "k", second, seen)
    assert not store.compare_and_set("n", "k", first, seen)
    assert not store.compare_and_set("n", "k", None, seen)
    assert contents(store) == [2]

    assert store.compare_and_set("n", "k", None, second)
    assert store.load("n") == []
    assert store.compare_and_set("n", "k", None, None)


def test_compare_and_set_treats_an_expired_entry_as_absent(store: EntryStore) -> None:
    """`compare_and_set` treats an expired entry as absent.

    It refuses an entry with another key, and raises Conflict for an id of another namespace.
    """
    gone = over(key="k", content=1)
    store.save("n", gone)
    assert not store.compare_and_set("n", "k", MemoryEntry(key="k", content=2), gone)
    assert store.compare_and_set("n", "k", MemoryEntry(key="k", content=2), None)
    assert contents(store) == [2]

    with pytest.raises(ConfigError):
        store.compare_and_set("n", "k", MemoryEntry(key="other"), None)
    theirs = MemoryEntry(key="k")
    store.save("theirs", theirs)
    with pytest.raises(Conflict):
        store.compare_and_set("n", "k", theirs, store.load_by_key("n", "k"))
    assert contents(store) == [2]


# --- names


NAMES = [
    "user/1",
    "user_1",
    "user\\1",
    "..",
    ".",
    "",
    "x" * 300,
    "X" * 300,
    "a:b",
    "A:B",
    "a:B",
    " a",
    "a",
    "a ",
    "%2e",
    "é",
    "e\u0301",
    "\ufdd0",
    "\ud800",
    "con",
    "CON",
    "ids",
    "conversations",
    "~",
    "*",
    "\n",
    "\U0001f600" * 200,
]


def test_namespaces_and_keys_stay_apart_whatever_their_characters(kind: str, tmp_path: Path) -> None:
    """Namespaces and keys of any characters have their own entries, and nothing is written outside the folder."""
    inside = tmp_path / "inside"
    inside.mkdir()
    with firefly_stores.opened(kind, inside) as store:
        for name in NAMES:
            store.save(name, MemoryEntry(entry_id=f"id {name}", key=name, content=name))
            store.save("keys", MemoryEntry(key=name, content=name))

        for name in NAMES:
            assert [(entry.key, entry.content, entry.entry_id) for entry in store.load(name)] == [
                (name, name, f"id {name}")
            ]
            found = store.load_by_key("keys", name)
            assert found is not None
            assert found.content == name
        assert contents(store, "keys") == NAMES

    assert [path.name for path in tmp_path.iterdir()] == ["inside"]


def test_names_may_be_long(store: EntryStore) -> None:
    """Names of up to 1,280 bytes in any script stay apart."""
    rng = random.Random(7)
    names = ["".join(chr(rng.randrange(0x10000, 0x10FFFF)) for _ in range(256)) + end for end in ("", "a", "b")]
    names.append("".join(chr(rng.randrange(33, 127)) for _ in range(1280)))
    for name in names:
        for other in names:
            store.save(name, MemoryEntry(key=other, content=other))

    for name in names:
        assert contents(store, name) == names
        assert all(store.load_by_key(name, other).content == other for other in names)


def test_invalid_names_are_refused(store: EntryStore) -> None:
    """A namespace with NUL, a name that is not text, or one over 1,280 bytes raises ConfigError."""
    for namespace in ("a\0b", "x" * 1281, "é" * 641, None, 3):
        with pytest.raises(ConfigError, match="namespace"):
            store.save(namespace, MemoryEntry())
        with pytest.raises(ConfigError, match="namespace"):
            store.load(namespace)
        with pytest.raises(ConfigError, match="namespace"):
            store.clear(namespace)
    with pytest.raises(ConfigError, match="key"):
        store.save("n", MemoryEntry(key="x" * 1281))
    with pytest.raises(ConfigError, match="key"):
        store.load_by_key("n", None)
    with pytest.raises(ConfigError, match="entry_id"):
        store.save("n", MemoryEntry(entry_id="x" * 1281))
    with pytest.raises(ConfigError, match="MemoryEntry"):
        store.save("n", {"content": 1})
    store.save("n", MemoryEntry(key="nul\0", content=1))
    assert store.load_by_key("n", "nul\0").content == 1


# --- coroutines, and the end


def test_every_method_has_an_awaitable_twin(store: EntryStore) -> None:
    """Each method has an awaitable twin, which sees what the plain one has saved."""

    async def use() -> None:
        entry = MemoryEntry(key="k", content=1)
        await store.async_save("n", entry)
        assert await store.async_load("n") == [entry] == store.load("n")
        assert await store.async_load_by_key("n", "k") == entry
        assert await store.async_compare_and_set("n", "k", None, entry)
        await store.async_save("n", entry)
        await store.async_delete("n", entry.entry_id)
        await store.async_save("n", entry)
        await store.async_clear("n")
        assert await store.async_load("n") == []
        await store.async_save("n", over(content=1))
        assert await store.async_cleanup_expired() == 1

    asyncio.run(use())
    asyncio.run(use())


def test_a_closed_store_raises_closed(store: EntryStore) -> None:
    """Every method of a closed store raises Closed; closing again is no error."""
    store.save("n", MemoryEntry())
    store.close_sync()
    store.close_sync()
    asyncio.run(store.aclose())

    with pytest.raises(Closed, match="closed; make another one"):
        store.load("n")
    with pytest.raises(Closed):
        store.save("n", MemoryEntry())
    with pytest.raises(Closed):
        asyncio.run(store.async_load_by_key("n", "k"))
    with pytest.raises(Closed):
        store.conversations()


def test_conversations_are_kept_beside_the_entries(store: EntryStore) -> None:
    """A store's conversations are in one Memory, the same for all who ask, which closes with the store."""
    memory = store.conversations()
    memory.session("one").add_user_message("Hello")

    assert store.conversations() is memory
    store.save("n", MemoryEntry(content=1))
    assert contents(store) == [1]
    store.close_sync()
    with pytest.raises(Closed):
        memory.session("one").add_user_message("again")


@pytest.mark.parametrize("kind", firefly_stores.DURABLE, indirect=True)
def test_a_durable_store_keeps_everything_when_reopened(kind: str, tmp_path: Path) -> None:
    """A reopened store has its entries and conversations in their order."""
    saved = [MemoryEntry(key=f"k{i}", content=(i,)) for i in range(5)]
    with firefly_stores.opened(kind, tmp_path) as store:
        for entry in saved:
            store.save("n", entry)
        store.conversations().session("one").add_user_message("Hello")

    with firefly_stores.opened(kind, tmp_path) as store:
        assert store.load("n") == saved
        assert store.load_by_key("n", "k3") == saved[3]
        assert [entry.text for entry in store.conversations().session("one").entries()] == ["Hello"]


def test_stores_are_made_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores are made at the documented default paths, with missing folders, and are usable at once."""
    monkeypatch.chdir(tmp_path)
    stores = [
        InMemoryStore(),
        FileStore(base_dir=".firefly_memory"),
        FileStore(),
        SQLiteStore("data/firefly_memory.sqlite3"),
    ]

    for store in stores:
        store.save("n", MemoryEntry(content=1))
        assert contents(store)[-1] == 1
        store.close()

    assert {path.name for path in tmp_path.iterdir()} == {".firefly_memory", "data"}
    with SQLiteStore(":memory:") as store:
        store.save("n", MemoryEntry(content=1))
        assert contents(store) == [1]
        assert store.conversations().sessions() == []
    assert {path.name for path in tmp_path.iterdir()} == {".firefly_memory", "data"}
    for wrong in ("", None, "a\0b"):
        with pytest.raises(ConfigError, match="path"):
            SQLiteStore(wrong)
        with pytest.raises(ConfigError, match="base_dir"):
            FileStore(wrong)
    with pytest.raises(ConfigError, match="busy_seconds"):
        SQLiteStore("a.db", busy_seconds=-1)


def test_a_store_in_memory_lists_its_namespaces() -> None:
    """`InMemoryStore.namespaces` lists the namespaces that have entries."""
    store = InMemoryStore()
    store.save("a", MemoryEntry())
    store.save("b", MemoryEntry())
    store.clear("a")

    assert store.namespaces == ["b"]
