"""What every store of the Firefly door does: the five documented methods, and what ours have beside them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import fireflies
from palimpsest.compat.firefly import FileStore, InMemoryStore, MemoryEntry, MemoryScope, MemoryStore, SQLiteStore
from palimpsest.compat.firefly.store import EntryStore
from palimpsest.errors import Closed, ConfigError, Conflict
from palimpsest.testing import FakeClock

YEAR = timedelta(days=365)


@pytest.fixture(params=fireflies.EVERY)
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of store."""
    return request.param


@pytest.fixture
def store(kind: str, tmp_path: Path) -> Iterator[EntryStore]:
    """An empty store of each kind."""
    with fireflies.opened(kind, tmp_path) as store:
        yield store


def over(**fields: object) -> MemoryEntry:
    """An entry that has expired."""
    return MemoryEntry(expires_at=datetime.now(UTC) - timedelta(seconds=1), **fields)


def contents(store: MemoryStore, namespace: str = "n") -> list[object]:
    return [entry.content for entry in store.load(namespace)]


# --- the five methods


def test_a_field_that_was_made_wrong_later_is_refused_when_it_is_saved(store: EntryStore) -> None:
    """Entries can be changed, so a store looks again."""
    entry = MemoryEntry(content=1)
    entry.importance = float("nan")

    with pytest.raises(ConfigError, match="importance"):
        store.save("n", entry)

    assert store.load("n") == []


def test_every_store_is_a_memory_store(store: EntryStore) -> None:
    """The protocol can be asked at run time, and takes what has just its five methods."""
    assert isinstance(store, MemoryStore)
    assert isinstance(fireflies.FiveMethods(), MemoryStore)
    assert not isinstance(object(), MemoryStore)


def test_what_is_saved_is_loaded_in_the_order_in_which_it_came(store: EntryStore) -> None:
    """Whatever the entries' own times say."""
    saved = [MemoryEntry(content=i, created_at=datetime(2026, 1, 30 - i, tzinfo=UTC)) for i in range(20)]
    for entry in saved:
        store.save("n", entry)

    assert store.load("n") == saved
    assert store.load("other") == []


def test_an_id_that_is_saved_again_is_overwritten_in_place(store: EntryStore) -> None:
    """It keeps its place, and has no second row."""
    entries = [MemoryEntry(content=i) for i in range(3)]
    for entry in entries:
        store.save("n", entry)
    entries[0].content, entries[0].key = "new", "k"

    store.save("n", entries[0])

    assert contents(store) == ["new", 1, 2]
    found = store.load_by_key("n", "k")
    assert found is not None
    assert found.content == "new"


def test_a_key_has_one_entry_which_is_the_newest(store: EntryStore) -> None:
    """Another entry with the same key takes the place of the first one."""
    store.save("n", MemoryEntry(key="k", content="first"))
    store.save("n", MemoryEntry(key="other", content="between"))
    newest = MemoryEntry(key="k", content="second")

    store.save("n", newest)

    assert store.load_by_key("n", "k") == newest
    assert contents(store) == ["second", "between"]


def test_an_entry_may_take_another_key(store: EntryStore) -> None:
    """It is found by the new one alone; the entry that had that key is gone, its own place stays."""
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
    """Nothing is written, in neither namespace, with a key or without."""
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
    """Deleted or cleared away, it may come back in another namespace."""
    one, two = MemoryEntry(content=1), MemoryEntry(content=2)
    store.save("n", one)
    store.save("n", two)
    store.delete("n", one.entry_id)
    store.save("other", one)
    store.clear("n")
    store.save("other", two)

    assert contents(store, "other") == [1, 2]


def test_to_delete_takes_one_away_and_what_is_unknown_is_no_error(store: EntryStore) -> None:
    """Nor is an entry of another namespace, which stays."""
    kept, gone = MemoryEntry(content="kept", key="k"), MemoryEntry(content="gone", key="g")
    store.save("n", kept)
    store.save("n", gone)

    store.delete("n", gone.entry_id)
    store.delete("n", "unknown")
    store.delete("nowhere", "unknown")
    store.delete("other", kept.entry_id)

    assert contents(store) == ["kept"]
    assert store.load_by_key("n", "g") is None


def test_to_clear_takes_one_namespace_away(store: EntryStore) -> None:
    """An unknown one is no error, and it can be used again."""
    store.save("n", MemoryEntry(content=1, key="k"))
    store.save("other", MemoryEntry(content=2))

    store.clear("n")
    store.clear("unknown")

    assert store.load("n") == []
    assert store.load_by_key("n", "k") is None
    assert contents(store, "other") == [2]
    store.save("n", MemoryEntry(content=3))
    assert contents(store) == [3]


def test_scope_metadata_and_times_come_back(store: EntryStore) -> None:
    """To the microsecond, and in UTC."""
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

    (found,) = store.load("n")

    assert found == entry
    assert found.scope is MemoryScope.LONG_TERM
    assert found.created_at.utcoffset() == timedelta(0)


def test_what_is_given_is_a_copy(store: EntryStore) -> None:
    """To change it changes nothing that is stored, and nor does what was saved."""
    content = {"list": [1]}
    entry = MemoryEntry(key="k", content=content, metadata={"a": [1]})
    store.save("n", entry)

    content["list"].append(2)
    found = store.load_by_key("n", "k")
    assert found is not None
    found.content["list"].append(3)
    found.metadata["a"].append(4)
    store.load("n")[0].content["list"].append(5)

    assert contents(store) == [{"list": [1]}]
    assert store.load("n")[0].metadata == {"a": [1]}


# --- expiry


def test_what_has_expired_is_seen_by_nobody_and_counted_when_it_is_cleaned_up(store: EntryStore) -> None:
    """What expires in the future is seen as anything else."""
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
    """From that moment on it is not."""
    clock = FakeClock()
    now = clock()
    ends = datetime.fromtimestamp(now / 1_000_000, UTC) + timedelta(seconds=10)
    with fireflies.opened(kind, tmp_path, clock=clock) as store:
        store.save("n", MemoryEntry(key="k", content=1, expires_at=ends))

        clock.advance(seconds=9)
        assert contents(store) == [1]
        clock.advance(seconds=1)
        assert contents(store) == []
        assert store.load_by_key("n", "k") is None


def test_what_takes_the_place_of_something_expired_comes_last(store: EntryStore) -> None:
    """For nobody has seen that it was there before."""
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


def test_compare_and_set_writes_only_what_nobody_has_changed(store: EntryStore) -> None:
    """It says whether it has; None stands for nothing, before and after."""
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


def test_compare_and_set_takes_what_has_expired_for_nothing(store: EntryStore) -> None:
    """And an entry with another key than that is refused, one of another namespace a conflict."""
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


def test_namespaces_and_keys_are_apart_whatever_characters_they_have(kind: str, tmp_path: Path) -> None:
    """Each has its own entries, and nothing is written outside of the folder."""
    inside = tmp_path / "inside"
    inside.mkdir()
    with fireflies.opened(kind, inside) as store:
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
    """As long as ids of the library are, in any script; none is a beginning of another."""
    rng = random.Random(7)
    names = ["".join(chr(rng.randrange(0x10000, 0x10FFFF)) for _ in range(256)) + end for end in ("", "a", "b")]
    names.append("".join(chr(rng.randrange(33, 127)) for _ in range(1280)))
    for name in names:
        for other in names:
            store.save(name, MemoryEntry(key=other, content=other))

    for name in names:
        assert contents(store, name) == names
        assert all(store.load_by_key(name, other).content == other for other in names)


def test_names_that_no_store_keeps_are_refused(store: EntryStore) -> None:
    """A namespace with NUL, what is no text, and what is longer than 1,280 bytes."""
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


def test_every_method_is_a_coroutine_as_well(store: EntryStore) -> None:
    """With one body: what one has saved the other loads."""

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


def test_a_closed_store_raises_and_closes_again(store: EntryStore) -> None:
    """Whichever method is called."""
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
    """In a memory that is the same for all who ask, and is closed with the store."""
    memory = store.conversations()
    memory.session("one").add_user_message("Hello")

    assert store.conversations() is memory
    store.save("n", MemoryEntry(content=1))
    assert contents(store) == [1]
    store.close_sync()
    with pytest.raises(Closed):
        memory.session("one").add_user_message("again")


@pytest.mark.parametrize("kind", fireflies.DURABLE, indirect=True)
def test_a_durable_store_has_all_of_it_when_it_is_opened_again(kind: str, tmp_path: Path) -> None:
    """Entries and conversations alike, in their order."""
    saved = [MemoryEntry(key=f"k{i}", content=(i,)) for i in range(5)]
    with fireflies.opened(kind, tmp_path) as store:
        for entry in saved:
            store.save("n", entry)
        store.conversations().session("one").add_user_message("Hello")

    with fireflies.opened(kind, tmp_path) as store:
        assert store.load("n") == saved
        assert store.load_by_key("n", "k3") == saved[3]
        assert [entry.text for entry in store.conversations().session("one").entries()] == ["Hello"]


def test_stores_are_made_as_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder of the program, with missing folders; and used at once."""
    monkeypatch.chdir(tmp_path)
    made = [
        InMemoryStore(),
        FileStore(base_dir=".firefly_memory"),
        FileStore(),
        SQLiteStore("data/firefly_memory.sqlite3"),
    ]

    for store in made:
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


def test_namespaces_of_a_store_in_memory_are_listed() -> None:
    """Those that have entries."""
    store = InMemoryStore()
    store.save("a", MemoryEntry())
    store.save("b", MemoryEntry())
    store.clear("a")

    assert store.namespaces == ["b"]
