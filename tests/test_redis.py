"""The store on Redis: the contract of backends, addresses, what is where, what it costs, and what it lists."""

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
    """Hashes and sorted sets of a server keep the contract."""

    lasts = True

    @pytest.fixture
    def backend(self) -> BackendFactory:
        address = address_of()
        return lambda: opened(address)


@pytest.mark.wide
class TestSealedRedisBackend(StoreConformance):
    """And so they do sealed, bridged to a synchronous memory."""

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
    """The engine keeps its contract over it, on an event loop."""

    @pytest.fixture
    def store(self) -> StoreFactory:
        address = address_of()
        return lambda clock: open_store(address, Threaded(), clock=clock)


@pytest.mark.wide
class TestBridgedRedisStore(LogConformance):
    """And without one, as a synchronous memory uses it."""

    @pytest.fixture
    def store(self) -> Iterator[StoreFactory]:
        runner, address = Inline(), address_of()
        yield lambda clock: open_store(address, runner, clock=clock)
        drive(runner.close())


# --- addresses and options


# --- what is where

ODD = ("", "{", "}", "{x}", "}{", "a:b", "\x00", "a\x00b", "ü{0}", "*")


def test_no_name_leads_out_of_its_bucket() -> None:
    """Whatever a tenant, a home or a table is called, all keys of a home have the tag of its bucket, and that alone."""
    address = address_of()
    prefix = re.escape(address.partition("prefix=")[2])

    async def fill() -> None:
        backend = opened(address)
        for one in ODD:
            for other in ODD:
                place = Place(one, other, f"s{one}", f"n{other}")
                put = [(f"t{one}", [Row(1, b"x", other, 5)])]
                assert await backend.write([[Step(place, None, b"1", b"2", 5, put=put)]], 0) == [None]
        await backend.close()

    asyncio.run(fill())
    found = [key for key in keys_of(address) if not key.endswith(b":store")]

    assert len(found) > 4 * len(ODD) ** 2
    for key in found:
        matched = re.match(rf"{prefix}:{{(\d+)}}:[himnrt]".encode(), key)
        assert matched
        assert matched[1].decode() in TAGS
    homes = [(one, other) for one in ODD for other in ODD]
    for tenant, home in homes:
        where = home_of(tenant, home)
        begin = f"{{{TAGS[where.bucket]}}}:h:".encode() + escaped(tenant) + escaped(home)
        assert sum(key.partition(b":")[2] == begin for key in found) == 1


def test_tags_lie_evenly_over_the_slots_of_a_cluster() -> None:
    """Each bucket has a part of the slots of its own, and homes are spread over all buckets."""
    assert [crc_hqx(tag.encode(), 0) % SLOTS * BUCKETS // SLOTS for tag in TAGS] == list(range(BUCKETS))
    spread = Counter(home_of("default", f"session {number}").bucket for number in range(6_400))
    assert min(spread.values()) > 60
    assert max(spread.values()) < 140


def test_what_is_gone_leaves_no_key() -> None:
    """A store whose last session is deleted has its version, and the marks of its buckets."""
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


def test_a_newer_layout_is_left_alone() -> None:
    """It is told which version it has."""
    address = address_of()
    with raw(address) as client:
        client.set(f"{address.partition('prefix=')[2]}:store", b"99")

    with pytest.raises(StoreTooNew, match="99"):
        Memory.open(address).sessions()


def test_keys_of_somebody_else_are_not_touched() -> None:
    """A prefix that is in use for something else is told, before anything is changed."""
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
            with pytest.raises(StoreCorrupt, match="another kind"):
                memory.session("s").add_user_message("y")
        assert {key: client.dump(key) for key in keys_of(address)} == before


def test_who_only_reads_writes_nothing() -> None:
    """An empty store is empty to him, and one with sessions is read, and may not be written."""
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


def test_a_damaged_row_is_named_and_the_rest_is_read() -> None:
    """A byte that was changed in the database takes one entry."""
    address = address_of()
    with Memory.open(address) as memory:
        memory.session("s").add([{"role": "user", "content": f"text {number}"} for number in range(5)])
    with raw(address) as client:
        (entries,) = [key for key in keys_of(address) if b":r:" in key and escaped("entry") in key]
        row = client.zrange(entries, 2, 2)[0]
        client.zrem(entries, row)
        client.zadd(entries, {row.replace(b"text 2", b"test 2"): 0})

    with Memory.open(address) as memory:
        found = memory.session("s").entries()
        assert [entry.seq for entry in found if entry.damaged] == [3]
        assert [entry.text for entry in found if not entry.damaged] == ["text 0", "text 1", "text 3", "text 4"]


# --- what it costs


def sent_by(do: Callable[[Any], Any], turns: int = 40, summary: bool = False) -> int:
    """How many round trips a memory that knows its session needs for something."""
    with watched() as sent, Memory.open(address_of(), view_bytes=0) as memory:
        session = known_to(memory, turns, summary=summary)
        sent.clear()
        do(session)
        return len(sent)


@pytest.mark.parametrize("summary", [False, True])
def test_what_is_done_all_day_is_one_round_trip(summary: bool) -> None:
    """An append by who knows the head, and a steady context, with a summary or without."""
    assert sent_by(lambda session: session.add(turn("one more")), summary=summary) == 1
    assert sent_by(lambda session: session.context(), summary=summary) == 1


@pytest.mark.parametrize(
    "command", [(b"GET", "p:{t}:v"), ("EVALSHA", "ab12", 2, "k:{t}", "ü", b"\0\r\n\xff", 0, -1, b"")]
)
def test_a_command_is_packed_as_the_driver_packs_it(command: tuple[Any, ...]) -> None:
    """Names, numbers and bytes of any kind."""
    from redis.asyncio import Connection

    from palimpsest.stores.redis.link import packed

    assert packed(command) == b"".join(Connection(protocol=2).pack_command(*command))


def test_who_is_outdated_writes_anew_at_once() -> None:
    """The refusal says which head is there: an append over it is one round trip more, and needs no look."""
    address = address_of()

    async def work() -> list[int]:
        trips: list[int] = []
        async with AsyncMemory.open(address) as one, AsyncMemory.open(address) as other:
            sessions = one.session("s"), other.session("s")
            for session in sessions:
                await session.add_user_message("first")
            for number in range(10):
                with watched() as sent:
                    await sessions[number % 2].add_user_message(str(number))
                trips.append(len(sent))
        return trips

    assert asyncio.run(work()) == [2] * 10


def test_a_script_that_the_server_has_forgotten_is_sent_anew() -> None:
    """As after a restart, or SCRIPT FLUSH."""
    with Memory.open(address := address_of()) as memory:
        session = memory.session("s")
        session.add_user_message("one")
        with raw(address) as client:
            client.script_flush()
        session.add_user_message("two")

        assert [entry.text for entry in session.entries()] == ["one", "two"]


# --- listings


def test_a_listing_by_use_misses_nobody_whose_write_came_between() -> None:
    """Buckets are read one after the other: who is written in one that was read already is told the next time.

    Its mark is later than the last that the reader was given, though another write, which he saw, came after it.
    """
    asyncio.run(missed_nobody(address_of()))


async def missed_nobody(address: str) -> None:
    homes = {home_of("t", str(number)).bucket: str(number) for number in range(2_000)}
    first, last = (Place("t", homes[bucket], "s", "") for bucket in (0, BUCKETS - 1))
    reader, writer = opened(address), opened(address)
    scripts, done = reader._listings._run, list[int]()

    async def between(script: Any, buckets: Any, given: Any, writes: bool = False) -> list[Any]:
        found: list[Any] = []
        for bucket in buckets:  # one by one, as in a cluster
            if bucket == BUCKETS - 1 and not done:
                done.append(bucket)
                for place in (first, last):
                    assert await writer.write([[Step(place, None, b"1")]], 0) == [None]
            found += await scripts(script, [bucket], given, writes)
        return found

    reader._listings._run = between
    seen = await reader.recent("t", "s")
    assert last in [one.place for one in seen]
    assert await writer.write([[Step(first, b"1", b"2")]], 0) == [None]
    heard = await reader.recent("t", "s", since=seen[-1].mark)
    assert done
    assert {one.place: one.head.hot for one in heard}[first] == b"2"
    assert {one.place for one in [*seen, *heard]} == {first, last}
    await reader.close()
    await writer.close()


def test_a_listing_by_use_misses_nobody_where_clocks_differ() -> None:
    """The clock of one server is an hour ahead; whoever is written on another after that is told all the same."""

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
            heard = await backend.recent("t", "s", since=seen.mark)
            assert place in [one.place for one in heard], number
            seen = heard[-1]
        await backend.close()

    asyncio.run(work(address_of()))


def test_who_asks_again_and_again_writes_nothing_where_nothing_was_written() -> None:
    """A listing by use is one round trip then, and two after something was written."""

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


def test_pages_of_a_bucket_that_has_most_places_are_whole() -> None:
    """Where all places of a listing are in one bucket, or most, pages are as long, and in order."""

    async def work(address: str) -> None:
        backend = opened(address)
        places = [Place("t", "one home", "s", f"{number:03}") for number in range(300)]
        places += [Place("t", f"home {number}", "s", "999") for number in range(30)]
        for begin in range(0, 300, 50):
            await backend.write([[Step(place, None, b"1") for place in places[begin : begin + 50]]], 0)
        await backend.write([[Step(place, None, b"1")] for place in places[300:]], 0)
        for limit in (7, 100, 310, 1000):
            found, page = [], await backend.places("t", "s", limit=limit)
            while page:
                assert len(page) == min(limit, len(places) - len(found))
                found += page
                page = await backend.places("t", "s", after=found[-1].place, limit=limit)
            assert [one.place.name for one in found] == [place.name for place in places]
            recent = await backend.recent("t", "s", limit=limit)
            newest = await backend.newest("t", "s", limit=limit)
            assert len(recent) == len(newest) == min(limit, len(places))
            assert [one.mark for one in recent] == sorted(one.mark for one in recent)
        await backend.close()

    asyncio.run(work(address_of()))


# --- a cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """Three masters."""
    with valkey_cluster(tmp_path_factory.mktemp("cluster")) as nodes:
        yield nodes


@pytest.fixture
def clustered(cluster: list[Server], request: pytest.FixtureRequest) -> str:
    """The address of an empty store on them."""
    prefix = re.sub(r"\W", "-", request.node.name)[:64]
    return f"redis://127.0.0.1:{cluster[0].port}/0?cluster=true&prefix={prefix}"


@pytest.mark.wide
class TestRedisClusterBackend(OnALoop, StoreConformance):
    """A cluster keeps the contract."""

    lasts = True

    @pytest.fixture
    def backend(self, clustered: str) -> BackendFactory:
        return lambda: opened(clustered)


def test_sessions_are_spread_over_a_cluster(cluster: list[Server], clustered: str) -> None:
    """Each node has some, all are listed, and each can be used as ever."""
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


def test_the_documented_permissions_are_enough_in_a_cluster(cluster: list[Server], clustered: str) -> None:
    """On each of its nodes a user has what the page lists, and nothing else."""
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


def test_a_node_of_a_cluster_is_told_from_a_server(cluster: list[Server]) -> None:
    """Who forgot to say so is told what to say."""
    with pytest.raises(ConfigError, match=r"cluster.*true"):
        Memory.open(f"redis://127.0.0.1:{cluster[0].port}/0").sessions()


def test_a_server_is_told_from_a_node_of_a_cluster() -> None:
    """And the other way round."""
    with pytest.raises(ConfigError, match=r"cluster.*false"):
        Memory.open(with_options(address_of(), cluster="true")).sessions()


def test_connections_that_a_cluster_has_closed_are_noticed_by_nobody(cluster: list[Server], clustered: str) -> None:
    """Those that nobody has used for a while, or that a restart has ended, are made anew before anything is sent."""

    def close_all() -> None:
        for node in cluster:
            with raw(node.address) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal")
                client.ping()  # they are closed by then

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


def test_one_who_follows_a_cluster_by_use_hears_of_every_write(clustered: str) -> None:
    """While four write to forty sessions, a reader goes on from the last mark that he was given, over and over."""

    async def work() -> tuple[dict[Place, bytes], dict[Place, bytes]]:
        backend = opened(clustered)
        heads: dict[Place, bytes] = {}
        heard: dict[Place, bytes] = {}
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
                    heard.update({one.place: one.head.hot for one in page})
                    mark = page[-1].mark
                    page = await backend.recent("t", "s", since=mark, after=page[-1].place, limit=15)

        following = asyncio.create_task(follow())
        await asyncio.gather(*(write(number) for number in range(4)))
        writing = False
        await following
        await backend.close()
        return heads, heard

    heads, heard = asyncio.run(work())

    assert heard == heads


# --- the server's memory


@pytest.fixture
def server() -> Iterator[Server]:
    """A server of a test's own."""
    with own_server("redis") as one:
        yield one


def test_a_server_that_throws_away_is_refused(server: Server) -> None:
    """One that evicts keys of any kind would lose what it has acknowledged; one that evicts what expires, does not."""
    with raw(server.address) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        with pytest.raises(StoreUnavailable, match=r"maxmemory-policy is allkeys-lru.*noeviction"):
            Memory.open(server.address).sessions()
        client.config_set("maxmemory-policy", "volatile-lru")
    with Memory.open(server.address) as memory:
        memory.session("s").add_user_message("x")
    with raw(server.address) as client:
        assert [key for key in keys_of(server.address + "?prefix=palimpsest") if client.ttl(key) != -1] == []


def test_a_server_that_keeps_nothing_is_warned_of(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever opens it finds in the log that a restart loses what was acknowledged; else nothing is said."""
    with raw(server.address) as client:
        for setting, warnings in (("yes", 0), ("no", 1)):
            client.config_set("appendonly", setting)
            caplog.clear()
            with Memory.open(server.address) as memory:
                memory.session("s").add_user_message("x")
            assert len([one for one in caplog.records if "append-only file is off" in one.getMessage()]) == warnings


def test_full_memory_is_told_before_anything_is_written(server: Server) -> None:
    """Reading goes on, and so does whatever makes room; then writing does."""
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


def test_heads_come_back_as_they_are_told_of_a_batch(server: Server) -> None:
    """Of several batches in one call that are refused each is told its own heads."""

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
