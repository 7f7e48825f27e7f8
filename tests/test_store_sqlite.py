"""Behaviour of the SQLite store alone: waiting for locks, moved files, and file modes."""

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
    """Yield a memory with one entry, which waits long for locks."""
    with Memory.open(path, busy_seconds=PATIENCE) as memory:
        memory.session("s").add_user_message(TEXT)
        yield memory


class Holder:
    """Another program in the middle of a transaction that writes, so that nobody else can write."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("BEGIN IMMEDIATE")

    def let_go(self) -> None:
        self._db.execute("ROLLBACK")
        self._db.close()


@pytest.fixture
def holder(memory: Memory, path: Path) -> Iterator[Holder]:
    """Yield a holder of the write lock, which lets it go after the test at the latest."""
    yield (holder := Holder(path))
    try:
        holder.let_go()
    except sqlite3.ProgrammingError:
        return  # the test has let it go


def begun(memory: Memory | AsyncMemory) -> Callable[[], None]:
    """Return a function that returns once the memory has tried to write: then it waits, if another holds the file.

    The note is taken by a function of C: what a signal's handler raised in one of Python's would be lost in the driver.
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


def test_reads_do_not_wait_for_a_waiting_writer(memory: Memory, holder: Holder) -> None:
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


def test_reads_of_an_asynchronous_memory_do_not_wait_for_a_waiting_writer(
    memory: Memory, holder: Holder, path: Path
) -> None:
    """In an asynchronous memory a task that waits to write delays no task that reads."""

    async def main() -> None:
        async with AsyncMemory.open(path, busy_seconds=PATIENCE) as patient:
            session = patient.session("s", max_tokens=1_000)
            waited = begun(patient)
            writer = asyncio.create_task(session.add_user_message("waited"))
            await asyncio.to_thread(waited)

            assert [entry.text for entry in await session.entries()] == [TEXT]
            assert (await session.context()).tokens > 0
            assert not writer.done()

            holder.let_go()
            assert (await writer).seq == 2

    asyncio.run(main())


def test_reads_do_not_wait_for_a_writing_thread(path: Path) -> None:
    """While a transaction is being written in this process, others read what was there before it."""
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


def test_token_counts_wait_for_no_lock(memory: Memory, holder: Holder, path: Path) -> None:
    """A context on a busy file is returned without storing its token counts, which are counted again later."""
    with Memory.open(path, busy_seconds=0) as impatient:
        session = impatient.session("s", max_tokens=1_000)

        assert session.context().tokens == session.context().tokens > 0


def test_a_write_is_refused_after_busy_seconds(memory: Memory, holder: Holder, path: Path) -> None:
    """After `busy_seconds` a write raises StoreUnavailable, and is never written."""
    with Memory.open(path, busy_seconds=0.01) as impatient, pytest.raises(StoreUnavailable, match="busy_seconds"):
        impatient.session("s").add_user_message("too late")
    holder.let_go()

    assert [entry.text for entry in memory.session("s").entries()] == [TEXT]


# --- signals


@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError("soft limit"), ValueError("a handler's own")])
def test_a_signal_that_raises_during_a_wait_leaves_no_lock(
    memory: Memory, holder: Holder, path: Path, raised: BaseException | type[BaseException]
) -> None:
    """A handler's error is raised as it is during a wait, and all can write once the file is free."""

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
def test_nothing_is_acknowledged_into_a_moved_file(tmp_path: Path, happens: Callable[[Path], None]) -> None:
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
    """Have the file open in another process inside the block."""
    with subprocess.Popen([sys.executable, "-c", HOLDS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline()
        yield
        other.communicate()


@pytest.mark.parametrize("beside", [nullcontext, another_process])
@pytest.mark.parametrize("ends", [("-wal", "-shm"), ("-wal",), ("-shm",)])
def test_nothing_is_acknowledged_into_a_removed_journal(
    path: Path, ends: tuple[str, ...], beside: Callable[[Path], AbstractContextManager[None]]
) -> None:
    """Five milliseconds after its journal was removed, every write raises and says why, whoever makes another one."""
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


def test_a_removed_journal_is_noticed_through_a_link(path: Path, tmp_path: Path) -> None:
    """A removed journal is noticed beside the file itself also if the memory was opened by a link."""
    path.touch()
    (link := tmp_path / "link.db").symlink_to(path)
    with Memory.open(link) as memory:
        memory.session("s").add_user_message(TEXT)
        without_its_journal(path)
        time.sleep(LOOK)

        with pytest.raises(StoreUnavailable, match=r"journal.*moved or removed.*open it again"):
            memory.session("s").add_user_message("lost")


def test_checkpoints_and_changes_of_the_journal_mode_stop_no_writes(memory: Memory, path: Path) -> None:
    """A checkpoint that empties the journal, and a change of the journal's mode, stop no later writes."""
    session, other = memory.session("s"), sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    other.close()
    time.sleep(LOOK)
    session.add_user_message("after a checkpoint")
    memory.close()

    with closing(sqlite3.connect(path)) as other:
        assert other.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
    with Memory.open(path) as reopened:
        session = reopened.session("s")
        session.add_user_message("without a journal")
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            assert other.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
        for text in ("with one", "and once more"):
            time.sleep(LOOK)
            session.add_user_message(text)
        assert len(session.entries()) == 5


def test_acknowledged_entries_survive_the_loss_of_their_journal(memory: Memory, path: Path) -> None:
    """Closing a memory writes acknowledged entries into the file though its journal was removed."""
    without_its_journal(path)
    memory.close()

    with Memory.open(path) as reopened:
        assert [entry.text for entry in reopened.session("s").entries()] == [TEXT]


def test_a_memory_that_is_opened_again_writes_to_the_new_file(memory: Memory, path: Path) -> None:
    """A memory opened again after its file was removed begins a new file."""
    for file in path.parent.iterdir():
        file.unlink()

    with Memory.open(path) as reopened:
        reopened.session("s").add_user_message("new")
        assert [entry.text for entry in reopened.session("s").entries()] == ["new"]


def test_a_relative_path_names_the_same_file_wherever_the_process_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative address is resolved once, when the memory is opened, wherever the process goes."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Memory.open("sqlite:///log.db") as memory:
        monkeypatch.chdir(tmp_path / "elsewhere")
        memory.session("s").add_user_message(TEXT)

    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["log.db"]


# --- whose the files are


@pytest.fixture(params=[0o000, 0o022, 0o077])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Yield what the process takes away from the modes of new files."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


def test_files_and_folders_are_closed_to_others(umask: int, tmp_path: Path) -> None:
    """The database, its journal and the folders made for it are closed to others from the start."""
    path = tmp_path / "made" / "for it" / "log.db"

    with Memory.open(path) as memory:
        memory.session("s").add_user_message(TEXT)
        memory.session("s").erase([1])

        assert modes(path.parent) == {"log.db": 0o600, "log.db-wal": 0o600, "log.db-shm": 0o600}
        assert modes(tmp_path) == {"made": 0o700}
        assert modes(tmp_path / "made") == {"for it": 0o700}


def test_the_mode_of_an_existing_file_is_kept(path: Path) -> None:
    """An existing file keeps its mode, and its journal gets the same, also after erasures that rewrite it."""
    path.touch()
    path.chmod(0o640)

    with Memory.open(path) as memory:
        memory.session("s").add_user_message(TEXT)
        memory.session("s").erase([1])

        assert set(modes(path.parent).values()) == {0o640}


def test_an_empty_file_is_refused_readonly(path: Path) -> None:
    """Opening an empty file with `readonly` raises StoreUnavailable, which says that there is nothing in it."""
    path.touch()
    with pytest.raises(StoreUnavailable, match="it holds no store yet: open it once without readonly=True"):
        Memory.open(path, readonly=True).sessions()


def test_the_name_of_a_database_in_memory_is_refused() -> None:
    """SQLite's own name of a database in memory is refused, with the address to use instead."""
    with pytest.raises(ConfigError, match="memory://"):
        Memory.open("sqlite:///:memory:")


def test_finding_the_latest_sessions_takes_few_steps(path: Path) -> None:
    """Finding what was written since a mark takes as many steps of SQLite over 900 sessions as over 30."""
    clock, counts = FakeClock(), list[int]()
    with Memory.open(path, clock=clock) as memory:
        for count in (30, 900):
            for number in range(count):
                memory.session(f"s{count}.{number}").add_user_message("hello")
            clock.advance(2)
            memory.session("last").add_user_message("hello")
            (mark, _), *_ = drive(memory.store.used(memory.tenant, newest_first=True, limit=1))
            steps = itertools.count()
            connection(memory).set_progress_handler(lambda steps=steps: next(steps) and None, 1)
            sessions = drive(memory.store.used(memory.tenant, mark=mark))
            connection(memory).set_progress_handler(None, 1)
            assert [info.session for _, info in sessions] == ["last"]
            counts.append(next(steps))
    assert 0 < counts[1] <= counts[0] + 20


def test_an_older_snapshot_brings_back_no_removed_number(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of an older snapshot does not bring back numbers of rows that a running step replaces."""
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


def test_a_readonly_memory_sees_the_journal_through_a_link(
    memory: Memory, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A readonly memory opened by a link reads what others have written to the journal beside the file itself."""
    (folder := tmp_path / "elsewhere").mkdir()
    (link := folder / "link.db").symlink_to(path)
    memory.session("s").add_user_message("in the journal")
    monkeypatch.setattr(os, "access", lambda *_: False)

    with Memory.open(link, readonly=True) as reader:
        assert [entry.text for entry in reader.session("s").entries()] == [TEXT, "in the journal"]
