"""Firefly stores under several processes and threads, killed processes, and full disks; the format of their files."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import random
import sqlite3
import sys
from pathlib import Path

import pytest

import firefly_stores
from palimpsest.compat.firefly import MemoryEntry, SQLiteStore, WorkingMemory
from palimpsest.errors import StoreUnavailable
from processes import Process

SCRIPT = Path(__file__).with_name("firefly_writer.py")

DISKS = ["sqlite", "file"]
OFTEN = {"sqlite": 50, "file": 50, "postgres": 50, "redis": 50, "mongodb": 15}
SHARED = [*((kind, 10) for kind in DISKS), *(pytest.param(*one, marks=pytest.mark.wide) for one in OFTEN.items())]
"""Stores that processes share, and how often each of their threads repeats its work."""


def started(mode: str, *arguments: object) -> Process:
    """Return a process that runs firefly_writer.py."""
    return Process(mode, str(arguments[0]), *arguments[1:], script=SCRIPT)


@pytest.mark.parametrize(("kind", "times"), SHARED)
def test_one_key_set_by_many_has_one_row_with_a_last_value(kind: str, times: int, tmp_path: Path) -> None:
    """A key that processes and threads set at once has one row, and readers always find one whole value."""
    with firefly_stores.opened(kind, tmp_path) as store:
        store.save("entries", MemoryEntry())
        with (
            started("same", kind, tmp_path, "a", 4, times) as first,
            started("same", kind, tmp_path, "b", 4, times) as second,
        ):
            for process in (first, second):
                assert process.hear() == "ready"
            for process in (first, second):
                process.tell()
            assert [process.hear() for process in (first, second)] == [[], []]

        rows = store.load("working:shared")
        assert [row.key for row in rows] == ["key"]
        assert rows[0].content.endswith(f" {times - 1}")
        assert WorkingMemory(store=store, scope_id="shared").to_dict() == {"key": rows[0].content}


@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "times"), SHARED)
def test_entries_saved_by_many_are_all_stored(kind: str, times: int, tmp_path: Path) -> None:
    """Entries and facts that processes and threads save at once are all stored, and a shared counter is exact."""
    with firefly_stores.opened(kind, tmp_path) as store:
        store.save("other", MemoryEntry())
        with (
            started("own", kind, tmp_path, "a", 4, times) as first,
            started("own", kind, tmp_path, "b", 4, times) as second,
        ):
            for process in (first, second):
                assert process.hear() == "ready"
            for process in (first, second):
                process.tell()
            assert [process.hear() for process in (first, second)] == [[], []]

        entries = store.load("entries")
        assert len(entries) == 8 * times
        assert {entry.entry_id for entry in entries} == {
            f"{p} {t} {i}" for p in "ab" for t in range(4) for i in range(times)
        }
        for process in "ab":
            for thread in range(4):
                contents = [entry.content for entry in entries if entry.entry_id.startswith(f"{process} {thread} ")]
                assert contents == list(range(times))
        assert len(WorkingMemory(store=store, scope_id="shared").keys()) == 8 * times
        counted = store.load_by_key("counts", "count")
        assert counted is not None
        assert counted.content == 8 * times


@pytest.mark.wide
@pytest.mark.parametrize("kind", DISKS)
def test_eight_processes_can_create_one_store_at_once(kind: str, tmp_path: Path) -> None:
    """Eight processes may create the same store at once: none finds it locked, and ten keys have ten rows."""
    processes = [started("ten", kind, tmp_path, f"p{i}", 60) for i in range(8)]
    for process in processes:
        assert process.hear() == "ready"
    for process in processes:
        process.tell()
    for process in processes:
        assert process.hear() == "done"
        process.end()

    with firefly_stores.opened(kind, tmp_path) as store:
        assert sorted(WorkingMemory(store=store).keys()) == [f"key {i}" for i in range(10)]
        assert len(store.load("working:default")) == 10


def killed(kind: str, folder: Path, name: str, after: int) -> int:
    """Kill a writing process after it has reported `after` saves; return how many it has reported in all."""
    with started("saves", kind, folder, name, 2_000) as process:
        assert process.hear() == "ready"
        process.tell()
        for _ in range(after):
            process.hear()
        rest = [said for said in process.kill() if isinstance(said, int)]
    return after + len(rest)


def judge(kind: str, folder: Path, name: str, said: int) -> None:
    """Assert that every reported save is stored, and none by half."""
    with firefly_stores.opened(kind, folder) as store:
        entries = [entry for entry in store.load("entries") if entry.entry_id.startswith(f"{name} ")]
        numbers = [int(entry.entry_id.split()[1]) for entry in entries]
        assert len({number % 50 for number in numbers}) == len(numbers) == min(50, max(numbers, default=-1) + 1)
        assert max(numbers, default=-1) in {said - 1, said}
        assert all(entry.content == "x" * (number % 700) for entry, number in zip(entries, numbers, strict=True))
        store.save("after", MemoryEntry(key="k", content=name))
        assert store.load_by_key("after", "k").content == name


@pytest.mark.parametrize("kind", DISKS)
def test_a_killed_process_loses_no_acknowledged_save(kind: str, tmp_path: Path) -> None:
    """A process killed during its saves loses none that was acknowledged."""
    for round_ in range(2):
        said = killed(kind, tmp_path, f"r{round_}", random.randrange(1, 60))
        judge(kind, tmp_path, f"r{round_}", said)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        *((kind, 8) for kind in DISKS),
        *(pytest.param(kind, 20, marks=pytest.mark.slow) for kind in DISKS),
        *((kind, 3) for kind in firefly_stores.SERVED),
    ],
)
def test_a_process_killed_many_times_loses_no_acknowledged_save(kind: str, rounds: int, tmp_path: Path) -> None:
    """Many kills lose no acknowledged save, also while files are being rewritten."""
    for round_ in range(rounds):
        said = killed(kind, tmp_path, f"r{round_}", random.randrange(1, 200))
        judge(kind, tmp_path, f"r{round_}", said)


@pytest.mark.parametrize(("kind", "size"), [("sqlite", 400_000), ("file", 40_000)])
def test_a_full_disk_loses_nothing(kind: str, size: int, tmp_path: Path) -> None:
    """A full disk raises an error; earlier values stay readable, and the next is stored once there is room."""
    with Process("full", kind, tmp_path, size, script=SCRIPT) as process:
        error, (done, readable), (after, value) = process.hear(), process.hear(), process.hear()

    assert "entries" in error
    assert done > 10
    assert done == readable
    assert (after, value) == (done + 1, "all")
    with firefly_stores.opened(kind, tmp_path) as store:
        assert WorkingMemory(store=store).get("key 0") == "x" * 200


def fill(facts: WorkingMemory) -> None:
    """Set values until that raises."""
    for i in range(300):
        facts.set(f"key {i}", "x" * 5_000)


@pytest.mark.wide
@pytest.mark.parametrize("kind", DISKS)
def test_a_small_full_disk_loses_nothing(kind: str, small_disk: Path) -> None:
    """On a full file system of one mebibyte earlier values stay, and once there is room the next is stored."""
    (small_disk / "other").write_bytes(bytes(200_000))
    with firefly_stores.opened(kind, small_disk) as store:
        facts = WorkingMemory(store=store)

        with pytest.raises(StoreUnavailable, match=r"full|room"):
            fill(facts)

        done = len(facts.keys())
        assert 10 < done < 300
        assert facts.keys() == [f"key {i}" for i in range(done)]
        (small_disk / "other").unlink()
        facts.set("after", 1)
        assert len(facts.keys()) == done + 1


@pytest.mark.wide
def test_a_file_can_be_cleared_on_a_full_disk(small_disk: Path) -> None:
    """Clearing needs no room on a full disk, and makes some."""
    with firefly_stores.opened("file", small_disk) as store:
        facts = WorkingMemory(store=store)
        with pytest.raises(StoreUnavailable):
            fill(facts)

        facts.clear()
        facts.set("after", 1)
        assert facts.to_dict() == {"after": 1}


def test_waiting_for_a_file_does_not_block_the_loop(tmp_path: Path) -> None:
    """A save that waits for another holder of the file's lock does not block the event loop."""

    async def program() -> None:
        with firefly_stores.opened("file", tmp_path) as store:
            await store.async_save("conversations", MemoryEntry(content=1))
            (path,) = (tmp_path / "entries").glob("*.jsonl")
            with path.open("ab") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                saving = asyncio.ensure_future(store.async_save("conversations", MemoryEntry(content=2)))
                for _ in range(100):
                    await asyncio.sleep(0)
                assert [entry.content for entry in await store.async_load("conversations")] == [1]
                assert not saving.done()
            await saving
            assert [entry.content for entry in await store.async_load("conversations")] == [1, 2]

    asyncio.run(program())


# --- what is in a file


def test_a_file_of_entries_is_readable_json(tmp_path: Path) -> None:
    """A file of entries is ASCII JSON lines, of which the first names the namespace."""
    with firefly_stores.opened("file", tmp_path) as store:
        store.save("user/1", MemoryEntry(key="k", content={"a": [1, "é"]}, metadata={"by": "ann"}))

    (path,) = (tmp_path / "entries").glob("*.jsonl")
    head, line = (json.loads(line) for line in path.read_text(encoding="ascii").splitlines())
    assert path.name.startswith("user-1-")
    assert head["namespace"] == "user/1"
    assert (line["key"], line["content"], line["metadata"], line["scope"]) == (
        "k",
        {"a": [1, "é"]},
        {"by": "ann"},
        "working",
    )


def test_a_damaged_line_is_logged_and_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged line is logged and skipped, and is kept in a `.bad` file when the file is rewritten."""
    with firefly_stores.opened("file", tmp_path) as store:
        for i in range(3):
            store.save("n", MemoryEntry(key=f"k{i}", content=i))
    (path,) = (tmp_path / "entries").glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    broken = lines[2][:40] + b"\n"
    path.write_bytes(b"".join([*lines[:2], broken, lines[3], b'{"half": ']))

    with firefly_stores.opened("file", tmp_path) as store:
        assert [entry.content for entry in store.load("n")] == [0, 2]
        assert "line 3, cannot be read" in caplog.text
        assert str(path) in caplog.text
        store.save("n", MemoryEntry(key="k3", content=3))
        assert [entry.content for entry in store.load("n")] == [0, 2, 3]
        assert store.cleanup_expired() == 0

    assert Path(f"{path}.bad").read_bytes() == broken
    assert b"half" not in path.read_bytes()
    with firefly_stores.opened("file", tmp_path) as store:
        assert [entry.content for entry in store.load("n")] == [0, 2, 3]


def test_a_file_does_not_grow_with_replaced_values(tmp_path: Path) -> None:
    """A file is rewritten from time to time, and after a cleanup holds nothing deleted or replaced."""
    with firefly_stores.opened("file", tmp_path) as store, firefly_stores.opened("file", tmp_path) as other:
        facts, seen = WorkingMemory(store=store), WorkingMemory(store=other)
        for i in range(700):
            facts.set(f"k{i % 7}", f"value {i}")
            if i % 50 == 0:
                assert seen.get(f"k{i % 7}") == f"value {i}"
        (path,) = (tmp_path / "entries").glob("*.jsonl")
        assert len(path.read_bytes().splitlines()) < 2 * 7 + 110
        facts.delete("k0")
        seen.set("secret", "secret word")
        seen.delete("secret")
        store.cleanup_expired()

        assert len(path.read_bytes().splitlines()) == 1 + 6
        assert b"secret word" not in path.read_bytes()
        assert seen.items() == facts.items() == [(f"k{i}", f"value {693 + i}") for i in range(1, 7)]


def test_a_file_of_firefly_is_read_and_kept(tmp_path: Path) -> None:
    """A file that Firefly wrote is read; new values go into a file of ours, and Firefly's stays as it is."""
    (tmp_path / "entries").mkdir()
    original_entries = {
        "id1": {
            "entry_id": "id1",
            "scope": "working",
            "key": "a",
            "content": [1],
            "metadata": {},
            "importance": 0.5,
            "created_at": "2026-01-01T00:00:00Z",
            "expires_at": None,
        },
        "id2": {
            "entry_id": "id2",
            "scope": "long_term",
            "key": None,
            "content": "x",
            "metadata": {"by": 1},
            "created_at": "2026-01-01T00:00:00",
            "expires_at": None,
            "importance": 0.9,
        },
        "bad": {"entry_id": "bad"},
    }
    original = tmp_path / "entries" / "working:s.json"
    original.write_text(json.dumps(original_entries, indent=2))

    with firefly_stores.opened("file", tmp_path) as store:
        facts = WorkingMemory(store=store, scope_id="s")
        assert facts.to_dict() == {"a": [1]}
        assert [(entry.entry_id, entry.importance) for entry in store.load("working:s")] == [("id1", 0.5), ("id2", 0.9)]
        facts.set("b", 2)
        assert facts.to_dict() == {"a": [1], "b": 2}

    with firefly_stores.opened("file", tmp_path) as store:
        assert len(store.load("working:s")) == 3
        store.clear("working:s")
        assert store.load("working:s") == []
    assert json.loads(original.read_text()) == original_entries


def test_ids_are_unique_across_stores_of_one_folder(tmp_path: Path) -> None:
    """An entry id used in one namespace is refused in another, also if the file of ids is damaged at its end."""
    with firefly_stores.opened("file", tmp_path) as first, firefly_stores.opened("file", tmp_path) as second:
        entry = MemoryEntry(content=1)
        first.save("a", entry)
        for path in (tmp_path / "entries" / "ids").iterdir():
            path.write_bytes(path.read_bytes() + b'["half')
        with pytest.raises(Exception, match="another namespace"):
            second.save("b", entry)
        first.clear("a")
        second.save("b", entry)
        with pytest.raises(Exception, match="another namespace"):
            first.save("a", entry)


def test_a_database_moved_while_open_refuses_writes(tmp_path: Path) -> None:
    """A database file that is moved while open refuses writes, which would be lost."""
    with firefly_stores.opened("sqlite", tmp_path) as store:
        store.save("n", MemoryEntry(content=1))
        (tmp_path / "entries.db").rename(tmp_path / "elsewhere.db")

        with pytest.raises(StoreUnavailable, match="moved"):
            store.save("n", MemoryEntry(content=2))


def test_a_database_whose_journal_was_removed_refuses_writes(tmp_path: Path) -> None:
    """A database whose journal was removed while open refuses writes; what was saved before is kept."""
    with firefly_stores.opened("sqlite", tmp_path) as store:
        for content in (1, 2):
            store.save("n", MemoryEntry(content=content))
        for end in ("-wal", "-shm"):
            (tmp_path / f"entries.db{end}").unlink()

        with pytest.raises(StoreUnavailable, match="journal"):
            store.save("n", MemoryEntry(content=3))
    with firefly_stores.opened("sqlite", tmp_path) as store:
        assert [entry.content for entry in store.load("n")] == [1, 2]


def test_a_foreign_file_is_refused_untouched(tmp_path: Path) -> None:
    """A file that is not a database of ours is refused with the driver's error as cause, and stays as it is."""
    path = tmp_path / "a.db"
    path.write_bytes(b"no database at all" * 100)

    with pytest.raises(Exception, match="not a Palimpsest store") as raised:
        SQLiteStore(path)

    assert raised.value.__cause__ is not None
    assert path.read_bytes() == b"no database at all" * 100
    with pytest.raises(StoreUnavailable):
        SQLiteStore(path / "beneath" / "a.db")
    with pytest.raises(StoreUnavailable):
        firefly_stores.FileStore(path / "beneath")


def test_a_database_of_firefly_is_imported(tmp_path: Path) -> None:
    """A database that Firefly wrote is copied into ours when it is first opened, and its table stays as it is."""
    with sqlite3.connect(tmp_path / "entries.db") as db:
        db.execute(
            "CREATE TABLE firefly_memory (entry_id TEXT PRIMARY KEY, namespace TEXT NOT NULL, scope TEXT NOT NULL, "
            "key TEXT, content TEXT NOT NULL, created_at TEXT NOT NULL, expires_at TEXT, importance REAL NOT NULL)"
        )
        for i, key in enumerate(("a", "b", "a")):
            dumped = MemoryEntry(entry_id=f"id{i}", key=key, content=[i], metadata={"i": i}).model_dump_json()
            db.execute(
                f"INSERT INTO firefly_memory VALUES('id{i}', 'n', 'working', '{key}', ?, '{i}', NULL, 0.5)", (dumped,)
            )
        db.execute("INSERT INTO firefly_memory VALUES('bad', 'n', 'working', NULL, 'no JSON', '9', NULL, 0.5)")
    db.close()

    with firefly_stores.opened("sqlite", tmp_path) as store:
        assert [(one.key, one.content, one.metadata) for one in store.load("n")] == [
            ("a", [2], {"i": 2}),
            ("b", [1], {"i": 1}),
        ]
        store.clear("n")
    with firefly_stores.opened("sqlite", tmp_path) as store:
        assert store.load("n") == []


def test_lookups_use_an_index(tmp_path: Path) -> None:
    """SQLite looks entries up by key and by namespace through an index."""
    from palimpsest.compat.firefly.sqlite_store import LOAD, LOAD_BY_KEY

    with SQLiteStore(tmp_path / "a.db") as store:
        store.save("n", MemoryEntry(key="k"))
        plans = [
            " ".join(row[3] for row in store._links.writer.use().execute(f"EXPLAIN QUERY PLAN {sql}", given))
            for sql, given in ((LOAD_BY_KEY, ("n", "k", 0)), (LOAD, ("n", 0)))
        ]

    assert "USING INDEX idx_namespace_key (namespace=? AND key=?)" in plans[0]
    assert "USING INDEX idx_namespace (namespace=?)" in plans[1]
    assert "SCAN" not in "".join(plans)
    assert "TEMP B-TREE" not in plans[1]


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.parametrize("kind", DISKS)
def test_parent_and_forked_child_share_a_store(kind: str, tmp_path: Path) -> None:
    """After a fork, parent and child both use the store and see what the other has saved."""
    with firefly_stores.opened(kind, tmp_path) as store:
        facts = WorkingMemory(store=store)
        facts.set("a", 1)
        child = os.fork()
        if child == 0:
            try:
                facts.set("b", facts.get("a") + 1)
                os._exit(0)
            except BaseException:  # noqa: BLE001 (the parent is told)
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        facts.set("c", 3)

        assert facts.to_dict() == {"a": 1, "b": 2, "c": 3}
