"""The PostgreSQL store with its tables on two other servers: the same contracts, and what each server is asked."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from log_rules import LogConformance, StoreFactory
from on_servers import own_server
from one_loop import OnALoop
from palimpsest import Memory, StoreUnavailable
from palimpsest.runtime.runner import Inline
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores.opening import open_store
from palimpsest.stores.postgres import open_postgres
from palimpsest.stores.postgres.backend import KEPT_APART
from palimpsest.testing import BackendFactory, StoreConformance
from servers import Server
from shards import address_of, spread
from writer import quarters, turn

asyncpg = pytest.importorskip("asyncpg", reason="the extra `postgres` is not installed")

pytestmark = pytest.mark.wide


class TestApartBackend(OnALoop, StoreConformance):
    """Tables on two servers keep the contract of backends."""

    lasts = True
    keeps = (KEPT_APART,)

    @pytest.fixture
    def backend(self) -> BackendFactory:
        address = address_of("contract_apart")
        return lambda: open_postgres(address, Inline())


class TestApartStore(OnALoop, LogConformance):
    """The engine over tables on two servers keeps the contract of stores."""

    keeps = (KEPT_APART,)

    @pytest.fixture
    def store(self) -> StoreFactory:
        address = address_of("log_apart")
        return lambda clock: open_store(address, Threaded(), clock=clock)


# --- servers of a test's own


SCHEMA = "spread"
ASKED = re.compile(r"LOG:  (statement|execute .*):|^\t")


class Apart(NamedTuple):
    """A store whose tables are on two servers that log their statements."""

    address: str
    others: tuple[Server, Server]

    def asked(self, do: Callable[[], object]) -> tuple[list[str], list[str]]:
        """Return what each of the two servers was asked during the call."""
        logs = [one.folder / "log" for one in self.others]
        before = [log.stat().st_size for log in logs]
        do()
        found = [log.read_bytes()[size:].decode() for log, size in zip(logs, before, strict=True)]
        first, second = ([line for line in text.splitlines() if ASKED.search(line)] for text in found)
        return first, second

    def sessions(self, memory: Memory) -> tuple[Any, Any]:
        """Return a session on each of the two servers."""
        found: dict[int, Any] = {}
        for number in range(100):
            session = memory.session(f"s{number}", max_tokens=2_000, counter=quarters)
            first, _ = self.asked(lambda session=session: session.add(turn("first")))  # type: ignore[misc]
            found.setdefault(0 if first else 1, session)
            if len(found) == 2:
                break
        return found[0], found[1]


@pytest.fixture(scope="module")
def apart() -> Iterator[Apart]:
    """Return the address of an empty store of this kind."""
    with own_server("postgres") as front, own_server("postgres") as one, own_server("postgres") as two:
        spread(front.address, [one.address, two.address], SCHEMA)
        for server in (one, two):
            asyncio.run(done(server.address, "ALTER SYSTEM SET log_statement = 'all'", "SELECT pg_reload_conf()"))
        yield Apart(f"{front.address}?schema_name={SCHEMA}", (one, two))


async def done(address: str, *statements: str) -> None:
    db = await asyncpg.connect(address)
    for statement in statements:
        await db.execute(statement)
    await db.close()


def test_a_session_is_on_one_server(apart: Apart) -> None:
    """Everyday verbs of a session use its server only; the other is not even connected to. Listings use both.

    An erasure asks both for branches. A lease has a home of its own.
    """
    with Memory.open(apart.address, view_bytes=0) as memory:
        first, second = apart.sessions(memory)

        def do() -> None:
            first.add(turn("more"))
            first.context()
            first.pin(1)
            first.entries(limit=3)
            first.count()
            first.context(max_tokens=500)

        one, two = apart.asked(do)
        assert (len(one) > 20, two) == (True, [])
        one, two = apart.asked(lambda: second.add(turn("more")))
        assert (one, len(two) > 3) == ([], True)
        assert all(apart.asked(memory.sessions))
        one, two = apart.asked(lambda: first.erase([3]))
        assert "UPDATE" in str(one)
        assert not [line for line in two if "rows" in line or "UPDATE" in line]


def test_fetched_rows_do_not_grow_with_the_session(apart: Apart) -> None:
    """The rows fetched from a server do not grow with the length of the session."""
    fetched: list[dict[str, int]] = []
    with Memory.open(apart.address, view_bytes=0) as memory:
        for turns in (100, 1_500):
            session = memory.session(f"long-{turns}", max_tokens=2_000, counter=quarters)
            for begin in range(0, turns, 100):
                session.add([one for number in range(begin, begin + 100) for one in turn(str(number))])
            session.count()
            session.context()
            fetched.append({})
            for name, do in (
                ("context", session.context),
                ("append", lambda session=session: session.add(turn("more"))),
                ("erase", lambda session=session: session.erase([3])),
                ("entries", lambda session=session: session.entries(limit=3)),
            ):
                said = apart.asked(do)
                fetched[-1][name] = sum("FETCH" in line for one in said for line in one)

    assert all(more <= few + 2 for few, more in zip(fetched[0].values(), fetched[1].values(), strict=True)), fetched
    assert fetched[1]["append"] <= 4


def test_sessions_on_one_server_work_while_the_other_is_down(apart: Apart) -> None:
    """While one server is away the other's sessions work; when it is back, nothing acknowledged is missing."""
    with Memory.open(apart.address, timeout_seconds=10) as memory:
        here, there = apart.sessions(memory)
        before = [entry.id for entry in there.entries()]
        apart.others[1].kill()
        try:
            here.add(turn("while it is away"))
            here.pin(1)
            assert here.context().messages
            for do in (lambda: there.add(turn("no")), lambda: memory.session(there.id).entries(), memory.sessions):
                with pytest.raises(StoreUnavailable):
                    do()
        finally:
            apart.others[1].start()
        there.add_user_message("again")
        after = [entry.id for entry in there.entries()]
        assert after[: len(before)] == before
        assert len(memory.sessions()) > 1


WRITER = """
import asyncio, sys
from palimpsest import AsyncMemory

async def one(name):
    async with AsyncMemory.open(sys.argv[1], pool_size=2) as memory:
        for number in range(25):
            await memory.session("crowd").add_user_message(f"{name}.{number}")

async def all_of_them():
    await asyncio.gather(*(one(f"{sys.argv[2]}.{number}") for number in range(4)))

asyncio.run(all_of_them())
"""


def test_eight_writers_in_two_processes_lose_nothing(apart: Apart) -> None:
    """Of eight writers in two processes every entry is there, each writer's in order."""
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, apart.address, str(name)]) for name in range(2)]
    assert [writer.wait(120) for writer in writers] == [0, 0]

    with Memory.open(apart.address) as memory:
        texts = [entry.text for entry in memory.session("crowd").entries()]
    assert len(texts) == len(set(texts)) == 200
    for name in {text.rpartition(".")[0] for text in texts}:
        assert [text for text in texts if text.startswith(f"{name}.")] == [f"{name}.{number}" for number in range(25)]


def test_durability_of_sharded_tables_is_unknown_to_the_front(apart: Apart) -> None:
    """`durability()` does not claim anything for the other servers, whose settings the front does not know."""
    with Memory.open(apart.address) as memory:
        assert "depends on the servers that the tables are on" in memory.durability()
