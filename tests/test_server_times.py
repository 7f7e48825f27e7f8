"""Stores on servers under many writers, killed processes and servers, and calls that end early.

These rules hold for every server; what is particular to one is in its own tests.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from on_servers import KINDS, OnServer, own_server
from palimpsest import AsyncMemory, Memory, StoreUnavailable
from palimpsest.stores.backend import Place, Step
from palimpsest.testing import FakeClock
from processes import Process, together, whole_turns
from servers import Server, with_options
from writer import ENTRIES_A_TURN, SESSION, quarters, turn

SLOW_SERVER = (pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
"""SecantusDB is slow; a cancelled PyMongo leaves a socket to the garbage collector, which warns."""

EACH = [pytest.param(kind, marks=SLOW_SERVER if kind == "mongodb" else ()) for kind in KINDS]


@pytest.fixture(params=EACH)
def store(request: pytest.FixtureRequest) -> OnServer:
    """Yield each kind of store on a server."""
    return KINDS[request.param]


@pytest.fixture(params=EACH)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield a server of the test's own, of each kind."""
    with own_server(request.param) as one:
        yield one


def hasty(server: Server) -> str:
    """Return the server's address with a short timeout."""
    return with_options(server.address, timeout_seconds=2)


# --- many writers


@pytest.mark.wide
def test_two_processes_of_four_threads_lose_and_mix_nothing(store: OnServer) -> None:
    """Turns that processes and threads add at once are each stored once, in one piece, with their calls linked."""
    address = store.address_of("threads")
    acknowledged = together(Process("threads", address, name, 4, 5) for name in ("one", "two"))

    with Memory.open(address) as memory:
        counts_by_label = whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN)
        assert memory.session(SESSION).verify().problems == ()
    assert sorted(counts_by_label) == sorted(label for labels in acknowledged for label in labels)
    assert (len(counts_by_label), set(counts_by_label.values())) == (40, {1})


def test_a_key_used_by_two_processes_adds_once(store: OnServer) -> None:
    """Of two processes that add under the same keys, the second gets what the first added."""
    address = store.address_of("keys")

    first_entries, second_entries = together(Process("keyed", address, 10) for _ in range(2))

    assert first_entries == second_entries
    with Memory.open(address) as memory:
        assert len(memory.session(SESSION).entries()) == 10 * ENTRIES_A_TURN


@pytest.mark.parametrize("many", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_fifty_tasks_share_ten_connections(store: OnServer, many: int) -> None:
    """Fifty tasks over many sessions share ten connections without an error."""
    address = store.address_of("many")

    async def work() -> int:
        async with AsyncMemory.open(address) as memory:
            numbers = iter(range(many))

            async def one() -> None:
                for number in numbers:
                    session = memory.session(f"s{number}", max_tokens=500, counter=quarters)
                    await session.add(turn(str(number)))
                    assert (await session.context()).messages

            await asyncio.gather(*(one() for _ in range(50)))
            return len(await memory.sessions())

    assert asyncio.run(work()) == many


# --- killed


@pytest.mark.wide
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_a_killed_writer_loses_nothing_acknowledged(store: OnServer, kills: int, dice: random.Random) -> None:
    """A writer killed at any moment leaves each turn whole or absent, and no acknowledged turn is lost."""
    address, acknowledged = store.address_of("killed"), list[str]()
    for _ in range(kills):
        with Process("append", address) as writer:
            heard = [writer.hear() for _ in range(dice.randrange(1, 12))]
            acknowledged += map(str, [*heard, *writer.kill()])

    with Memory.open(address) as memory:
        session = memory.session(SESSION)
        counts_by_label = whole_turns(session.entries(), ENTRIES_A_TURN)
        assert set(acknowledged) <= set(counts_by_label)
        assert set(counts_by_label.values()) == {1}
        assert session.verify().problems == ()


@pytest.mark.sampled
def test_a_killed_server_loses_nothing_acknowledged(server: Server, dice: random.Random) -> None:
    """A killed server recovers with every acknowledged turn, and a memory that was open continues."""
    acknowledged = list[str]()
    with Memory.open(server.address) as memory:
        session = memory.session("s")
        for number in range(3):
            with Process("append", hasty(server)) as writer:
                acknowledged += [str(writer.hear()) for _ in range(dice.randrange(3, 20))]
                session.add_user_message(f"mine {number}")
                server.kill()
                acknowledged += map(str, writer.end(expect=1))
            server.start()
            assert session.entries()[-1].text == f"mine {number}"

        assert [entry.text for entry in session.entries()] == [f"mine {number}" for number in range(3)]
        counts_by_label = whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN)
        assert set(acknowledged) <= set(counts_by_label)
        assert set(counts_by_label.values()) == {1}


def test_a_stopped_server_raises_in_time(server: Server) -> None:
    """While a server is stopped, reads and writes raise in time and say that nothing was written.

    When it is back the memory continues. MongoDB's driver repeats a write itself and does not tell whether the first
    was sent.
    """
    with Memory.open(hasty(server)) as memory:
        session = memory.session("s")
        session.add_user_message("before")
        server.stop()

        for attempt in (session.entries, lambda: session.add_user_message("x"), session.context, memory.sessions):
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1") as caught:
                attempt()
            assert caught.value.written is False or (server.kind == "mongodb" and caught.value.written is None)
        server.start()

        session.add_user_message("after")
        assert [entry.text for entry in session.entries()] == ["before", "after"]


def test_a_breaker_spares_a_stopped_server_and_retries(server: Server, clock: FakeClock) -> None:
    """After five failures a breaker fails calls at once, and 30 seconds later asks the server again."""
    with Memory.open(hasty(server), clock=clock, circuit_breaker=True) as memory:
        session = memory.session("s")
        session.add_user_message("before")
        server.stop()
        for _ in range(5):
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
                session.entries()
        server.start()
        with pytest.raises(StoreUnavailable, match=r"5 calls in a row, .* 30 seconds"):
            session.entries()

        clock.advance(30)
        session.add_user_message("after")
        assert [entry.text for entry in session.entries()] == ["before", "after"]


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_restarted_server_is_reconnected(server: Server, how: str) -> None:
    """Connections that a restart closed are replaced, for a read and for a write that was not sent."""
    with Memory.open(server.address) as memory:
        session = memory.session("s")
        session.add_user_message("0")
        for number in range(1, 5):
            getattr(server, how)()
            server.start()
            if number % 2:
                assert len(session.entries()) == number
            session.add_user_message(str(number))

        assert [entry.text for entry in session.entries()] == ["0", "1", "2", "3", "4"]


# --- ended too early


def test_a_forked_child_is_refused(store: OnServer) -> None:
    """A forked child cannot use its parent's connections and raises ForkedProcess; the parent continues."""
    reports = Process("fork", store.address_of("forked")).end()

    assert reports == [
        "ForkedProcess",
        "ForkedProcess",
        "ForkedProcess",
        "Closed",
        ["before the fork", "after the fork"],
    ]


def test_a_cancelled_add_is_stored_whole_or_not_at_all(store: OnServer, dice: random.Random) -> None:
    """An add cancelled at any moment is stored whole or not at all, and connections stay usable."""

    address = store.address_of("cancelled", pool_size=2)

    async def work() -> None:
        async with AsyncMemory.open(address) as memory:
            session = memory.session(SESSION)
            acknowledged = set[str]()
            for number in range(60):
                adding = asyncio.create_task(session.add(turn(str(number))))
                for _ in range(dice.randrange(12)):
                    await asyncio.sleep(0)
                if number % 3:
                    adding.cancel()
                try:
                    await adding
                    acknowledged.add(str(number))
                except asyncio.CancelledError:
                    pass
            counts_by_label = whole_turns(await session.entries(), ENTRIES_A_TURN)
            assert acknowledged <= set(counts_by_label)
            assert set(counts_by_label.values()) == {1}

    asyncio.run(work())


@pytest.mark.sampled
@pytest.mark.parametrize("rounds", [40, 400])
def test_cancelling_one_add_doubles_no_other(store: OnServer, rounds: int, dice: random.Random) -> None:
    """Of messages that are written together each is stored once, even if some of their adds are cancelled."""
    address = store.address_of("beside")

    async def work() -> None:
        async with AsyncMemory.open(address) as memory:
            for number in range(rounds):
                session = memory.session(f"s{number}")
                await session.add_user_message("first")
                adding = [asyncio.create_task(session.add_user_message(f"{n}")) for n in range(6)]
                await asyncio.sleep(dice.random() / 250)
                for task in adding[:3]:
                    task.cancel()
                ends = await asyncio.gather(*adding, return_exceptions=True)
                acknowledged = {f"{n}" for n, end in enumerate(ends) if not isinstance(end, BaseException)}

                texts = [entry.text for entry in await session.entries()]
                assert sorted(texts) == sorted(set(texts))
                assert set(texts) >= acknowledged

    asyncio.run(work())


def test_a_memory_refuses_another_event_loop(store: OnServer) -> None:
    """A memory opened under one event loop raises under another, with advice."""
    memory: Any = AsyncMemory.open(store.address_of("loops"))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(memory.sessions())

    for verb in (memory.sessions, memory.close):
        with pytest.raises(StoreUnavailable, match="another event loop"):
            asyncio.run(verb())

    loop.run_until_complete(memory.close())
    loop.close()


# --- large and odd


@pytest.mark.wide
def test_large_and_odd_texts_come_back(store: OnServer) -> None:
    """Ten megabytes, NUL, lone surrogates and texts that look like statements come back.

    Two tenants with the same session id have separate texts.
    """
    odd = ["\x00", "a\x00b", "\ud800", "\U0010ffff", "'; DROP TABLE x; --", "$set", "\r\n$5\r\nhello", "x" * 10_000_000]
    address = store.address_of("odd")
    for tenant in ("one", "two"):
        with Memory.open(address, tenant=tenant) as memory:
            memory.session("s\u00e9{").add([{"role": "user", "content": f"{tenant}{text}"} for text in odd])
    for tenant in ("one", "two"):
        with Memory.open(address, tenant=tenant) as memory:
            assert [entry.text for entry in memory.session("s\u00e9{").entries()] == [f"{tenant}{text}" for text in odd]
            assert len(memory.sessions()) == 1
            if tenant == "one":
                assert memory.delete_session("s\u00e9{")
    with Memory.open(address, tenant="two") as memory:
        assert len(memory.session("s\u00e9{").entries()) == len(odd)


def test_a_partly_done_call_does_not_claim_that_nothing_was_written(store: OnServer) -> None:
    """If a later batch of a call fails, the error does not claim that nothing was written."""
    address = store.address_of("several")

    async def work() -> tuple[bool | None, list[str]]:
        async with AsyncMemory.open(address) as memory:
            await memory.sessions()
            backend = memory.store.backend
            done, refused = (Place("t", home, "item/x", "k") for home in ("one", "two"))

            def again(*_: object) -> None:
                raise StoreUnavailable("a store", "is full")

            with pytest.raises(StoreUnavailable) as caught:
                await backend.write([[Step(done, None, b"new")], [Step(refused, b"old", b"new")]], 0, again=again)
            return caught.value.written, [one.place.home for one in await backend.places("t", "item/", beneath=True)]

    assert asyncio.run(work()) == (None, ["one"])
