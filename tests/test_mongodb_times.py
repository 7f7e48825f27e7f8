"""The store on MongoDB in bad times: many writers, killed processes and servers, calls that end too early.

Tested against SecantusDB, which speaks MongoDB's protocol.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mongostore
from palimpsest import AsyncMemory, Memory, StoreUnavailable
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores.backend import LAST_KEY, Ask, Place, Range, Row, Step
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.mongodb import open_mongodb
from palimpsest.stores.mongodb.writing import Changing
from processes import Process, together, whole_turns
from servers import Server, started
from writer import ENTRIES_A_TURN, SESSION, quarters, turn

WRITING = Path(__file__).with_name("mongodb_writer.py")
WRITERS, EACH = 8, 25

LEAVES = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""The driver leaves a socket to the garbage collector when it is cancelled while it connects."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of a test's own."""
    with tempfile.TemporaryDirectory() as folder, started("mongodb", Path(folder) / "server") as one:
        yield one


# --- many writers


@pytest.mark.wide
def test_two_processes_of_eight_writers_lose_and_double_nothing() -> None:
    """Each of 200 entries is there once, those of a writer in his order."""
    address = mongostore.address_of("writers")

    together(Process(address, name, str(EACH), script=WRITING) for name in ("0", "1"))
    together(Process("threads", address, name, 4, 5) for name in ("one", "two"))

    with Memory.open(address) as memory:
        entries = memory.session(SESSION).entries()
        assert memory.session(SESSION).verify().problems == ()
    texts = [entry.text for entry in entries[: 2 * EACH]]
    assert sorted(texts) == sorted(f"{name} {number}" for name in range(2) for number in range(EACH))
    for name in range(2):
        assert [text for text in texts if text.startswith(f"{name} ")] == [f"{name} {n}" for n in range(EACH)]
    found = whole_turns(entries[2 * EACH :], ENTRIES_A_TURN)
    assert (len(found), set(found.values())) == (40, {1})


@pytest.mark.slow
def test_eight_processes_that_add_to_one_session_lose_nothing() -> None:
    """200 of 200 entries, none of them twice."""
    address = mongostore.address_of("writers")

    together(Process(address, str(name), str(EACH), script=WRITING) for name in range(WRITERS))

    with Memory.open(address) as memory:
        texts = [entry.text for entry in memory.session(SESSION).entries()]
    assert sorted(texts) == sorted(f"{name} {number}" for name in range(WRITERS) for number in range(EACH))


@pytest.mark.wide
def test_many_sessions_and_fifty_tasks_share_ten_connections() -> None:
    """In one process, without an error."""

    async def work(address: str) -> int:
        async with AsyncMemory.open(address) as memory:
            left = iter(range(60))

            async def one() -> None:
                for number in left:
                    session = memory.session(f"s{number}", max_tokens=500, counter=quarters)
                    await session.add(turn(str(number)))
                    assert (await session.context()).messages

            await asyncio.gather(*(one() for _ in range(50)))
            return len(await memory.sessions())

    assert asyncio.run(work(mongostore.address_of("many"))) == 60


@pytest.mark.wide
def test_appends_and_transactions_beside_each_other_leave_one_log() -> None:
    """While one appends, others count, erase and pin: every entry is in its place."""

    async def work(address: str) -> None:
        async with AsyncMemory.open(address) as one, AsyncMemory.open(address) as other:
            log, theirs = one.session("s", counter=quarters), other.session("s", counter=quarters)
            await log.add_user_message("0")

            async def appending() -> None:
                for number in range(1, 80):
                    await log.add_user_message(f"{number}" * 100)

            async def changing() -> None:
                for number in range(1, 6):
                    await theirs.count()
                    await theirs.pin(1)
                    await theirs.erase([number])
                    await theirs.entries()

            await asyncio.gather(appending(), changing())
            entries = await theirs.entries()
            assert [entry.seq for entry in entries] == list(range(1, 81))
            assert [entry.seq for entry in entries if entry.erased] == [1, 2, 3, 4, 5]
            assert (await log.verify()).problems == ()

    asyncio.run(work(mongostore.address_of("beside")))


# --- killed


@pytest.mark.wide
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost_with_a_killed_writer(kills: int) -> None:
    """Whatever moment the signal comes at, each turn is there whole or not at all."""
    address, said, dice = mongostore.address_of("killed"), list[int](), random.Random()
    for _ in range(kills):
        with Process("append", address) as writer:
            said.append(writer.hear())
            for _ in range(dice.randrange(10)):
                said.append(writer.hear())
            said += writer.kill()

    with Memory.open(address) as memory:
        session = memory.session(SESSION)
        found = whole_turns(session.entries(), ENTRIES_A_TURN)
        assert {str(number) for number in said} <= set(found)
        assert set(found.values()) == {1}
        assert session.verify().problems == ()


@pytest.mark.wide
def test_nothing_acknowledged_is_lost_with_a_killed_server(server: Server) -> None:
    """It recovers when it is started again, a memory that was open goes on, and one that writes is told meanwhile."""
    said = list[str]()
    with Memory.open(f"{server.address}?timeout_seconds=10") as memory:
        session = memory.session("s")
        for number in range(2):
            with Process("append", f"{server.address}?timeout_seconds=2") as writer:
                for _ in range(5):
                    said.append(str(writer.hear()))
                session.add_user_message(f"mine {number}")
                server.kill()
                said += map(str, writer.end(expect=1))
            server.start()
            assert session.entries()[-1].text == f"mine {number}"

        assert [entry.text for entry in session.entries()] == [f"mine {number}" for number in range(2)]
        found = whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN)
        assert set(said) <= set(found)
        assert set(found.values()) == {1}


@pytest.mark.wide
def test_a_stopped_server_is_told_and_waited_for_no_longer_than_asked(server: Server) -> None:
    """Reads and writes say that it cannot be reached; when it is back, the same memory goes on."""
    with Memory.open(f"{server.address}?timeout_seconds=2") as memory:
        session = memory.session("s")
        session.add_user_message("before")
        server.kill()

        for attempt in (session.entries, session.context, lambda: session.add_user_message("x")):
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1") as caught:
                attempt()
            assert caught.value.written is not True
        server.start()

        session.add_user_message("after")
        assert [entry.text for entry in session.entries()] == ["before", "after"]


@pytest.mark.wide
def test_a_server_that_was_restarted_meanwhile_is_noticed_by_nobody(server: Server) -> None:
    """Connections that it has closed are made anew, for a read and for a write that was not sent."""
    with Memory.open(server.address) as memory:
        session = memory.session("s")
        session.add_user_message("0")
        for number in range(1, 3):
            server.kill()
            server.start()
            if number % 2:
                assert len(session.entries()) == number
            session.add_user_message(str(number))

        assert [entry.text for entry in session.entries()] == ["0", "1", "2"]


# --- ended too early


@LEAVES
def test_a_call_that_waits_too_long_ends_and_leaves_all_as_it_was() -> None:
    """Where somebody's transaction is in its way: it says how long it has waited, and what it does not know."""

    async def work(address: str) -> None:
        backend: Any = open_mongodb(f"{address}?timeout_seconds=1", Inline())
        holder: Any = open_mongodb(address, Inline())
        place, rows = Place("t", "h", "s", "n"), Place("t", "h", "rows", "n")
        await backend.write([[Step(place, None, b"1")]], 0)
        await holder.look([Ask(place)])
        async with holder._client.client.start_session() as session:
            await session.start_transaction()
            changing = Changing(holder._client.within, session, "t", "h")
            assert await changing.take([Step(place, b"1", b"1")]) is None
            for batch in ([Step(place, b"1", b"2")], [Step(place, b"1", b"2"), Step(rows, None, b"x")]):
                with pytest.raises(StoreUnavailable, match="timeout_seconds") as caught:
                    await backend.write([batch], 0)
                assert caught.value.written is (None if len(batch) == 1 else False)
                call = asyncio.create_task(backend.write([batch], 0))
                await asyncio.sleep(0.02)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            await session.abort_transaction()
        (seen,) = await backend.look([Ask(rows)])
        assert seen.head is None
        (seen,) = await backend.look([Ask(place)])
        assert await backend.write([[Step(place, seen.head.hot, b"3")]], 0) == [None]
        await backend.close()
        await holder.close()

    asyncio.run(work(mongostore.address_of("late")))


def test_a_forked_child_is_refused_and_the_parent_goes_on() -> None:
    """A connection cannot be shared with a child."""
    said = Process("fork", mongostore.address_of("forked")).end()

    assert said == ["ForkedProcess", "ForkedProcess", "ForkedProcess", "Closed", ["before the fork", "after the fork"]]


@LEAVES
def test_an_add_that_is_cancelled_is_there_whole_or_not_at_all() -> None:
    """However many are cancelled at whatever moment, connections are as good as before."""

    async def work(address: str) -> None:
        dice = random.Random()
        async with AsyncMemory.open(f"{address}?pool_size=2") as memory:
            session = memory.session(SESSION)
            kept = set[str]()
            for number in range(40):
                adding = asyncio.create_task(session.add(turn(str(number))))
                for _ in range(dice.randrange(12)):
                    await asyncio.sleep(0)
                if number % 3:
                    adding.cancel()
                try:
                    await adding
                    kept.add(str(number))
                except asyncio.CancelledError:
                    pass
            found = whole_turns(await session.entries(), ENTRIES_A_TURN)
            assert kept <= set(found)
            assert set(found.values()) == {1}

    asyncio.run(work(mongostore.address_of("cancelled")))


# --- beside a program that keeps its own books


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.wide) for seed in range(1, 10))])
def test_any_batches_do_what_they_do_in_memory(seed: int) -> None:
    """Rows and heads after many random batches are those of dictionaries, be they in tails or buckets."""
    dice = random.Random(seed)
    places = [Place("t", "h", "s", name) for name in "abc"]
    keys = [*range(6), 31, 32, 33, 2**32 - 1, 2**32, 7 << 32, 7 << 32 | 40, LAST_KEY]

    def step(place: Place, heads: dict[Place, bytes | None]) -> Step:
        hot = heads[place] if dice.random() < 0.9 else b"wrong"
        kind = dice.random()
        after = hot if kind < 0.2 else None if kind > 0.92 else b"%d" % dice.randrange(10**6)
        put = [
            (
                table,
                [Row(key, dice.randbytes(dice.randrange(30)), dice.choice(["", "x", "y"]), dice.choice([None, key]))],
            )
            for table in ("t", "u")
            for key in dice.sample(keys, dice.randrange(3))
        ]
        merged: dict[str, dict[int, Row]] = {}
        for table, rows in put:
            merged.setdefault(table, {}).update((row.key, row) for row in rows)
        rows_of = [(table, list(rows.values())) for table, rows in merged.items()]
        low, high = sorted(dice.choices(keys, k=2))
        drop = [(dice.choice(["t", "u", "*"]), low, high)] if dice.random() < 0.15 else []
        alone = dice.random() < 0.3
        return (
            Step(place, rows_only=True, put=rows_of, drop=drop)
            if alone
            else Step(place, hot, after, dice.choice([None, b"cold"]), put=rows_of, drop=drop)
        )

    async def work(address: str) -> None:
        ours: Any = open_mongodb(address, Inline())
        model = MemoryBackend(Inline())
        asks = [
            Ask(place, [Range(table, [(0, LAST_KEY)], limit, newest), Range(table, [(1, 40), (2**32, 2**33)], limit)])
            for place in places
            for table in ("t", "u")
            for limit in (None, 3)
            for newest in (False, True)
        ]
        for number in range(60):
            heads = {
                place: seen.head and seen.head.hot
                for place, seen in zip(places, drive(model.look([Ask(p) for p in places])), strict=True)
            }
            batch = [step(place, heads) for place in dice.sample(places, dice.choice([1, 1, 1, 2, 3]))]
            assert await ours.write([batch], number) == drive(model.write([batch], number)), batch
            if number % 6 == 5:
                seen, wanted = await ours.look(asks), drive(model.look(asks))
                assert [(one.head, [[Row(*row) for row in rows] for rows in one.rows]) for one in seen] == [
                    (one.head, [list(rows) for rows in one.rows]) for one in wanted
                ]
                assert await ours.expired("t", 2**62) == drive(model.expired("t", 2**62))
        await ours.close()

    asyncio.run(work(mongostore.address_of("model")))
