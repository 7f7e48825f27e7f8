"""The store on PostgreSQL in bad times: many writers, killed processes and servers, calls that end too early."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from palimpsest import AsyncMemory, Memory, StoreUnavailable
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores.backend import LAST_KEY, Ask, Place, Range, Row, Step
from palimpsest.stores.postgres import open_postgres
from postgresstore import address_of, schema_of
from processes import Process, together, whole_turns
from servers import Server, started
from writer import ENTRIES_A_TURN, SESSION, turn

asyncpg = pytest.importorskip("asyncpg", reason="the extra `postgres` is not installed")

TRIPPING = Path(__file__).with_name("postgres_writer.py")
WRITERS, EACH = 8, 25


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of a test's own, in a folder that its user may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with started("postgres", Path(folder) / "server") as one:
            yield one


# --- many writers


async def somebody(db: Any, schema: str, *, waits: bool) -> None:
    """Come back when somebody who uses this schema waits for a lock, or nobody does any more."""
    waiting = "SELECT count(*) > 0 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted "
    while await db.fetchval(f"{waiting} AND application_name = '{schema}'") != waits:
        await db.execute("SELECT pg_stat_clear_snapshot()")  # or a transaction would see the same each time


def idle_of(schema: str) -> str:
    """What counts the connections of who uses this schema on which a transaction was left."""
    return f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}' AND state LIKE 'idle in%'"


def test_eight_processes_that_add_to_one_session_take_three_trips_each_time() -> None:
    """None is lost, none is doubled. Whoever has met others locks, looks, and writes: nobody tries again and again."""
    address = address_of("writers")
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("first")
    together([Process("s", address, "compiles", 0, script=TRIPPING)])  # once, and not each for himself

    said = together(Process("s", address, name, EACH, script=TRIPPING) for name in range(WRITERS))

    with Memory.open(address) as memory:
        texts = [entry.text for entry in memory.session("s").entries()][1:]
    assert sorted(texts) == sorted(f"{name} {number}" for name in range(WRITERS) for number in range(EACH))
    for name in range(WRITERS):
        assert [text for text in texts if text.startswith(f"{name} ")] == [f"{name} {n}" for n in range(EACH)]
    trips = [one for (one,) in said]
    # Before a writer knows that he is not alone, one try of his is in vain; the margin is for who is alone for a while.
    assert sum(trips) <= 3 * WRITERS * EACH + 3 * WRITERS


def test_two_processes_of_four_threads_lose_and_mix_nothing() -> None:
    """Each turn is there once, in one piece, with its calls and results linked."""
    address = address_of("threads")
    acknowledged = together(Process("threads", address, name, 4, 5) for name in ("one", "two"))

    with Memory.open(address) as memory:
        found = whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN)
    assert sorted(found) == sorted(label for labels in acknowledged for label in labels)
    assert (len(found), set(found.values())) == (40, {1})


def test_a_key_that_two_processes_use_adds_once() -> None:
    """Whoever is second is given what the first has added."""
    address = address_of("keys")

    one, two = together(Process("keyed", address, 10) for _ in range(2))

    assert one == two
    with Memory.open(address) as memory:
        assert len(memory.session(SESSION).entries()) == 10 * ENTRIES_A_TURN


@pytest.mark.parametrize("many", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_thousand_sessions_and_fifty_tasks_share_ten_connections(many: int) -> None:
    """In one process, without an error."""
    address = address_of("many")

    async def work() -> int:
        async with AsyncMemory.open(address) as memory:
            left = iter(range(many))

            async def one() -> None:
                for number in left:
                    session = memory.session(f"s{number}", max_tokens=500)
                    await session.add(turn(str(number)))
                    assert (await session.context()).messages

            await asyncio.gather(*(one() for _ in range(50)))
            return len(await memory.sessions())

    assert asyncio.run(work()) == many


def test_a_drop_sees_what_was_put_by_who_had_the_head_before() -> None:
    """A batch that waits for a head, and drops rows, drops also those that came while it waited."""

    async def work(address: str, schema: str) -> list[int]:
        backend: Any = open_postgres(address, Threaded())
        place, rows = Place("t", "h", "s", "n"), Place("t", "h", "s", "rows")
        await backend.write([[Step(place, None, b"1")]], 0)
        await backend.write([[Step(rows, rows_only=True, put=[("t", [Row(1, b"")])])]], 0)
        other = await asyncpg.connect(address.partition("?")[0])
        before = other.transaction()
        await before.start()
        await other.execute(f"SELECT FROM {schema}.places FOR UPDATE")
        dropping = asyncio.create_task(
            backend.write([[Step(place, b"1", b"2"), Step(rows, rows_only=True, drop=[("*", 0, LAST_KEY)])]], 0)
        )
        await somebody(other, schema, waits=True)
        await other.execute(
            f'INSERT INTO {schema}.rows(home, key, place, "table", value) '
            f"SELECT home, 2, place, 'other', value FROM {schema}.rows"
        )
        await before.commit()
        assert await dropping == [None]
        (seen,) = await backend.look([Ask(rows, [Range("t", [(0, 9)]), Range("other", [(0, 9)])], head=False)])
        await other.close()
        await backend.close()
        return [row[0] for some in seen.rows for row in some]

    assert asyncio.run(work(address_of("dropping"), schema_of("dropping"))) == []


def test_what_is_not_there_is_not_there_for_two_at_once() -> None:
    """Of two batches that each make what the other expects not to be there, one is refused."""

    async def work(address: str) -> None:
        one_backend: Any = open_postgres(address, Threaded())
        other: Any = open_postgres(address, Threaded())
        for number in range(30):
            one, two = (Place("t", f"h{number}", "s", name) for name in ("one", "two"))
            done = await asyncio.gather(
                one_backend.write([[Step(one, None, b"1"), Step(two)]], 0),
                other.write([[Step(two, None, b"1"), Step(one)]], 0),
            )
            assert sorted(refusal is None for (refusal,) in done) == [False, True]
        await one_backend.close()
        await other.close()

    asyncio.run(work(address_of("absent")))


# --- killed


@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost_with_a_killed_writer(kills: int) -> None:
    """Whatever moment the signal comes at, each turn is there whole or not at all."""
    address, said, dice = address_of("killed"), list[int](), random.Random()
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


def test_nothing_acknowledged_is_lost_with_a_killed_server(server: Server) -> None:
    """It recovers when it is started again, a memory that was open goes on, and one that writes is told meanwhile."""
    said = list[str]()
    with Memory.open(server.address) as memory:
        session = memory.session("s")
        for number in range(3):
            with Process("append", server.address) as writer:
                for _ in range(5):
                    said.append(str(writer.hear()))
                session.add_user_message(f"mine {number}")
                server.kill()
                said += map(str, writer.end(expect=1))
            with pytest.raises(StoreUnavailable):
                session.add_user_message("nobody is there")
            server.start()
            assert session.entries()[-1].text == f"mine {number}"

        assert [entry.text for entry in session.entries()] == [f"mine {number}" for number in range(3)]
        found = whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN)
        assert set(said) <= set(found)
        assert set(found.values()) == {1}


def test_a_stopped_server_is_told_and_waited_for_no_longer_than_asked(server: Server) -> None:
    """Reads and writes say that it cannot be reached; when it is back, the same memory goes on."""
    with Memory.open(f"{server.address}?timeout_seconds=10") as memory:
        session = memory.session("s")
        session.add_user_message("before")
        server.stop()

        for attempt in (session.entries, lambda: session.add_user_message("x"), session.context):
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1") as caught:
                attempt()
            assert caught.value.written is False
        server.start()

        session.add_user_message("after")
        assert [entry.text for entry in session.entries()] == ["before", "after"]


def test_a_server_that_was_restarted_meanwhile_is_noticed_by_nobody(server: Server) -> None:
    """Connections that it has closed are made anew, for a read and for a write that was not sent."""
    with Memory.open(server.address) as memory:
        session = memory.session("s")
        for number in range(4):
            server.stop()
            server.start()
            if number % 2:
                assert len(session.entries()) == number
            session.add_user_message(str(number))

        assert [entry.text for entry in session.entries()] == ["0", "1", "2", "3"]


# --- ended too early


def test_a_call_that_waits_too_long_ends_and_writes_nothing() -> None:
    """Its statement is ended with it: nothing of it happens when what was in its way is gone."""

    async def work(address: str, schema: str) -> None:
        backend: Any = open_postgres(f"{address}&timeout_seconds=1", Threaded())
        place = Place("t", "h", "s", "n")
        await backend.write([[Step(place, None, b"1")]], 0)
        other = await asyncpg.connect(address.partition("?")[0])
        for way in ("timeout", "cancelled"):
            held = other.transaction()
            await held.start()
            await other.execute(f"SELECT FROM {schema}.places FOR UPDATE")
            for batch in ([Step(place, b"1", b"2")], [Step(place, b"1", b"2", drop=[("*", 0, 9)])]):
                call = asyncio.create_task(backend.write([batch], 0))
                await somebody(other, schema, waits=True)
                if way == "cancelled":
                    call.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await call
                else:
                    with pytest.raises(StoreUnavailable, match="timeout_seconds") as caught:
                        await call
                    assert caught.value.written is None
                await somebody(other, schema, waits=False)
            await held.rollback()
            (seen,) = await backend.look([Ask(place)])
            assert seen.head.hot == b"1"
        assert await backend.write([[Step(place, b"1", b"2")]], 0) == [None]
        assert await other.fetchval(idle_of(schema)) == 0
        await other.close()
        await backend.close()

    asyncio.run(work(address_of("late"), schema_of("late")))


def test_what_may_be_lost_is_given_up_rather_than_waited_for() -> None:
    """It does not wait for who has the head; where nobody has it is written, and need not wait for the disk."""

    async def work(address: str, schema: str) -> None:
        backend: Any = open_postgres(address, Threaded())
        place, rows = Place("t", "h", "s", "n"), Place("t", "h", "s", "rows")
        await backend.write([[Step(place, None, b"1")]], 0)
        batch = [Step(place, b"1", b"1"), Step(rows, rows_only=True, put=[("t", [Row(1, b"")])])]
        asks = [Ask(rows, [Range("t", [(0, 9)])], head=False)]
        other = await asyncpg.connect(address.partition("?")[0])
        held = other.transaction()
        await held.start()
        await other.execute(f"SELECT FROM {schema}.places FOR UPDATE")

        assert await backend.write([batch], 0, lasting=False) == [None]
        assert (await backend.look(asks))[0].rows == [[]]
        await held.rollback()
        assert await backend.write([batch], 0, lasting=False) == [None]
        assert (await backend.look(asks))[0].rows == [[(1, b"", "", None)]]

        statement = backend._sql.change
        seen = "(SELECT current_setting('synchronous_commit') || current_setting('lock_timeout') FROM haste)"
        kept = [
            await other.fetchval(statement.replace("SELECT o.ok", f"SELECT {seen}"), *values(hasty))
            for hasty in (False, True)
        ]
        assert kept == ["on0", "off100ms"]
        await other.close()
        await backend.close()

    def values(hasty: bool) -> list[Any]:
        return [0, *[[]] * 8, "", "", *[[]] * 12, hasty, 100 if hasty else None]

    asyncio.run(work(address_of("hasty"), schema_of("hasty")))


def test_a_forked_child_is_refused_and_the_parent_goes_on() -> None:
    """A connection cannot be shared with a child."""
    said = Process("fork", address_of("forked")).end()

    assert said == ["ForkedProcess", "ForkedProcess", "ForkedProcess", "Closed", ["before the fork", "after the fork"]]


def test_an_add_that_is_cancelled_is_there_whole_or_not_at_all() -> None:
    """However many are cancelled at whatever moment, connections are as good as before."""

    async def work(address: str) -> None:
        dice = random.Random()
        async with AsyncMemory.open(f"{address}&pool_size=2") as memory:
            session = memory.session(SESSION)
            kept = set[str]()
            for number in range(60):
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

    asyncio.run(work(address_of("cancelled")))


# --- large and odd


def test_ten_megabytes_and_odd_texts_come_back() -> None:
    """NUL, lone surrogates and a long text; two tenants with the same ids see their own."""
    odd = ["\x00", "a\x00b", "\ud800", "\U0010ffff", "'; DROP TABLE x; --", "x" * 10_000_000]
    address = address_of("odd")
    for tenant in ("one", "two"):
        with Memory.open(address, tenant=tenant) as memory:
            memory.session("s\u00e9").add([{"role": "user", "content": f"{tenant}{text}"} for text in odd])
    for tenant in ("one", "two"):
        with Memory.open(address, tenant=tenant) as memory:
            assert [entry.text for entry in memory.session("s\u00e9").entries()] == [f"{tenant}{text}" for text in odd]
            assert len(memory.sessions()) == 1
