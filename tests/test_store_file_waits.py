"""Who waits for whom in the file store, and what a store says whose folder is not there any more."""

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
    """A thread that waits to append to the first session, whose lock is held."""
    begun = threading.Event()

    def append() -> None:
        begun.set()
        add(store, to)

    thread = threading.Thread(target=append)
    thread.start()
    begun.wait()
    return thread


def test_who_waits_for_a_session_holds_up_no_other(tmp_path: Path) -> None:
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
    """Appends of many threads to one session all have their place, with other sessions written beside them."""
    store = quick(tmp_path)

    def append(who: int) -> None:
        for number in range(10):
            add(store, f"{who}.{number}")
            add(store, f"{who}.{number}", key=OTHER._replace(session=f"own {who}"))

    at_once(append, 4)

    assert sorted(texts(store)) == sorted(f"{who}.{number}" for who in range(4) for number in range(10))
    entries = drive(store.read(KEY))
    assert [entry.seq for entry in entries] == list(range(1, 41))
    for who in range(4):
        assert texts(store, OTHER._replace(session=f"own {who}")) == [f"{who}.{number}" for number in range(10)]
    drive(store.close())


def test_an_erasure_comes_through_between_writers_who_never_pause(tmp_path: Path) -> None:
    """Other processes append to the session all the while: each of the erasures is done, and no append is lost."""
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
def test_a_folder_that_is_gone_acknowledges_nothing(tmp_path: Path, how: str) -> None:
    """Where the folder was removed, renamed or replaced, reads and writes say so, and nothing is made in its place."""
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
    """A store goes on once its folder is back, be it a copy, as from a backup, and takes no harm from being touched."""
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


def test_a_folder_without_a_store_is_told_once_where_none_is_made(tmp_path: Path) -> None:
    """The error names the address once, and what is missing."""
    with pytest.raises(StoreUnavailable) as caught:
        Memory.open(f"file://{tmp_path}/new", readonly=True)

    assert str(caught.value).count("file://") == 1
    assert "None" not in str(caught.value)


def test_what_is_written_to_a_folder_that_was_put_back_is_found(tmp_path: Path, clock: FakeClock) -> None:
    """A memory that was open meanwhile lists and finds what came afterwards, by the files that are there now."""
    folder = tmp_path / "logs"
    with Memory.open(f"file://{folder}", clock=clock) as memory:
        memory.session("old").add_user_message("the old apple")
        assert [one.session for one in memory.sessions(order="latest")] == ["old"]
        folder.rename(tmp_path / "backup")
        shutil.copytree(tmp_path / "backup", folder)
        clock.advance(2)
        memory.session("new").add_user_message("the new banana")

        assert [one.session for one in memory.sessions(order="latest")] == ["new", "old"]
        assert memory.recall("banana").passages
