"""The store on PostgreSQL in bad times: many writers, killed processes and servers, calls that end too early."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from on_servers import own_server
from palimpsest import AsyncMemory, LockTimeout, Memory, StoreUnavailable
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores.backend import LAST_KEY, Ask, Place, Range, Row, Step
from palimpsest.stores.postgres import open_postgres
from palimpsest.stores.postgres.pool import Pool
from postgresstore import address_of, asked, schema_of
from processes import Process, together

asyncpg = pytest.importorskip("asyncpg", reason="the extra `postgres` is not installed")

TRIPPING = Path(__file__).with_name("postgres_writer.py")
WRITERS, EACH = 8, 25


# --- who waits for a connection


class Idle:
    """A connection that nobody asks anything."""

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None:
        """There is nothing to end."""


def test_who_is_cancelled_as_a_connection_comes_back_is_cancelled_and_no_more() -> None:
    """In one turn of the loop a wait is given up, and what it waited for is there: the next one has it."""

    async def connected() -> Any:
        return Idle()

    async def cancelled() -> None:
        pool = Pool(connected, 1)
        taken = await pool.take()
        waiting = [asyncio.create_task(pool.take()) for _ in range(2)]
        await asyncio.sleep(0)

        waiting[0].cancel()
        pool.give(taken)

        with pytest.raises(asyncio.CancelledError):
            await waiting[0]
        assert await waiting[1] is taken

    asyncio.run(cancelled())


@pytest.mark.parametrize("writes", [False, True], ids=["reads", "writes"])
def test_a_connection_that_is_just_being_ended_is_taken_for_a_lost_one(writes: bool) -> None:
    """The server has said that it ends it, and the driver has read half of that: nothing was sent, so another one is
    asked."""
    asked = list[Any]()

    async def connected() -> Any:
        return Idle()

    async def do(db: Any) -> str:
        asked.append(db)
        if len(asked) == 1:
            raise asyncpg.InternalClientError("cannot switch to state 12; another operation (2) is in progress")
        return "done"

    async def used() -> str:
        return await Pool(connected, 2).using(do, writes=writes)

    assert asyncio.run(used()) == "done"
    assert len(set(map(id, asked))) == 2


def test_the_isolation_is_the_one_that_the_statements_are_written_for() -> None:
    """Whatever the server has by default: under another, calls beside each other would fail."""
    address = address_of("contract", options="-c default_transaction_isolation=serializable")

    async def shown() -> str:
        async with AsyncMemory.open(address) as memory:
            await memory.sessions()
            found: str = await memory.store.backend.do(lambda db: db.fetchval("SHOW transaction_isolation"))
            return found

    assert asyncio.run(shown()) == "read committed"


# --- many writers


async def somebody(db: Any, schema: str, *, waits: bool) -> None:
    """Come back when somebody who uses this schema waits for a lock, or nobody does any more."""
    waiting = "SELECT count(*) > 0 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted "
    while await db.fetchval(f"{waiting} AND application_name = '{schema}'") != waits:
        await db.execute("SELECT pg_stat_clear_snapshot()")  # or a transaction would see the same each time


async def nobody_idles(db: Any, schema: str) -> None:
    """Come back when no connection of who uses this schema has a transaction in which nothing happens: the server sees
    that one was cut when it next reads from it."""
    idle = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}' AND state LIKE 'idle in%'"
    while await db.fetchval(idle):
        await db.execute("SELECT pg_stat_clear_snapshot()")


@pytest.mark.wide
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


def test_who_loses_a_deadlock_beside_the_store_s_tables_tries_again() -> None:
    """What the search index does in a transaction is begun anew, where the server has ended it for another's sake."""

    async def work(address: str, schema: str) -> None:
        backend: Any = open_postgres(address, Threaded())
        other = await asyncpg.connect(address.partition("?")[0])
        number, tries = f"UPDATE {schema}.crossed SET number = number + 1 WHERE id = $1", list[str]()

        async def second_first() -> None:
            async with other.transaction():
                await other.execute("SET LOCAL deadlock_timeout = '1h'")  # so that it is never the one who looks
                await other.execute(number, 2)
                held.set()
                await begun.wait()
                await other.execute(number, 1)

        async def first_first(db: Any) -> None:
            await db.execute("BEGIN")
            await db.execute(number, 1)
            if not tries:
                begun.set()
                await somebody_waits()
            tries.append("tried")
            await db.execute(number, 2)
            await db.execute("COMMIT")

        async def somebody_waits() -> None:
            watching = await asyncpg.connect(address.partition("?")[0])
            pid = other.get_server_pid()
            while not await watching.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = $1", pid):
                pass
            await watching.close()

        held, begun = asyncio.Event(), asyncio.Event()
        await other.execute(f"DROP TABLE IF EXISTS {schema}.crossed; CREATE TABLE {schema}.crossed(id int, number int)")
        await other.execute(f"INSERT INTO {schema}.crossed VALUES (1, 0), (2, 0)")
        crossing = asyncio.create_task(second_first())
        await held.wait()

        await backend.do(first_first, writes=True)
        await crossing

        assert tries[:2] == ["tried", "tried"]  # who was ended may be quicker than who waits, and meet him once more
        assert [tuple(row) for row in await other.fetch(f"SELECT id, number FROM {schema}.crossed ORDER BY id")] == [
            (1, 2),
            (2, 2),
        ]
        await other.execute(f"DROP TABLE {schema}.crossed")
        await other.close()
        await backend.close()

    address = address_of("crossed")
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("makes the schema")
    asyncio.run(work(address, schema_of("crossed")))


# --- killed


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
        await nobody_idles(other, schema)
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
        return [0, *[[]] * 8, "", "", *[[]] * 12, 100 if hasty else None]

    asyncio.run(work(address_of("hasty"), schema_of("hasty")))


# --- large and odd


@pytest.mark.wide
def test_a_crash_of_the_server_leaves_nobody_s_turn_to_others() -> None:
    """Who took it lives on, on another machine, and goes on with it: so a lease is on the disk when it is his. What the
    server writes by itself it writes every ten seconds here."""
    with own_server("postgres") as server:
        asked(server.address, "ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()")
        with Memory.open(server.address) as mine, Memory.open(server.address) as theirs:
            mine.session("s").add_user_message("hello")
            with mine.session("s").turn():
                server.kill()
                server.start()

                with pytest.raises(LockTimeout), theirs.session("s").turn(wait=0):
                    pass
