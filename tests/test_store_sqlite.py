"""What is peculiar to the SQLite store: who waits for whom, whose the file is, and what becomes of one that moves."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path

import pytest

from palimpsest import AsyncMemory, ConfigError, Memory, StoreUnavailable
from palimpsest.runtime.runner import drive
from palimpsest.stores.backend import LAST_KEY, Ask, Place, Range, Row, Step
from palimpsest.stores.sqlite.db import LOOK
from palimpsest.stores.sqlite.tables import Tables
from palimpsest.testing import FakeClock
from processes import PATIENCE
from sqlitestore import Held, connection

TEXT = "a text"


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    """A memory with something in it, that waits long for others."""
    with Memory.open(path, busy_seconds=PATIENCE) as memory:
        memory.session("s").add_user_message(TEXT)
        yield memory


class Holder:
    """Another program, in the middle of a transaction that writes."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("BEGIN IMMEDIATE")

    def let_go(self) -> None:
        self._db.execute("ROLLBACK")
        self._db.close()


@pytest.fixture
def holder(memory: Memory, path: Path) -> Iterator[Holder]:
    """Nobody else can write until it lets go."""
    yield (holder := Holder(path))
    try:
        holder.let_go()
    except sqlite3.ProgrammingError:
        return  # the test has let it go


def begun(memory: Memory | AsyncMemory) -> Callable[[], None]:
    """A function that returns when the memory has tried to write, from now on: it waits, where another holds the file.

    What notes that is a function of C: a signal's handler that raised in one of Python's would be lost in the driver.
    """
    statements: list[str] = []
    connection(memory).set_trace_callback(statements.append)

    def waited() -> None:
        until = time.monotonic() + PATIENCE
        while "BEGIN IMMEDIATE" not in statements:
            assert time.monotonic() < until, "nothing is written"
            time.sleep(0.001)

    return waited


class Waiting(threading.Thread):
    """A thread that adds to a session, and waits for another process until it may."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory, waited = memory, begun(memory)
        self.start()
        waited()

    def run(self) -> None:
        self._memory.session("s").add_user_message("waited")


# --- who waits


def test_no_reader_waits_for_a_writer_that_waits(memory: Memory, holder: Holder) -> None:
    """While a thread waits to write, everything that reads is answered, contexts and their counts included."""
    writer = Waiting(memory)
    session = memory.session("s", max_tokens=1_000)

    assert [entry.text for entry in session.entries()] == [TEXT]
    assert session.context().tokens > 0
    assert session.stats().revision == 1
    assert session.verify().ok
    assert [info.session for info in memory.sessions()] == ["s"]
    assert writer.is_alive()

    holder.let_go()
    writer.join()
    assert [entry.text for entry in session.entries()] == [TEXT, "waited"]


def test_no_task_waits_for_a_task_that_waits_to_write(memory: Memory, holder: Holder, path: Path) -> None:
    """In an asynchronous memory, too, reading does not stand behind a write."""

    async def main() -> None:
        async with AsyncMemory.open(path, busy_seconds=PATIENCE) as own:
            session = own.session("s", max_tokens=1_000)
            waited = begun(own)
            writer = asyncio.create_task(session.add_user_message("waited"))
            await asyncio.to_thread(waited)

            assert [entry.text for entry in await session.entries()] == [TEXT]
            assert (await session.context()).tokens > 0
            assert not writer.done()

            holder.let_go()
            assert (await writer).seq == 2

    asyncio.run(main())


def test_no_reader_waits_for_a_writer_that_writes(path: Path) -> None:
    """While a transaction is being written, in this process, others read what was there before it."""
    with Memory.open(path) as memory:
        session = memory.session("s")
        session.add_user_message(TEXT)
        held = Held(memory)
        writer = threading.Thread(target=session.add_user_message, args=("written",))
        writer.start()
        assert held.inside.wait(PATIENCE)

        assert [entry.text for entry in session.entries()] == [TEXT]

        held.let.set()
        writer.join()
        assert [entry.text for entry in session.entries()] == [TEXT, "written"]


def test_a_count_waits_for_nobody(memory: Memory, holder: Holder, path: Path) -> None:
    """Token counts that cannot be stored now are counted again: a context on a busy file is given, not refused."""
    with Memory.open(path, busy_seconds=0) as own:
        session = own.session("s", max_tokens=1_000)

        assert session.context().tokens == session.context().tokens > 0


def test_who_waits_for_too_long_is_told(memory: Memory, holder: Holder, path: Path) -> None:
    """After `busy_seconds` a write is refused; what it would have written is never written."""
    with Memory.open(path, busy_seconds=0.01) as own, pytest.raises(StoreUnavailable, match="busy_seconds"):
        own.session("s").add_user_message("too late")
    holder.let_go()

    assert [entry.text for entry in memory.session("s").entries()] == [TEXT]


# --- signals


@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError("soft limit"), ValueError("a handler's own")])
def test_a_signal_that_raises_while_one_waits_leaves_nothing_behind(
    memory: Memory, holder: Holder, path: Path, raised: BaseException | type[BaseException]
) -> None:
    """Whatever a handler raises comes out as it is; this memory and others can write as soon as the file is free."""

    def handler(*_: object) -> None:
        raise raised

    before = signal.signal(signal.SIGUSR1, handler)
    main = threading.main_thread().ident
    assert main is not None
    waited = begun(memory)

    def shoot() -> None:
        waited()
        signal.pthread_kill(main, signal.SIGUSR1)

    gun = threading.Thread(target=shoot)
    try:
        gun.start()
        with pytest.raises(raised if isinstance(raised, type) else type(raised)) as caught:
            memory.session("s").add_user_message("interrupted")
    finally:
        gun.join()
        signal.signal(signal.SIGUSR1, before)
    assert not isinstance(caught.value, StoreUnavailable)

    holder.let_go()
    memory.session("s").add_user_message("after")
    with Memory.open(path, busy_seconds=0) as other:
        other.session("s").add_user_message("another's")
    assert [entry.text for entry in memory.session("s").entries()] == [TEXT, "after", "another's"]


# --- a file that is moved, removed or replaced


def removed(path: Path) -> None:
    path.unlink()


def renamed(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def replaced(path: Path) -> None:
    path.with_name("other.db").write_bytes(path.read_bytes())
    path.with_name("other.db").rename(path)


def moved_with_its_folder(path: Path) -> None:
    path.parent.rename(path.parent.with_name("another folder"))


@pytest.mark.parametrize("happens", [removed, renamed, replaced, moved_with_its_folder])
def test_nothing_is_acknowledged_into_a_file_that_is_gone(tmp_path: Path, happens: Callable[[Path], None]) -> None:
    """Five milliseconds after a path names another file, or none, every verb that writes raises and says why."""
    path = tmp_path / "folder" / "log.db"
    with Memory.open(path) as memory:
        session = memory.session("s", max_tokens=1_000)
        session.add_user_message(TEXT)
        happens(path)
        time.sleep(LOOK)

        for write in (
            lambda: session.add_user_message("lost"),
            lambda: session.add({"role": "user", "content": "lost"}, key="k"),
            lambda: session.pin(1),
            lambda: session.erase([1]),
            session.fork,
            session.clear,
            lambda: memory.delete_session("s"),
        ):
            for _ in range(2):
                with pytest.raises(StoreUnavailable, match=r"moved or removed.*open it again"):
                    write()


def without_its_journal(path: Path, *ends: str) -> None:
    for end in ends or ("-wal", "-shm"):
        path.with_name(path.name + end).unlink()


HOLDS = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
try:
    db.execute("SELECT count(*) FROM sqlite_master").fetchone()
except sqlite3.OperationalError:
    pass  # SQLite has noticed
print("open", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(path: Path) -> Iterator[None]:
    """Another process has the file open."""
    with subprocess.Popen([sys.executable, "-c", HOLDS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        yield
        other.communicate()


@pytest.mark.parametrize("beside", [nullcontext, another_process])
@pytest.mark.parametrize("ends", [("-wal", "-shm"), ("-wal",), ("-shm",)])
def test_nothing_is_acknowledged_into_a_journal_that_is_gone(
    path: Path, ends: tuple[str, ...], beside: Callable[[Path], AbstractContextManager[None]]
) -> None:
    """Five milliseconds after the journal was removed, what writes raises and says why, whoever makes another one."""
    with Memory.open(path) as memory:
        session = memory.session("s", max_tokens=1_000)
        session.add_user_message(TEXT)
        without_its_journal(path, *ends)
        with beside(path):
            time.sleep(LOOK)

            for write in (lambda: session.add_user_message("lost"), lambda: session.erase([1]), session.fork):
                for _ in range(2):
                    with pytest.raises(StoreUnavailable, match=r"journal.*moved or removed.*open it again"):
                        write()


def test_a_journal_that_is_gone_is_noticed_through_a_link(path: Path, tmp_path: Path) -> None:
    """It is beside the file itself, wherever the link is by which that was opened."""
    path.touch()
    (link := tmp_path / "link.db").symlink_to(path)
    with Memory.open(link) as memory:
        memory.session("s").add_user_message(TEXT)
        without_its_journal(path)
        time.sleep(LOOK)

        with pytest.raises(StoreUnavailable, match=r"journal.*moved or removed.*open it again"):
            memory.session("s").add_user_message("lost")


def test_a_journal_is_kept_whatever_others_do_to_it(memory: Memory, path: Path) -> None:
    """A checkpoint that empties it, a fork and a file without one keep nobody from writing."""
    session, other = memory.session("s"), sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    other.close()
    time.sleep(LOOK)
    session.add_user_message("after a checkpoint")
    memory.close()

    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    with Memory.open(path) as again:
        session = again.session("s")
        session.add_user_message("without a journal")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            assert other.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
        for text in ("with one", "and once more"):
            time.sleep(LOOK)
            session.add_user_message(text)
        assert len(session.entries()) == 5


def test_what_was_acknowledged_before_its_journal_went_is_there_after_closing(memory: Memory, path: Path) -> None:
    """Whoever closes the memory writes it into the file, where nobody else has come to that."""
    without_its_journal(path)
    memory.close()

    with Memory.open(path) as again:
        assert [entry.text for entry in again.session("s").entries()] == [TEXT]


def test_a_memory_that_is_opened_again_writes_to_the_new_file(memory: Memory, path: Path) -> None:
    """After a file was removed, a memory that is opened anew begins a new one."""
    for file in path.parent.iterdir():
        file.unlink()

    with Memory.open(path) as again:
        again.session("s").add_user_message("new")
        assert [entry.text for entry in again.session("s").entries()] == ["new"]


def test_a_relative_path_names_the_same_file_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative address is resolved once, when the memory is opened."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Memory.open("sqlite:///log.db") as memory:
        monkeypatch.chdir(tmp_path / "elsewhere")
        memory.session("s").add_user_message(TEXT)

    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["log.db"]


# --- whose the files are


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """What the process takes away from the modes of new files."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def test_files_and_folders_are_their_owners_alone(umask: int, tmp_path: Path) -> None:
    """The database, its journal and the folders that are made for it: nobody else may read them, from the start."""
    path = tmp_path / "made" / "for it" / "log.db"

    with Memory.open(path) as memory:
        memory.session("s").add_user_message(TEXT)
        memory.session("s").erase([1])

        assert modes(path.parent) == {"log.db": 0o600, "log.db-wal": 0o600, "log.db-shm": 0o600}
        assert modes(tmp_path) == {"made": 0o700}
        assert modes(tmp_path / "made") == {"for it": 0o700}


def test_a_mode_that_its_owner_has_given_stays(path: Path) -> None:
    """A file that is there keeps its mode, and its journal has the same, through erasures that write it anew, too."""
    path.touch()
    path.chmod(0o640)

    with Memory.open(path) as memory:
        memory.session("s").add_user_message(TEXT)
        memory.session("s").erase([1])

        assert set(modes(path.parent).values()) == {0o640}


def test_an_empty_file_is_told_to_who_may_only_read(path: Path) -> None:
    """It has no version that could be brought to another: there is nothing in it."""
    path.touch()
    with pytest.raises(StoreUnavailable, match="there is nothing in it yet: open it writable once"):
        Memory.open(path, readonly=True).sessions()


def test_memory_is_no_file() -> None:
    """SQLite's own name of a database in memory is refused, with the address that means it here."""
    with pytest.raises(ConfigError, match="memory://"):
        Memory.open("sqlite:///:memory:")


def test_what_changed_last_is_found_however_many_did_not(path: Path) -> None:
    """Who asks for what was written since a mark costs SQLite as many steps over 900 sessions as over 30."""
    clock, counts = FakeClock(), list[int]()
    with Memory.open(path, clock=clock) as memory:
        for upto in (30, 900):
            for number in range(upto):
                memory.session(f"s{upto}.{number}").add_user_message("hello")
            clock.advance(2)
            memory.session("last").add_user_message("hello")
            (mark, _), *_ = drive(memory.store.used(memory.tenant, newest_first=True, limit=1))
            steps = itertools.count()
            connection(memory).set_progress_handler(lambda steps=steps: next(steps) and None, 1)
            found = drive(memory.store.used(memory.tenant, mark=mark))
            connection(memory).set_progress_handler(None, 1)
            assert [info.session for _, info in found] == ["last"]
            counts.append(next(steps))
    assert 0 < counts[1] <= counts[0] + 20


def test_who_reads_of_before_brings_back_no_number_that_is_gone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All rows of a table go in a step that puts others, while a thread reads those: what was put is found."""
    place = Place("t", "h", "log", "")
    with Memory.open(path) as memory:
        backend, everything = memory.store.backend, Ask(place, [Range("t", [(0, LAST_KEY)])], head=False)
        drive(backend.write([[Step(place, rows_only=True, put=[("t", [Row(1, b"old")])])]], 0))
        retire, read = Tables._retire, list[bytes]()

        def beside(tables: Tables) -> None:
            retire(tables)
            reader = threading.Thread(
                target=lambda: read.extend(row[1] for row in drive(backend.look([everything]))[0].rows[0])
            )
            reader.start()
            reader.join(PATIENCE)

        monkeypatch.setattr(Tables, "_retire", beside)
        new = Step(place, rows_only=True, drop=[("t", 0, LAST_KEY)], put=[("t", [Row(1, b"new")])])
        drive(backend.write([[new]], 0))
        monkeypatch.undo()

        assert set(read) == {b"old"}
        assert [row[1] for row in drive(backend.look([everything]))[0].rows[0]] == [b"new"]


def test_who_may_only_read_sees_what_was_written_through_a_link_too(
    memory: Memory, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where neither file nor folder may be written, the journal beside the file itself says that others write to it."""
    (folder := tmp_path / "elsewhere").mkdir()
    (link := folder / "link.db").symlink_to(path)
    memory.session("s").add_user_message("in the journal")
    monkeypatch.setattr(os, "access", lambda *_: False)

    with Memory.open(link, readonly=True) as reader:
        assert [entry.text for entry in reader.session("s").entries()] == [TEXT, "in the journal"]
