"""The store on Redis under many writers, killed processes and servers, calls that end early, and erasures."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from on_servers import own_server
from palimpsest import AsyncMemory, Memory, StoreUnavailable
from palimpsest.stores.backend import LAST_KEY, Ask, Place, PlaceHead, Range, Row, Step
from palimpsest.stores.redis import scrubbing
from palimpsest.stores.redis.writing import WRITE
from processes import Process, together
from redisstore import address_of, documented_user, keys_of, opened, raw, watched
from servers import Server, with_options
from writer import quarters, turn

pytest.importorskip("redis", reason="the extra `redis` is not installed")

TRIPPING = Path(__file__).with_name("redis_writer.py")
WRITERS, EACH = 8, 25


@pytest.fixture
def server() -> Iterator[Server]:
    """Yield a Redis server of the test's own."""
    with own_server("redis") as one:
        yield one


# --- many writers


@pytest.mark.wide
def test_eight_processes_adding_to_one_session_lose_nothing() -> None:
    """Eight processes that add to one session lose and double nothing, in few round trips."""
    address = address_of()
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("first")

    reports = together(Process("add", address, "s", name, EACH, script=TRIPPING) for name in range(WRITERS))

    with Memory.open(address) as memory:
        texts = [entry.text for entry in memory.session("s").entries(limit=1000)][1:]
    assert sorted(texts) == sorted(f"{name} {number}" for name in range(WRITERS) for number in range(EACH))
    for name in range(WRITERS):
        assert [text for text in texts if text.startswith(f"{name} ")] == [f"{name} {n}" for n in range(EACH)]
    assert sum(trips for ((trips, _),) in reports) <= 5 * WRITERS * EACH


def test_fifty_tasks_share_ten_connections() -> None:
    """Fifty tasks over many sessions share ten connections without an error."""
    address = address_of(client_name="fifty")

    async def work() -> tuple[int, int]:
        async with AsyncMemory.open(address) as memory:
            numbers = iter(range(200))

            async def one() -> None:
                for number in numbers:
                    session = memory.session(f"s{number}", max_tokens=500)
                    await session.add(turn(str(number)))
                    assert (await session.context()).messages

            await asyncio.gather(*(one() for _ in range(50)))
            with raw(address) as client:
                connected = [one for one in client.client_list() if one["name"] == "fifty"]
            return len(await memory.sessions(limit=1000)), len(connected)

    found, connected = asyncio.run(work())
    assert found == 200
    assert 1 <= connected <= 10


def test_a_retry_is_refused_if_what_it_read_has_changed() -> None:
    """A retry computed by `again` is refused if a place that it read has changed in between."""

    async def work() -> None:
        backend, other = opened(address := address_of()), opened(address)
        first, second = (Place("t", "h", "s", name) for name in "ab")
        await backend.write([[Step(first, None, b"1"), Step(second, None, b"1")]], 0)
        look, changes = backend.look, [Step(second, b"1", b"2")]

        async def changing(asks: Any) -> Any:
            seen = await look(asks)
            while changes:  # after the memory has looked
                await other.write([[changes.pop()]], 0)
            return seen

        def again(number: int, batch: Any, heads: Any, look: Any) -> Any:
            (seen,) = look([Ask(second)])
            return [Step(first, heads[0].hot, b"saw " + seen.head.hot)]

        backend.look = changing  # type: ignore[method-assign]
        assert await backend.write([[Step(first, None, b"never")]], 0, again=again) == [(PlaceHead(b"1"),)]
        assert await backend.write([[Step(first, None, b"never")]], 0, again=again) == [None]
        (seen,) = await look([Ask(first)])
        assert seen.head == PlaceHead(b"saw 2")
        await backend.close()
        await other.close()

    asyncio.run(work())


# --- killed processes


@pytest.mark.wide
def test_every_session_of_a_killed_writer_is_listed(dice: random.Random) -> None:
    """A session is in every listing (by id, user and use) whenever its writer is killed.

    The listings are written in the step that makes the session.
    """
    address, acknowledged = address_of(), set[str]()
    for number in range(4):
        with Process("begin", address, f"w{number}", script=TRIPPING) as writer:
            heard = [writer.hear() for _ in range(dice.randrange(1, 8))]
            acknowledged |= {*heard, *writer.kill()}

    with Memory.open(address) as memory:
        by_id = {one.session for one in memory.sessions(limit=1000)}
        by_use = {one.session for one in memory.sessions(order="latest", limit=1000)}
        by_user = {one.session for one in memory.sessions(user="ann", limit=1000)}
        for name in by_id:
            assert memory.session(name).entries()
    assert acknowledged <= by_id
    assert by_id == by_use == by_user


# --- the server goes


def test_a_silent_server_is_waited_for_as_configured(server: Server) -> None:
    """A call ends after `timeout_seconds`; an append that may have been stored says so and is looked for later."""
    with Memory.open(with_options(server.address, timeout_seconds=0.5)) as memory, raw(server.address) as client:
        session = memory.session("s")
        session.add_user_message("one")
        client.execute_command("CLIENT", "PAUSE", 2_000, "ALL")

        with pytest.raises(StoreUnavailable, match=r"within 0\.5 seconds \(timeout_seconds\)"):
            session.add_user_message("two")

        client.ping()  # answered when the pause is over
        assert next(entry.text for entry in session.entries()) == "one"
        session.add_user_message("three")
        texts = [entry.text for entry in session.entries()]
        assert texts in (["one", "three"], ["one", "two", "three"])


def test_a_write_whose_answer_was_lost_is_not_repeated() -> None:
    """If the connection breaks after a write, one read finds that it was done; nothing is written twice."""
    address = address_of()

    async def work() -> list[str]:
        async with AsyncMemory.open(address) as memory:
            session = memory.session("s")
            await session.add_user_message("one")
            link: Any = memory.store.backend._client
            call, lost = link._call, list[Any]()

            async def losing(command: Any) -> Any:
                answer = await call(command)
                if not lost:
                    lost.append(command)
                    raise ConnectionResetError(104, "Connection reset by peer")
                return answer

            link._call = losing
            await session.add_user_message("two")
            assert lost
            return [entry.text for entry in await session.entries()]

    assert asyncio.run(work()) == ["one", "two"]


def test_a_cancelled_call_leaves_the_connection_usable() -> None:
    """After a call is cancelled at any moment, the next call on the only connection gets its own answer."""
    address = address_of(pool_size=1)

    async def work() -> None:
        backend = opened(address)
        places = [Place("t", str(number), "s", "") for number in range(30)]
        for place in places:
            await backend.write([[Step(place, None, place.home.encode())]], 0)
        for turns, place in enumerate(places):
            calling = asyncio.create_task(backend.look([Ask(places[turns - 1])]))
            for _ in range(turns):
                await asyncio.sleep(0)
            calling.cancel()
            (seen,) = await backend.look([Ask(place)])
            assert seen.head is not None
            assert seen.head.hot == place.home.encode()
            await asyncio.gather(calling, return_exceptions=True)
        await backend.close()

    asyncio.run(work())


# --- sizes


@pytest.mark.slow
def test_a_value_of_64_mebibytes_is_stored() -> None:
    """A value of 64 MiB is stored, as the contract demands of every store."""

    async def work() -> None:
        backend, place = opened(address_of()), Place("t", "h", "s", "n")
        big = random.Random(1).randbytes(1 << 20) * 64
        await backend.write([[Step(place, rows_only=True, put=[("t", [Row(LAST_KEY, big)])])]], 0)
        (seen,) = await backend.look([Ask(place, [Range("t", [(0, LAST_KEY)])], head=False)])
        assert seen.rows[0] == [(LAST_KEY, big, "", None)]
        await backend.write([[Step(place, rows_only=True, drop=[("*", 0, LAST_KEY)])]], 0)
        await backend.close()

    asyncio.run(work())


@pytest.mark.slow
def test_a_long_log_costs_no_more_round_trips() -> None:
    """With 100,000 entries an append and a context are one round trip each, and a context reads what it shows."""
    with Memory.open(address_of(), view_bytes=0) as memory:
        session = memory.session("s", max_tokens=2_000, counter=quarters)
        for begin in range(0, 16_700, 500):
            session.add([one for number in range(begin, begin + 500) for one in turn(str(number))])
        session.count()
        session.context()
        with watched() as sent:
            context = session.context()
            session.add(turn("last"))
        assert len(sent) == 2
        assert context.report.entries < 400
        assert session.stats().total_entries > 100_000


# --- erasures


def files_of(server: Server) -> bytes:
    """Return the contents of all files of a server."""
    return b"".join(path.read_bytes() for path in server.folder.rglob("*") if path.is_file() and path.name != "log")


def test_erased_text_is_in_no_file_of_the_server(server: Server) -> None:
    """Erased text is in no file of the server and in none of its keys, and the rest survives a restart."""
    with Memory.open(server.address) as memory:
        session = memory.session("s", user="ann")
        session.add([{"role": "user", "content": f"the word is zanzibar, {number}"} for number in range(50)])
        session.add_user_message("what stays is mombasa")
        assert b"zanzibar" in files_of(server)

        erasure = session.erase(list(range(1, 51)))

        assert erasure.remains == ()
        assert b"zanzibar" not in files_of(server)
        assert session.entries()[-1].text == "what stays is mombasa"
    with raw(server.address) as client:
        dumps = [client.dump(key) for key in keys_of(server.address + "?prefix=palimpsest")]
    assert not any(b"zanzibar" in one for one in dumps)
    server.kill()
    server.start()
    with Memory.open(server.address) as memory:
        assert memory.session("s").entries()[-1].text == "what stays is mombasa"


def test_a_vacuum_scrubs_for_a_process_that_died(server: Server) -> None:
    """A process that destroyed data leaves a note in the same step, so that another one scrubs if it dies."""

    async def destroy() -> None:
        backend, place = opened(server.address), Place("t", "h", "s", "n")
        await backend.write([[Step(place, None, b"1", put=[("t", [Row(1, b"zanzibar")])])]], 0)
        await backend.write([[Step(place, b"1", b"2", drop=[("t", 1, 1)], destroys=True)]], 0)
        await backend.close()

    asyncio.run(destroy())
    assert b"zanzibar" in files_of(server)

    with Memory.open(server.address) as memory:
        assert memory.vacuum().remains == ()
        assert b"zanzibar" not in files_of(server)
        with raw(server.address) as client:
            before = client.info("persistence")["aof_rewrites"]
            memory.vacuum()
            assert client.info("persistence")["aof_rewrites"] == before


def test_an_erasure_reports_what_the_server_keeps(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """An erasure reports snapshots, an append-only file too large to rewrite each time, and a missing permission."""
    with raw(server.address) as client, Memory.open(server.address) as memory:
        session = memory.session("s")
        session.add([{"role": "user", "content": f"text {number}"} for number in range(10)])
        client.config_set("save", "3600 1")
        assert session.erase([1]).remains == (scrubbing.SNAPSHOTS,)
        client.config_set("save", "")

        monkeypatch.setattr(scrubbing, "LARGE", 0)
        assert session.erase([2]).remains == (scrubbing.LATER,)
        assert memory.vacuum().remains == ()

        client.execute_command("ACL", "SETUSER", "ann", "on", ">secret", "~*", "+@all", "-bgrewriteaof", "-config")
    with Memory.open(server.address.replace("//", "//ann:secret@")) as memory:
        monkeypatch.undo()
        assert memory.session("s").erase([3]).remains == (scrubbing.SNAPSHOTS, scrubbing.DENIED)


def test_a_missing_permission_is_an_error_before_anything_is_written(server: Server) -> None:
    """A user who may not run one of the commands of the script writes nothing: a server does not undo half of it."""
    commands = sorted(set(re.findall(r"call\('([A-Z]+)'", WRITE.text.decode())))
    assert {"HSET", "ZADD"} < set(commands)
    with Memory.open(server.address) as memory, raw(server.address) as client:
        session = memory.session("s")
        for number, command in enumerate(commands):
            name = f"no_{command.lower()}"
            session.add_user_message(f"{number}")
            client.execute_command("ACL", "SETUSER", name, "on", ">secret", "~*", "+@all", f"-{command}")
            with Memory.open(server.address.replace("//", f"//{name}:secret@")) as other:
                with pytest.raises(StoreUnavailable, match=f"(?i){command}.*permission") as caught:
                    other.session("s").add_user_message("lost")
                assert caught.value.written is False
                with pytest.raises(StoreUnavailable, match=f"(?i){command}.*permission"):
                    other.session("s").clear()

            assert [entry.text for entry in session.entries()] == [str(n) for n in range(number + 1)]


@pytest.mark.parametrize("more", ["", "+select", "+client|setname", "+ping"])
def test_the_documented_permissions_suffice(server: Server, more: str) -> None:
    """A user with just the documented permissions can use every verb of a session, and erase without remains."""
    database_paths = {"+select": "1", "+client|setname": "0?client_name=agents", "+ping": "0?health_check_interval=1"}
    with raw(server.address) as client:
        client.execute_command(*documented_user(more))

    with Memory.open(f"redis://agent:secret@127.0.0.1:{server.port}/{database_paths.get(more, '0')}") as memory:
        session = memory.session("s", user="ann", max_tokens=500)
        session.add(turn("1"))
        assert session.context().messages
        assert session.erase([1]).remains == ()
        session.fork("branch")
        memory.delete_session("branch")
        assert [one.session for one in memory.sessions(order="latest")] == ["s"]
        memory.sweep()
        memory.forget(user="ann")
