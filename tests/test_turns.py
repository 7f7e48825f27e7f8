"""A turn gives back its lease whenever it is cut short, and turns of one session wait for each other."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

from agent_process import CALLS, SharedClock, run
from palimpsest import AsyncMemory, ConfigError, Conflict, LockTimeout, Memory, Session
from palimpsest.log.entry import now_us
from palimpsest.runtime.threads import apart
from palimpsest.sessions.adding import gathered
from palimpsest.sessions.lease import Lease
from palimpsest.testing import FakeClock
from processes import Process
from sealed import FIRST, address
from writer import turn

WORLDS = ("memory", "sqlite", "file", "sealed sqlite", "sealed file")
AGENT = Path(__file__).with_name("agent_process.py")
KINDS = ("at once", "when it is done", "again and again")
PATIENCE = 300.0
FEW = 60
"""An upper bound for the number of suspensions in a turn."""


@pytest.fixture(params=WORLDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Address and options of a store of each kind."""
    *sealed, kind = request.param.split()
    where = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/a.db", "file": f"file://{tmp_path}/logs"}[kind]
    durability = {} if kind == "memory" else {"synchronous": "NORMAL"}
    return where, {**durability, **({"encryption": FIRST} if sealed else {})}


class Cancelled:
    """Awaits a coroutine and cancels the awaiting task at the coroutine's `step`-th suspension.

    "when it is done" first lets the store's thread finish what the task waits for, so that only the answer is lost;
    "again and again" cancels at every later suspension as well.
    """

    def __init__(self, memory: AsyncMemory, step: int, how: str) -> None:
        self._memory, self._step, self._how = memory, step, how
        self.reached = False

    def __call__(self, coroutine: Any) -> Cancelled:
        self._inner = coroutine.__await__()
        return self

    def __await__(self) -> Generator[Any, Any, Any]:
        task, sent, thrown = asyncio.current_task(), None, None
        assert task is not None
        for number in itertools.count():
            try:
                yielded = self._inner.throw(thrown) if thrown is not None else self._inner.send(sent)
            except StopIteration as end:
                return end.value
            if number == self._step or (self.reached and self._how == "again and again"):
                self.reached = True
                if self._how == "when it is done":
                    done = threading.Event()
                    self._memory.runner._writer.put(done.set)
                    done.wait()
                task.cancel()
            sent = thrown = None
            try:
                sent = yield yielded
            except BaseException as error:  # noqa: BLE001 (the cancellation is thrown into the coroutine)
                thrown = error
        raise AssertionError


@pytest.mark.sampled
@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("atomic", [False, True])
def test_a_cancelled_turn_gives_its_lease_back(place: tuple[str, dict[str, Any]], how: str, atomic: bool) -> None:
    """A turn that is cancelled at any suspension holds up nobody: the next turn of the session begins at once.

    This holds for the same session object and for another one. The entries of the cancelled turn are stored once and
    whole, or not at all.
    """

    async def one_turn(memory: AsyncMemory, session: Any) -> None:
        async with session.turn(atomic=atomic):
            await session.add(turn("a"))
            await session.add(turn("b"))

    async def rounds() -> int:
        where, options = place
        async with AsyncMemory.open(where, **options) as memory:
            waited = forbidden_to_wait(memory)
            for step in range(FEW):
                session = memory.session(str(step))
                cancelled = Cancelled(memory, step, how)

                async def run(session: Any = session, cancelled: Cancelled = cancelled) -> None:
                    await cancelled(one_turn(memory, session))

                task = asyncio.create_task(run())
                await asyncio.wait([task])
                if not task.cancelled():
                    await task
                if not cancelled.reached:
                    return step
                async with session.turn():
                    pass
                async with memory.session(str(step)).turn():
                    pass
                assert waited == [], f"cancelled at suspension {step}"
                entries = await session.entries()
                assert len(entries) in ((0, 12) if atomic else (0, 6, 12))
        raise AssertionError("a turn has more suspensions than were tried")

    assert asyncio.run(rounds()) >= (1 if atomic else 2)  # an atomic turn makes a single append


def forbidden_to_wait(memory: Memory | AsyncMemory) -> list[float]:
    """Make `turn()` record how long it would wait for another holder instead of waiting; return these times."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    core: Any = getattr(memory, "_core", memory)
    core.runner.sleep = sleep
    return waited


class Struck(Exception):
    """Raised by a signal's handler other than that of Ctrl-C, such as a task queue's time limit."""


class Interrupt:
    """Raises an error at the `step`-th call or return of a C function, where Python handles signals."""

    def __init__(self, step: int, error: type[BaseException]) -> None:
        self._left, self._error = step, error
        self.struck = False

    def __enter__(self) -> Self:
        sys.setprofile(self._at)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _at(self, frame: FrameType, event: str, _: object) -> None:
        if event not in ("call", "c_return") or frame.f_code is Interrupt.__exit__.__code__:
            return
        self._left -= 1
        if self._left < 0 and not self.struck:
            self.struck = True
            sys.setprofile(None)
            raise self._error


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # struck before it began
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # struck where Python tidies up
@pytest.mark.parametrize(
    "place",
    ["memory", "sqlite", *[pytest.param(world, marks=pytest.mark.slow) for world in ("file", *WORLDS[3:])]],
    indirect=True,
)
@pytest.mark.parametrize(("error", "atomic"), [(KeyboardInterrupt, False), (Struck, True)])
@pytest.mark.parametrize("stride", [31, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupted_turn_gives_its_lease_back(
    place: tuple[str, dict[str, Any]], error: type[BaseException], atomic: bool, stride: int
) -> None:
    """If a signal's handler raises at any moment of a synchronous turn, the next turn begins at once.

    The interrupted turn's entries are stored whole or not at all. The quick test takes one moment in 31.
    """
    where, options = place
    with Memory.open(where, **options) as memory:
        waited = forbidden_to_wait(memory)
        interrupted(
            memory, Interrupt(sys.maxsize, error), atomic=atomic
        )  # import everything before the moments are counted
        for step in itertools.count(0, stride):
            interrupt = Interrupt(step, error)
            session = interrupted(memory, interrupt, atomic=atomic)
            if not interrupt.struck:
                break
            with session.turn():
                pass
            with memory.session(session.id).turn():
                pass
            assert waited == [], f"interrupted at call {step}"
            assert len(session.entries()) in (0, 6)

    assert step > 100


def interrupted(memory: Memory, interrupt: Interrupt, *, atomic: bool) -> Session:
    """Run one turn of a new session that `interrupt` strikes."""
    session = memory.session(os.urandom(4).hex())
    try:
        with interrupt, session.turn(atomic=atomic):
            session.add(turn("a"))
    except (KeyboardInterrupt, Struck):
        pass
    except TypeError as fault:  # CPython 3.11 raises this when a profiler raises while a property is entered
        if not interrupt.struck or str(fault) != "'traceback' object is not callable":
            raise
    return session


# --- which turns wait for which


def test_a_turn_is_renewed_while_it_lives(place: tuple[str, dict[str, Any]], clock: FakeClock) -> None:
    """A thread renews the lease of a live turn, even if nothing is added, so that nobody else gets in."""
    where, options = place
    with Memory.open(where, clock=clock, **options) as memory:
        renewals = memory._core._scope.renewals
        with memory.session("s").turn():
            for _ in range(5):
                clock.advance(25)
                renewals.renew()
                with pytest.raises(LockTimeout):
                    apart(enter, memory).result()
        apart(enter, memory).result()


def enter(memory: Memory) -> None:
    """Hold a turn for a moment; raise LockTimeout if somebody else holds it."""
    with memory.session("s").turn(wait=0):
        pass


def test_runs_of_two_agents_in_one_process_do_not_mix(place: tuple[str, dict[str, Any]], tmp_path: Path) -> None:
    """A second agent waits, for minutes if need be, until the first agent's run is over."""
    where, options = place
    clock = SharedClock(tmp_path / "clock")
    with Memory.open(where, clock=clock, **options) as memory:
        runs = [apart(run, memory, name, clock) for name in ("ann", "bob")]
        for each in runs:
            each.result()

        first = memory.session("s").entries()[0].text.split()[0]
        whole_runs(memory.session("s"), ["ann", "bob"] if first == "ann" else ["bob", "ann"])


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["sqlite", "file"])
@pytest.mark.parametrize("sealed", [False, True], ids=["plain", "encrypted"])
def test_runs_of_two_agents_in_two_processes_do_not_mix(kind: str, sealed: bool, tmp_path: Path) -> None:
    """A run in another process, which begins during the first run, is let in when that is over and not before."""
    where, clock = address(kind, tmp_path), SharedClock(tmp_path / "clock")
    with Memory.open(where, clock=clock, encryption=FIRST if sealed else None) as memory, ExitStack() as stack:
        others = []

        def begun() -> None:
            others.append(stack.enter_context(Process("run", where, int(sealed), clock.path, "bob", script=AGENT)))
            assert others[0].hear() == "waits"

        run(memory, "ann", clock, begun)
        assert others[0].end() == ["done"]

        whole_runs(memory.session("s"), ["ann", "bob"])


def whole_runs(session: Session, names: list[str]) -> None:
    """Assert that the runs are in the log one after the other, each whole and as long as its calls took."""
    entries = session.entries()
    said = [(entry.text if entry.kind == "message" else entry.call_id or "").partition("-")[0] for entry in entries]
    each = 2 + 2 * CALLS
    assert [name.split()[0] for name in said] == [name for name in names for _ in range(each)]
    for first in (0, each):
        run_of_one = entries[first : first + each]
        assert run_of_one[-1].at - run_of_one[0].at >= 60_000_000 * (CALLS + 1)
    assert session.verify().problems == ()


def test_a_thread_renews_leases_and_ends_with_the_turns() -> None:
    """A thread renews the leases, even while an event loop is blocked; it ends when no turn is left or at `close`."""
    from threading import Event, current_thread

    renewed = [Event()]
    own = current_thread()
    inside = False

    def clock() -> int:
        if inside and current_thread() is not own:
            renewed[0].set()
        return now_us()

    def wait() -> bool:
        nonlocal inside
        renewed[0], inside = Event(), True
        has_renewed = renewed[0].wait(60)
        inside = False
        return has_renewed

    ended = Event()

    with Memory.open("memory://", clock=clock) as memory:
        renewals = memory._core._scope.renewals
        renewals.seconds = 0.03
        work = renewals._work

        def until_its_end(end: Event) -> None:
            work(end)
            ended.set()

        renewals._work = until_its_end
        with memory.session("s").turn():
            assert wait()
            assert not ended.is_set()
    assert ended.wait(60)

    async def held() -> bool:
        async with AsyncMemory.open("memory://", clock=clock) as memory:
            memory._scope.renewals.seconds = 0.03
            async with memory.session("s").turn():
                return wait()  # this blocks the loop

    assert asyncio.run(held())


def test_a_lost_turn_is_logged_once(caplog: pytest.LogCaptureFixture, clock: FakeClock) -> None:
    """If a process stands still for longer than its lease and another turn begins, the log says so, once."""
    with Memory.open("memory://", clock=clock) as memory, memory.session("s").turn():
        clock.advance(31)
        apart(enter, memory).result()

        memory._core._scope.renewals.renew()
        memory._core._scope.renewals.renew()

    assert [record.message for record in caplog.records if "taken over" in record.message] == [
        "the turn of a session was not renewed in time, and was taken over by another task or process"
    ]


def test_a_lost_turn_adds_nothing(place: tuple[str, dict[str, Any]], clock: FakeClock) -> None:
    """A turn that was taken over raises Conflict at the next add; an expired one that nobody took goes on."""
    where, options = place
    with Memory.open(where, clock=clock, **options) as memory:
        first = memory.session("s")
        with first.turn():
            first.add_user_message("one")
            clock.advance(31)
            first.add_assistant_message("two")
            with pytest.raises(LockTimeout):
                apart(enter, memory).result()
            clock.advance(31)
            apart(enter, memory).result()
            with pytest.raises(
                Conflict,
                match=r"the turn of session 's': was not renewed in time, and was taken over .* begin a new one",
            ):
                first.add_assistant_message("late")

        assert [entry.text for entry in first.entries()] == ["one", "two"]
        with first.turn():
            first.add_user_message("again")


def test_a_turn_inside_a_turn_is_refused() -> None:
    """A thread or task cannot begin a turn inside its own turn of the same session, through whatever object."""
    with Memory.open("memory://") as memory, memory.session("s").turn():
        with pytest.raises(ConfigError, match="turn inside a turn"), memory.session("s").turn():
            raise AssertionError("it would wait for ever")
        with memory.session("another").turn():
            pass

    async def tasks() -> list[str]:
        said: list[str] = []
        async with AsyncMemory.open("memory://") as memory:

            async def run(name: str) -> None:
                async with memory.session("s").turn():
                    said.append(f"begin {name}")
                    await asyncio.sleep(0)
                    said.append(f"end {name}")

            await asyncio.gather(run("one"), run("two"))
            async with memory.session("s").turn():
                with pytest.raises(ConfigError, match="turn inside a turn"):
                    await run("three")
        return said

    said = asyncio.run(tasks())
    assert sorted(said) == ["begin one", "begin two", "end one", "end two"]
    assert [one.split()[0] for one in said] == ["begin", "end", "begin", "end"]


def runs_are_whole(texts: list[str]) -> bool:
    """Whether each run's end stands directly behind its beginning."""
    return [one.removeprefix("begin ") for one in texts[::2]] == [one.removeprefix("end ") for one in texts[1::2]]


@pytest.mark.parametrize("atomic", [False, True])
def test_threads_that_share_a_session_take_turns(place: tuple[str, dict[str, Any]], atomic: bool) -> None:
    """Threads that share one session object wait for each other's turns to end."""
    where, options = place
    with Memory.open(where, **options) as memory:
        chat, start = memory.session("s"), threading.Barrier(4)

        def work(name: int) -> None:
            start.wait(PATIENCE)
            for i in range(5):
                with chat.turn(atomic=atomic):
                    chat.add_user_message(f"begin {name} {i}")
                    chat.add_assistant_message(f"end {name} {i}")

        for done in [apart(work, name) for name in range(4)]:
            done.result(PATIENCE)

        texts = [entry.text for entry in chat.entries()]
        assert len(texts) == 40
        assert runs_are_whole(texts)
        with chat.turn(wait=0):  # no lease is left behind
            assert memory.session("s").entries() != []


@pytest.mark.parametrize("atomic", [False, True])
def test_tasks_that_share_a_session_take_turns(place: tuple[str, dict[str, Any]], atomic: bool) -> None:
    """Tasks that share one session object wait for each other's turns, even if their turns also open the store."""
    where, options = place

    async def work() -> list[str]:
        memory = AsyncMemory.open(where, **options)
        chat = memory.session("s")

        async def one(name: int) -> None:
            for i in range(5):
                async with chat.turn(atomic=atomic):
                    await chat.add_user_message(f"begin {name} {i}")
                    await asyncio.sleep(0)
                    await chat.add_assistant_message(f"end {name} {i}")

        await asyncio.wait_for(asyncio.gather(*map(one, range(4))), PATIENCE)
        async with chat.turn(wait=0):
            texts = [entry.text for entry in await memory.session("s").entries()]
        await memory.close()
        return texts

    texts = asyncio.run(work())

    assert len(texts) == 40
    assert runs_are_whole(texts)


def test_waiting_for_a_turn_does_not_end_the_running_one() -> None:
    """A waiting task waits no longer than `wait`; neither that nor its cancellation ends the turn of the holder."""

    async def work() -> tuple[int, bool]:
        async with AsyncMemory.open("memory://") as memory:
            chat, waits = memory.session("s"), asyncio.Event()

            async def impatient() -> None:
                with pytest.raises(LockTimeout, match="the turn of session 's'"):
                    async with chat.turn(wait=0):
                        raise AssertionError("it is another's")
                waits.set()
                async with chat.turn(atomic=True):
                    raise AssertionError("it is another's")

            began, goes_on = asyncio.Event(), asyncio.Event()

            async def first() -> bool:
                async with chat.turn(atomic=True):
                    await chat.add_user_message("one")
                    began.set()
                    await goes_on.wait()
                    await chat.add_assistant_message("two")
                    return chat.in_atomic_turn

            doing = asyncio.create_task(first())
            await began.wait()
            other = asyncio.create_task(impatient())
            await waits.wait()
            await asyncio.sleep(0)
            other.cancel()
            with pytest.raises(asyncio.CancelledError):
                await other
            goes_on.set()
            kept = await doing
            return len(await chat.entries()), kept

    assert asyncio.run(work()) == (2, True)


def test_a_task_that_a_turn_awaits_counts_as_inside_it() -> None:
    """A task that a turn awaits may not begin a turn of that session: it would wait for ever, so it is refused."""

    async def work() -> None:
        async with AsyncMemory.open("memory://") as memory:
            chat, over = memory.session("s"), asyncio.Event()

            async def begun_early() -> None:
                await over.wait()
                async with memory.session("s").turn():
                    pass

            async def inner() -> None:
                with pytest.raises(ConfigError, match="turn inside a turn"):
                    async with chat.turn():
                        raise AssertionError("it would wait for ever")

            async def through_another() -> None:
                with pytest.raises(ConfigError, match="turn inside a turn"):
                    async with memory.session("s").turn():
                        raise AssertionError("it would wait for ever")
                async with memory.session("another").turn():
                    pass

            async with chat.turn():
                await asyncio.wait_for(asyncio.gather(inner(), inner(), through_another(), through_another()), 30)
                late = asyncio.create_task(begun_early())
                await asyncio.sleep(0)
            over.set()
            await late
            async with chat.turn():  # nothing is left of the earlier turn
                pass

    asyncio.run(work())


@pytest.mark.parametrize("wait", [-1, "5", True, float("nan")])
def test_an_invalid_wait_for_a_turn_is_refused(wait: Any) -> None:
    """`wait` has to be a number of seconds of at least 0, False, or None."""
    with Memory.open("memory://") as memory, pytest.raises(ConfigError, match="wait"):
        memory.session("s").turn(wait=wait)


@pytest.mark.parametrize("wait", [0, False])
def test_a_turn_that_does_not_wait_is_refused_at_once(place: tuple[str, dict[str, Any]], wait: Any) -> None:
    """With `wait=0` or False, a turn is refused while another one lives, and begins when that is over."""
    where, options = place
    with Memory.open(where, **options) as memory, turn_held_by_a_thread(memory) as over:
        with pytest.raises(LockTimeout), memory.session("s").turn(wait=wait):
            raise AssertionError("the other one lives")

        over()
        with memory.session("s").turn(wait=wait) as chat:
            chat.add_user_message("mine")
        assert [entry.text for entry in chat.entries()] == ["theirs", "mine"]


@contextmanager
def turn_held_by_a_thread(memory: Memory) -> Iterator[Callable[[], None]]:
    """Hold a turn in another thread until the yielded function is called or the block ends."""
    begun, end = threading.Event(), threading.Event()

    def hold() -> None:
        with memory.session("s").turn() as chat:
            chat.add_user_message("theirs")
            begun.set()
            end.wait()

    thread = threading.Thread(target=hold)

    def over() -> None:
        end.set()
        thread.join()

    thread.start()
    try:
        begun.wait()
        yield over
    finally:
        over()


def test_an_add_beside_a_waiting_turn_belongs_to_no_turn(clock: FakeClock) -> None:
    """A plain add by a session whose turn is still waiting neither waits nor fails, however long the wait."""
    with Memory.open("memory://", clock=clock) as memory:
        chat = memory.session("s")
        core: Any = memory._core
        sleep = core.runner.sleep

        async def adds_meanwhile(seconds: float) -> None:
            core.runner.sleep = sleep
            clock.advance(3600)  # now every lease taken before has expired
            chat.add_user_message("beside it")

        core.runner.sleep = adds_meanwhile
        with memory.session("s").turn():
            apart(_turn_of, chat).result(PATIENCE)

        assert [entry.text for entry in chat.entries()] == ["beside it", "in its turn"]


def _turn_of(chat: Session) -> None:
    with chat.turn():
        chat.add_user_message("in its turn")


@pytest.mark.parametrize("face", ["sync", "async"])
def test_closing_inside_a_turn_gives_its_lease_back(
    place: tuple[str, dict[str, Any]], face: str, clock: FakeClock
) -> None:
    """`close` inside a turn gives back its lease, and the end of the block does not hide the error raised in it."""
    where, options = place
    if where.startswith("memory:"):
        pytest.skip("what is in memory is gone with the memory that is closed")

    def left() -> None:
        memory = Memory.open(where, clock=clock, **options)
        with memory.session("s").turn() as session:
            session.add_user_message("one")
            memory.close()
            raise RuntimeError("stopped")

    async def left_behind() -> None:
        memory = AsyncMemory.open(where, clock=clock, **options)
        async with memory.session("s").turn() as session:
            await session.add_user_message("one")
            await memory.close()
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        left() if face == "sync" else asyncio.run(left_behind())
    with Memory.open(where, clock=clock, **options) as memory, memory.session("s").turn(wait=0) as session:
        session.add_user_message("two")
        assert len(session.entries()) == 2


def answer(id: str) -> dict[str, Any]:
    """Return a response of OpenAI's with its usage."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": f"answer {id}"}}
    usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
    return {"id": id, "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def calls(session: Session) -> int:
    """Return for how many calls of the model the session has recorded usage."""
    usage = session.stats().usage
    return usage.calls if usage is not None else 0


def test_an_atomic_turn_that_raises_records_no_usage(memory: Memory) -> None:
    """An atomic turn that raises stores nothing, not even the usage of its answers."""
    session = memory.session("new")
    with suppress(ZeroDivisionError), session.turn(atomic=True):
        session.add(answer("a"))
        raise ZeroDivisionError
    assert memory.sessions() == []


def test_an_atomic_turn_records_the_usage_of_new_answers(memory: Memory) -> None:
    """An atomic turn records the usage of new answers only; for a repeated key it was recorded the first time."""
    session = memory.session("s")
    session.add(answer("a"), key="a")
    session.add(answer("b"), key="b")
    with session.turn(atomic=True):
        session.add(answer("a"), key="a")
        session.add_user_message("And now?")
        session.add(answer("c"), key="c")
    assert calls(session) == 3
    with session.turn(atomic=True):
        session.add(answer("b"), key="b")
    assert calls(session) == 3


def said_by_claude(text: str) -> dict[str, Any]:
    """Return an answer of Anthropic's with its usage."""
    content = [{"type": "text", "text": text}, {"type": "text", "text": "So it is."}]
    usage = {"input_tokens": 10, "output_tokens": 1}
    return {"type": "message", "role": "assistant", "model": "m", "content": content, "usage": usage}


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("says", [answer, said_by_claude])
def test_a_growing_batch_records_each_usage_once(memory: Memory, says: Callable[[str], Any], atomic: bool) -> None:
    """Under a key, an answer's usage is recorded when its entries are new, however often the whole list is added."""
    session, given = memory.session("s"), list[Any]()
    for number in (1, 2, 3):
        given += [{"role": "user", "content": f"question {number}"}, says(f"a{number}")]
        with session.turn(atomic=atomic):
            session.add(given, key="run")
        assert (calls(session), session.stats().usage.total_input) == (number, 10 * number)


def test_a_growing_batch_in_an_atomic_turn_records_each_usage_once(memory: Memory) -> None:
    """Inside an atomic turn, an answer already in an earlier batch of its key is not new; one without a key is."""
    session, given = memory.session("s"), list[Any]()
    with session.turn(atomic=True):
        for number in (1, 2, 3):
            given += [{"role": "user", "content": f"question {number}"}, answer(f"a{number}")]
            session.add(given, key="run")
        session.add(answer("b"))
    assert calls(session) == 4


@pytest.mark.anyio
async def test_usage_of_a_known_batch_is_not_recorded_again_beside_other_adds() -> None:
    """Entries that other tasks add at the same time do not make the usage of a known batch count again."""
    async with AsyncMemory.open("memory://") as memory:
        session = memory.session("s")
        await session.add(answer("a"), key="a")
        await session.add(answer("b"), key="b")
        for _ in range(5):
            again = session.add(answer("a"), key="a"), session.add_user_message("Hello")
            await asyncio.gather(*again, session.add(answer("b"), key="b"))
        assert (await session.stats()).usage.calls == 2


@pytest.mark.parametrize("ends", ["well", "raises"])
@pytest.mark.parametrize("first", [True, False])
def test_an_add_that_races_with_the_end_of_an_atomic_turn_is_stored(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, ends: str, first: bool
) -> None:
    """An add that found an atomic turn open and comes too late for it is stored on its own, once."""
    session = memory.session("s")
    session.add_user_message("before")
    turns = session.turn(atomic=True)
    take = gathered.TurnBuffer.take

    def late(buffer: gathered.TurnBuffer, *given: Any, **more: Any) -> Any:
        monkeypatch.setattr(gathered.TurnBuffer, "take", take)
        with suppress(ZeroDivisionError):
            turns.__exit__(*((None, None, None) if ends == "well" else _raised()))
        return take(buffer, *given, **more)

    turns.__enter__()
    if not first:
        session.add_user_message("in it")
    monkeypatch.setattr(gathered.TurnBuffer, "take", late)
    session.add(answer("late"))

    stays = [] if first or ends == "raises" else ["in it"]
    assert [entry.text for entry in session.entries()] == ["before", *stays, "answer late"]
    assert calls(session) == 1


def _raised() -> tuple[Any, Any, Any]:
    """Return the arguments of `__exit__` for an error raised in the block."""
    fault = ZeroDivisionError()
    return type(fault), fault, None


def test_an_atomic_turn_stores_entries_as_they_were_when_added(memory: Memory) -> None:
    """An atomic turn stores entries as they were at the add, whatever the caller changes in its objects afterwards."""
    session, metadata, said = memory.session("s"), dict[str, Any](tags=["a"]), dict[str, Any](role="user", content="x")
    said["content"] = [{"type": "text", "text": "Hello", "cache": {"for": 1}}]
    beside = {"role": "user", "content": "Hello", "extra": {"for": 1}}
    with session.turn(atomic=True):
        added = [session.add_user_message("Hello", metadata=metadata), *session.add([said, beside])]
        metadata["tags"].append(object())
        said["content"][0]["cache"]["for"] = beside["extra"]["for"] = object()
        for entry in added:
            (entry.metadata or {})["more"] = object()

    first, *others = session.entries()
    assert first.metadata == {"tags": ["a"]}
    assert len(others) == 2
    assert session.messages()[1:] == [_cached(1), {"role": "user", "content": "Hello", "extra": {"for": 1}}]


def _cached(value: object) -> dict[str, Any]:
    """Return a message with a key that only its provider knows."""
    return {"role": "user", "content": [{"type": "text", "text": "Hello", "cache": {"for": value}}]}


async def _hold_until_another_waits(memory: AsyncMemory) -> list[tuple[str, dict[str, Any]]]:
    """Have one session object hold a turn until another one waits for it; return what the memory told of waits."""
    told: list[tuple[str, dict[str, Any]]] = []
    memory.on("lock:waited", lambda session, facts: told.append((session, facts)))
    loop, held, waits = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    try_to_take = Lease.try_to_take

    async def watched(lease: Lease) -> bool:
        taken = await try_to_take(lease)
        if not taken:
            loop.call_soon_threadsafe(waits.set)
        return taken

    async def second() -> None:
        await held.wait()
        async with memory.session("s").turn():
            pass

    Lease.try_to_take = watched  # type: ignore[method-assign]
    waiting = asyncio.create_task(second())  # begun outside of the turn, which may not wait for a turn inside it
    try:
        async with memory.session("s").turn():
            held.set()
            await waits.wait()
        await waiting
    finally:
        Lease.try_to_take = try_to_take  # type: ignore[method-assign]
    return told


def test_observers_hear_how_long_a_turn_was_waited_for() -> None:
    """`lock:waited` says which lock was waited for, and for how many seconds; who waits for nobody is not told of."""

    async def run() -> list[tuple[str, dict[str, Any]]]:
        async with AsyncMemory.open("memory://") as memory:
            return await _hold_until_another_waits(memory)

    ((session, facts),) = asyncio.run(run())

    assert (session, facts["lock"]) == ("s", "turn")
    assert facts["seconds"] > 0
