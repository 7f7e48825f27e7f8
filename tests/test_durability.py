"""What `durability()` says about losses in a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import ResponseError

import mongostore
import postgresstore
import redisstore
import servers
from on_servers import own_server
from palimpsest import AsyncMemory, Memory
from palimpsest.stores.redis.scrubbing import FILELESS, HIDDEN, UNSHOWN, describe_durability

KEYS = {"k": "a" * 64}


@pytest.mark.parametrize(
    ("where", "options", "told"),
    [
        ("sqlite:///{}/a.db", {}, "loses nothing"),
        ("sqlite:///{}/a.db", {"synchronous": "NORMAL"}, "last commits"),
        ("file://{}/a", {}, "loses nothing"),
        ("file://{}/a?synchronous=NORMAL", {}, "last commits"),
        ("sqlite:///{}/a.db", {"encryption": KEYS, "circuit_breaker": True}, "loses nothing"),
        ("memory://", {}, "ends with this process"),
    ],
)
def test_an_embedded_store_describes_its_durability_options(
    where: str, options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """An embedded store describes what its options mean for a crash, in both classes and with encryption."""

    async def ask() -> str:
        async with AsyncMemory.open(where.format(tmp_path), **options) as memory:
            return await memory.durability()

    assert told in asyncio.run(ask())
    with Memory.open(where.format(tmp_path), **options) as memory:
        assert told in memory.durability()


def test_durability_on_postgresql_follows_the_users_settings() -> None:
    """For PostgreSQL the answer depends on the settings of the address's user."""
    address = postgresstore.address_of("durability")
    with Memory.open(address, encryption=KEYS) as memory:
        assert "loses nothing" in memory.durability()
    relaxed = servers.with_options(address, options="-csynchronous_commit%3Doff")
    with Memory.open(relaxed, encryption=KEYS) as memory:
        assert "synchronous_commit=off" in memory.durability()


def test_durability_on_redis_follows_the_append_only_file() -> None:
    """The append-only file, and when it is written."""
    with Memory.open(redisstore.address_of("durability")) as memory:
        assert "appendfsync" in memory.durability()


@pytest.mark.filterwarnings("ignore:.*append-only file is off")
@pytest.mark.wide
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"appendonly": "no"}, "last snapshot"),
        ({"appendonly": "yes", "appendfsync": "always"}, "loses nothing"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "last second"),
        ({"appendonly": "yes", "appendfsync": "no"}, "has not written yet"),
    ],
)
def test_durability_on_redis_follows_the_servers_settings(settings: dict[str, str], told: str) -> None:
    """For Redis the answer follows the server's present settings."""
    with own_server("redis") as server, Memory.open(server.address) as memory:
        with redisstore.raw(server.address) as client:
            for name, value in settings.items():
                client.config_set(name, value)
        assert told in memory.durability()


@pytest.mark.filterwarnings("ignore:.*append-only file is off")
def test_durability_without_access_to_redis_settings_says_so() -> None:
    """If a Redis user may not read the settings, the answer says only whether there is an append-only file."""
    with own_server("redis") as server, redisstore.raw(server.address) as client:
        client.acl_setuser("guest", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-config"])
        with Memory.open(server.address.replace("redis://", "redis://guest:any@")) as memory:
            told = memory.durability()
            client.config_set("appendonly", "no")
            off = memory.durability()

    assert "loses nothing" not in told
    assert "appendfsync, which it does not show" in told
    assert "last snapshot is lost (appendonly no)" in off


@pytest.mark.parametrize(
    ("shown", "told"),
    [(["aof_enabled:1"] * 2, UNSHOWN), (["aof_enabled:1", "aof_enabled:0"], FILELESS), ([""] * 2, HIDDEN)],
)
def test_durability_of_several_redis_servers_is_that_of_the_weakest(shown: list[str], told: str) -> None:
    """Of several Redis servers the one that may lose most counts; unknown settings promise nothing."""

    class Nodes:
        async def each(self, *command: bytes) -> list[bytes]:
            if command[0] == b"CONFIG":
                raise ResponseError("unknown command 'CONFIG'")
            return [one.encode() for one in shown]

    nodes: Any = Nodes()
    assert asyncio.run(describe_durability(nodes)) == told


@pytest.mark.wide
def test_durability_on_mongodb_follows_the_write_concern() -> None:
    """For MongoDB the answer depends on the write concern."""
    with Memory.open(mongostore.address_of("durability")) as memory:
        assert "loses nothing" in memory.durability()
    with Memory.open(mongostore.address_of("durability", w=1)) as memory:
        assert "loses nothing" not in memory.durability()
