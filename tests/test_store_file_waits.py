"""Who waits for whom in the file store, and what a store says whose folder is gone."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from filestore import KEY, OTHER, add, erase, everything, fork, held, log_of, quick, texts
from palimpsest import Memory, StoreUnavailable
from palimpsest.log.change import Change
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.testing import FakeClock
from processes import at_once


def waiting(store: Store, *, to: str) -> threading.Thread:
    """Start a thread that waits to append to the first session, whose lock is held."""
    started = threading.Event()

    def append() -> None:
        started.set()
        add(store, to)

    thread = threading.Thread(target=append)
    thread.start()
    started.wait()
    return thread


def test_waiting_for_one_session_delays_no_other(tmp_path: Path) -> None:
    """While one thread waits for a session that another process has locked, all else goes on in its process."""
    store = quick(tmp_path, busy_seconds=600)
    add(store, "a")
    add(store, "x", key=OTHER)
    with held(log_of(tmp_path)):
        thread = waiting(store, to="b")

        for number in range(20):
            add(store, f"{number}", key=OTHER)
            assert len(texts(store, OTHER)) == number + 2
            assert texts(store) == ["a"]
            drive(store.put_item("tenant", "facts", "k", b"v"))

        assert thread.is_alive()
    thread.join()
    assert texts(store) == ["a", "b"]
    drive(store.close())


def test_threads_that_write_to_one_session_take_turns(tmp_path: Path) -> None:
    """Appends of many threads to one session all get their place, beside writes to other sessions."""
    store = quick(tmp_path)

    def append(writer: int) -> None:
        for number in range(10):
            add(store, f"{writer}.{number}")
            add(store, f"{writer}.{number}", key=OTHER._replace(session=f"own {writer}"))

    at_once(append, 4)

    assert sorted(texts(store)) == sorted(f"{writer}.{number}" for writer in range(4) for number in range(10))
    entries = drive(store.read(KEY))
    assert [entry.seq for entry in entries] == list(range(1, 41))
    for writer in range(4):
        assert texts(store, OTHER._replace(session=f"own {writer}")) == [f"{writer}.{number}" for number in range(10)]
    drive(store.close())


def test_erasures_succeed_between_writers_who_never_pause(tmp_path: Path) -> None:
    """While other stores append without a pause, each erasure is done, and no append is lost."""
    store = quick(tmp_path)
    add(store, *map(str, range(20)))
    others, done = [quick(tmp_path) for _ in range(2)], threading.Event()

    def append(other: Store) -> None:
        while not done.is_set():
            add(other, "more")

    threads = [threading.Thread(target=append, args=(other,)) for other in others]
    for thread in threads:
        thread.start()
    try:
        for seq in range(1, 21):
            erase(store, seq)
    finally:
        done.set()
        for thread in threads:
            thread.join()

    assert texts(store, before=21) == [""] * 20
    assert set(texts(store, after=20)) == {"more"}


# --- a folder that is gone


@pytest.mark.parametrize("how", ["removed", "renamed", "replaced", "emptied"])
def test_a_store_whose_folder_is_gone_acknowledges_nothing(tmp_path: Path, how: str) -> None:
    """If the folder was removed, renamed or replaced, every verb raises StoreUnavailable and makes nothing new."""
    folder = tmp_path / "logs"
    store = quick(folder)
    add(store, "a")
    folder.rename(tmp_path / "moved")
    if how == "removed":
        shutil.rmtree(tmp_path / "moved")
    elif how == "emptied":
        folder.mkdir()
    elif how == "replaced":
        other = quick(folder)
        add(other, "of another")
        drive(other.close())
    before = everything(folder) if folder.exists() else None

    for attempt in (
        lambda: add(store, "b"),
        lambda: add(store, "b", key=OTHER),
        lambda: texts(store),
        lambda: drive(store.head(KEY)),
        lambda: erase(store, 1),
        lambda: fork(store),
        lambda: drive(store.commit(KEY, Change(kind="clear", reason="r"))),
        lambda: drive(store.delete(KEY)),
        lambda: drive(store.put_item("tenant", "facts", "k", b"v")),
        lambda: drive(store.list_items("tenant", "facts")),
        lambda: drive(store.lease("tenant", "turn", "me", 10)),
        lambda: drive(store.sessions("tenant")),
        lambda: drive(store.due("tenant", 0)),
        lambda: drive(store.sweep("tenant", 0)),
        lambda: drive(store.scrub()),
    ):
        with pytest.raises(StoreUnavailable, match="removed, renamed or replaced") as caught:
            attempt()
        assert str(folder) in str(caught.value)

    assert (everything(folder) if folder.exists() else None) == before
    drive(store.close())


@pytest.mark.parametrize("how", ["renamed back", "copied back", "touched"])
def test_a_folder_that_is_back_is_the_same_store(tmp_path: Path, how: str) -> None:
    """A store goes on once its folder is back, as itself or as a copy, and a touched file does not stop it."""
    folder = tmp_path / "logs"
    store = quick(folder)
    add(store, "a")
    if how == "touched":
        (folder / "palimpsest.json").touch()
    else:
        folder.rename(tmp_path / "moved")
        with pytest.raises(StoreUnavailable):
            add(store, "lost")
        if how == "copied back":
            shutil.copytree(tmp_path / "moved", folder)
        else:
            (tmp_path / "moved").rename(folder)

    add(store, "b")

    assert texts(store) == ["a", "b"]
    drive(store.close())


def test_opening_a_missing_store_readonly_names_the_address_once(tmp_path: Path) -> None:
    """Opening a missing store with `readonly` raises an error that names the address once."""
    with pytest.raises(StoreUnavailable) as caught:
        Memory.open(f"file://{tmp_path}/new", readonly=True)

    assert str(caught.value).count("file://") == 1
    assert "None" not in str(caught.value)


def test_an_open_memory_finds_what_is_written_to_a_restored_folder(tmp_path: Path, clock: FakeClock) -> None:
    """An open memory lists and finds what is written after its folder was replaced by a copy."""
    folder = tmp_path / "logs"
    with Memory.open(f"file://{folder}", clock=clock) as memory:
        memory.session("old").add_user_message("the old apple")
        assert [info.session for info in memory.sessions(order="latest")] == ["old"]
        folder.rename(tmp_path / "backup")
        shutil.copytree(tmp_path / "backup", folder)
        clock.advance(2)
        memory.session("new").add_user_message("the new banana")

        assert [info.session for info in memory.sessions(order="latest")] == ["new", "old"]
        assert memory.recall("banana").passages
