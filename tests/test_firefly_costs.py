"""Setting and getting a fact costs the same with many keys as with few, in SQLite's steps and in bytes of files."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import pytest

import firefly_stores
from palimpsest.compat.firefly import FileStore, MemoryEntry, SQLiteStore, WorkingMemory

FEW, MANY = 100, 10_000


def filled(facts: WorkingMemory, count: int) -> None:
    """Fill the working memory up to `count` keys."""
    for i in range(len(facts.keys()), count):
        facts.set(f"key {i}", i)


def steps(store: SQLiteStore, facts: WorkingMemory) -> dict[str, int]:
    """Count SQLite's machine steps for setting an existing key, setting a new one, and getting one."""
    counts: list[int] = []
    db = store._links.writer.use()

    def step() -> int:
        counts[-1] += 1
        return 0

    db.set_progress_handler(step, 1)
    for do in (lambda: facts.set("key 50", "x"), lambda: facts.set("new", 1), lambda: facts.get("key 50")):
        counts.append(0)
        do()
    db.set_progress_handler(None, 1)
    facts.delete("new")
    return dict(zip(("set", "new", "get"), counts, strict=True))


@pytest.mark.wide
def test_a_set_and_a_get_take_as_many_sqlite_steps_with_many_keys_as_with_few(tmp_path: Path) -> None:
    """SQLite takes as many steps for a set or a get with 10,000 keys as with 100.

    An index lookup touches no row but the one that is meant.
    """
    with SQLiteStore(tmp_path / "a.db") as store:
        store._links.writer.use().execute("PRAGMA synchronous=OFF")
        facts = WorkingMemory(store=store)
        filled(facts, FEW)
        few = steps(store, facts)
        filled(facts, MANY)
        many = steps(store, facts)

    assert few == many
    assert few["get"] < 60


@pytest.mark.wide
def test_a_set_writes_and_a_get_reads_as_much_of_files_with_many_keys_as_with_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set appends one line and a get opens no file, with 10,000 keys as with 100."""
    with FileStore(tmp_path) as store:
        store._files.synced = False
        facts = WorkingMemory(store=store)
        figures = list[tuple[int, int, int]]()
        for count in (FEW, MANY):
            filled(facts, count)
            facts.get("key 50")
            path = store._journal("working:default").path
            before = os.stat(path).st_size
            read = watched(monkeypatch)
            facts.set("key 50", "x" * 10)
            facts.get("key 50")
            facts.has("key 51")
            figures.append((os.stat(path).st_size - before, sum(read["pread"]), len(read["open"])))
            monkeypatch.undo()

    (few, _, _), (many, _, _) = figures
    assert few == many < 400
    assert all(read < 1_000 for _, read, _ in figures)
    assert [opened for _, _, opened in figures] == [0, 0]


def watched(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """Count, from now on, the bytes read with `pread` and the files opened."""
    counts: dict[str, list[int]] = {"pread": [], "open": []}
    pread, opened = os.pread, builtins.open

    def reading(fd: int, many: int, at: int) -> bytes:
        data = pread(fd, many, at)
        counts["pread"].append(len(data))
        return data

    def opening(*given: Any, **named: Any) -> Any:
        counts["open"].append(1)
        return opened(*given, **named)

    monkeypatch.setattr(os, "pread", reading)
    monkeypatch.setattr(builtins, "open", opening)
    return counts


@pytest.mark.parametrize("kind", ["in_memory", "file"])
def test_saving_an_entry_reads_no_other(kind: str, tmp_path: Path) -> None:
    """Saving an entry decodes no other: one that cannot be read is in nobody's way."""
    with firefly_stores.opened(kind, tmp_path) as store:
        store.save("n", MemoryEntry(key="a", content=1))
        shelf: Any = store._shelves["n"] if kind == "in_memory" else store._journal("n")._shelf
        shelf.rows[0] = shelf.rows[0]._replace(content="not JSON")

        store.save("n", MemoryEntry(key="b", content=2))

        assert store.load_by_key("n", "b").content == 2
        assert [entry.content for entry in store.load("n")] == [2]
