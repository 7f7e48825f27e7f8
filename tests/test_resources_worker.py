"""A worker over declared memories: what it compacts, how workers share the work, what they read, how they stop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from backend_reads import watched
from on_servers import KINDS
from palimpsest import ConfigError, Memory
from palimpsest.resources import AsyncResources, Worked
from palimpsest.resources.claims import Claims
from palimpsest.resources.workplace import TAKEN
from palimpsest.stores.backend import Step
from palimpsest.stores.copying import copy_store
from palimpsest.strategies import CallableSummarizer, Plan, Snapshot, Summarize
from palimpsest.testing import FakeClock
from talks import Scripted
from worker_process import declared, said
from writer import quarters

pytestmark = pytest.mark.anyio

FEW, MANY = 2, 6
"""Numbers of interactions below the trigger and above it."""


@pytest.fixture(
    params=[
        "sqlite",
        *(pytest.param(kind, marks=pytest.mark.wide) for kind in ("postgres", "redis")),
        pytest.param("mongodb", marks=pytest.mark.slow),
    ]
)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the address of an empty store that several processes can open."""
    return f"sqlite:///{tmp_path}/a.db" if request.param == "sqlite" else KINDS[request.param].address_of("worker")


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Return the address of a store in a file."""
    return f"sqlite:///{tmp_path}/a.db"


@asynccontextmanager
async def opened(where: str, clock: FakeClock | None = None, **more: Any) -> AsyncIterator[AsyncResources]:
    """Open the declared memory with this store."""
    options = {"clock": clock} if clock is not None else {}
    async with AsyncResources.load(declared(where, **more), **options) as resources:
        yield resources


async def fill(resources: AsyncResources, *keys: str, turns: int = MANY, start: int = 0) -> None:
    """Add so many interactions under each key."""
    for key in keys:
        session = resources.session({"id": "chat", "key": key}, counter=quarters)
        await session.add([one for number in range(start, start + turns) for one in said(key, number)])


def summarizing(*answers: str) -> dict[str, Any]:
    """Return options of a worker whose summarizer gives these answers."""
    return {"summarizer": Scripted(*(answers or ["a summary"])), "counter": quarters}


async def summaries(resources: AsyncResources, key: str) -> int:
    """Return how many versions of a summary a session has had."""
    return len(await resources.session({"id": "chat", "key": key}, counter=quarters).summaries(history=True))


async def test_a_worker_compacts_what_is_due_once(where: str) -> None:
    """A worker compacts each due session once and reports it; sessions of other memories and backups are left alone."""
    told = list[Worked]()
    async with opened(where) as resources:
        await fill(resources, "many", turns=MANY)
        await fill(resources, "few", turns=FEW)
        memory = resources.memory("chat")
        for other in ("plain", "default/chat/~0123", "default/chats/many"):
            await memory.session(other).add([one for number in range(MANY) for one in said("x", number)])

        worker = resources.worker(told=told.append, **summarizing())
        first, second = await worker.once(), await worker.once()

        assert (first.compacted, first.looked, first.listed, first.failed) == (1, 2, 5, 0)
        assert (second.compacted, second.looked, second.rounds) == (0, 0, 1)
        (one,) = told
        assert (one.duty, one.session, one.memory, one.tenant) == ("compact", "default/chat/many", "chat", "default")
        assert (one.reason, one.strategy, one.covered) == (None, "summarizer", 2 * (MANY - 1))
        assert one.tokens_before > one.tokens_after > 0
        assert await summaries(resources, "many") == 1
        assert await memory.session("plain").summaries(history=True) == []


async def test_a_worker_passes_over_damaged_sessions(file: str) -> None:
    """A worker goes on to other sessions if it cannot read any of those that it claims together."""
    async with opened(file) as resources:
        await fill(resources, *(f"damaged-{number}" for number in range(TAKEN)))
        backend = resources.memory("chat").store.backend
        for listed in await backend.places("default", "session"):
            step = Step(listed.place, listed.head.hot, b"damaged", listed.head.cold)
            assert await backend.write([[step]], 0) == [None]
    async with opened(file) as resources:
        await fill(resources, "whole")

        done = await resources.worker(**summarizing()).once()

        assert (done.compacted, done.failed) == (1, 0)
        assert await summaries(resources, "whole") == 1


async def test_idle_sessions_are_not_read_again(where: str) -> None:
    """A worker does not read sessions without new writes, nor does one that was started anew.

    It reads at most the heads at the store's last mark.
    """
    clock = FakeClock()
    async with opened(where, clock) as resources:
        for i in range(100):
            clock.advance(1)
            await fill(resources, f"k{i}", turns=FEW)
        first = await resources.worker(**summarizing()).once()
        await resources.worker(**summarizing()).once()  # MongoDB's marks come late: the last two minutes are read again
        restarted = resources.worker(**summarizing())
        idle = await restarted.once()
        clock.advance(1)
        await fill(resources, "k7", start=FEW)
        busy = await restarted.once()

    assert (first.looked, first.listed >= 100) == (100, True)
    late = 100 * where.startswith("mongodb")
    assert (idle.looked, idle.listed <= 1 + late) == (0, True)
    assert (busy.looked, busy.compacted, busy.listed <= 2 + late) == (1, 1, True)


async def test_an_idle_round_reads_the_same_for_any_number_of_sessions(file: str) -> None:
    """An idle round reads as much with 300 sessions as with 10, counted at the backend."""
    counts = list[tuple[int, int, int]]()
    clock = FakeClock()
    async with opened(file, clock) as resources:
        for upto in (10, 300):
            for i in range(upto):
                clock.advance(1)
                await resources.session({"id": "chat", "key": f"k{upto}.{i}"}).add_user_message("hello")
            worker = resources.worker(**summarizing())
            await worker.once()
            with watched(resources.memory("chat")) as reads:  # type: ignore[arg-type]
                report = await worker.once()
            counts.append((reads.looks, reads.rows, report.listed))

    assert counts[0] == counts[1]
    assert counts[0][1:] == (0, 1)


async def test_two_workers_share_the_sessions(where: str) -> None:
    """Of two workers at once each session is compacted by one; the other at most looks at the result."""
    async with opened(where) as first, opened(where) as other:
        keys = [f"k{i}" for i in range(60)]
        await fill(first, *keys)
        workers = [first.worker(**summarizing()), other.worker(**summarizing())]
        reports = await asyncio.gather(*(worker.once() for worker in workers))

        assert sum(report.compacted for report in reports) == 60
        assert sum(report.looked for report in reports) <= 120 * (1 + where.startswith("mongodb"))
        assert all(report.compacted for report in reports)
        assert [await summaries(first, key) for key in keys] == [1] * 60


async def test_a_failed_compaction_is_retried_and_blocks_no_other(file: str) -> None:
    """A failed compaction is retried after growing pauses, and does not block other sessions."""
    clock, reported = FakeClock(), list[Worked]()
    down = True

    def summarizer(prompt: str) -> str:
        if down:
            raise ConnectionError("no route")
        return "a summary"

    strategy = {**declared(file)["long_term_memory_strategy"][0], "on_failure": "keep"}
    async with opened(file, clock, long_term_memory_strategy=[strategy]) as resources:
        await fill(resources, "a", "b")
        given = CallableSummarizer(summarizer, checked=False)
        worker = resources.worker(told=reported.append, summarizer=given, counter=quarters)
        first = await worker.once()
        assert (first.failed, first.compacted, first.waiting) == (2, 0, 2)
        assert {one.reason for one in reported} == {"failed"}
        assert (await worker.once()).looked == 0
        calls = []
        for _ in range(60):
            clock.advance(6)
            calls.append((await worker.once()).failed)
        assert sum(calls) <= 10  # three tries each at once, then one after a minute, two minutes, …
        down = False
        clock.advance(3_600)
        assert (await worker.once()).compacted == 2
        assert (await worker.once()).waiting == 0
        assert [await summaries(resources, key) for key in "ab"] == [1, 1]


async def test_sessions_of_a_vanished_worker_are_taken_over(file: str) -> None:
    """Sessions that a vanished worker had claimed are compacted once its lease is over, not before."""
    clock, begun = FakeClock(), asyncio.Event()

    async def hanging(prompt: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with opened(file, clock, lease="10s") as gone, opened(file, clock, lease="10s") as resources:
        await fill(gone, "a", "b", "c")
        task = asyncio.create_task(gone.worker(lease="10s", summarizer=hanging, counter=quarters).once())
        await begun.wait()  # it has claimed them and hangs
        worker = resources.worker(lease="10s", **summarizing())

        assert ((await worker.once()).compacted, worker.report.looked) == (0, 0)
        clock.advance(11)
        assert (await worker.once()).compacted == 3
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [await summaries(resources, key) for key in "abc"] == [1, 1, 1]
        assert (await worker.once()).looked == 0


async def test_a_busy_worker_takes_over_sessions_too(file: str) -> None:
    """A worker that always has new sessions still looks for those that another one left behind."""
    clock, begun, order = FakeClock(), asyncio.Event(), list[str]()

    async def hanging(prompt: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async def noted(prompt: str) -> str:
        order.append(next(key for key in ("left", *new) if f"<{key}>" in prompt))
        clock.advance(5)
        return "a summary"

    new = [f"new{number}" for number in range(40)]
    async with opened(file, clock, lease="10s") as gone, opened(file, clock, lease="10s") as resources:
        await fill(gone, "left")
        task = asyncio.create_task(gone.worker(lease="10s", summarizer=hanging, counter=quarters).once())
        await begun.wait()
        await fill(resources, *new)
        await resources.worker(lease="10s", summarizer=noted, counter=quarters).once()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert set(order) == {"left", *new}
    assert order.index("left") < len(order) / 2


async def test_a_claim_renewed_while_its_work_ends_is_released(file: str) -> None:
    """A claim that is being renewed when its work ends is released: no claim is left behind."""
    looks = 0

    async def quick(prompt: str) -> str:
        nonlocal looks
        looks += 1
        await asyncio.sleep(0.002 * (looks % 5))  # wherever in a renewal that ends
        return "a summary"

    async with opened(file) as resources:
        worker = resources.worker(lease=0.006, summarizer=quick, counter=quarters)
        for number in range(30):
            await fill(resources, f"k{number}")
            await worker.once()
            memory = resources.memory("chat")
            assert await Claims(memory.store, memory.tenant, "compact").open() == []


async def test_a_session_being_compacted_is_looked_at_again(file: str) -> None:
    """A session that somebody compacts by hand is looked at again later and found done."""
    clock, begun, ends = FakeClock(), asyncio.Event(), asyncio.Event()

    async def slow(prompt: str) -> str:
        begun.set()
        await ends.wait()
        return "by hand"

    async with opened(file, clock) as resources:
        await fill(resources, "a")
        session = resources.session({"id": "chat", "key": "a"}, counter=quarters, summarizer=slow)
        task = asyncio.create_task(session.compact())
        await begun.wait()
        worker = resources.worker(**summarizing())
        first = await worker.once()
        ends.set()
        await task
        clock.advance(6)
        second = await worker.once()

        assert (first.compacted, first.failed, first.waiting) == (0, 0, 1)
        assert (second.looked, second.compacted, second.waiting) == (1, 0, 0)
        assert await summaries(resources, "a") == 1


class Held(Summarize, frozen=True, kw_only=True):
    """A strategy whose first plan waits until the test lets it go on."""

    planned: Any
    goes_on: Any

    def plan(self, snapshot: Snapshot) -> Plan:
        """Plan, and wait."""
        plan_ = Summarize.plan(self, snapshot)
        self.planned.set()
        assert self.goes_on.wait(60)
        return plan_


async def test_a_second_compaction_asks_no_model(file: str) -> None:
    """A compaction planned before another one finished plans again when it gets the lease, and asks no model."""
    asked, planned, goes_on = list[str](), threading.Event(), threading.Event()

    def summarizer(prompt: str) -> str:
        asked.append(prompt)
        return "a summary"

    held = Held(interaction_keep=1, cod_max_loops=0, summary_floor=10, planned=planned, goes_on=goes_on)
    given = {"counter": quarters, "summarizer": CallableSummarizer(summarizer, checked=False)}
    async with opened(file) as first_resources, opened(file) as other:
        await fill(first_resources, "a")
        late = asyncio.create_task(first_resources.session({"id": "chat", "key": "a"}, **given).compact(held))
        await asyncio.to_thread(planned.wait, 60)
        first = await other.session({"id": "chat", "key": "a"}, **given).compact()
        goes_on.set()
        second = await late

    assert (first.done, second.done, len(asked)) == (True, False, 1)


async def test_idle_seconds_compact_idle_sessions(file: str) -> None:
    """`idle_seconds` compacts a session after that time without a write, and does not read it before."""
    strategy = {**declared(file)["long_term_memory_strategy"][0], "triggers": {"idle_seconds": 3_600}}
    clock = FakeClock()
    async with opened(file, clock, long_term_memory_strategy=[strategy]) as resources:
        await fill(resources, "a")
        worker = resources.worker(**summarizing())
        early = await worker.once()
        clock.advance(1_800)
        await fill(resources, "b")
        clock.advance(1_801)
        hour = await worker.once()
        clock.advance(1_800)
        later = await worker.once()
        clock.advance(36_000)
        rest = [await worker.once() for _ in range(2)]

    assert [early.compacted, hour.compacted, later.compacted] == [0, 1, 1]
    assert [report.compacted for report in rest] == [0, 0]
    assert rest[1].looked == 0


async def test_entries_evicted_by_a_cut_are_summarized(file: str) -> None:
    """A strategy without a trigger covers what a context had to leave out."""
    strategy = {"strategy": "summarizer", "interaction_keep": 1, "cod_max_loops": 0, "summary_floor": 10}
    async with opened(file, long_term_memory_strategy=[strategy], max_log_tokens=600) as resources:
        await fill(resources, "a", turns=FEW)
        worker = resources.worker(**summarizing())
        assert (await worker.once()).compacted == 0
        await fill(resources, "a", turns=12, start=FEW)
        session = resources.session({"id": "chat", "key": "a"}, counter=quarters)
        assert "<a> question 0," not in str((await session.context()).messages)
        assert (await worker.once()).compacted == 1
        (summary,) = await session.summaries()
        assert summary.covers[0][0] == 1


async def test_a_stop_finishes_the_current_session_and_releases_the_rest(file: str) -> None:
    """After `stop` the worker finishes its current session and releases the others, for the next worker at once."""
    begun, ends = asyncio.Event(), asyncio.Event()

    async def slow(prompt: str) -> str:
        begun.set()
        await ends.wait()
        return "a summary"

    async with opened(file) as resources:
        await fill(resources, "a", "b", "c")
        worker = resources.worker(summarizer=slow, counter=quarters)
        running = asyncio.create_task(worker.run(every="1h"))
        await begun.wait()
        worker.stop()
        ends.set()
        report = await running
        other = await resources.worker(**summarizing()).once()

    assert worker.stopping
    assert (report.compacted, other.compacted) == (1, 2)


@pytest.mark.parametrize("how", ["grace", "cancel", "scope", "once", "once in a scope"])
async def test_work_that_takes_too_long_is_given_up_and_released(file: str, how: str) -> None:
    """After a stop's grace, or on cancellation, unfinished work is given up and its leases are released."""
    begun, scope = asyncio.Event(), anyio.CancelScope()

    async def hanging(prompt: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    async with opened(file) as resources:
        await fill(resources, "a", "b")
        worker = resources.worker(summarizer=hanging, counter=quarters)

        async def run() -> Any:
            with scope:
                return await (worker.once(grace=0.01) if how.startswith("once") else worker.run(grace=0.01))

        running = asyncio.create_task(run())
        await begun.wait()
        if how in ("grace", "once"):
            worker.stop()
            assert (await running).compacted == 0
        elif how.endswith("scope"):
            scope.cancel()
            await running
        else:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert (await resources.worker(**summarizing()).once()).compacted == 2


async def test_expired_sessions_are_swept_once_a_minute(where: str) -> None:
    """Among all workers one sweeps expired sessions, once a minute; `once` sweeps at once."""
    clock = FakeClock()
    async with opened(where, clock, lifetime="1h") as resources:
        await fill(resources, "a", turns=1)
        clock.advance(3_601)
        assert (await resources.worker(duties=["compact"]).once()).swept == 0
        reported = list[Worked]()
        report = await resources.worker(duties=["sweep"], told=reported.append).once()
        assert (report.swept, report.looked, [one.swept for one in reported]) == (1, 0, [1])
        assert await resources.memory("chat").sessions() == []


async def test_an_existing_search_index_is_kept_up_to_date(file: str) -> None:
    """A worker updates a search index that exists and does not create one."""
    clock = FakeClock()
    async with opened(file, clock) as resources:
        await fill(resources, "a", "b", turns=1)
        reported = list[Worked]()
        worker = resources.worker(duties=["index"], told=reported.append)
        assert (await worker.once()).indexed == 0, "nobody has searched"
        await resources.memory("chat").recall("anything")
        await fill(resources, "a", turns=1, start=1)
        assert (await resources.memory("chat").index_status()).behind == 1
        assert (await worker.once()).indexed == 1
        assert (await resources.memory("chat").index_status()).behind == 0
        assert [(one.duty, one.indexed) for one in reported] == [("index", 1)]


async def test_a_worker_works_for_its_tenants(where: str) -> None:
    """A worker works for its own tenant, for those named, or for all tenants of the store."""
    async with opened(where) as resources:
        memory = resources.memory("chat")
        names = ("default", "acme", "bolt", "two\u3000words", "not\u200ca\u00a0space")
        for tenant in names:
            session = memory.for_tenant(tenant).session("default/chat/a", counter=quarters)
            await session.add([one for number in range(MANY) for one in said("a", number)])
        reported = list[Worked]()
        own_report = await resources.worker(told=reported.append, **summarizing()).once()
        acme_report = await resources.worker(tenants=["acme"], told=reported.append, **summarizing()).once()
        everybody = resources.worker(all_tenants=True, told=reported.append, **summarizing())
        all_reports = [await everybody.once() for _ in range(2)]

    assert (own_report.compacted, acme_report.compacted, all_reports[0].compacted, all_reports[1].compacted) == (
        1,
        1,
        3,
        0,
    )
    assert [one.tenant for one in reported[:2]] == ["default", "acme"]
    assert sorted(one.tenant for one in reported) == sorted(names)


async def test_memories_without_work_are_not_looked_at(file: str) -> None:
    """Memories that are read-only, ephemeral or without a strategy are not looked at."""
    for more in ({"readonly": True}, {"persistence_strategy": "EPHEMERAL"}, {"long_term_memory_strategy": []}):
        async with opened(file) as plain:
            await fill(plain, "a")
        async with opened(file, **more) as resources:
            report = await resources.worker(counter=quarters).once()
        assert (report.looked, report.listed, report.failed) == (0, 0, 0)


async def test_the_where_option_replaces_the_declared_store(tmp_path: Path) -> None:
    """`where` replaces the declared store, even if the declared one's variable is not set."""
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    remote = declared("")
    del remote["store"]
    remote["persistence"] = {"type": "postgres", "url": "${NOT_SET_ANYWHERE}"}
    async with opened(elsewhere) as plain:
        await fill(plain, "a")
    async with AsyncResources.load(remote, where=elsewhere) as resources:
        assert (await resources.worker(**summarizing()).once()).compacted == 1


async def test_a_copied_store_is_worked_on_from_the_beginning(tmp_path: Path) -> None:
    """How far workers have come is not copied with a store, since marks belong to one store."""
    source, target = (f"sqlite:///{tmp_path}/{name}.db" for name in "ab")
    async with opened(source) as resources:
        await fill(resources, "a", turns=FEW)
        await resources.worker(**summarizing()).once()
    copy_store(source, target)
    async with opened(target) as resources:
        report = await resources.worker(**summarizing()).once()
    assert (report.listed, report.looked) == (1, 1)


@contextmanager
def refused(name: str) -> Iterator[None]:
    """Expect a ConfigError that contains this name."""
    with pytest.raises(ConfigError) as caught:
        yield
    assert name in str(caught.value)


async def test_invalid_options_of_a_worker_are_named(file: str) -> None:
    """Invalid duties, durations, switches and options of sessions are refused by name."""
    async with opened(file) as resources:
        for name, wrong in {"duties": ["compct"], "lease": "soon", "all_tenants": 1, "tenants": [""]}.items():
            with refused(name if name != "tenants" else "tenant"):
                await resources.worker(**{name: wrong}).once()
        with refused("every"):
            await resources.worker().run(every=0)
        await fill(resources, "a")
        with refused("max_tokns"):
            await resources.worker(max_tokns=5).once()


def test_a_worker_acts_on_what_synchronous_programs_write(tmp_path: Path) -> None:
    """A worker compacts sessions that a synchronous Memory wrote under the declared options."""
    given = declared(f"sqlite:///{tmp_path}/a.db")

    async def work() -> int:
        async with AsyncResources.load(given) as resources:
            return (await resources.worker(**summarizing()).once()).compacted

    with Memory.from_resource(given) as memory:
        session = memory.session("default/chat/a")
        for number in range(MANY):
            session.add(said("a", number))
        assert session.summaries() == []
        assert asyncio.run(work()) == 1
        assert len(session.summaries()) == 1


async def test_a_callback_that_raises_does_not_stop_the_worker(file: str, caplog: pytest.LogCaptureFixture) -> None:
    """If the `told` callback raises, the error is logged and every session is still compacted."""

    def told(done: Worked) -> None:
        raise OSError(f"no answer for {done.session}")

    async with opened(file) as resources:
        await fill(resources, "a", "b")
        report = await resources.worker(told=told, **summarizing("one", "two")).once()
        assert (report.compacted, report.failed, report.waiting) == (2, 0, 0)
        assert [await summaries(resources, key) for key in ("a", "b")] == [1, 1]
    assert "no answer for default/chat/a" in caplog.text


@pytest.mark.parametrize("options", [{"told": 5}, {"tenants": "default"}, {"duties": "compact"}, {"tenants": [5]}])
async def test_options_of_a_wrong_type_are_refused_at_once(file: str, options: dict[str, Any]) -> None:
    """Options of a wrong type are refused when the worker is made: a text would be a list of one-letter tenants."""
    async with opened(file) as resources:
        with pytest.raises(ConfigError, match=next(iter(options))):
            resources.worker(**options)
