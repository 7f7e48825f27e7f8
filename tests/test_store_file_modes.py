"""Files of the file store and exports may be read and written by their owner alone, from the first moment on."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from commands import run
from filestore import BIG, KEY, add, erase, fork, log_of, quick
from palimpsest import Memory
from palimpsest.runtime.runner import drive
from palimpsest.stores import Store
from palimpsest.testing import FakeClock

OTHERS = stat.S_IRWXG | stat.S_IRWXO


@pytest.fixture(params=[0o000, 0o022], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Yield a umask that would let everybody, or everybody but for writing, read what is made."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Return what in a folder, itself included, others than its owner may read or write."""
    paths = [folder, *folder.rglob("*")]
    return [f"{path}: {path.stat().st_mode:o}" for path in paths if path.stat().st_mode & OTHERS]


class Watcher:
    """A thread that looks at a folder again and again while something is made in it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._over = folder, threading.Event()
        self.seen: set[str] = set()
        self.found: set[str] = set()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.0001):
            for folder, _, names in os.walk(self._folder):
                for path in (folder, *(f"{folder}/{name}" for name in names)):
                    try:
                        mode = os.stat(path).st_mode
                    except FileNotFoundError:
                        continue
                    self.seen.add(path)
                    if mode & OTHERS:
                        self.found.add(f"{path}: {mode:o}")


def everything_made(store: Store) -> None:
    """Make every kind of file that the store has."""
    add(store, "a", "b", BIG)
    drive(store.count(KEY, "words", {1: 1, 2: 1}))
    fork(store)
    erase(store, 1)
    drive(store.scrub())
    drive(store.put_item("tenant", "facts", "k", b"v"))
    drive(store.lease("tenant", "turn", "me", 10))


def test_files_of_the_store_are_closed_to_others(tmp_path: Path, umask: int) -> None:
    """Folders, logs, counts, items, leases, contents and marks are closed to others, whatever the umask."""
    store = quick(tmp_path / "logs")

    everything_made(store)

    drive(store.close())
    assert open_to_others(tmp_path / "logs") == []


def test_nothing_is_open_to_others_even_for_a_moment(tmp_path: Path, umask: int) -> None:
    """Files that are still being written, and those that replace others, are closed to others all the while."""
    folder = tmp_path / "logs"
    store = quick(folder)
    with Watcher(folder) as watcher:
        for _ in range(5):
            everything_made(store)
            drive(store.delete(KEY))
            drive(store.delete(KEY._replace(session="other")))

    drive(store.close())
    assert len(watcher.seen) > 5
    assert watcher.found == set()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400])
def test_a_rewrite_keeps_the_mode_that_the_owner_gave(tmp_path: Path, umask: int, mode: int) -> None:
    """An erasure that writes a log anew keeps the mode that its owner gave it."""
    store = quick(tmp_path / "logs")
    add(store, "a", "b")
    log = log_of(tmp_path / "logs")
    log.chmod(mode)
    if not os.access(log, os.W_OK):
        pytest.skip("a log that its owner may not write is not rewritten")
    before = log.stat().st_ino

    erase(store, 1)
    drive(store.scrub(whole=False))

    drive(store.close())
    assert log.stat().st_ino != before
    assert stat.S_IMODE(log.stat().st_mode) == mode


def test_a_rewrite_keeps_the_owner_of_a_log(shelf: Path) -> None:
    """If root writes another user's log anew, the log stays that user's."""
    if os.geteuid() != 0:
        pytest.skip("only root can write the log of somebody else")
    store = quick(shelf / "logs")
    add(store, "a", "b")
    log = log_of(shelf / "logs")
    os.chown(log, 65534, 65534)
    before = log.stat().st_ino

    erase(store, 1)
    drive(store.scrub(whole=False))

    drive(store.close())
    status = log.stat()
    assert status.st_ino != before
    assert (status.st_uid, status.st_gid) == (65534, 65534)


def test_an_export_is_closed_to_others(tmp_path: Path, umask: int) -> None:
    """`export_to` makes a file that others cannot read at any moment."""
    (tmp_path / "out").mkdir(mode=0o700)
    with Memory.open("memory://", clock=FakeClock()) as memory:
        session = memory.session("s")
        session.add_user_message("x" * 100_000)
        with Watcher(tmp_path / "out") as watcher:
            for number in range(8):
                session.export_to(tmp_path / "out" / f"{number}.json")

    assert open_to_others(tmp_path / "out") == []
    assert watcher.found == set()


def test_an_export_keeps_the_mode_of_the_file_that_it_replaces(tmp_path: Path, umask: int) -> None:
    """An export that replaces a file keeps the mode of that file."""
    path = tmp_path / "s.json"
    path.touch()
    path.chmod(0o640)
    with Memory.open("memory://", clock=FakeClock()) as memory:
        memory.session("s").add_user_message("x")

        memory.session("s").export_to(path)

    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_size


def test_an_export_ignores_what_a_killed_one_left(tmp_path: Path, umask: int) -> None:
    """An export does not write to a half-written file of a killed export.

    It removes the file if that is so old that nobody can be writing it.
    """
    old, young = (tmp_path / f".palimpsest-{word}.partial" for word in ("0123456789abcdef", "fedcba9876543210"))
    for file in (old, young):
        file.write_text("half")
        file.chmod(0o666)
    os.utime(old, (0, 0))
    with Memory.open("memory://", clock=FakeClock()) as memory:
        memory.session("s").add_user_message("x")

        memory.session("s").export_to(tmp_path / "s.json")

    assert open_to_others(tmp_path / "s.json") == []
    assert not old.exists()
    assert young.read_text() == "half"


def test_the_command_line_closes_exports_to_others(chat: str, here: Path, umask: int) -> None:
    """`palimpsest export --output` makes a file that others cannot read."""
    assert run("export", chat, "--output", "chat.json").exit_code == 0

    assert open_to_others(here / "chat.json") == []


def test_the_command_line_closes_pages_to_others(chat: str, here: Path, umask: int) -> None:
    """`palimpsest context --html` makes a file that others cannot read."""
    assert run("context", chat, "--html", "chat.html").exit_code == 0

    assert open_to_others(here / "chat.html") == []
