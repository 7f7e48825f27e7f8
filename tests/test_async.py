"""`AsyncMemory` and `Memory`: equal interfaces, what runs where, and what a cancellation leaves behind."""

from __future__ import annotations

import asyncio
import inspect
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import anyio
import pytest

from palimpsest import AsyncMemory, AsyncSession, AsyncWorkingMemory, Memory, Session, WorkingMemory
from palimpsest.errors import Closed
from palimpsest.types import AsyncKnowledge, Knowledge
from processes import PATIENCE, whole_turns
from sqlitestore import commits, connection
from writer import ENTRIES_A_TURN, SESSION, turn

pytestmark = pytest.mark.anyio

FACES = [
    (AsyncMemory, Memory),
    (AsyncSession, Session),
    (AsyncWorkingMemory, WorkingMemory),
    (AsyncKnowledge, Knowledge),
]


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[AsyncMemory]:
    """An SQLite store under an event loop."""
    async with AsyncMemory.open(tmp_path / "log.db") as memory:
        yield memory


# --- two faces


def verbs(face: type) -> dict[str, object]:
    """Return the public members of a class by name."""
    return {name: inspect.getattr_static(face, name) for name in dir(face) if not name.startswith("_")}


@pytest.mark.parametrize(("core", "face"), FACES)
def test_both_faces_have_the_same_verbs(core: type, face: type) -> None:
    """Both classes have the same verbs and properties."""
    asynchronous, synchronous = verbs(core), verbs(face)

    assert set(asynchronous) - {"tenant"} == set(synchronous) - {"tenant"}
    for name in set(asynchronous) & set(synchronous):
        assert isinstance(asynchronous[name], property) == isinstance(synchronous[name], property), name


@pytest.mark.parametrize(("core", "face"), FACES)
def test_both_faces_take_the_same_arguments(core: type, face: type) -> None:
    """Every verb has the same parameters, defaults and annotations, and returns the same but for the waiting."""
    for name, verb in verbs(face).items():
        if isinstance(verb, property) or name not in verbs(core):
            continue
        ours, theirs = inspect.signature(getattr(face, name)), inspect.signature(getattr(core, name))

        assert [str(one) for one in ours.parameters.values()] == [
            str(one).replace("AsyncSession", "Session") for one in theirs.parameters.values()
        ], name
        told = str(theirs.return_annotation).replace("Async", "").replace("_AGeneratorContextManager", "Generator")
        assert str(ours.return_annotation) == told.replace("Self", "Session"), name


@pytest.mark.parametrize("face", [AsyncSession, AsyncMemory, AsyncWorkingMemory, AsyncKnowledge])
def test_every_verb_that_reads_or_writes_is_a_coroutine(face: type) -> None:
    """In an asynchronous memory every verb that touches the store is a coroutine function."""
    plain = {name for name, verb in verbs(face).items() if not isinstance(verb, property | classmethod)}
    plain = {name for name in plain if not inspect.iscoroutinefunction(getattr(face, name))}

    assert plain <= {
        *("cost", "turn", "stream", "session", "for_tenant"),
        *("on", "fork", "bind", "working", "knowledge", "readonly"),
    }


# --- what runs where


class Gate:
    """A clock that a test can stop when the store reads it, inside a write with the transaction open."""

    def __init__(self) -> None:
        self.loop_thread = threading.get_ident()
        self.threads: set[int] = set()
        self.reached, self.open = threading.Semaphore(0), threading.Semaphore(10_000)

    def shut(self) -> None:
        """Let every write wait from now on, until `let`."""
        self.reached, self.open = threading.Semaphore(0), threading.Semaphore(0)

    def let(self, writes: int = 1) -> None:
        self.open.release(writes)

    def __call__(self) -> int:
        if threading.get_ident() != self.loop_thread:
            self.threads.add(threading.get_ident())
            self.reached.release()
            assert self.open.acquire(timeout=PATIENCE)
        return time.time_ns() // 1000

    async def arrived(self) -> None:
        """Wait until a write has reached the clock."""
        assert await asyncio.to_thread(self.reached.acquire, timeout=PATIENCE)


@pytest.fixture
async def gate() -> AsyncIterator[Gate]:
    gate = Gate()
    yield gate
    gate.let(10_000)


@pytest.fixture
async def gated(tmp_path: Path, gate: Gate) -> AsyncIterator[AsyncMemory]:
    """A store whose writes stop at the gate."""
    async with AsyncMemory.open(tmp_path / "log.db", clock=gate) as memory:
        yield memory
        gate.let(10_000)


async def test_a_write_runs_in_another_thread_than_the_loop(gated: AsyncMemory, gate: Gate) -> None:
    """The store's work is done in a worker thread: the loop goes on while a write stands still."""
    gate.shut()
    write = asyncio.create_task(gated.session(SESSION).add_user_message("slow"))
    await gate.arrived()

    assert not write.done()  # and yet this line runs
    assert gate.threads
    assert gate.loop_thread not in gate.threads

    gate.let()
    assert (await write).text == "slow"


async def test_many_tasks_that_write_at_once_share_commits(gated: AsyncMemory, gate: Gate) -> None:
    """Adds of tasks that wait while one is written are committed together, and each task gets its own entries."""
    statements: list[str] = []
    connection(gated).set_trace_callback(statements.append)
    session = gated.session(SESSION)
    gate.shut()
    writes = [asyncio.create_task(session.add(turn(str(number)))) for number in range(50)]
    await gate.arrived()

    gate.let(50)
    done = await asyncio.gather(*writes)

    assert set(whole_turns(await session.entries(), ENTRIES_A_TURN)) == {str(number) for number in range(50)}
    assert [entries[0].text for entries in done] == [f"question {number}" for number in range(50)]
    assert 0 < commits(statements) <= 3


# --- cancellation


async def ended(task: asyncio.Task) -> bool:
    """Cancel the task, give it time to end, and return whether it has."""
    task.cancel()
    for _ in range(100):
        await asyncio.sleep(0)
    return task.done()


async def test_an_add_that_has_begun_finishes_whole(gated: AsyncMemory, gate: Gate) -> None:
    """A cancelled add whose write has begun is stored completely before the cancellation is raised."""
    session = gated.session(SESSION)
    gate.shut()
    write = asyncio.create_task(session.add(turn("begun")))
    await gate.arrived()

    assert not await ended(write)
    gate.let()
    with pytest.raises(asyncio.CancelledError):
        await write

    assert set(whole_turns(await session.entries(), ENTRIES_A_TURN)) == {"begun"}


async def test_an_erasure_that_has_begun_finishes(gated: AsyncMemory, gate: Gate) -> None:
    """Cancelling an erasure that is under way waits for it: nothing changes after it has ended."""
    session = gated.session(SESSION)
    await session.add(turn("1"))
    await gate.arrived()
    gate.shut()
    erasure = asyncio.create_task(session.erase([1]))
    await gate.arrived()

    assert not await ended(erasure)
    gate.let()
    with pytest.raises(asyncio.CancelledError):
        await erasure

    assert (await session.entry(1)).erased


async def test_an_add_that_was_cancelled_before_it_began_is_never_written(gated: AsyncMemory, gate: Gate) -> None:
    """An add that still waits for another's write is dropped when cancelled, and no later commit takes it along."""
    session = gated.session(SESSION)
    gate.shut()
    first = asyncio.create_task(session.add(turn("first")))
    await gate.arrived()
    waiting = asyncio.create_task(session.add(turn("waiting")))
    await asyncio.sleep(0)

    assert await ended(waiting)
    gate.let(10)
    await first
    await session.add(turn("later"))

    assert set(whole_turns(await session.entries(), ENTRIES_A_TURN)) == {"first", "later"}


async def test_an_add_that_has_ended_cancelled_is_not_written_afterwards(gated: AsyncMemory, gate: Gate) -> None:
    """After a cancelled add has ended, nothing of it is written later, even if it shared a commit."""
    session = gated.session(SESSION)
    gate.shut()
    first = asyncio.create_task(session.add(turn("first")))
    await gate.arrived()
    second = asyncio.create_task(session.add(turn("second")))
    shared = asyncio.create_task(session.add(turn("shared")))
    await asyncio.sleep(0)
    gate.let()
    await first
    await gate.arrived()  # the second and the shared add are in one transaction now

    over = await ended(shared)
    gate.let(10)
    await second
    await asyncio.gather(shared, return_exceptions=True)
    written = set(whole_turns(await session.entries(), ENTRIES_A_TURN))

    assert not over or "shared" not in written
    assert written in ({"first", "second"}, {"first", "second", "shared"})


async def test_adds_that_are_cancelled_in_a_row_block_nobody(gated: AsyncMemory, gate: Gate) -> None:
    """Any number of cancelled adds leave the memory usable."""
    session = gated.session(SESSION)
    gate.shut()
    doomed = []
    for number in range(4):
        doomed.append(asyncio.create_task(session.add(turn(f"doomed.{number}"))))
        if number == 0:
            await gate.arrived()
        await ended(doomed[-1])
    gate.let(10_000)
    await asyncio.wait_for(asyncio.gather(*doomed, return_exceptions=True), PATIENCE)

    await asyncio.wait_for(session.add(turn("alive")), PATIENCE)

    assert set(whole_turns(await session.entries(), ENTRIES_A_TURN)) == {"doomed.0", "alive"}


@pytest.mark.parametrize("begun", [False, True])
async def test_a_cancelled_scope_waits_for_a_running_write_only(gated: AsyncMemory, gate: Gate, begun: bool) -> None:
    """A cancel scope of anyio waits for a running write and drops one that has not begun."""
    session = gated.session(SESSION)
    gate.shut()
    scope = anyio.CancelScope()

    async def scoped() -> None:
        with scope:
            await session.add(turn("scoped"))

    async with anyio.create_task_group() as tasks:
        if not begun:
            tasks.start_soon(session.add, turn("first"))
            await gate.arrived()
        tasks.start_soon(scoped)
        await (gate.arrived() if begun else asyncio.sleep(0))
        scope.cancel()
        await asyncio.sleep(0)
        gate.let(10_000)

    assert set(whole_turns(await session.entries(), ENTRIES_A_TURN)) == {"scoped" if begun else "first"}


async def test_closing_waits_for_a_write_under_way(tmp_path: Path) -> None:
    """`close` lets a running write finish; later calls raise Closed."""
    gate = Gate()
    memory = AsyncMemory.open(tmp_path / "log.db", clock=gate)
    await memory.connect()
    session = memory.session(SESSION)
    gate.shut()
    write = asyncio.create_task(session.add(turn("last")))
    await gate.arrived()
    closing = asyncio.create_task(memory.close())
    await asyncio.sleep(0)

    gate.let(10)
    await closing

    assert len(await write) == ENTRIES_A_TURN
    with pytest.raises(Closed):
        await session.entries()


# --- events and the other face


async def test_an_asynchronous_handler_is_awaited(memory: AsyncMemory) -> None:
    """When an add returns, the coroutine of its handler has run to its end, in the same loop."""
    heard = []

    async def handler(session: str, facts: dict) -> None:
        await asyncio.sleep(0)
        heard.append((session, facts["entry"].text, asyncio.get_running_loop()))

    memory.on("entry:added", handler)
    await memory.session(SESSION).add_user_message("hello")

    assert heard == [(SESSION, "hello", asyncio.get_running_loop())]


async def test_a_synchronous_memory_works_inside_a_running_loop(tmp_path: Path) -> None:
    """`Memory` may be used from a coroutine: it needs no loop of its own."""
    with Memory.open(tmp_path / "log.db") as memory:
        session = memory.session(SESSION)
        session.add(turn("one"))

        assert len(session.context().messages) == 5


@pytest.fixture
def loops() -> Iterator[list]:
    return []


def test_a_synchronous_memory_awaits_an_asynchronous_handler(tmp_path: Path, loops: list) -> None:
    """`Memory` runs a coroutine handler to its end before the add returns, every time in the same loop."""

    async def handler(session: str, facts: dict) -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    with Memory.open(tmp_path / "log.db") as memory:
        memory.on("entry:added", handler)
        memory.session(SESSION).add_user_message("one")
        memory.session(SESSION).add_user_message("two")

        assert len(loops) == 2
        assert loops[0] is loops[1]


async def test_a_synchronous_memory_inside_a_loop_awaits_an_asynchronous_handler(tmp_path: Path, loops: list) -> None:
    """Called from a running loop, `Memory` runs a coroutine handler in a loop of its own and does not wait for ours."""

    async def handler(session: str, facts: dict) -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    with Memory.open(tmp_path / "log.db") as memory:
        memory.on("entry:added", handler)
        memory.session(SESSION).add_user_message("one")

        assert len(loops) == 1
        assert loops[0] is not asyncio.get_running_loop()


async def test_turns_of_tasks_exclude_each_other(memory: AsyncMemory) -> None:
    """Tasks that hold `turn()` of one session exclude each other, and the loop goes on meanwhile."""

    async def work(number: int) -> None:
        async with memory.session(SESSION).turn() as session:
            await session.add_user_message(f"begin {number}")
            await asyncio.sleep(0)
            await session.add_assistant_message(f"end {number}")

    await asyncio.gather(*(work(number) for number in range(5)))

    texts = [entry.text for entry in await memory.session(SESSION).entries()]
    assert all(end == begin.replace("begin", "end") for begin, end in zip(texts[::2], texts[1::2], strict=True))
    assert len(texts) == 10


# --- what a program loads


def loaded(program: str) -> set[str]:
    """Return the top-level modules that a new Python loads for the program, beyond those of a bare start."""
    script = f"import sys\nbefore = set(sys.modules)\n{program}\nfound = set(sys.modules) - before\n"
    script += "sys.stdout.write(' '.join(sorted({name.partition('.')[0] for name in found})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_loads_msgspec_at_most() -> None:
    """`import palimpsest`, and its names one by one, load the standard library, msgspec and typing_extensions only."""
    alone = loaded("import palimpsest")
    named = loaded("".join(f"from palimpsest{home} import *;" for home in ("", ".errors", ".strategies", ".types")))

    for found in (alone, named):
        foreign = {name for name in found if name not in sys.stdlib_module_names}
        assert foreign <= {"palimpsest", "msgspec", "typing_extensions"}
        assert found.isdisjoint({"sqlite3", "asyncio", "tiktoken", "click", "rich", "simpleeval", "anyio"})


USE: Callable[[str], str] = """
import palimpsest, os, tempfile
with tempfile.TemporaryDirectory() as folder:
    with palimpsest.Memory.open("sqlite:///" + os.path.join(folder, "log.db")) as memory:
        session = memory.session("one", model="gpt-4o", max_tokens=1000)
        session.add_user_message("hello")
        session.add([{{"role": "assistant", "content": "hello"}}])
        session.context()
        {more}
""".format


def test_synchronous_use_starts_no_event_loop() -> None:
    """A synchronous memory on SQLite, with turns, counts and erasures, imports neither asyncio nor anyio."""
    more = "[session.stats(), session.erase([1]), session.export(), session.turn().__enter__().end_turn()]"

    found = loaded(USE(more=more))

    assert "sqlite3" in found
    assert found.isdisjoint({"asyncio", "anyio", "click", "rich", "simpleeval"})


def test_a_context_that_surely_fits_loads_no_vocabulary() -> None:
    """While bounds show that all fits, a context needs no tokenizer; asking for its tokens loads it."""
    assert "tiktoken" not in loaded(USE(more="pass"))
    assert "tiktoken" in loaded(USE(more="session.context().tokens"))
