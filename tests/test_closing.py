"""Closing ends whatever hangs in a memory, and loses nothing that was acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import os
import sqlite3
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from openai_server import OpenAIServer, says
from palimpsest import AsyncMemory, Memory
from palimpsest.stores.sqlite.backend import SQLiteBackend
from palimpsest.strategies import SimpleFifo, Triggers
from processes import PATIENCE

SCRIPT = Path(__file__).with_name("closing_process.py")
HANGING = ["function", "coroutine", "endpoint", "observer", "derived"]
LOCKED = [
    pytest.param("compaction", "sqlite", "sync", "close"),
    pytest.param("compaction", "file", "async", "with"),
    pytest.param("write", "sqlite", "sync", "close"),
    pytest.param("write", "file", "async", "with"),
    pytest.param("write", "file", "sync", "close"),
    *[
        pytest.param("compaction", kind, face, way, marks=pytest.mark.slow)
        for kind, face, way in [("sqlite", "async", "close"), ("file", "sync", "close"), ("file", "sync", "exit")]
    ],
    pytest.param("write", "file", "sync", "exit", marks=pytest.mark.slow),
    pytest.param("write", "sqlite", "async", "with", marks=pytest.mark.slow),
]


def address(kind: str, folder: Path) -> str:
    """Return the address of a store of this kind."""
    return f"sqlite:///{folder}/log.db" if kind == "sqlite" else f"file://{folder}/logs"


@contextlib.contextmanager
def locked(kind: str, folder: Path) -> Iterator[None]:
    """Lock the session against other writers."""
    if kind == "sqlite":
        with contextlib.closing(sqlite3.connect(folder / "log.db", isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield
        return
    (log,) = (folder / "logs").rglob("s-*.jsonl")
    with log.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Closer:
    """A running `closing_process.py`."""

    def __init__(self, what: str, face: str, way: str, where: str, url: str = "") -> None:
        self._child = subprocess.Popen(
            [sys.executable, str(SCRIPT), what, face, way, where],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "OPENAI_BASE_URL": url},
        )  # fmt: skip
        self._guard = threading.Timer(PATIENCE, self._child.kill)
        self._guard.start()

    def hear(self, line: str) -> None:
        """Wait until the process prints this line."""
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == f"{line}\n", self._errors()

    def tell(self) -> None:
        """Let the process go on."""
        assert self._child.stdin is not None
        self._child.stdin.write("\n")
        self._child.stdin.flush()

    def end(self) -> str:
        """Wait for the process to end and return what it has logged."""
        told = self._errors()
        assert self._child.wait() == 0, told
        return told

    def close(self) -> None:
        """Make sure that the process has ended."""
        self._child.kill()
        self._guard.cancel()
        self._guard.join()
        self._child.communicate()

    def _errors(self) -> str:
        assert self._child.stderr is not None
        return self._child.stderr.read()


def kept(where: str) -> int:
    """Return how many entries the session has."""
    with Memory.open(where) as memory:
        assert memory.session("s").verify().ok
        return len([entry for entry in memory.session("s").entries() if not entry.erased])


def some(what: str, face: str, way: str) -> bool:
    """Whether this case is among those that every run tries."""
    return (what, face, way) in {
        ("function", "sync", "close"), ("function", "async", "exit"), ("coroutine", "sync", "with"),
        ("coroutine", "async", "close"), ("observer", "sync", "exit"), ("derived", "async", "with"),
    }  # fmt: skip


EVERY = [
    pytest.param(what, face, way, marks=() if some(what, face, way) else pytest.mark.slow)
    for what in HANGING
    for face in ("sync", "async")
    for way in ("close", "with", "exit")
]


@pytest.mark.sampled
@pytest.mark.parametrize(("what", "face", "way"), EVERY)
def test_closing_waits_a_bounded_time_for_hanging_callbacks(what: str, face: str, way: str, tmp_path: Path) -> None:
    """`close()`, the end of `with` and the interpreter's exit wait only so long for a callback that never returns.

    That holds for summarizers, observers and derived data; background work that is given up causes a warning.
    """
    where = address("sqlite", tmp_path)
    with (
        OpenAIServer(says("never", when=threading.Event())) as server,
        contextlib.closing(Closer(what, face, way, where, server.url)) as closer,
    ):
        closer.hear("added")
        if what == "endpoint":
            assert server.arrived.acquire(timeout=PATIENCE)
            closer.hear("ready")
            closer.tell()
        closer.hear("closed")
        told = closer.end()

    assert kept(where) == 8
    if way != "exit" and what != "derived":
        assert "work in the background did not end within 0.3 seconds" in told


@pytest.mark.sampled
@pytest.mark.parametrize(("what", "kind", "face", "way"), LOCKED)
def test_closing_gives_up_writes_to_a_locked_store(what: str, kind: str, face: str, way: str, tmp_path: Path) -> None:
    """Closing gives up background compactions and writes that wait for a locked store; acknowledged entries stay."""
    where = address(kind, tmp_path)
    with contextlib.closing(Closer(what, face, way, where)) as closer:
        closer.hear("added")
        closer.hear("ready")
        with locked(kind, tmp_path):
            closer.tell()
            closer.hear("closed")
            closer.end()

    assert kept(where) == 8


def test_a_store_in_use_is_closed_after_its_last_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Closing waits no longer than it has patience, and says so; the store is closed all the same, a little later."""
    let_go = threading.Event()

    async def run() -> None:
        memory = AsyncMemory.open(tmp_path / "log.db")
        await memory.connect()
        memory.runner.patience = 0.05
        using = asyncio.ensure_future(memory.runner.run(let_go.wait, PATIENCE))
        await asyncio.sleep(0)
        with patch.object(SQLiteBackend, "close", autospec=True, side_effect=SQLiteBackend.close) as close:
            await memory.close()
            before = close.called
            let_go.set()
            await using
            assert await asyncio.to_thread(until_closed, tmp_path / "log.db-wal")
        await memory.close()
        assert not before

    def until_closed(journal: Path) -> bool:
        end = time.monotonic() + PATIENCE
        while journal.exists() and time.monotonic() < end:
            time.sleep(0.001)
        return not journal.exists()

    asyncio.run(run())
    assert "it is closed when that ends" in caplog.text


OUTLIVING = """
import sys, threading
from palimpsest import Memory

memory = Memory.open(sys.argv[1])
session = memory.session("s", max_tokens=500)

def go_on():
    threading.main_thread().join()
    for number in range(30):
        session.add_user_message(f"number {number} " + "words " * 30)
    session.compact()
    print(session.context().tokens > 0, session.stats().total_entries, end=" ")
    print(len(memory.recall("number").passages) > 0, session.verify().problems)
    memory.close()

threading.Thread(target=go_on).start()
"""


@pytest.mark.parametrize("where", ["sqlite:///log.db", "file:log"])
def test_a_thread_that_outlives_the_main_thread_can_do_everything(where: str, tmp_path: Path) -> None:
    """A program's last line may start the thread that does the work, which then uses a verb for the first time."""
    done = subprocess.run(
        [sys.executable, "-c", OUTLIVING, where],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )

    assert done.stderr == ""
    assert done.stdout == "True 30 True ()\n"


def test_an_unclosed_memory_warns_when_its_last_session_is_collected(tmp_path: Path) -> None:
    """An unclosed memory warns when its last session is collected, not while one is in use."""

    def missed() -> list[str]:
        gc.collect()
        return [str(one.message) for one in told if "was not closed" in str(one.message)]

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        session = Memory.open(tmp_path / "log.db").session("one")
        session.add_user_message("hello")
        session.context()
        in_use = missed()

        del session

        assert in_use == []
        assert missed() == [
            f"the memory over sqlite:///{tmp_path}/log.db was not closed: call `close`, or open it in a `with` block"
        ]


@pytest.mark.parametrize("when", ["inline", "background"])
@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_stored_add_returns_although_the_memory_closes_meanwhile(
    face: str, when: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An add that is stored returns although the memory is closed meanwhile; otherwise it would be repeated.

    A compaction that cannot run then is no failure: the next one to open the store makes it.
    """
    failed: list[object] = []
    options: dict[str, Any] = {
        "long_term": SimpleFifo(triggers=Triggers(max_entries=2), max_messages=2),
        "auto_compact": when,
    }

    def sync() -> None:
        memory = Memory.open(tmp_path / "log.db")
        session = memory.session("one", **options)
        session.add_user_message("first")
        memory.on("compaction:failed", lambda _, facts: failed.append(facts))
        memory.on("entry:added", lambda *_: memory.close())
        session.add([{"role": "user", "content": "second"}, {"role": "assistant", "content": "third"}])

    async def loop() -> None:
        memory = AsyncMemory.open(tmp_path / "log.db")
        session = memory.session("one", **options)
        await session.add_user_message("first")

        async def close(*_: object) -> None:
            await memory.close()

        memory.on("compaction:failed", lambda _, facts: failed.append(facts))
        memory.on("entry:added", close)
        await session.add([{"role": "user", "content": "second"}, {"role": "assistant", "content": "third"}])

    sync() if face == "sync" else asyncio.run(loop())
    assert failed == []
    assert "failed" not in caplog.text
    with Memory.open(tmp_path / "log.db") as memory:
        session = memory.session("one", **{**options, "auto_compact": "inline"})
        assert [entry.text for entry in session.entries()] == ["first", "second", "third"]
        session.add_user_message("fourth")
        assert len(session.active_entries()) < 4


REFUSED = """
import asyncio, gc, os, sys, time
from palimpsest import AsyncMemory, Memory
from palimpsest.stores.sqlite.backend import SQLiteBackend
from palimpsest.errors import StoreError

async def awaited(address):
    async with AsyncMemory.open(address):
        pass

def held():
    gc.collect()  # PyMongo leaves sockets to it
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

def refused(open, times):
    for _ in range(times):
        try:
            open(sys.argv[1])
        except StoreError:
            continue
        raise SystemExit("it was opened")

face = Memory.open if sys.argv[2] == "sync" else lambda address: asyncio.run(awaited(address))
refused(face, 2)  # loads what it loads
before, until = held(), time.monotonic() + float(sys.argv[3])
refused(face, 8)
while (now := held()) != (1, before[1]) and time.monotonic() < until:
    time.sleep(0.01)  # threads end when they are told, a moment later
print(now[0], now[1] - before[1])
"""


@pytest.mark.sampled
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what /proc shows of a process")
@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize(
    "where",
    [
        "sqlite:///{}/no.db",
        "file://{}/no.db",
        "redis://127.0.0.1:1",
        "postgresql://nobody@127.0.0.1:1/none",
        "mongodb://127.0.0.1:1/none?serverSelectionTimeoutMS=100",
    ],
)
def test_failed_openings_leak_no_threads_or_descriptors(where: str, face: str, tmp_path: Path) -> None:
    """Repeated attempts to open an unreachable store leak neither threads nor descriptors."""
    (tmp_path / "no.db").write_bytes(b"what somebody else has written " * 100)
    command = [sys.executable, "-c", REFUSED, where.format(tmp_path), face, str(PATIENCE / 10)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)

    assert told.stdout == "1 0\n", told.stderr
