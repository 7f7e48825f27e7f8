"""What holds when many threads and processes use one store at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue

import pytest

import filestore
from palimpsest import AsyncMemory, Conflict, LockTimeout, Memory, Session, StoreUnavailable
from palimpsest.errors import Closed
from palimpsest.log.entry import now_us
from palimpsest.stores.sqlite.db import Database
from processes import PATIENCE, Process, at_once, integrity, run, together, whole_turns
from sqlitestore import commits, connection
from writer import BUDGET, ENTRIES_A_TURN, SESSION, budgeted, turn

Start = Callable[[str, Path | str], Process]


@pytest.fixture(params=["sqlite", "file"])
def place(request: pytest.FixtureRequest, path: Path) -> Path | str:
    """The store of a test, for rules that hold for SQLite and for files."""
    return path if request.param == "sqlite" else f"file://{path.parent}/logs"


@pytest.fixture
def memory(path: Path) -> Iterator[Memory]:
    """A memory over a file that other processes open, too."""
    with Memory.open(path) as memory:
        yield memory


@pytest.fixture
def statements(memory: Memory) -> Iterator[list[str]]:
    """Every statement that the memory's connection runs from now on."""
    seen: list[str] = []
    connection(memory).set_trace_callback(seen.append)
    yield seen
    connection(memory).set_trace_callback(None)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start processes that are ended with the test in any case."""
    with contextlib.ExitStack() as started:
        yield lambda mode, path: started.enter_context(Process(mode, path))


# --- many writers


def test_two_processes_of_four_threads_lose_and_mix_nothing(place: Path | str) -> None:
    """Of 200 turns by two processes of four threads, each is stored once, in one piece, with calls and results
    linked."""
    acknowledged = together([Process("threads", place, name, 4, 25) for name in ("one", "two")])

    with Memory.open(place) as memory:
        found = whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN)
    assert sorted(found) == sorted(label for labels in acknowledged for label in labels)
    assert len(found) == 200
    assert set(found.values()) == {1}
    assert integrity(place) == "ok"


def test_the_order_of_one_thread_is_the_order_of_the_log(path: Path) -> None:
    """The entries of a thread are in the log in the order in which it added them, whoever else writes."""
    together([Process("threads", path, name, 2, 10) for name in ("one", "two")])

    with Memory.open(path) as memory:
        order = list(whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN))
    for thread in ("one.0.", "one.1.", "two.0.", "two.1."):
        own = [label for label in order if label.startswith(thread)]
        assert own == [f"{thread}{number}" for number in range(10)]


def test_eight_processes_open_a_new_store_at_once(place: Path | str) -> None:
    """When eight processes open a new store at once, one creates it, and all write to the same store."""
    names = [str(number) for number in range(8)]

    said = together([Process("first", place, name) for name in names])

    with Memory.open(place) as memory:
        found = whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN)
    assert said == [[name] for name in names]
    assert sorted(found) == names
    assert integrity(place) == "ok"


def test_a_key_that_two_processes_use_adds_once(place: Path | str) -> None:
    """If two processes add a batch under the same key, it is stored once, and both get the same entries."""
    one, two = together([Process("keyed", place, 30) for _ in range(2)])

    with Memory.open(place) as memory:
        entries = memory.session(SESSION).entries()
    assert one == two
    assert len({id for ids in one for id in ids}) == 30 * ENTRIES_A_TURN
    assert set(whole_turns(entries, ENTRIES_A_TURN).values()) == {1}
    assert len(entries) == 30 * ENTRIES_A_TURN


def test_a_conflict_in_a_shared_commit_fails_alone(path: Path, memory: Memory) -> None:
    """Of many adds that share a commit, only the one with a conflicting key fails."""
    session = memory.session(SESSION)
    session.add(turn("0"), key="key")
    refused = []

    def work(number: int) -> None:
        try:
            session.add(turn(str(number)), key="key" if number == 7 else None)
        except Conflict:
            refused.append(number)

    with held(path):
        gate = threading.Thread(target=at_once, args=(work, 16))
        gate.start()
    gate.join(PATIENCE)

    assert refused == [7]
    assert len(session.entries()) == 16 * ENTRIES_A_TURN


# --- few commits


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Lock the database against writing, as another process's write does."""
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_writers_of_one_process_wait_together_for_another(tmp_path: Path, kind: str, asynchronous: bool) -> None:
    """Many threads or tasks that add while another process holds the store wait at most twice `busy_seconds` each."""
    writers, patience = 12, 0.5
    where = str(tmp_path / "a.db") if kind == "sqlite" else f"file://{tmp_path}/logs"
    with Memory.open(where) as first:
        first.session(SESSION).add_user_message("before")
    waited: list[float] = []

    def one(memory: Memory, number: int) -> None:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            memory.session(SESSION).add_user_message(f"{number}")
        waited.append(time.monotonic() - began)

    async def one_task(memory: AsyncMemory, number: int) -> None:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await memory.session(SESSION).add_user_message(f"{number}")
        waited.append(time.monotonic() - began)

    async def all_tasks() -> None:
        async with AsyncMemory.open(where, busy_seconds=patience) as memory:
            await asyncio.gather(*(one_task(memory, number) for number in range(writers)))

    with contextlib.ExitStack() as held_by_another:
        if kind == "sqlite":
            held_by_another.enter_context(held(Path(where)))
        else:
            held_by_another.enter_context(filestore.held(next((tmp_path / "logs").rglob("*.jsonl"))))
        if asynchronous:
            asyncio.run(all_tasks())
        else:
            with Memory.open(where, busy_seconds=patience) as memory:
                at_once(lambda number: one(memory, number), writers)

    assert len(waited) == writers
    assert max(waited) < patience * writers / 2
    with Memory.open(where) as last:
        assert [entry.text for entry in last.session(SESSION).entries()] == ["before"]


def test_memories_of_one_process_take_turns_at_a_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memories of one process that write to one file wait for each other by a lock, without polling."""
    tried: list[str] = []
    with contextlib.ExitStack() as opened:
        memories = [opened.enter_context(Memory.open(path)) for _ in range(4)]
        for number, memory in enumerate(memories):
            memory.session(f"own {number}").add_user_message("first")
        monkeypatch.setattr(Database, "_pause", lambda *_: tried.append("in vain"))

        at_once(lambda number: [memories[number].session(SESSION).add(turn(str(number))) for _ in range(20)], 4)

        assert len(memories[0].session(SESSION).entries()) == 4 * 20 * ENTRIES_A_TURN
    assert not tried


def test_threads_that_write_at_once_share_commits(path: Path, memory: Memory, statements: list[str]) -> None:
    """Adds that wait for another write are committed together, and none is lost."""
    started = threading.Semaphore(0)

    def work(number: int) -> None:
        started.release()
        memory.session(SESSION).add(turn(str(number)))

    with held(path):
        crowd = threading.Thread(target=at_once, args=(work, 32))
        crowd.start()
        for _ in range(32):
            assert started.acquire(timeout=PATIENCE)
    crowd.join(PATIENCE)

    assert len(whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN)) == 32
    assert 0 < commits(statements) < 32


@pytest.mark.parametrize(
    "add",
    [
        lambda session: session.add_user_message("one"),
        lambda session: session.add(turn("one")),
        lambda session: session.add({"role": "user", "content": "one"}, key="key"),
        lambda session: session.add(turn("one"), key="key"),
        lambda session: session.add_tool_call("look", {"at": 1}),
        lambda session: session.add_context("text", name="notes.md"),
    ],
    ids=["message", "batch", "keyed message", "keyed batch", "call", "context"],
)
@pytest.mark.parametrize("existing", [False, True])
def test_an_add_is_exactly_one_commit(
    memory: Memory, statements: list[str], add: Callable[[Session], object], existing: bool
) -> None:
    """Every add, to a new session or an existing one, is one transaction."""
    session = memory.session(SESSION)
    if existing:
        session.add_user_message("before")
        statements.clear()

    add(session)

    assert commits(statements) == 1
    assert statements.count("BEGIN IMMEDIATE") == 1


def test_a_turn_costs_two_commits_beside_its_adds(memory: Memory, statements: list[str]) -> None:
    """A turn commits only its lease and its end beside its adds; a thread renews the lease."""
    session = memory.session(SESSION)
    session.add_user_message("before")
    statements.clear()

    with session.turn():
        for number in range(20):
            session.add_user_message(str(number))

    assert commits(statements) == 20 + 2


def test_an_atomic_turn_is_exactly_one_commit(memory: Memory, statements: list[str]) -> None:
    """All adds of an atomic turn are one commit."""
    with memory.session(SESSION).turn(atomic=True) as session:
        for number in range(5):
            session.add(turn(str(number)))
        assert commits(statements) == 0
        assert memory.session(SESSION).entries() == []

    inserting = [statement for statement in statements if statement.startswith("INSERT INTO entry(pos, ")]
    assert len(inserting) == 30
    assert {entry.revision for entry in session.entries()} == {1}


def test_a_context_in_the_steady_state_commits_nothing(memory: Memory, statements: list[str]) -> None:
    """While everything fits, `context` after each add writes nothing."""
    session = memory.session(SESSION, max_tokens=100_000)
    for number in range(3):
        session.add(turn(str(number)))
        statements.clear()

        session.context()

        assert not [s for s in statements if s.startswith(("BEGIN IMMEDIATE", "INSERT", "UPDATE", "DELETE"))]


# --- cuts


def test_two_processes_that_cut_at_once_make_one_cut(path: Path, memory: Memory, start: Start) -> None:
    """If two processes make contexts that need a cut at once, both are valid, and one cut is stored."""
    session = budgeted(memory)
    others = [start("contexts", path) for _ in range(2)]
    for other in others:
        assert other.hear() == "ready"
    for cuts in range(1, 9):
        for number in range(12):
            session.add(turn(f"{cuts}.{number}"))
        for other in others:
            other.tell()

        given = [other.hear() for other in others]

        records = [record.cut for record in session.history() if record.kind == "cut"]
        assert [cut.epoch for cut in records] == list(range(1, cuts + 1))
        for context in given:
            assert context["problems"] == []
            assert context["tokens"] <= BUDGET
            assert context["epoch"] == cuts
    for other in others:
        other.tell("")
        other.end()


# --- turns


def test_holders_of_a_turn_exclude_each_other(place: Path | str) -> None:
    """Between the adds of a turn there is no add of another process's turn."""
    together([Process("turns", place, name, 15) for name in ("one", "two")])

    with Memory.open(place) as memory:
        texts = [entry.text for entry in memory.session(SESSION).entries()]
    assert len(texts) == 60
    for begin, end in zip(texts[::2], texts[1::2], strict=True):
        assert begin.startswith("begin")
        assert end == begin.replace("begin", "end")


def test_a_turn_waits_for_another_process_to_end_its_own(path: Path, memory: Memory, start: Start) -> None:
    """`turn()` waits while another process holds a turn, and begins when that has ended."""
    holder = start("hold", path)
    assert holder.hear() == "ready"
    steps: SimpleQueue[str] = SimpleQueue()

    async def sleep(seconds: float) -> None:
        steps.put("waits")
        time.sleep(seconds)  # noqa: ASYNC251 (driven without an event loop)

    def work(number: int) -> None:
        with memory.session(SESSION).turn() as session:
            session.add_user_message("begin own")
            steps.put("begins")

    memory._core.runner.sleep = sleep
    own = threading.Thread(target=at_once, args=(work, 1))
    own.start()

    assert steps.get(timeout=PATIENCE) == "waits"
    holder.tell()
    assert holder.end() == ["done"]
    own.join(PATIENCE)
    texts = [entry.text for entry in memory.session(SESSION).entries()]
    assert texts == ["begin held", "end held", "begin own"]


def test_a_turn_waits_as_long_as_the_other_one_lives(path: Path, memory: Memory, start: Start) -> None:
    """`turn()` waits for a live turn of another process, however long that takes."""
    holder = start("hold", path)
    assert holder.hear() == "ready"
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if sum(waited) > 60:
            holder.tell()
            assert holder.end() == ["done"]

    memory._core.runner.sleep = sleep
    with memory.session(SESSION).turn() as session:
        session.add_user_message("begin own")

    assert sum(waited) > 60
    assert [entry.text for entry in session.entries()] == ["begin held", "end held", "begin own"]


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_an_asynchronous_turn_waits_for_another_process(kind: str, tmp_path: Path, start: Start) -> None:
    """`async with turn()` waits for a live turn of another process, over SQLite and files."""
    where = f"sqlite:///{tmp_path}/log.db" if kind == "sqlite" else f"file:{tmp_path}/logs"
    holder = start("hold", where)
    assert holder.hear() == "ready"
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        if sum(waited) > 60:
            holder.tell()
            assert holder.end() == ["done"]

    async def own() -> list[str]:
        async with AsyncMemory.open(where) as memory:
            memory.runner.sleep = sleep
            async with memory.session(SESSION).turn() as session:
                await session.add_user_message("begin own")
            return [entry.text for entry in await session.entries()]

    assert asyncio.run(own()) == ["begin held", "end held", "begin own"]
    assert sum(waited) > 60


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("given", "wait"), [(0, 0), (False, 0), (5, 5), ("5s", 5), ("1m30s", 90), (timedelta(seconds=5), 5)]
)
def test_a_turn_that_waits_in_vain_raises(
    path: Path, memory: Memory, start: Start, given: timedelta | float | str, wait: float
) -> None:
    """A turn that does not begin within `wait` raises LockTimeout."""
    holder = start("hold", path)
    assert holder.hear() == "ready"
    waited = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    memory._core.runner.sleep = sleep
    session = memory.session(SESSION)
    with pytest.raises(LockTimeout, match=f"{wait} seconds") as raised, session.turn(wait=given):
        raise AssertionError("the other one lives")

    assert isinstance(raised.value, TimeoutError)
    assert sum(waited) == pytest.approx(wait)
    holder.tell()
    assert holder.end() == ["done"]
    with session.turn(wait=given):
        session.add_user_message("begin own")
    assert [entry.text for entry in session.entries()] == ["begin held", "end held", "begin own"]


def test_a_turn_whose_process_was_killed_is_over_when_its_lease_is(path: Path, start: Start) -> None:
    """The turn of a killed process is over when its lease ends, half a minute later."""
    holder = start("hold", path)
    assert holder.hear() == "ready"
    holder.kill()

    with Memory.open(path) as memory, pytest.raises(LockTimeout), memory.session(SESSION).turn(wait=0):
        raise AssertionError("its lease is not over")
    with Memory.open(path, clock=lambda: now_us() + 31_000_000) as memory, memory.session(SESSION).turn(wait=0):
        pass


def test_a_plain_add_does_not_wait_for_a_turn(path: Path, memory: Memory, statements: list[str], start: Start) -> None:
    """A plain add is stored at once while another process holds a turn, without a look at the lease."""
    holder = start("hold", path)
    assert holder.hear() == "ready"

    memory.session(SESSION).add_user_message("plain")

    assert not [statement for statement in statements if "lease" in statement]
    holder.tell()
    assert holder.end() == ["done"]
    texts = [entry.text for entry in memory.session(SESSION).entries()]
    assert texts == ["begin held", "plain", "end held"]


def test_adds_inside_a_turn_are_durable_at_once(path: Path, memory: Memory, start: Start) -> None:
    """Other processes see the adds of a turn before it ends, and a kill loses none of them."""
    holder = start("hold", path)
    assert holder.hear() == "ready"

    assert [entry.text for entry in memory.session(SESSION).entries()] == ["begin held"]
    holder.kill()
    assert [entry.text for entry in memory.session(SESSION).entries()] == ["begin held"]


def add_and_fail(session: Session) -> None:
    session.add(turn("one"))
    raise ZeroDivisionError


def test_an_atomic_turn_that_raises_stores_nothing(memory: Memory) -> None:
    """An exception in `turn(atomic=True)` comes out unchanged, and nothing of the turn is stored."""
    session = memory.session(SESSION)

    with pytest.raises(ZeroDivisionError), session.turn(atomic=True):
        add_and_fail(session)

    assert session.entries() == []
    assert memory.sessions() == []
    session.add_user_message("later")
    assert [entry.text for entry in session.entries()] == ["later"]


def test_a_turn_that_raises_keeps_what_it_added(memory: Memory) -> None:
    """An exception in a plain turn comes out unchanged; earlier adds stay, and the turn is over."""
    session = memory.session(SESSION)

    with pytest.raises(ZeroDivisionError), session.turn():
        add_and_fail(session)

    assert len(session.entries()) == ENTRIES_A_TURN
    with session.turn():
        session.add_user_message("next")


def test_atomic_turns_at_once_do_not_interleave(memory: Memory) -> None:
    """The entries of an atomic turn are neighbours in the log, however many threads write."""

    def work(number: int) -> None:
        with memory.session(SESSION).turn(atomic=True) as session:
            for message in turn(str(number)):
                session.add(message)

    at_once(work, 8)

    found = whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN)
    assert sorted(found) == [str(number) for number in range(8)]


# --- fork and close


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_is_refused_and_the_parent_continues(place: Path | str) -> None:
    """In a forked child every use of the memory raises ForkedProcess, and the parent is unharmed."""
    *child, parent = run("fork", place)

    assert child == ["ForkedProcess", "ForkedProcess", "ForkedProcess", "Closed"]
    assert parent == ["before the fork", "after the fork"]
    assert integrity(place) == "ok"


def test_closing_while_others_write_ends_them_with_an_error(path: Path) -> None:
    """Threads that write while the memory closes get Closed, none hangs, and acknowledged adds are stored."""
    memory = Memory.open(path)
    acknowledged, faults, busy = [], [], threading.Semaphore(0)

    def work(thread: int) -> None:
        session = memory.session(SESSION)
        number = 0
        while True:
            try:
                session.add(turn(f"{thread}.{number}"))
            except Closed as closed:
                faults.append(closed)
                return
            acknowledged.append(f"{thread}.{number}")
            busy.release()
            number += 1

    crowd = threading.Thread(target=at_once, args=(work, 4))
    crowd.start()
    for _ in range(20):
        assert busy.acquire(timeout=PATIENCE)
    memory.close()
    crowd.join(PATIENCE)

    assert not crowd.is_alive()
    assert len(faults) == 4
    with Memory.open(path) as again:
        found = whole_turns(again.session(SESSION).entries(), ENTRIES_A_TURN)
    assert set(acknowledged) <= set(found)
    assert integrity(path) == "ok"


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_branches_are_made_while_others_write(tmp_path: Path, kind: str) -> None:
    """Forks, of now and of the past, succeed beside a busy writer, and each branch is whole."""
    where: Path | str = tmp_path / "log.db" if kind == "sqlite" else f"file://{tmp_path}/logs"
    with Process("append", where) as writer:
        for _ in range(20):
            writer.hear()
        with Memory.open(where) as memory:
            session = memory.session(SESSION)
            branches = [session.fork() for _ in range(5)] + [session.fork(at=number) for number in (1, 5, 10, 20)]
            while (writer.hear() or 0) < 60:
                pass
            assert len(session.entries()) > len(branches[0].entries())
            sizes = [len(whole_turns(branch.entries(), ENTRIES_A_TURN)) for branch in branches]
            assert sizes[5:] == [1, 5, 10, 20]
            assert sizes[:5] == sorted(sizes[:5])
        writer.kill()
