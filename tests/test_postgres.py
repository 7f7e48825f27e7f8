"""The store on PostgreSQL: the contracts, its schema, its marks, and the number and cost of its statements."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from log_rules import LogConformance, StoreFactory
from one_loop import OnALoop
from palimpsest import AsyncMemory, Memory, StoreUnavailable
from palimpsest.errors import StoreCorrupt, StoreTooNew
from palimpsest.log.entry import now_us
from palimpsest.runtime.runner import Inline, drive
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores.backend import Ask, Backend, Named, Place, Range, Step
from palimpsest.stores.bridged import BridgedBackend
from palimpsest.stores.encrypted.backend import unlocked_backend
from palimpsest.stores.opening import open_store
from palimpsest.stores.postgres import open_postgres
from palimpsest.testing import BackendFactory, StoreConformance
from postgres_writer import watched
from postgresstore import address_of, asked, schema_of
from processes import opened_at_once
from sealed import BOTH
from writer import known_to, quarters, turn

asyncpg = pytest.importorskip("asyncpg", reason="the extra `postgres` is not installed")

KEEPS = (
    "PostgreSQL keeps what was erased in the files of its tables until VACUUM FULL writes them anew, and in its "
    "write-ahead log, archives and backups until those are overwritten or removed; whoever runs it can see to that",
)


class TestPostgresBackend(OnALoop, StoreConformance):
    """The backend on a PostgreSQL server fulfils the contract of backends."""

    lasts = True
    keeps = KEEPS

    @pytest.fixture
    def backend(self) -> BackendFactory:
        address = address_of("contract")
        return lambda: open_postgres(address, Inline())


@pytest.mark.wide
class TestSealedPostgresBackend(StoreConformance):
    """Encryption over the backend fulfils the contract, bridged to a synchronous memory."""

    lasts = True
    keeps = KEEPS

    @pytest.fixture
    def backend(self) -> Iterator[BackendFactory]:
        runner, address = Inline(), address_of("sealed")

        def sealed() -> Backend:
            below = BridgedBackend(open_postgres(address, runner), runner)
            return drive(unlocked_backend(below, None, BOTH, now_us))

        yield sealed
        drive(runner.close())


class TestPostgresStore(OnALoop, LogConformance):
    """The engine over the backend fulfils the contract of stores on an event loop."""

    keeps = KEEPS

    @pytest.fixture
    def store(self) -> StoreFactory:
        address = address_of("log")
        return lambda clock: open_store(address, Threaded(), clock=clock)


@pytest.mark.wide
class TestBridgedPostgresStore(LogConformance):
    """The engine fulfils the contract without an event loop, as a synchronous memory uses it."""

    keeps = KEEPS

    @pytest.fixture
    def store(self) -> Iterator[StoreFactory]:
        runner, address = Inline(), address_of("bridged")
        yield lambda clock: open_store(address, runner, clock=clock)
        drive(runner.close())


# --- addresses and options


def test_statements_need_not_be_prepared() -> None:
    """With `statement_cache_size=0`, as some poolers need it, the store works."""
    with Memory.open(address_of("contract", statement_cache_size=0)) as memory:
        session = memory.session("s", max_tokens=1000)
        session.add(turn("1"))
        session.erase([1])
        assert session.context().messages


def test_a_pooler_that_loses_prepared_statements_gives_advice() -> None:
    """If a pooler loses prepared statements, the error advises `statement_cache_size=0`."""
    address = address_of("contract", pool_size=1)

    async def work() -> None:
        async with AsyncMemory.open(address) as memory:
            for text in ("one", "two"):
                await memory.session("s").add_user_message(text)
            tables: Any = memory.store.backend.tables
            await tables.do(lambda db: db.execute("DEALLOCATE ALL"))

            with pytest.raises(StoreUnavailable, match="add statement_cache_size=0 to the address") as caught:
                await memory.session("s").add_user_message("three")
            assert caught.value.written is False

    asyncio.run(work())


# --- the schema


def fresh(name: str) -> str:
    """Return the address of a schema that does not exist."""
    address = address_of(name)
    asked(address, f"DROP SCHEMA IF EXISTS {schema_of(name)} CASCADE")
    return address


def test_twenty_memories_can_open_a_new_schema_at_once() -> None:
    """Twenty memories may open a new schema at once: one creates the tables."""
    address = fresh("opening")

    opened_at_once(address, 20)

    with Memory.open(address) as memory:
        assert len(memory.sessions()) == 20


def test_a_schema_of_a_newer_version_is_refused() -> None:
    """A schema of a newer version raises StoreTooNew with that version."""
    address, schema = fresh("newer"), schema_of("newer")
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("x")
    asked(address, f"UPDATE {schema}.store SET version = 99")

    with pytest.raises(StoreTooNew, match="99"):
        Memory.open(address).sessions()


def test_tables_of_another_program_are_not_touched() -> None:
    """A schema with tables of another program is refused, even if only one has a name of ours, and left unchanged."""
    address, schema = fresh("foreign"), schema_of("foreign")
    asked(address, f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.places(town text)")

    with pytest.raises(StoreCorrupt, match=r"another program \(places\)"):
        Memory.open(address).sessions()

    tables = asked(address, f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")
    assert [row[0] for row in tables] == ["places"]


def test_a_read_only_memory_creates_nothing() -> None:
    """A read-only memory of a missing store raises and creates nothing; of an existing one it only reads."""
    address, schema = fresh("reading"), schema_of("reading")
    with pytest.raises(StoreUnavailable, match="open it once without readonly=True"):
        Memory.open(address, readonly=True).sessions()
    assert asked(address, f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'") == []
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("x")

    with Memory.open(f"{address}&readonly=true") as memory:
        assert [entry.text for entry in memory.session("s").entries()] == ["x"]
        with pytest.raises(StoreUnavailable, match="read-only"):
            memory.session("s").add_user_message("y")


# --- marks


def test_marks_rise_after_a_restore_on_another_server() -> None:
    """After a restore on another server, whose transaction numbers are lower, new marks still follow the old ones."""
    address, schema = fresh("restored"), schema_of("restored")
    with Memory.open(address) as memory:
        memory.session("old").add_user_message("x")
    asked(address, f"UPDATE {schema}.places SET mark = mark + 1000000000", f"UPDATE {schema}.store SET cluster = 'x'")

    with Memory.open(address) as memory:
        memory.session("new").add_user_message("x")
        assert [one.session for one in memory.sessions(order="latest")] == ["new", "old"]


def test_a_listing_after_a_mark_misses_no_slow_writer() -> None:
    """A transaction that began before a mark and ends after it is in the listing since that mark."""
    asyncio.run(passed_nobody(address_of("marks"), schema_of("marks")))


async def passed_nobody(address: str, schema: str) -> None:
    """Assert the rule above: hold a transaction open while another writer's mark is read."""
    backend: Any = open_postgres(address, Threaded())
    slow, quick, later = (Place("t", name, "s", name) for name in ("slow", "quick", "later"))
    await backend.write([[Step(slow, None, b"1")], [Step(quick, None, b"1")]], 0)
    other = await asyncpg.connect(address.partition("?")[0])
    mark = (await backend.recent("t", "s"))[-1].mark
    assert [one.place for one in await backend.recent("t", "s", since=mark)] == [quick]

    transaction = other.transaction()
    await transaction.start()
    await other.execute(
        f"UPDATE {schema}.places SET hot = '2', mark = pg_current_xact_id()::text::bigint + base "
        f"FROM {schema}.store WHERE name = 'slow'"
    )
    await backend.write([[Step(quick, b"1", b"2")], [Step(later, None, b"1")]], 0)
    seen = await backend.recent("t", "s", since=mark)
    assert {one.place for one in seen} == {quick, later}
    assert (await backend.recent("t", "s", since=seen[-1].mark))[-1].place in (quick, later)
    await transaction.commit()

    since_mark = await backend.recent("t", "s", since=seen[-1].mark)
    assert {one.place: one.head.hot for one in since_mark}[slow] == b"2"
    assert [one.place for one in await backend.recent("t", "s", since=since_mark[-1].mark)] == [since_mark[-1].place]
    await other.close()
    await backend.close()


# --- what it costs


Sent = list[tuple[str, tuple[Any, ...]]]


def sent_by(do: Callable[[Any], Any], address: str, turns: int = 40) -> Sent:
    """Return the round trips that a memory makes while `do` runs.

    The memory knows the session's head and remembers no context.
    """
    with watched() as sent, Memory.open(address, view_bytes=0) as memory:
        session = known_to(memory, turns)
        sent.clear()
        do(session)
        return list(sent)


@pytest.mark.parametrize(
    "do",
    [
        lambda session: session.add(turn("one more")),
        lambda session: session.context(),
    ],
    ids=["append", "context"],
)
def test_an_append_or_a_steady_context_is_one_round_trip(do: Callable[[Any], Any]) -> None:
    """An append by a memory that knows the head, and a steady context, are one round trip each."""
    assert len(sent_by(do, address_of("trips"))) == 1


def test_an_append_sends_only_the_lists_it_needs() -> None:
    """An append sends two lists, of keys and of values; what all rows have in common is sent once.

    The driver inspects each value of a list.
    """
    added = list[Any]()

    ((_, values),) = sent_by(lambda session: added.extend(session.add(turn("one more"))), address_of("lists"))

    assert [len(one) for one in values if isinstance(one, list)] == [len(added), len(added)]


def test_a_replaced_row_keeps_nothing_of_the_old_one() -> None:
    """A plain row that replaces a row with id and expiry is not found by that id and does not expire."""

    async def work(address: str) -> None:
        backend: Any = open_postgres(address, Threaded())
        head, rows = Place("t", "h", "s", "n"), Place("t", "h", "s", "rows")
        await backend.write([[Step(head, None, b"1")]], 0)
        for before, after, row in ((b"1", b"2", (7, b"named", "id", 5)), (b"2", b"3", (7, b"plain", "", None))):
            batch = [Step(head, before, after), Step(rows, rows_only=True, put=[("t", [row])])]
            assert await backend.write([batch], 0, again=lambda *_: None) == [None]

        (seen,) = await backend.look([Ask(rows, [Named("t", ["id"]), Range("t", [(0, 9)])], head=False)])
        assert [list(rows_found) for rows_found in seen.rows] == [[], [(7, b"plain", "", None)]]
        assert await backend.expired("t", 9) == []
        await backend.close()

    asyncio.run(work(address_of("instead")))


def test_a_context_with_a_summary_is_one_round_trip() -> None:
    """A context with a summary is one round trip, even if the memory remembers no context."""
    with watched() as sent, Memory.open(address_of("trips"), view_bytes=0) as memory:
        session = memory.session("s", max_tokens=2000, counter=quarters)
        for number in range(40):
            session.add(turn(str(number)))
        session.compact({"strategy": "summarizer", "interaction_keep": 2, "cod_max_loops": 0})
        session.count()
        session.context()
        session.context()
        sent.clear()
        session.context()

    assert len(sent) == 1


def plans_of(address: str, sent: Sent) -> list[dict[str, Any]]:
    """Run these statements again under EXPLAIN and return their plans."""

    async def explained() -> list[dict[str, Any]]:
        db = await asyncpg.connect(address.partition("?")[0])
        try:
            how = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "
            return [json.loads(await db.fetchval(how + sql, *values))[0]["Plan"] for sql, values in sent]
        finally:
            await db.close()

    return asyncio.run(explained())


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan that were executed."""
    if plan["Actual Loops"]:
        yield plan
        for one in plan.get("Plans", ()):
            yield from nodes(one)


def tables(plan: dict[str, Any]) -> set[str]:
    """Return the names of the tables that a plan read."""
    return {
        node["Relation Name"] for node in nodes(plan) if "Relation Name" in node and node["Node Type"] != "ModifyTable"
    }


def rows_read(plan: dict[str, Any]) -> int:
    """Return how many rows of tables a plan read."""
    scans = [node for node in nodes(plan) if "Relation Name" in node and "Scan" in node["Node Type"]]
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]) for node in scans
    )


@pytest.mark.parametrize("turns", [1_000, pytest.param(17_000, marks=pytest.mark.slow)])
def test_a_context_reads_the_rows_that_it_shows(turns: int) -> None:
    """A context reads about as many rows as it shows, and no more counts, however long the log is."""
    address, shown = address_of("plans"), list[int]()

    sent = sent_by(lambda session: shown.append(session.context().report.entries), address, turns)
    asked(address, f"ANALYZE {schema_of('plans')}.rows", f"ANALYZE {schema_of('plans')}.places")
    (plan,) = plans_of(address, sent)

    assert 10 < shown[0] < 400
    assert rows_read(plan) <= 2 * shown[0] + 20
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 12 * shown[0]


PARTITIONS = 8


def partitioned(name: str) -> str:
    """Return the address of a new schema whose tables are partitioned by `home`, as over several servers."""
    address, schema = fresh(name), schema_of(name)
    with Memory.open(address):
        pass
    statements = [f"DROP VIEW {schema}.palimpsest_entries"]
    for table in ("places", "rows"):
        whole = f"{schema}.{table}"
        statements += [
            f"ALTER TABLE {whole} RENAME TO {table}_one",
            f"CREATE TABLE {whole}(LIKE {whole}_one INCLUDING ALL) PARTITION BY HASH (home)",
        ]
        statements += [
            f"CREATE TABLE {whole}_{n} PARTITION OF {whole} FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {n})"
            for n in range(PARTITIONS)
        ]
        statements.append(f"DROP TABLE {whole}_one")
    asked(address, *statements)
    return address


def test_each_statement_of_a_session_reads_one_partition() -> None:
    """Each statement of a session (append, context, erasure, lease) touches one partition; listings read all."""
    address = partitioned("partitions")

    def do(session: Any) -> None:
        session.add(turn("more"))
        session.context()
        session.erase([3])
        session.pin(5)
        with session.turn():
            session.add_user_message("x")
        session.entries(limit=3)

    sent = [(sql, values) for sql, values in sent_by(do, address) if values and " AS address" not in sql]
    plans = plans_of(address, sent)

    assert len(sent) > 8
    for plan, (sql, _) in zip(plans, sent, strict=True):
        spread = {table.rpartition("_")[2] for table in tables(plan)} - {"store"}
        assert len(spread) <= 1, sql


# --- for people, and for whoever erases


def test_people_can_read_unencrypted_entries() -> None:
    """A view shows entries that are neither encrypted nor damaged, for people who read with SQL."""
    address, schema = address_of("view"), schema_of("view")
    with Memory.open(address, tenant="acme") as memory:
        session = memory.session("chat")
        session.add([*turn("1"), {"role": "user", "content": "nul \x00 and ünïcode"}])
        session.add({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
        session.add_user_message("broken")
    asked(address, f"UPDATE {schema}.rows SET value = '\\xff00' WHERE key & 4294967295 = 9")

    shown = asked(address, f"SELECT * FROM {schema}.palimpsest_entries ORDER BY seq")

    assert [(row["tenant"], row["session"]) for row in shown] == [("acme", "chat")] * 8
    assert [row["kind"] for row in shown][:4] == ["message", "tool_call", "tool_call", "tool_result"]
    assert [row["role"] for row in shown][:2] == ["user", "assistant"]
    assert [row["text"] for row in shown][-2:] == ["nul \ufffd and ünïcode", "a\nb"]


def test_a_damaged_row_costs_one_entry() -> None:
    """A byte changed in the database damages one entry; the others are read."""
    address, schema = address_of("damage"), schema_of("damage")
    with Memory.open(address) as memory:
        memory.session("s").add([{"role": "user", "content": f"text {number}"} for number in range(5)])
    asked(address, f"UPDATE {schema}.rows SET value = set_byte(value, 60, 33) WHERE key & 4294967295 = 3")

    with Memory.open(address) as memory:
        entries = memory.session("s").entries()
        assert [entry.seq for entry in entries if entry.damaged] == [3]
        assert [entry.text for entry in entries if not entry.damaged] == ["text 0", "text 1", "text 3", "text 4"]


def test_an_erasure_reports_what_the_server_keeps() -> None:
    """An erasure leaves no byte in a table, and reports what only the server's owner can remove."""
    address, schema = address_of("remains"), schema_of("remains")
    with Memory.open(address) as memory:
        session = memory.session("s")
        session.add_user_message("zanzibar")
        erasure = session.erase([1])

        assert erasure.remains == KEEPS
        assert memory.vacuum().remains == KEEPS
    assert "VACUUM FULL" in KEEPS[0]
    for table in ("places", "rows"):
        assert asked(address, f"SELECT 1 FROM {schema}.{table} t WHERE t::text LIKE '%{b'zanzibar'.hex()}%'") == []
