"""Sessions over a store whose asynchronous driver really suspends: the same in both classes, also when interrupted."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from palimpsest import AsyncMemory, Memory, StoreUnavailable
from palimpsest.errors import Closed, LockTimeout
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.runtime.runner import drive
from palimpsest.runtime.threads import Suspended, apart, outcome
from palimpsest.stores import Store
from palimpsest.stores.backend import Backend
from palimpsest.stores.bridged import BridgedBackend
from palimpsest.stores.wrappers import PassThrough
from palimpsest.strategies import MaxTokens, Summarize
from palimpsest.testing import FakeClock
from processes import at_once
from sealed import FIRST
from suspending import PATIENCE, TURNS, Hold, Moment, SuspendingBackend
from talks import as_it_is
from writer import quarters

WHERE = "suspending://"
POLICY = {"non_persistable_message_types": ["secret"]}


# --- what a session does, told in plain values


def chat(number: int) -> list[dict[str, Any]]:
    """Return one interaction."""
    return [
        {"role": "user", "content": f"question {number} " * 12},
        {"role": "assistant", "content": f"answer {number} " * 12},
    ]


async def played(memory: Any, on: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """Use everything that a session offers and return what came of it; `on` awaits what a verb returned."""
    told: list[Any] = []
    options: dict[str, Any] = {"max_tokens": 900, "counter": quarters}
    session = memory.session("one", summarizer=as_it_is(lambda _: "They asked and were answered [1]."), **options)
    for number in range(30):
        await on(session.add(chat(number)))
    told.append((await on(session.context())).messages)
    told.append(await on(session.add_tool_call("look", {"at": 1}, call_id="c1")))
    await on(session.add_tool_result("look", "found " * 30, call_id="c1"))
    past = await on(session.context())
    told += [past.messages, (await on(session.compact())).tokens_after]
    await on(session.compact({"strategy": "summarizer", "interaction_keep": 2, "cod_max_loops": 0}))
    told.append([summary.covers for summary in await on(session.summaries())])
    told.append((await on(session.context())).messages)
    await on(session.pin(3))
    told.append((await on(session.erase([1, 2]))).entries)
    told.append((await on(session.context(at=past.revision))).revision)
    branch = await on(session.fork("two"))
    await on(branch.add_user_message("in the branch"))
    told += [await on(branch.rewind(10)), len((await on(branch.context())).messages)]
    told += [await on(session.context(format="anthropic", dry_run=True, max_tokens=600)), await on(session.stats())]
    await on(memory.import_session(await on(session.export()), session_id="three"))
    told.append((await on(memory.forget(matches="question 7"))).entries)
    told += [(await on(session.verify())).problems, await on(memory.sessions()), await on(memory.sweep())]
    await on(memory.delete_session("three"))
    return [plain(one) for one in told]


def plain(one: Any) -> Any:
    """Return what is the same in two runs."""
    if isinstance(one, list | tuple):
        return [plain(each) for each in one]
    for name in ("messages", "text", "session"):
        if hasattr(one, name):
            return plain(getattr(one, name))
    if isinstance(one, dict):
        return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", json.dumps(one))
    return one if isinstance(one, str | int) else type(one).__name__


async def awaited(verb: Any) -> Any:
    return await verb if inspect.isawaitable(verb) else verb


async def under_a_loop(where: str, play: Callable[..., Awaitable[Any]], **options: Any) -> Any:
    async with AsyncMemory.open(where, clock=FakeClock(), **options) as memory:
        return await play(memory, awaited)


def without_a_loop(where: str, play: Callable[..., Any], **options: Any) -> Any:
    with Memory.open(where, clock=FakeClock(), **options) as memory:
        return drive(play(memory, awaited))


async def inside_a_loop(where: str, play: Callable[..., Awaitable[Any]], **options: Any) -> Any:
    with Memory.open(where, clock=FakeClock(), **options) as memory:
        return await play(memory, awaited)


FACES: dict[str, Callable[..., Any]] = {
    "AsyncMemory": lambda *given, **named: asyncio.run(under_a_loop(*given, **named)),
    "Memory": without_a_loop,
    "Memory in a loop": lambda *given, **named: asyncio.run(inside_a_loop(*given, **named)),
}


@pytest.fixture(params=FACES)
def face(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Runs something over a store in one of the two classes."""
    return FACES[request.param]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "options", [{}, {"encryption": FIRST}, {"privacy": "default"}], ids=["plain", "keys", "policy"]
)
def test_a_session_over_a_suspending_driver_works_like_any_other(
    face: Callable[..., Any], options: dict[str, Any]
) -> None:
    """Adding, contexts with cuts, compaction, erasure, branches, rewinding, exports, contexts of then: all of it comes
    out over a driver that suspends as it does over a store of blocking functions."""
    expected = without_a_loop("memory://", played, **options)

    told = face(WHERE, played, **options)

    assert told == expected


def test_tasks_that_share_withheld_entries_wait_for_each_other() -> None:
    """Tasks that take over others' additions to a session with withheld entries wait for each other, not the loop."""

    async def play() -> list[int]:
        async with AsyncMemory.open(WHERE, privacy=POLICY) as memory:
            session = memory.session("one", counter=quarters)
            await session.add_user_message("hidden 0", metadata={"type": "secret"})
            await Store(below(memory)).append(SessionKey("default", "one"), [Entry(content="first")])  # of others
            reading = below(memory).hold("read", "before")
            second = asyncio.create_task(session.add_user_message("second"))
            await reading.reached()  # what was added before it
            third = asyncio.create_task(session.add_user_message("hidden 1", metadata={"type": "secret"}))
            for _ in range(TURNS):
                await asyncio.sleep(0)
            reading.let_go()
            await asyncio.gather(second, third)
            text = str((await session.context()).messages)
            return [text.count(each) for each in ("hidden 0", "first", "second", "hidden 1")]

    assert outcome(apart(asyncio.run, play()), PATIENCE) == [1] * 4


def test_background_compactions_run_over_a_driver(face: Callable[..., Any]) -> None:
    """A background compaction runs beside its session, and closing waits for it."""
    heard: list[str] = []

    async def play(memory: Any, on: Callable[[Any], Awaitable[Any]]) -> None:
        memory.on("compressed", lambda session, _: heard.append(session))
        summarizer = as_it_is(lambda _: "They asked and were answered [1].")
        long_term = {"strategy": "summarizer", "interaction_keep": 2, "max_entries": 6, "cod_max_loops": 0}
        session = memory.session(
            "one", long_term=long_term, summarizer=summarizer, auto_compact="background", counter=quarters
        )
        for number in range(8):
            await on(session.add(chat(number)))

    face(WHERE, play)

    assert set(heard) == {"one"}


# --- one loop


def test_every_verb_of_the_seam_is_bridged() -> None:
    """The bridge passes on every verb of a backend except those that decide where work runs."""
    verbs = {name for name, _ in inspect.getmembers(Backend, inspect.iscoroutinefunction)}

    assert verbs - {"together", "surely"} <= vars(BridgedBackend).keys() | vars(PassThrough).keys()


def test_threads_that_share_a_memory_share_its_loop() -> None:
    """A driver belongs to one event loop: verbs of all threads, and of the background, go to the same."""
    with Memory.open(WHERE) as memory:

        def work(number: int) -> None:
            for turn in range(5):
                memory.session(f"{number % 2}").add_user_message(f"{number}.{turn}")

        at_once(work, 4)

        assert [len(memory.session(name).entries()) for name in "01"] == [10, 10]


def test_a_turn_is_renewed_on_the_loop_that_took_it() -> None:
    """The thread that renews leases has the driver's verb run on the loop to which the driver belongs."""

    async def play() -> None:
        clock = FakeClock()
        async with AsyncMemory.open(WHERE, clock=clock) as memory, memory.session("s").turn():
            for _ in range(3):
                clock.advance(25)
                await asyncio.to_thread(memory._scope.renewals.renew)

            async def enter() -> None:
                async with memory.session("s").turn(wait=0):
                    pass

            with pytest.raises(LockTimeout):
                await asyncio.create_task(enter())

    asyncio.run(play())


def test_a_synchronous_call_on_the_drivers_loop_is_refused() -> None:
    """A handler on the driver's loop may not make a synchronous call, which would wait for itself."""
    with Memory.open(WHERE) as memory:
        faults: list[BaseException] = []

        async def handler(session: str, _: object) -> None:
            try:
                memory.session(session).entries()
            except Suspended as fault:
                faults.append(fault)

        memory.on("entry:added", handler)
        memory.session("one").add_user_message("hello")

        assert "AsyncMemory" in str(faults[0])


# --- interrupted, cancelled, given up


def below(memory: Memory | AsyncMemory) -> SuspendingBackend:
    """Return the suspending backend of a memory."""
    backend = memory.store.backend
    found = backend.below if isinstance(backend, BridgedBackend) else backend
    assert isinstance(found, SuspendingBackend)
    return found


@contextmanager
def interrupting(hold: Hold) -> Iterator[None]:
    """Raise KeyboardInterrupt when the verb stands still."""
    main = threading.main_thread().ident
    assert main is not None

    def press() -> None:
        if hold.arrived.wait(PATIENCE):
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    yield
    thread.join(PATIENCE)


MOMENTS: tuple[Moment, ...] = ("before", "after")


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("verb", ["append", "commit", "read", "lease"])
def test_ctrl_c_ends_a_verb_that_waits(verb: str, moment: Moment) -> None:
    """Ctrl-C cancels the driver's verb before it is raised; the verb is done whole or not at all, and the memory goes
    on."""
    with Memory.open(WHERE) as memory:
        session = memory.session("one", max_tokens=900, counter=quarters)
        for number in range(30):
            session.add(chat(number))
        hold = below(memory).hold(verb, moment)

        def work() -> None:
            with session.turn():
                session.add_user_message("perhaps")
                session.context()

        with interrupting(hold), pytest.raises(KeyboardInterrupt):
            work()

        assert hold.cancelled.is_set()
        session.add_user_message("afterwards")
        texts = [entry.text for entry in session.entries()]
        assert texts[60:] in (["perhaps", "afterwards"], ["afterwards"])
        assert len(session.context().messages) < 60
        assert session.verify().problems == ()


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("verb", ["append", "commit", "read", "lease"])
def test_cancelling_a_task_cancels_its_drivers_verb(verb: str, moment: Moment) -> None:
    """Cancelling a task cancels its driver's verb, which is done whole or not at all; other tasks go on."""

    async def play() -> None:
        async with AsyncMemory.open(WHERE) as memory:
            session = memory.session("one", max_tokens=900, counter=quarters)
            for number in range(30):
                await session.add(chat(number))
            hold = below(memory).hold(verb, moment)

            async def work() -> None:
                async with session.turn():
                    await session.add_user_message("perhaps")
                    await session.context()

            task = asyncio.create_task(work())
            await hold.reached()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

            assert hold.cancelled.is_set()
            await session.add_user_message("afterwards")
            texts = [entry.text for entry in await session.entries()]
            assert texts[60:] in (["perhaps", "afterwards"], ["afterwards"])
            assert len((await session.context()).messages) < 60
            assert (await session.verify()).problems == ()

    asyncio.run(play())


def test_a_verb_cancelled_by_its_driver_raises_store_unavailable() -> None:
    """If a driver cancels a verb by itself, the caller gets StoreUnavailable and may try again."""
    with Memory.open(WHERE) as memory:
        session = memory.session("one")
        below(memory).refuse("append")

        with pytest.raises(StoreUnavailable, match="try again"):
            session.add_user_message("one")

        assert session.add_user_message("two").text == "two"


@pytest.mark.parametrize(
    "verb",
    [Store.scrub, lambda store: store.clear_items("t"), lambda store: store.sweep("t", 0)],
    ids=["scrub", "clear_items", "sweep"],
)
def test_rarely_needed_modules_are_loaded_beside_the_loop(verb: Callable[[Store], Awaitable[Any]]) -> None:
    """Whichever verb first needs a rarely used part of a store, a thread imports it, not the loop."""
    beside = list[str]()

    class Noting(SuspendingBackend):
        async def apart(self, function: Callable[..., Any], *arguments: Any) -> Any:
            beside.extend(one for one in arguments if isinstance(one, str))
            return await super().apart(function, *arguments)

    asyncio.run(awaited(verb(Store(Noting()))))

    assert beside == ["_maintenance"]


def test_closing_ends_the_loop_after_the_driver(caplog: pytest.LogCaptureFixture) -> None:
    """`close` has the driver close on its own loop, then lets go of that; afterwards verbs raise Closed."""
    memory = Memory.open(WHERE)
    session = memory.session("one")
    session.add_user_message("hello")
    store = below(memory)
    before = threading.active_count()

    memory.close()
    memory.close()

    assert store.calls[-1] == "close"
    assert store.calls.count("close") == 1
    assert not memory.store.left_open
    assert threading.active_count() <= before
    assert caplog.records == []
    with pytest.raises(Closed):
        session.entries()


FORKING = """
import os, sys
import suspending
from palimpsest import Memory
from palimpsest.errors import ForkedProcess
memory = Memory.open("suspending://")
session = memory.session("one")
session.add_user_message("parent")
child = os.fork()
if not child:
    code = 1
    try:
        session.entries()
    except ForkedProcess as fault:
        code = 2
        memory.close()
        with Memory.open("suspending://") as own:
            own.session("one").add_user_message("child")
            code = 3 if [e.text for e in own.session("one").entries()] == ["child"] else 4
    os._exit(code)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
session.add_user_message("after")
assert [entry.text for entry in session.entries()] == ["parent", "after"]
memory.close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no fork")
def test_a_forked_child_opens_its_own_memory() -> None:
    """In a forked child the inherited memory raises ForkedProcess at once, and a memory of its own works."""
    script = f"import sys\nsys.path[:] = {sys.path!r}\n{FORKING}"

    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", script], check=True, timeout=PATIENCE)


# --- what is slow and waits for nothing


@pytest.mark.parametrize("where", [WHERE, "memory://"])
@pytest.mark.parametrize("exact", [False, True])
def test_counting_and_planning_never_hold_up_the_loop(where: str, exact: bool) -> None:
    """Under an event loop counters and planning run in threads, and no verb of a driver leaves the loop."""

    async def play() -> None:
        own = threading.get_ident()
        threads: set[int] = set()

        def counter(text: str) -> int:
            threads.add(threading.get_ident())
            return quarters(text)

        class Planning(Summarize):
            def plan(self, snapshot: Any) -> Any:
                threads.add(threading.get_ident())
                return super().plan(snapshot)

        async with AsyncMemory.open(where) as memory:
            summarizer = as_it_is(lambda _: "They asked and were answered [1].")
            session = memory.session(
                "one",
                max_tokens=900,
                counter=counter,
                summarizer=summarizer,
                **({"short_term": MaxTokens(memory_max_tokens=800, gap="skip")} if exact else {}),
            )
            for number in range(30):
                await session.add(chat(number))
            await session.context(system="be kind", tools=[{"type": "function", "function": {"name": "look"}}])
            assert threads

            await session.compact(Planning(interaction_keep=2))
            await session.compact({"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0})
            await session.add(chat(31))
            await session.compact({"strategy": "summarizer", "interaction_keep": 0, "cod_max_loops": 2})
            await session.context()

            assert own not in threads

    asyncio.run(play())
