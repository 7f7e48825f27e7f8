"""The store on PostgreSQL: the contract of backends, what it costs, what becomes of it in bad times."""

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
    """Tables of a server keep the contract."""

    lasts = True
    keeps = KEEPS

    @pytest.fixture
    def backend(self) -> BackendFactory:
        address = address_of("contract")
        return lambda: open_postgres(address, Inline())


@pytest.mark.wide
class TestSealedPostgresBackend(StoreConformance):
    """And so they do sealed, bridged to a synchronous memory."""

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
    """The engine keeps its contract over it, on an event loop."""

    keeps = KEEPS

    @pytest.fixture
    def store(self) -> StoreFactory:
        address = address_of("log")
        return lambda clock: open_store(address, Threaded(), clock=clock)


@pytest.mark.wide
class TestBridgedPostgresStore(LogConformance):
    """And without one, as a synchronous memory uses it."""

    keeps = KEEPS

    @pytest.fixture
    def store(self) -> Iterator[StoreFactory]:
        runner, address = Inline(), address_of("bridged")
        yield lambda clock: open_store(address, runner, clock=clock)
        drive(runner.close())


# --- addresses and options


def test_statements_need_not_be_prepared() -> None:
    """With `statement_cache_size=0`, as some poolers want it, everything works."""
    with Memory.open(address_of("contract", statement_cache_size=0)) as memory:
        session = memory.session("s", max_tokens=1000)
        session.add(turn("1"))
        session.erase([1])
        assert session.context().messages


def test_a_pooler_that_forgets_prepared_statements_is_told() -> None:
    """As one does that gives each transaction another connection: the error says what to add to the address."""
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
    """The address of a schema that is not there."""
    address = address_of(name)
    asked(address, f"DROP SCHEMA IF EXISTS {schema_of(name)} CASCADE")
    return address


def test_twenty_open_a_new_schema_at_once() -> None:
    """One makes the tables, and all others use them."""
    address = fresh("opening")

    opened_at_once(address, 20)

    with Memory.open(address) as memory:
        assert len(memory.sessions()) == 20


def test_a_newer_schema_is_left_alone() -> None:
    """It is told which version it has."""
    address, schema = fresh("newer"), schema_of("newer")
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("x")
    asked(address, f"UPDATE {schema}.store SET version = 99")

    with pytest.raises(StoreTooNew, match="99"):
        Memory.open(address).sessions()


def test_tables_of_somebody_else_are_not_touched() -> None:
    """Not even where only one has the name of ours."""
    address, schema = fresh("foreign"), schema_of("foreign")
    asked(address, f"CREATE SCHEMA {schema}", f"CREATE TABLE {schema}.places(town text)")

    with pytest.raises(StoreCorrupt, match=r"another program \(places\)"):
        Memory.open(address).sessions()

    tables = asked(address, f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'")
    assert [row[0] for row in tables] == ["places"]


def test_who_only_reads_makes_nothing() -> None:
    """Without tables he is told so; with tables he reads, and may not write."""
    address, schema = fresh("reading"), schema_of("reading")
    with pytest.raises(StoreUnavailable, match="open it writable once"):
        Memory.open(address, readonly=True).sessions()
    assert asked(address, f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'") == []
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("x")

    with Memory.open(f"{address}&readonly=true") as memory:
        assert [entry.text for entry in memory.session("s").entries()] == ["x"]
        with pytest.raises(StoreUnavailable, match="read-only"):
            memory.session("s").add_user_message("y")


# --- marks


def test_marks_go_on_where_the_database_is_restored_elsewhere() -> None:
    """Another server numbers its transactions anew: what is written there comes behind what was before."""
    address, schema = fresh("restored"), schema_of("restored")
    with Memory.open(address) as memory:
        memory.session("old").add_user_message("x")
    asked(address, f"UPDATE {schema}.places SET mark = mark + 1000000000", f"UPDATE {schema}.store SET cluster = 'x'")

    with Memory.open(address) as memory:
        memory.session("new").add_user_message("x")
        assert [one.session for one in memory.sessions(order="latest")] == ["new", "old"]


def test_a_mark_passes_nobody_who_is_still_writing() -> None:
    """A transaction that began first and ends last is told to whoever goes on from the last mark that he was given."""
    asyncio.run(passed_nobody(address_of("marks"), schema_of("marks")))


async def passed_nobody(address: str, schema: str) -> None:
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

    heard = await backend.recent("t", "s", since=seen[-1].mark)
    assert {one.place: one.head.hot for one in heard}[slow] == b"2"
    assert [one.place for one in await backend.recent("t", "s", since=heard[-1].mark)] == [heard[-1].place]
    await other.close()
    await backend.close()


# --- what it costs


Sent = list[tuple[str, tuple[Any, ...]]]


def sent_by(do: Callable[[Any], Any], address: str, turns: int = 40) -> Sent:
    """What a memory that knows its session sends for something, in the order of its round trips."""
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
def test_what_is_done_all_day_is_one_round_trip(do: Callable[[Any], Any]) -> None:
    """An append by who knows the head, and a steady context."""
    assert len(sent_by(do, address_of("trips"))) == 1


def test_an_append_sends_its_keys_and_its_values_and_no_other_list() -> None:
    """The driver looks at each value of a list: what all rows have in common is sent once."""
    added = list[Any]()

    ((_, values),) = sent_by(lambda session: added.extend(session.add(turn("one more"))), address_of("lists"))

    assert [len(one) for one in values if isinstance(one, list)] == [len(added), len(added)]


def test_a_row_that_takes_the_place_of_another_has_nothing_of_it() -> None:
    """Where what is put is a plain row, too: it is found by no id, and does not expire."""

    async def work(address: str) -> None:
        backend: Any = open_postgres(address, Threaded())
        head, rows = Place("t", "h", "s", "n"), Place("t", "h", "s", "rows")
        await backend.write([[Step(head, None, b"1")]], 0)
        for before, after, row in ((b"1", b"2", (7, b"named", "id", 5)), (b"2", b"3", (7, b"plain", "", None))):
            batch = [Step(head, before, after), Step(rows, rows_only=True, put=[("t", [row])])]
            assert await backend.write([batch], 0, again=lambda *_: None) == [None]

        (seen,) = await backend.look([Ask(rows, [Named("t", ["id"]), Range("t", [(0, 9)])], head=False)])
        assert [list(some) for some in seen.rows] == [[], [(7, b"plain", "", None)]]
        assert await backend.expired("t", 9) == []
        await backend.close()

    asyncio.run(work(address_of("instead")))


def test_a_context_with_a_summary_is_one_round_trip() -> None:
    """Also where the memory remembers nothing of what it showed."""
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
    """How these statements are done, once again."""

    async def explained() -> list[dict[str, Any]]:
        db = await asyncpg.connect(address.partition("?")[0])
        try:
            how = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "
            return [json.loads(await db.fetchval(how + sql, *values))[0]["Plan"] for sql, values in sent]
        finally:
            await db.close()

    return asyncio.run(explained())


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a plan is made of, as far as it was done."""
    if plan["Actual Loops"]:
        yield plan
        for one in plan.get("Plans", ()):
            yield from nodes(one)


def tables(plan: dict[str, Any]) -> set[str]:
    """The tables that it looked into."""
    return {
        node["Relation Name"] for node in nodes(plan) if "Relation Name" in node and node["Node Type"] != "ModifyTable"
    }


def rows_read(plan: dict[str, Any]) -> int:
    """Rows of tables that were looked at."""
    read = [node for node in nodes(plan) if "Relation Name" in node and "Scan" in node["Node Type"]]
    return sum(
        round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]) for node in read
    )


@pytest.mark.parametrize("turns", [1_000, pytest.param(17_000, marks=pytest.mark.slow)])
def test_a_context_reads_the_rows_that_it_shows(turns: int) -> None:
    """Of 100,000 entries no more than of a few, and no more counts than entries."""
    address, shown = address_of("plans"), list[int]()

    sent = sent_by(lambda session: shown.append(session.context().report.entries), address, turns)
    asked(address, f"ANALYZE {schema_of('plans')}.rows", f"ANALYZE {schema_of('plans')}.places")
    (plan,) = plans_of(address, sent)

    assert 10 < shown[0] < 400
    assert rows_read(plan) <= 2 * shown[0] + 20
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 12 * shown[0]


PARTITIONS = 8


def partitioned(name: str) -> str:
    """The address of a new schema whose tables are spread by their column `home`, as over so many servers."""
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


def test_each_statement_of_a_session_looks_into_one_partition() -> None:
    """Appends, contexts, erasures and leases: all of a home is where its number says. Only listings ask all."""
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
    found = plans_of(address, sent)

    assert len(sent) > 8
    for plan, (sql, _) in zip(found, sent, strict=True):
        spread = {table.rpartition("_")[2] for table in tables(plan)} - {"store"}
        assert len(spread) <= 1, sql


# --- for people, and for whoever erases


def test_people_can_read_what_is_not_encrypted() -> None:
    """A view shows sessions entry by entry; what is sealed or damaged is not shown, and keeps nobody from the rest."""
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


def test_a_damaged_row_is_named_and_the_rest_is_read() -> None:
    """A byte that was changed in the database takes one entry."""
    address, schema = address_of("damage"), schema_of("damage")
    with Memory.open(address) as memory:
        memory.session("s").add([{"role": "user", "content": f"text {number}"} for number in range(5)])
    asked(address, f"UPDATE {schema}.rows SET value = set_byte(value, 60, 33) WHERE key & 4294967295 = 3")

    with Memory.open(address) as memory:
        found = memory.session("s").entries()
        assert [entry.seq for entry in found if entry.damaged] == [3]
        assert [entry.text for entry in found if not entry.damaged] == ["text 0", "text 1", "text 3", "text 4"]


def test_an_erasure_says_what_the_server_keeps() -> None:
    """No byte of it is in a table, and what nobody who uses the store can see to is told."""
    address, schema = address_of("remains"), schema_of("remains")
    with Memory.open(address) as memory:
        session = memory.session("s")
        session.add_user_message("zanzibar")
        done = session.erase([1])

        assert done.remains == KEEPS
        assert memory.vacuum().remains == KEEPS
    assert "VACUUM FULL" in KEEPS[0]
    for table in ("places", "rows"):
        assert asked(address, f"SELECT 1 FROM {schema}.{table} t WHERE t::text LIKE '%{b'zanzibar'.hex()}%'") == []
