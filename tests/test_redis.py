"""The store on Redis: the contracts, its keys, the number of round trips, listings, clusters, and full memory."""

from __future__ import annotations

import asyncio
import re
from binascii import crc_hqx
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from log_rules import LogConformance, StoreFactory
from on_servers import own_server
from one_loop import OnALoop
from palimpsest import AsyncMemory, ConfigError, Memory, StoreUnavailable
from palimpsest.errors import StoreCorrupt, StoreTooNew
from palimpsest.log.entry import now_us
from palimpsest.runtime.runner import Inline, drive
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores.backend import Ask, Backend, Place, PlaceHead, Range, Row, Step
from palimpsest.stores.bridged import BridgedBackend
from palimpsest.stores.encrypted.backend import unlocked_backend
from palimpsest.stores.opening import open_store
from palimpsest.stores.redis import open_redis
from palimpsest.stores.redis.layout import BUCKETS, SLOTS, TAGS, escaped, home_of
from palimpsest.testing import BackendFactory, StoreConformance
from redisstore import address_of, documented_user, keys_of, opened, raw, watched
from sealed import BOTH
from servers import Server, valkey_cluster, with_options
from writer import known_to, turn

pytest.importorskip("redis", reason="the extra `redis` is not installed")


class TestRedisBackend(OnALoop, StoreConformance):
    """The backend on a Redis server fulfils the contract of backends."""

    lasts = True

    @pytest.fixture
    def backend(self) -> BackendFactory:
        address = address_of()
        return lambda: opened(address)


@pytest.mark.wide
class TestSealedRedisBackend(StoreConformance):
    """Encryption over the backend fulfils the contract, bridged to a synchronous memory."""

    lasts = True

    @pytest.fixture
    def backend(self) -> Iterator[BackendFactory]:
        runner, address = Inline(), address_of()

        def sealed() -> Backend:
            below = BridgedBackend(open_redis(address, runner), runner)
            return drive(unlocked_backend(below, None, BOTH, now_us))

        yield sealed
        drive(runner.close())


class TestRedisStore(OnALoop, LogConformance):
    """The engine over the backend fulfils the contract of stores on an event loop."""

    @pytest.fixture
    def store(self) -> StoreFactory:
        address = address_of()
        return lambda clock: open_store(address, Threaded(), clock=clock)


@pytest.mark.wide
class TestBridgedRedisStore(LogConformance):
    """The engine fulfils the contract without an event loop, as a synchronous memory uses it."""

    @pytest.fixture
    def store(self) -> Iterator[StoreFactory]:
        runner, address = Inline(), address_of()
        yield lambda clock: open_store(address, runner, clock=clock)
        drive(runner.close())


# --- addresses and options


# --- what is where

ODD = ("", "{", "}", "{x}", "}{", "a:b", "\x00", "a\x00b", "ü{0}", "*")


def test_no_name_leaves_its_bucket() -> None:
    """Whatever names a tenant, home or table have, all keys of a home have the tag of its bucket and no other.

    In a cluster keys with one tag are on one node.
    """
    address = address_of()
    prefix = re.escape(address.partition("prefix=")[2])

    async def fill() -> None:
        backend = opened(address)
        for first in ODD:
            for second in ODD:
                place = Place(first, second, f"s{first}", f"n{second}")
                put = [(f"t{first}", [Row(1, b"x", second, 5)])]
                assert await backend.write([[Step(place, None, b"1", b"2", 5, put=put)]], 0) == [None]
        await backend.close()

    asyncio.run(fill())
    keys = [key for key in keys_of(address) if not key.endswith(b":store")]

    assert len(keys) > 4 * len(ODD) ** 2
    for key in keys:
        matched = re.match(rf"{prefix}:{{(\d+)}}:[himnrt]".encode(), key)
        assert matched
        assert matched[1].decode() in TAGS
    homes = [(first, second) for first in ODD for second in ODD]
    for tenant, home in homes:
        home_place = home_of(tenant, home)
        begin = f"{{{TAGS[home_place.bucket]}}}:h:".encode() + escaped(tenant) + escaped(home)
        assert sum(key.partition(b":")[2] == begin for key in keys) == 1


def test_tags_spread_evenly_over_the_slots_of_a_cluster() -> None:
    """Each bucket has its own part of a cluster's slots, and homes are spread over all buckets."""
    assert [crc_hqx(tag.encode(), 0) % SLOTS * BUCKETS // SLOTS for tag in TAGS] == list(range(BUCKETS))
    spread = Counter(home_of("default", f"session {number}").bucket for number in range(6_400))
    assert min(spread.values()) > 60
    assert max(spread.values()) < 140


def test_a_deleted_session_leaves_no_key() -> None:
    """After its last session is deleted a store has only its version and the marks of its buckets."""
    address = address_of()
    with Memory.open(address) as memory:
        session = memory.session("s", max_tokens=500, user="ann")
        session.add(turn("1"))
        session.context()
        session.add_user_message("long " * 30_000)
        session.fork("other")
        assert len(keys_of(address)) > 8
        memory.delete_session("other")
        memory.delete_session("s")
        memory.vacuum()

    assert [key for key in keys_of(address) if not key.endswith((b":store", b":m"))] == []


def test_a_store_of_a_newer_version_is_refused() -> None:
    """A store of a newer version raises StoreTooNew with that version."""
    address = address_of()
    with raw(address) as client:
        client.set(f"{address.partition('prefix=')[2]}:store", b"99")

    with pytest.raises(StoreTooNew, match="99"):
        Memory.open(address).sessions()


def test_keys_of_another_program_are_not_touched() -> None:
    """A prefix that another program uses is refused before anything is changed."""
    address = address_of()
    prefix = address.partition("prefix=")[2]
    with raw(address) as client:
        client.set(f"{prefix}:store", b"mine")
        with pytest.raises(StoreCorrupt, match="does not hold a version"):
            Memory.open(address).sessions()
        client.delete(f"{prefix}:store")
        with Memory.open(address) as memory:
            memory.session("s").add_user_message("x")
            entries = next(key for key in keys_of(address) if b":r:" in key)
            client.delete(entries)
            client.set(entries, b"mine")
            before = {key: client.dump(key) for key in keys_of(address)}
            with pytest.raises(StoreCorrupt, match="another type"):
                memory.session("s").add_user_message("y")
        assert {key: client.dump(key) for key in keys_of(address)} == before


def test_a_read_only_memory_writes_nothing() -> None:
    """A read-only memory sends no command that writes; a missing store looks empty to it."""
    address = address_of()
    with Memory.open(address, readonly=True) as memory:
        assert memory.sessions() == []
    assert keys_of(address) == []
    with Memory.open(address) as memory:
        memory.session("s").add_user_message("x")

    with Memory.open(with_options(address, readonly="true")) as memory, watched() as sent:
        assert [entry.text for entry in memory.session("s").entries()] == ["x"]
        assert [one.session for one in memory.sessions(order="latest")] == ["s"]
        with pytest.raises(StoreUnavailable, match="read-only"):
            memory.session("s").add_user_message("y")
    assert {command[0] for command in sent} <= {b"EVALSHA", b"EVAL", b"INFO", b"GET"}


def test_a_damaged_row_costs_one_entry() -> None:
    """A byte changed in the database damages one entry; the others are read."""
    address = address_of()
    with Memory.open(address) as memory:
        memory.session("s").add([{"role": "user", "content": f"text {number}"} for number in range(5)])
    with raw(address) as client:
        (entries,) = [key for key in keys_of(address) if b":r:" in key and escaped("entry") in key]
        row = client.zrange(entries, 2, 2)[0]
        client.zrem(entries, row)
        client.zadd(entries, {row.replace(b"text 2", b"test 2"): 0})

    with Memory.open(address) as memory:
        entries_read = memory.session("s").entries()
        assert [entry.seq for entry in entries_read if entry.damaged] == [3]
        assert [entry.text for entry in entries_read if not entry.damaged] == ["text 0", "text 1", "text 3", "text 4"]


# --- what it costs


def sent_by(do: Callable[[Any], Any], turns: int = 40, summary: bool = False) -> int:
    """Return the number of round trips of a memory that knows its session while `do` runs."""
    with watched() as sent, Memory.open(address_of(), view_bytes=0) as memory:
        session = known_to(memory, turns, summary=summary)
        sent.clear()
        do(session)
        return len(sent)


@pytest.mark.parametrize("summary", [False, True])
def test_an_append_or_a_steady_context_is_one_round_trip(summary: bool) -> None:
    """An append by a memory that knows the head, and a steady context, are one round trip each."""
    assert sent_by(lambda session: session.add(turn("one more")), summary=summary) == 1
    assert sent_by(lambda session: session.context(), summary=summary) == 1


@pytest.mark.parametrize(
    "command", [(b"GET", "p:{t}:v"), ("EVALSHA", "ab12", 2, "k:{t}", "ü", b"\0\r\n\xff", 0, -1, b"")]
)
def test_a_command_is_packed_as_the_driver_packs_it(command: tuple[Any, ...]) -> None:
    """Our packing of a command gives the driver's bytes, for names, numbers and bytes of any kind."""
    from redis.asyncio import Connection

    from palimpsest.stores.redis.link import packed

    assert packed(command) == b"".join(Connection(protocol=2).pack_command(*command))


def test_an_outdated_writer_needs_one_more_round_trip() -> None:
    """A refusal holds the current head, so that an outdated writer needs one more round trip and no read."""
    address = address_of()

    async def work() -> list[int]:
        trips: list[int] = []
        async with AsyncMemory.open(address) as first, AsyncMemory.open(address) as other:
            sessions = first.session("s"), other.session("s")
            for session in sessions:
                await session.add_user_message("first")
            for number in range(10):
                with watched() as sent:
                    await sessions[number % 2].add_user_message(str(number))
                trips.append(len(sent))
        return trips

    assert asyncio.run(work()) == [2] * 10


def test_a_script_that_the_server_has_lost_is_sent_again() -> None:
    """A script that the server has lost, by a restart or SCRIPT FLUSH, is sent again."""
    with Memory.open(address := address_of()) as memory:
        session = memory.session("s")
        session.add_user_message("one")
        with raw(address) as client:
            client.script_flush()
        session.add_user_message("two")

        assert [entry.text for entry in session.entries()] == ["one", "two"]


# --- listings


def test_a_listing_by_use_misses_no_write_in_between() -> None:
    """A listing by use reads one bucket after the other: a write to a bucket already read is in the next listing.

    Its mark is later than the last mark that the reader got, even though the reader saw a write that came after it.
    """
    asyncio.run(missed_nobody(address_of()))


async def missed_nobody(address: str) -> None:
    """Assert the rule above: write between the reading of two buckets."""
    homes = {home_of("t", str(number)).bucket: str(number) for number in range(2_000)}
    first, last = (Place("t", homes[bucket], "s", "") for bucket in (0, BUCKETS - 1))
    reader, writer = opened(address), opened(address)
    scripts, done = reader._listings._run, list[int]()

    async def between(script: Any, buckets: Any, given: Any, writes: bool = False) -> list[Any]:
        answers: list[Any] = []
        for bucket in buckets:  # one by one, as in a cluster
            if bucket == BUCKETS - 1 and not done:
                done.append(bucket)
                for place in (first, last):
                    assert await writer.write([[Step(place, None, b"1")]], 0) == [None]
            answers += await scripts(script, [bucket], given, writes)
        return answers

    reader._listings._run = between
    seen = await reader.recent("t", "s")
    assert last in [one.place for one in seen]
    assert await writer.write([[Step(first, b"1", b"2")]], 0) == [None]
    since_mark = await reader.recent("t", "s", since=seen[-1].mark)
    assert done
    assert {one.place: one.head.hot for one in since_mark}[first] == b"2"
    assert {one.place for one in [*seen, *since_mark]} == {first, last}
    await reader.close()
    await writer.close()


def test_a_listing_by_use_misses_no_write_if_clocks_differ() -> None:
    """If one server's clock is an hour ahead, later writes on other servers are still listed after its mark."""

    async def work(address: str) -> None:
        backend = opened(address)
        places = [Place("t", str(number), "s", "") for number in range(40)]
        await backend.write([[Step(places[0], None, b"1")]], 0)
        bucket = home_of("t", "0").bucket
        with raw(address) as client:
            ahead = int(client.hget(backend.keys[bucket][:-1] + "m", "last")) + 3_600_000_000
            client.hset(backend.keys[bucket][:-1] + "m", "last", ahead)
        await backend.write([[Step(places[0], b"1", b"2")]], 0)
        (seen,) = await backend.recent("t", "s")
        assert seen.mark > ahead

        for number, place in enumerate(places[1:], 1):
            await backend.write([[Step(place, None, b"1")]], 0)
            since_mark = await backend.recent("t", "s", since=seen.mark)
            assert place in [one.place for one in since_mark], number
            seen = since_mark[-1]
        await backend.close()

    asyncio.run(work(address_of()))


def test_a_listing_without_news_writes_nothing() -> None:
    """A listing by use is one round trip if nothing was written since the last one, and two otherwise."""

    async def work(address: str) -> list[int]:
        backend, trips = opened(address), list[int]()
        for number in range(20):
            await backend.write([[Step(Place("t", str(number), "s", ""), None, b"1")]], 0)
        for _ in range(3):
            with watched() as sent:
                assert len(await backend.recent("t", "s")) == 20
            trips.append(len(sent))
        await backend.close()
        return trips[1:]

    assert asyncio.run(work(address_of())) == [1, 1]


def test_pages_are_full_if_one_bucket_has_most_places() -> None:
    """Pages of a listing are full and in order even if one bucket has most of the places."""

    async def work(address: str) -> None:
        backend = opened(address)
        places = [Place("t", "one home", "s", f"{number:03}") for number in range(300)]
        places += [Place("t", f"home {number}", "s", "999") for number in range(30)]
        for begin in range(0, 300, 50):
            await backend.write([[Step(place, None, b"1") for place in places[begin : begin + 50]]], 0)
        await backend.write([[Step(place, None, b"1")] for place in places[300:]], 0)
        for limit in (7, 100, 310, 1000):
            listed, page = [], await backend.places("t", "s", limit=limit)
            while page:
                assert len(page) == min(limit, len(places) - len(listed))
                listed += page
                page = await backend.places("t", "s", after=listed[-1].place, limit=limit)
            assert [one.place.name for one in listed] == [place.name for place in places]
            recent = await backend.recent("t", "s", limit=limit)
            newest = await backend.newest("t", "s", limit=limit)
            assert len(recent) == len(newest) == min(limit, len(places))
            assert [one.mark for one in recent] == sorted(one.mark for one in recent)
        await backend.close()

    asyncio.run(work(address_of()))


# --- a cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Yield a cluster of three masters."""
    with valkey_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture
def clustered(cluster: list[Server], request: pytest.FixtureRequest) -> str:
    """Return the address of an empty store on that cluster."""
    prefix = re.sub(r"\W", "-", request.node.name)[:64]
    return f"redis://127.0.0.1:{cluster[0].port}/0?cluster=true&prefix={prefix}"


@pytest.mark.wide
class TestRedisClusterBackend(OnALoop, StoreConformance):
    """The backend on a cluster fulfils the contract of backends."""

    lasts = True

    @pytest.fixture
    def backend(self, clustered: str) -> BackendFactory:
        return lambda: opened(clustered)


def test_sessions_are_spread_over_a_cluster(cluster: list[Server], clustered: str) -> None:
    """Each node of a cluster has some of the sessions; all are listed and work as on one server."""
    with Memory.open(clustered) as memory:
        for number in range(24):
            memory.session(f"s{number}", user=f"user {number % 2}").add(turn(str(number)))
        session = memory.session("s3", max_tokens=1000)
        session.context()
        session.erase([1])
        session.fork("branch").add_user_message("more")

        assert {one.session for one in memory.sessions()} == {"branch", *(f"s{number}" for number in range(24))}
        assert len(memory.sessions(user="user 1")) == 13
        assert memory.sessions(order="latest")[0].session == "branch"
        assert memory.vacuum().remains == ()
    for node in cluster:
        with raw(node.address) as client:
            assert client.dbsize() > 20


def test_the_documented_permissions_suffice_in_a_cluster(cluster: list[Server], clustered: str) -> None:
    """A user with just the documented permissions on each node can use a store on a cluster."""
    for node in cluster:
        with raw(node.address) as client:
            client.execute_command(*documented_user("+cluster +command"))

    address = clustered.partition("&")[0].replace("//", "//agent:secret@")
    with Memory.open(address) as memory:
        session = memory.session("s", max_tokens=500)
        session.add(turn("1"))
        assert session.context().messages
        assert session.erase([1]).remains == ()
        assert [one.session for one in memory.sessions()] == ["s"]


def test_a_cluster_opened_as_a_server_gives_advice(cluster: list[Server]) -> None:
    """A cluster opened without `cluster=true` raises a ConfigError that says so."""
    with pytest.raises(ConfigError, match=r"cluster.*true"):
        Memory.open(f"redis://127.0.0.1:{cluster[0].port}/0").sessions()


def test_a_server_opened_as_a_cluster_gives_advice() -> None:
    """A single server opened with `cluster=true` raises a ConfigError that says so."""
    with pytest.raises(ConfigError, match=r"cluster.*false"):
        Memory.open(with_options(address_of(), cluster="true")).sessions()


def test_closed_connections_of_a_cluster_are_replaced(cluster: list[Server], clustered: str) -> None:
    """Connections that a cluster's nodes have closed are replaced before anything is sent."""

    def close_all() -> None:
        for node in cluster:
            with raw(node.address) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal")
                client.ping()  # the connections are closed now

    async def work() -> None:
        async with AsyncMemory.open(clustered) as memory:
            for number in range(4):
                await asyncio.to_thread(close_all)
                for one in range(12):
                    session = memory.session(f"s{one}")
                    if number % 2:
                        assert len(await session.entries()) == number
                    await session.add_user_message(str(number))

    asyncio.run(work())


def test_a_reader_that_follows_a_cluster_sees_every_write(clustered: str) -> None:
    """A reader that lists by use from mark to mark, while four writers write, sees every session's last write."""

    async def work() -> tuple[dict[Place, bytes], dict[Place, bytes]]:
        backend = opened(clustered)
        heads: dict[Place, bytes] = {}
        followed: dict[Place, bytes] = {}
        writing = True

        async def write(number: int) -> None:
            for step in range(100):
                place = Place("t", f"{number} {step % 10}", "s", "")
                before, heads[place] = heads.get(place), b"%d" % step
                assert await backend.write([[Step(place, before, heads[place])]], 0) == [None]

        async def follow() -> None:
            mark, more = 0, True
            while more:
                more = writing
                page = await backend.recent("t", "s", since=mark, limit=15)
                while page:
                    followed.update({one.place: one.head.hot for one in page})
                    mark = page[-1].mark
                    page = await backend.recent("t", "s", since=mark, after=page[-1].place, limit=15)

        following = asyncio.create_task(follow())
        await asyncio.gather(*(write(number) for number in range(4)))
        writing = False
        await following
        await backend.close()
        return heads, followed

    heads, followed = asyncio.run(work())

    assert followed == heads


# --- the server's memory


@pytest.fixture
def server() -> Iterator[Server]:
    """Yield a Redis server of the test's own."""
    with own_server("redis") as one:
        yield one


def test_a_server_that_evicts_keys_is_refused(server: Server) -> None:
    """A server that may evict any key is refused, since it would lose acknowledged data.

    One that evicts only keys with an expiry is accepted: the store sets none.
    """
    with raw(server.address) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreUnavailable, match=r"maxmemory-policy is allkeys-lru.*noeviction"):
            Memory.open(server.address).sessions()
        client.config_set("maxmemory-policy", "volatile-lru")
    with Memory.open(server.address) as memory:
        memory.session("s").add_user_message("x")
    with raw(server.address) as client:
        assert [key for key in keys_of(server.address + "?prefix=palimpsest") if client.ttl(key) != -1] == []


def test_a_server_without_append_only_file_warns(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A server whose append-only file is off is reported in the log, since a restart would lose data."""
    with raw(server.address) as client:
        for setting, warnings in (("yes", 0), ("no", 1)):
            client.config_set("appendonly", setting)
            caplog.clear()
            with Memory.open(server.address) as memory:
                memory.session("s").add_user_message("x")
            assert len([one for one in caplog.records if "append-only file is off" in one.getMessage()]) == warnings


def test_full_memory_is_an_error_before_anything_is_written(server: Server) -> None:
    """A server whose memory is full refuses a write and nothing is written; reads and erasures work, and make room."""
    with Memory.open(server.address) as memory, raw(server.address) as client:
        session = memory.session("s")
        session.add([{"role": "user", "content": "x" * 5_000} for _ in range(100)])
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 30_000)
        written = 0

        def fill() -> None:
            nonlocal written
            while True:
                session.add_user_message("y" * 5_000)
                written += 1

        with pytest.raises(StoreUnavailable, match="memory is full") as caught:
            fill()
        assert caught.value.written is False
        assert len(session.entries(limit=1000)) == 100 + written

        session.erase(list(range(1, 91)))
        session.add_user_message("z")

        assert session.entries()[-1].text == "z"


def test_each_refused_batch_returns_its_own_heads(server: Server) -> None:
    """Of several batches refused in one call, each returns its own heads."""

    async def work() -> None:
        backend = opened(server.address)
        places = [Place("t", home, "s", "n") for home in "abc"]
        await backend.write([[Step(place, None, place.home.encode())] for place in places], 0)
        answers = await backend.write([[Step(place, None, b"x")] for place in places], 0)
        assert answers == [(PlaceHead(place.home.encode()),) for place in places]
        (seen,) = await backend.look([Ask(places[0], [Range("t", [(0, 9)])])])
        assert seen.head == PlaceHead(b"a")
        await backend.close()

    asyncio.run(work())
