"""The store on PostgreSQL under many writers, killed servers, deadlocks, and calls that end early."""

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
    """A fake connection that is open and has nothing to do."""

    def is_closed(self) -> bool:
        return False

    def terminate(self) -> None:
        """End the connection: nothing to do."""


def test_cancelling_a_wait_for_a_connection_affects_no_other() -> None:
    """If a waiting task is cancelled just as a connection is returned, the next task gets the connection."""

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
def test_a_connection_being_closed_counts_as_lost(writes: bool) -> None:
    """If the driver is just reading that the server ends a connection, nothing was sent: another one is used."""
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


def test_the_isolation_level_is_set_explicitly() -> None:
    """The store uses `read committed` whatever the server's default, since its statements are written for it."""
    address = address_of("contract", options="-c default_transaction_isolation=serializable")

    async def shown() -> str:
        async with AsyncMemory.open(address) as memory:
            await memory.sessions()
            found: str = await memory.store.backend.do(lambda db: db.fetchval("SHOW transaction_isolation"))
            return found

    assert asyncio.run(shown()) == "read committed"


# --- many writers


async def somebody(db: Any, schema: str, *, waits: bool) -> None:
    """Wait until somebody who uses this schema waits for a lock, or until nobody does."""
    waiting = "SELECT count(*) > 0 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE NOT granted "
    while await db.fetchval(f"{waiting} AND application_name = '{schema}'") != waits:
        await db.execute("SELECT pg_stat_clear_snapshot()")  # or a transaction would see the same each time


async def nobody_idles(db: Any, schema: str) -> None:
    """Wait until no connection to this schema idles in a transaction.

    The server notices a cut connection only when it next reads from it.
    """
    idle = f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{schema}' AND state LIKE 'idle in%'"
    while await db.fetchval(idle):
        await db.execute("SELECT pg_stat_clear_snapshot()")


@pytest.mark.wide
def test_eight_processes_adding_to_one_session_take_three_trips_each() -> None:
    """Eight processes that add to one session lose and double nothing.

    A writer that has met others locks, reads and writes in three round trips, instead of trying again and again.
    """
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
    # A writer's first try fails until it knows of the others; the margin is for writers that are alone for a while.
    assert sum(trips) <= 3 * WRITERS * EACH + 3 * WRITERS


def test_a_drop_includes_rows_put_while_it_waited() -> None:
    """A batch that waits for a head and drops rows also drops those that were put while it waited."""

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


def test_of_two_writers_expecting_absence_one_is_refused() -> None:
    """Of two batches that each create what the other expects to be absent, one is refused."""

    async def work(address: str) -> None:
        one_backend: Any = open_postgres(address, Threaded())
        other: Any = open_postgres(address, Threaded())
        for number in range(30):
            first, second = (Place("t", f"h{number}", "s", name) for name in ("one", "two"))
            results = await asyncio.gather(
                one_backend.write([[Step(first, None, b"1"), Step(second)]], 0),
                other.write([[Step(second, None, b"1"), Step(first)]], 0),
            )
            assert sorted(refusal is None for (refusal,) in results) == [False, True]
        await one_backend.close()
        await other.close()

    asyncio.run(work(address_of("absent")))


def test_a_deadlock_beside_the_stores_tables_is_retried() -> None:
    """A transaction of the search index that the server ends because of a deadlock is run again."""

    async def work(address: str, schema: str) -> None:
        backend: Any = open_postgres(address, Threaded())
        other = await asyncpg.connect(address.partition("?")[0])
        number, tries = f"UPDATE {schema}.crossed SET number = number + 1 WHERE id = $1", list[str]()

        async def second_first() -> None:
            async with other.transaction():
                # So that the other transaction detects the deadlock.
                await other.execute("SET LOCAL deadlock_timeout = '1h'")
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

        assert tries[:2] == ["tried", "tried"]  # the aborted transaction may retry early and deadlock again
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


def test_a_call_that_waits_too_long_writes_nothing() -> None:
    """A call that times out or is cancelled ends its statement: nothing is written when the lock is free."""

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


def test_a_write_that_need_not_last_does_not_wait() -> None:
    """A write with `lasting=False` is given up if the head is locked, and does not wait for the disk."""

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
def test_a_lease_survives_a_crash_of_the_server() -> None:
    """A lease is on the disk when it is granted, so a crash of the server does not give it to another."""
    with own_server("postgres") as server:
        asked(server.address, "ALTER SYSTEM SET wal_writer_delay = '10s'", "SELECT pg_reload_conf()")
        with Memory.open(server.address) as mine, Memory.open(server.address) as theirs:
            mine.session("s").add_user_message("hello")
            with mine.session("s").turn():
                server.kill()
                server.start()

                with pytest.raises(LockTimeout), theirs.session("s").turn(wait=0):
                    pass
