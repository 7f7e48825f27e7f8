"""Who waits for whom in the file store, and what a store says whose folder is not there any more."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from filestore import KEY, OTHER, add, erase, everything, files, fork, held, log_of, quick, texts
from palimpsest import StoreUnavailable
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store


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

    threads = [threading.Thread(target=append, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(texts(store)) == sorted(f"{who}.{number}" for who in range(4) for number in range(10))
    entries = drive(store.read(KEY))
    assert [entry.seq for entry in entries] == list(range(1, 41))
    for who in range(4):
        assert texts(store, OTHER._replace(session=f"own {who}")) == [f"{who}.{number}" for number in range(10)]
    drive(store.close())


# --- who goes first


@contextlib.contextmanager
def going_first(store: Store, key: SessionKey = KEY) -> Iterator[None]:
    """Within it another thread goes first in a session: it has others wait, and does nothing."""
    begun, done = threading.Event(), threading.Event()

    async def stay() -> None:
        begun.set()
        done.wait()

    thread = threading.Thread(target=drive, args=(store.undisturbed(key, stay),))
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_another_store_waits_for_who_goes_first(tmp_path: Path) -> None:
    """It writes when the other is done, reads meanwhile, and writes to other sessions meanwhile; nothing is left."""
    store, other = quick(tmp_path), quick(tmp_path, busy_seconds=600)
    add(store, "a")
    with going_first(store):
        thread = waiting(other, to="c")
        assert texts(other) == ["a"]
        add(other, "x", key=OTHER)
        add(store, "b")
        assert thread.is_alive()
    thread.join()

    assert texts(store) == ["a", "b", "c"]
    assert files(tmp_path, "*.first") == []


def test_who_waits_too_long_for_who_goes_first_is_told_the_file(tmp_path: Path) -> None:
    """It is the error of every lock, and the next one who tries gets through."""
    store, other = quick(tmp_path), quick(tmp_path, busy_seconds=0.05)
    add(store, "a")
    with going_first(store), pytest.raises(StoreUnavailable, match=r"\.jsonl\.first locked for 0\.05 seconds"):
        add(other, "b")

    add(other, "c")
    assert texts(store) == ["a", "c"]


def test_who_was_killed_while_it_went_first_holds_up_nobody(tmp_path: Path) -> None:
    """The file that is left has no lock: whoever comes next removes it, and writes; no verb takes it for a session."""
    store = quick(tmp_path, busy_seconds=0.05)
    add(store, "a")
    log_of(tmp_path).with_name(log_of(tmp_path).name + ".first").touch()

    assert [info.session for info in drive(store.sessions("tenant"))] == ["one"]
    add(store, "b")

    assert texts(store) == ["a", "b"]
    assert files(tmp_path, "*.first") == []


def test_who_go_first_in_sessions_of_each_other_do_not_wait_for_ever(tmp_path: Path) -> None:
    """Each goes first in one session and writes to the other's: neither waits for the other."""
    store, other = quick(tmp_path, busy_seconds=0.5), quick(tmp_path, busy_seconds=0.5)

    with going_first(store, KEY), going_first(other, OTHER):
        add(store, "a", key=OTHER)
        add(other, "b", key=KEY)

    assert (texts(store, OTHER), texts(store, KEY)) == (["a"], ["b"])


def test_who_goes_first_in_a_session_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    """Nor does one whose work fails."""
    store = quick(tmp_path)

    async def fail() -> None:
        raise LookupError

    with pytest.raises(LookupError):
        drive(store.undisturbed(KEY, fail))

    assert drive(store.sessions("tenant")) == []
    assert files(tmp_path, "*.first") == []


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
        lambda: drive(store.delete(KEY)),
        lambda: drive(store.put_item("tenant", "facts", "k", b"v")),
        lambda: drive(store.list_items("tenant", "facts")),
        lambda: drive(store.lease("tenant", "turn", "me", 10)),
        lambda: drive(store.sessions("tenant")),
        lambda: drive(store.sweep(0)),
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
