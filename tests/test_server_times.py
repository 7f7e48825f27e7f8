"""Stores on servers in bad times: many writers, killed processes and servers, calls that end too early.

One set of rules for all of them; what only one of them has is in the tests of that one.
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
"""SecantusDB takes its time; PyMongo leaves a socket to the garbage collector when it is cancelled as it connects."""

EACH = [pytest.param(kind, marks=SLOW_SERVER if kind == "mongodb" else ()) for kind in KINDS]


@pytest.fixture(params=EACH)
def store(request: pytest.FixtureRequest) -> OnServer:
    """Each kind of store on a server."""
    return KINDS[request.param]


@pytest.fixture(params=EACH)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of a test's own, of each kind."""
    with own_server(request.param) as one:
        yield one


def hasty(server: Server) -> str:
    """Its address, with little patience."""
    return with_options(server.address, timeout_seconds=2)


# --- many writers


@pytest.mark.wide
def test_two_processes_of_four_threads_lose_and_mix_nothing(store: OnServer) -> None:
    """Each turn is there once, in one piece, with its calls and results linked."""
    address = store.address_of("threads")
    acknowledged = together(Process("threads", address, name, 4, 5) for name in ("one", "two"))

    with Memory.open(address) as memory:
        found = whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN)
        assert memory.session(SESSION).verify().problems == ()
    assert sorted(found) == sorted(label for labels in acknowledged for label in labels)
    assert (len(found), set(found.values())) == (40, {1})


def test_a_key_that_two_processes_use_adds_once(store: OnServer) -> None:
    """Whoever is second is given what the first has added."""
    address = store.address_of("keys")

    one, two = together(Process("keyed", address, 10) for _ in range(2))

    assert one == two
    with Memory.open(address) as memory:
        assert len(memory.session(SESSION).entries()) == 10 * ENTRIES_A_TURN


@pytest.mark.parametrize("many", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_many_sessions_and_fifty_tasks_share_ten_connections(store: OnServer, many: int) -> None:
    """In one process, without an error."""
    address = store.address_of("many")

    async def work() -> int:
        async with AsyncMemory.open(address) as memory:
            left = iter(range(many))

            async def one() -> None:
                for number in left:
                    session = memory.session(f"s{number}", max_tokens=500, counter=quarters)
                    await session.add(turn(str(number)))
                    assert (await session.context()).messages

            await asyncio.gather(*(one() for _ in range(50)))
            return len(await memory.sessions())

    assert asyncio.run(work()) == many


# --- killed


@pytest.mark.wide
@pytest.mark.parametrize("kills", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost_with_a_killed_writer(store: OnServer, kills: int, dice: random.Random) -> None:
    """Whatever moment the signal comes at, each turn is there whole or not at all."""
    address, said = store.address_of("killed"), list[str]()
    for _ in range(kills):
        with Process("append", address) as writer:
            heard = [writer.hear() for _ in range(dice.randrange(1, 12))]
            said += map(str, [*heard, *writer.kill()])

    with Memory.open(address) as memory:
        session = memory.session(SESSION)
        found = whole_turns(session.entries(), ENTRIES_A_TURN)
        assert set(said) <= set(found)
        assert set(found.values()) == {1}
        assert session.verify().problems == ()


@pytest.mark.sampled
def test_nothing_acknowledged_is_lost_with_a_killed_server(server: Server, dice: random.Random) -> None:
    """It recovers when it is started again, and a memory that was open goes on."""
    said = list[str]()
    with Memory.open(server.address) as memory:
        session = memory.session("s")
        for number in range(3):
            with Process("append", hasty(server)) as writer:
                said += [str(writer.hear()) for _ in range(dice.randrange(3, 20))]
                session.add_user_message(f"mine {number}")
                server.kill()
                said += map(str, writer.end(expect=1))
            server.start()
            assert session.entries()[-1].text == f"mine {number}"

        assert [entry.text for entry in session.entries()] == [f"mine {number}" for number in range(3)]
        found = whole_turns(memory.session(SESSION).entries(), ENTRIES_A_TURN)
        assert set(said) <= set(found)
        assert set(found.values()) == {1}


def test_a_stopped_server_is_told_and_waited_for_no_longer_than_asked(server: Server) -> None:
    """Reads and writes say that it cannot be reached, and that nothing was written; when it is back, all goes on.

    MongoDB's driver tries a write again itself, and does not tell whether the first was sent.
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


def test_a_breaker_leaves_a_stopped_server_alone_and_tries_it_again(server: Server, clock: FakeClock) -> None:
    """Five failures open it, calls fail at once then, though the server is back; thirty seconds later all goes on."""
    with Memory.open(hasty(server), clock=clock, circuit_breaker=True) as memory:
        session = memory.session("s")
        session.add_user_message("before")
        server.stop()
        for _ in range(5):
            with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1"):
                session.entries()
        server.start()
        with pytest.raises(StoreUnavailable, match=r"5 calls in a row .* 30 seconds"):
            session.entries()

        clock.advance(30)
        session.add_user_message("after")
        assert [entry.text for entry in session.entries()] == ["before", "after"]


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_server_that_was_restarted_meanwhile_is_noticed_by_nobody(server: Server, how: str) -> None:
    """Connections that it has closed are made anew, for a read and for a write that was not sent."""
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


def test_a_forked_child_is_refused_and_the_parent_goes_on(store: OnServer) -> None:
    """A connection cannot be shared with a child."""
    said = Process("fork", store.address_of("forked")).end()

    assert said == ["ForkedProcess", "ForkedProcess", "ForkedProcess", "Closed", ["before the fork", "after the fork"]]


def test_an_add_that_is_cancelled_is_there_whole_or_not_at_all(store: OnServer, dice: random.Random) -> None:
    """However many are cancelled at whatever moment, connections are as good as before."""

    address = store.address_of("cancelled", pool_size=2)

    async def work() -> None:
        async with AsyncMemory.open(address) as memory:
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

    asyncio.run(work())


@pytest.mark.sampled
@pytest.mark.parametrize("rounds", [40, 400])
def test_who_is_cancelled_doubles_nothing_of_who_waits_beside_him(
    store: OnServer, rounds: int, dice: random.Random
) -> None:
    """Of messages that are written together each is there once, at whatever moment who writes them is cancelled."""
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
                kept = {f"{n}" for n, end in enumerate(ends) if not isinstance(end, BaseException)}

                found = [entry.text for entry in await session.entries()]
                assert sorted(found) == sorted(set(found))
                assert set(found) >= kept

    asyncio.run(work())


def test_one_loop_is_told_from_another(store: OnServer) -> None:
    """A memory that was opened under one event loop refuses another, with a word on what to do."""
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
def test_ten_megabytes_and_odd_texts_come_back(store: OnServer) -> None:
    """NUL, lone surrogates, what looks like a statement, a long text; two tenants with the same ids see their own."""
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


def test_what_was_done_of_several_batches_is_told(store: OnServer) -> None:
    """Where a later batch of one call fails, nobody is told that nothing of it was written."""
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
