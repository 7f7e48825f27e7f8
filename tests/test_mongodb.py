"""The store on MongoDB, tested against SecantusDB, which speaks MongoDB's protocol over MongoDB's storage engine.

SecantusDB is a beta by another project, not MongoDB. PALIMPSEST_TEST_MONGODB_URL names a real server for the same
tests.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import bson
import pytest
from pymongo.errors import OperationFailure, PyMongoError

import mongostore
from log_rules import LogConformance, StoreFactory
from one_loop import OnALoop
from palimpsest import Memory, StoreUnavailable
from palimpsest.errors import StoreTooNew
from palimpsest.log.entry import now_us
from palimpsest.runtime.runner import Inline, drive
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores.backend import Ask, Backend, Named, Place, Range, Row, Step
from palimpsest.stores.bridged import BridgedBackend
from palimpsest.stores.encrypted.backend import unlocked_backend
from palimpsest.stores.mongodb import open_mongodb
from palimpsest.stores.mongodb.backend import DENIED, REMAINS, UNKNOWN, compact_collection
from palimpsest.stores.mongodb.faults import may_pass
from palimpsest.stores.mongodb.writing import Changing
from palimpsest.stores.opening import open_store
from palimpsest.testing import BackendFactory, StoreConformance
from processes import opened_at_once
from sealed import BOTH
from writer import quarters, turn

KEEPS = (REMAINS,)
REFUSES = () if os.environ.get("PALIMPSEST_TEST_MONGODB_URL") else (UNKNOWN,)
"""SecantusDB has no `compact`, which a vacuum therefore reports; a real server has it."""


@pytest.mark.wide
class TestSecantusBackend(OnALoop, StoreConformance):
    """The backend fulfils the contract of backends on SecantusDB."""

    lasts = True
    keeps = KEEPS
    refuses = REFUSES

    @pytest.fixture
    def backend(self) -> BackendFactory:
        address = mongostore.address_of()
        return lambda: open_mongodb(address, Inline())


@pytest.mark.wide
class TestSecantusStore(OnALoop, LogConformance):
    """The engine over the backend fulfils the contract of stores on an event loop."""

    keeps = KEEPS
    refuses = REFUSES

    @pytest.fixture
    def store(self) -> StoreFactory:
        address = mongostore.address_of()
        return lambda clock: open_store(address, Threaded(), clock=clock)


@pytest.mark.slow
class TestBridgedSecantusStore(LogConformance):
    """The engine fulfils the contract without an event loop, as a synchronous memory uses it."""

    keeps = KEEPS
    refuses = REFUSES

    @pytest.fixture
    def store(self) -> Iterator[StoreFactory]:
        runner, address = Inline(), mongostore.address_of()
        yield lambda clock: open_store(address, runner, clock=clock)
        drive(runner.close())


@pytest.mark.wide
class TestSealedSecantusBackend(StoreConformance):
    """Encryption over the backend fulfils the contract of backends, bridged to a synchronous memory."""

    lasts = True
    keeps = KEEPS
    refuses = REFUSES

    @pytest.fixture
    def backend(self) -> Iterator[BackendFactory]:
        runner, address = Inline(), mongostore.address_of()

        def sealed() -> Backend:
            below = BridgedBackend(open_mongodb(address, runner), runner)
            return drive(unlocked_backend(below, None, BOTH, now_us))

        yield sealed
        drive(runner.close())


# --- addresses and options


def test_options_of_the_driver_are_passed_on() -> None:
    """Options of an address that are not Palimpsest's go to the driver, such as its write concern."""
    address = mongostore.address_of(w=1, journal="false", appname="mine")

    async def work() -> tuple[object, object]:
        backend = open_mongodb(address, Inline())
        await backend.tenants()
        client = backend._client
        await backend.close()
        return client.writes.document, client.client.options.pool_options.appname

    assert asyncio.run(work()) == ({"w": 1, "j": False}, "mine")


def test_a_standalone_server_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is no replica set has no transactions and is refused with the advice to initiate one."""
    backend = open_mongodb("mongodb://me:sesame@localhost/x", Inline())

    with pytest.raises(StoreUnavailable, match=r"rs\.initiate") as caught:
        backend._has_transactions({"isWritablePrimary": True})
    backend._has_transactions({"setName": "rs0"})
    backend._has_transactions({"msg": "isdbgrid"})

    assert "sesame" not in str(caught.value)


# --- versions


def fresh(name: str) -> str:
    """Return the address of a database that does not exist."""
    address = mongostore.address_of(name)
    documents = mongostore.documents(name)
    documents.database.client.drop_database(documents.database.name)
    return address


def test_twenty_memories_can_open_a_new_database_at_once() -> None:
    """Twenty memories may open a new database at once; each creates what is missing."""
    address = fresh("opening")

    opened_at_once(address, 20)

    with Memory.open(address) as memory:
        assert len(memory.sessions()) == 20
    assert sorted(mongostore.documents("opening").index_information()) == ["_id_", "by_due", "by_ids", "by_list"]


def test_a_store_of_a_newer_version_is_refused() -> None:
    """A store of a newer version raises StoreTooNew with that version."""
    address = fresh("newer")
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("x")
    meta = mongostore.documents("newer").database["palimpsest_meta"]
    meta.update_one({"_id": "version"}, {"$set": {"number": 99}})

    with pytest.raises(StoreTooNew, match="99"):
        Memory.open(address).sessions()


def test_a_read_only_memory_creates_nothing() -> None:
    """A read-only memory of a missing store raises and creates nothing; of an existing one it only reads."""
    address = fresh("reading")
    with pytest.raises(StoreUnavailable, match="open it once without readonly=True"):
        Memory.open(address, readonly=True).sessions()
    assert mongostore.documents("reading").database.list_collection_names() == []
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("x")

    with Memory.open(f"{address}?readonly=true") as memory:
        assert [entry.text for entry in memory.session("s").entries()] == ["x"]
        with pytest.raises(StoreUnavailable, match="read-only"):
            memory.session("s").add_user_message("y")


# --- marks


def test_a_listing_after_a_mark_misses_no_slow_writer() -> None:
    """A transaction that began before a mark and ends after it is in the listing since that mark."""

    async def passed_nobody() -> None:
        backend: Any = open_mongodb(mongostore.address_of(), Inline())
        slow, quick = (Place("t", name, "s", name) for name in ("slow", "quick"))
        await backend.write([[Step(slow, None, b"1")], [Step(quick, None, b"1")]], 0)
        client = backend._client.client
        async with client.start_session() as session:
            await session.start_transaction()
            changing = Changing(backend._client.within, session, "t", "slow")
            assert await changing.take([Step(slow, b"1", b"2")]) is None
            await asyncio.sleep(1.1)  # SecantusDB's marks are whole seconds
            await backend.write([[Step(quick, b"1", b"2")]], 0)
            seen = await backend.recent("t", "s")
            assert [(one.place, one.head.hot) for one in seen] == [(slow, b"1"), (quick, b"2")]
            await session.commit_transaction()

        since_mark = await backend.recent("t", "s", since=seen[-1].mark)

        assert {one.place: one.head.hot for one in since_mark} == {slow: b"2", quick: b"2"}
        assert (await backend.newest("t", "s"))[0].place == quick
        await backend.close()

    asyncio.run(passed_nobody())


# --- in each other's way


def test_a_transaction_and_an_append_exclude_each_other() -> None:
    """A transaction holds back an append to a head that it compares, and is restarted after such an append."""

    async def work() -> None:
        backend: Any = open_mongodb(mongostore.address_of(), Inline())
        first, rows, other = (Place("t", "h", name, "x") for name in ("one", "rows", "other"))
        await backend.write([[Step(first, None, b"1"), Step(rows, rows_only=True, put=[("t", [Row(1, b"a")])])]], 0)
        client = backend._client.client
        async with client.start_session() as session:
            await session.start_transaction()
            changing = Changing(backend._client.within, session, "t", "h")
            batch = [Step(first, b"1", b"1"), Step(other, None, b"x"), Step(rows, rows_only=True, drop=[("*", 0, 9)])]
            assert await changing.take(batch) is None
            put = Step(rows, rows_only=True, put=[("t", [Row(2, b"b")])])
            appending = asyncio.create_task(backend.write([[Step(first, b"1", b"2"), put]], 0))
            await asyncio.sleep(0.05)
            assert not appending.done()
            await session.commit_transaction()
        assert await appending == [None]
        (seen,) = await backend.look([Ask(rows, [Range("t", [(0, 9)])], head=False)])
        assert [row[0] for row in seen.rows[0]] == [2]

        async with client.start_session() as session:
            await session.start_transaction()
            changing = Changing(backend._client.within, session, "t", "h")
            await changing._load([b"l"])
            assert await backend.write([[Step(first, b"2", b"3")]], 0) == [None]
            with pytest.raises(PyMongoError) as caught:
                assert await changing.take([Step(first, b"2", b"2"), Step(other, b"x", b"y")]) is None
            assert may_pass(caught.value)
            await session.abort_transaction()
        await backend.close()

    asyncio.run(work())


def test_of_two_writers_expecting_absence_one_is_refused() -> None:
    """Of two batches that each create what the other expects to be absent, one is refused."""

    async def work(address: str) -> None:
        backends: list[Any] = [open_mongodb(address, Inline()) for _ in range(2)]
        for number in range(8):
            first, second = (Place("t", f"h{number}", "s", name) for name in ("one", "two"))
            results = await asyncio.gather(
                backends[0].write([[Step(first, None, b"1"), Step(second)]], 0),
                backends[1].write([[Step(second, None, b"1"), Step(first)]], 0),
            )
            assert sorted(refusal is None for (refusal,) in results) == [False, True]
        for backend in backends:
            await backend.close()

    asyncio.run(work(mongostore.address_of()))


# --- tails


@pytest.mark.parametrize("table", ["t", "new"])
def test_rows_in_a_tail_survive_deletions_beside_them(table: str) -> None:
    """Rows in a tail are found, by id too, when other rows of their place are dropped.

    So it is if the drop leaves no other row of the place, or their table is new.
    """

    async def work(address: str) -> None:
        backend = open_mongodb(address, Inline())
        first, second, rows = (Place("t", "h", name, "x") for name in ("one", "two", "rows"))
        far = 1 << 32

        def put(table: str, key: int, id: str) -> Step:
            return Step(rows, rows_only=True, put=[(table, [Row(key, b"v", id)])])

        for batch in (
            [Step(first, None, b"1"), put("t", 1, "a")],
            [Step(second, None, b"1"), put("t", far, "b")],
            [Step(second, b"1", b"2"), Step(rows, rows_only=True, drop=[("t", far, far)])],
            [Step(second, b"2", b"3"), put(table, far + 1, "c")],
            [Step(first, b"1", b"2"), Step(rows, rows_only=True, drop=[("*", 0, far - 1)])],
        ):
            assert await backend.write([batch], 0) == [None]

        (seen,) = await backend.look([Ask(rows, [Named(table, ["c"]), Range(table, [(0, 2 * far)])], head=False)])
        assert [[row[2] for row in rows_found] for rows_found in seen.rows] == [["c"], ["c"]]
        drop = Step(rows, rows_only=True, drop=[("*", 0, 2 * far)])
        assert await backend.write([[Step(first, b"2"), Step(second, b"3"), drop]], 0) == [None]
        await backend.close()

    asyncio.run(work(mongostore.address_of()))
    assert mongostore.documents().count_documents({}) == 0


def test_entries_with_keys_take_no_further_documents() -> None:
    """Entries with keys of their own take as many documents as others, and are found in tails and buckets."""

    def kept(name: str) -> list[int]:
        with Memory.open(mongostore.address_of()) as memory:
            session = memory.session("s")
            for number in range(60):
                key = {"key": f"{name}-{number}"} if name else {}
                session.add({"role": "user", "content": f"{number}" + "x" * 2_000}, **key)
            if name:
                repeated = [
                    session.add({"role": "user", "content": f"{n}" + "x" * 2_000}, key=f"{name}-{n}") for n in (0, 59)
                ]
                assert [[entry.seq for entry in added] for added in repeated] == [[1], [60]]
            assert len(session.entries()) == 60
        return sorted(len(doc["_id"]) for doc in mongostore.documents().find())

    assert kept("named") == kept("")


# --- what is left, what is damaged


def test_a_deleted_session_leaves_no_document() -> None:
    """A deleted session leaves no document, neither of entries and counts nor of indexes."""
    with Memory.open(mongostore.address_of()) as memory:
        session = memory.session("s", max_tokens=1000, counter=quarters)
        for number in range(60):
            session.add(turn(str(number)))
        session.context()
        session.add_user_message("x" * 2_000_000)
        assert mongostore.documents().count_documents({}) > 5
        memory.delete_session("s")

    assert mongostore.documents().count_documents({}) == 0


def test_an_erasure_reports_what_the_server_keeps() -> None:
    """An erasure leaves no byte in a document, and reports what only the server's owner can remove."""
    with Memory.open(mongostore.address_of()) as memory:
        session = memory.session("s")
        session.add_user_message("zanzibar")
        assert any(b"zanzibar" in bson.encode(doc) for doc in mongostore.documents().find())
        erasure = session.erase([1])

        assert erasure.remains == KEEPS
        assert memory.vacuum().remains == (*KEEPS, *REFUSES)
    assert not any(b"zanzibar" in bson.encode(doc) for doc in mongostore.documents().find())


class Answering:
    """A fake database whose `compact` gives this answer, or fails with this code."""

    def __init__(self, answer: dict[str, Any] | int) -> None:
        self.asked: list[dict[str, Any]] = []
        self._answer = answer

    async def command(self, command: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(command)
        if isinstance(self._answer, int):
            raise OperationFailure("no", self._answer)
        return self._answer


@pytest.mark.parametrize(
    ("answer", "freed", "told"),
    [
        ({"bytesFreed": 40_960, "ok": 1.0}, 40_960, ()),
        ({"ok": 1.0}, 0, ()),
        (59, 0, (UNKNOWN,)),
        (115, 0, (UNKNOWN,)),
        (13, 0, (DENIED,)),
        (96, 0, ("the server did not run `compact` (code 96), so that free space stays in its files",)),
    ],
    ids=["done", "done by an old server", "unknown", "of a mongos", "denied", "refused"],
)
def test_a_vacuum_runs_compact_on_the_server(answer: dict[str, Any] | int, freed: int, told: tuple[str, ...]) -> None:
    """A vacuum runs `compact` and returns what it freed, or why the server did not run it."""
    database = Answering(answer)

    report = drive(compact_collection(database))

    assert database.asked == [{"compact": "palimpsest", "force": True}]
    assert (report.freed, report.remains) == (freed, (*KEEPS, *told))


def test_only_a_vacuum_runs_compact() -> None:
    """An erasure does not run `compact`, nor does a read-only memory."""
    address = mongostore.address_of()
    with mongostore.watched() as sent:
        with Memory.open(address) as memory:
            session = memory.session("s")
            session.add_user_message("x")
            session.erase([1])
            assert "compact" not in sent
            memory.vacuum()
            assert sent.count("compact") == 1
        with Memory.open(address, readonly=True) as memory:
            drive(memory.store.scrub())
        assert sent.count("compact") == 1


@pytest.mark.sampled
@pytest.mark.parametrize("many", [5, 400], ids=["in the tail", "in a bucket"])
def test_a_damaged_row_costs_one_entry(many: int) -> None:
    """A byte changed in the database damages one entry; the others are read."""
    address = mongostore.address_of()
    with Memory.open(address) as memory:
        for number in range(many):
            memory.session("s").add_user_message(f"text {number}")
    field = "tail" if many == 5 else "r"
    (doc,) = (doc for doc in mongostore.documents().find() if any(b'text 2"' in cell for cell in doc.get(field, ())))
    changed = [cell.replace(b'text 2"', b'tent 2"') for cell in doc[field]]
    mongostore.documents().update_one({"_id": doc["_id"]}, {"$set": {field: changed}})

    with Memory.open(address) as memory:
        entries = memory.session("s").entries()
        assert [entry.seq for entry in entries if entry.damaged] == [3]
        assert len([entry for entry in entries if not entry.damaged]) == many - 1
