"""After a failover a store goes on at the new primary, although nobody closed its old connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from on_servers import own_server
from palimpsest import AsyncMemory, Memory, StoreUnavailable
from postgresstore import asked
from processes import until
from proxy import Network, network
from redisstore import raw
from servers import Server


async def added(address: str, fail_over: Any) -> list[str]:
    """Add with several tasks before and after a failover; return what is stored in the end."""
    async with AsyncMemory.open(address, timeout_seconds=20) as memory:

        async def add(text: str) -> None:
            await asyncio.gather(*(memory.session(f"s{n}").add_user_message(text) for n in range(6)))

        await add("before")
        await asyncio.to_thread(fail_over)
        await add("after")
        await add("later")
        return [entry.text for n in range(6) for entry in await memory.session(f"s{n}").entries()]


# --- Redis


def replicated(one: Server, two: Server, net: Network) -> None:
    """Let the second server take over, make the first its replica, and point the address to the second."""
    with raw(one.address) as first, raw(two.address) as second:
        until(lambda: second.info("replication").get("master_link_status") == "up")
        until(lambda: second.dbsize() == first.dbsize())
        second.execute_command("REPLICAOF", "NO", "ONE")
        first.execute_command("REPLICAOF", "127.0.0.1", two.port)
        net.leads(two.port)


def test_writes_go_to_the_replica_that_became_primary() -> None:
    """Connections to a Redis server that became a replica are made again, to the new primary."""
    with own_server("redis") as one, own_server("redis") as two, network(one.port) as net:
        with raw(two.address) as second:
            second.execute_command("REPLICAOF", "127.0.0.1", one.port)

        found = asyncio.run(added(f"redis://127.0.0.1:{net.port}/0", lambda: replicated(one, two, net)))

        assert found == ["before", "after", "later"] * 6


def test_an_address_of_a_replica_alone_is_refused() -> None:
    """If the address leads only to a replica, nothing is written and the error says so."""
    with own_server("redis") as one, own_server("redis") as two:
        with Memory.open(two.address) as memory:
            memory.session("s").add_user_message("before")
            with raw(two.address) as second:
                second.execute_command("REPLICAOF", "127.0.0.1", one.port)

            with pytest.raises(StoreUnavailable, match="address of the primary") as caught:
                memory.session("s").add_user_message("after")

        assert caught.value.written is False


# --- PostgreSQL


@pytest.mark.wide
def test_the_server_that_takes_writes_is_found_after_a_failover() -> None:
    """With several PostgreSQL hosts in the address, the one that takes writes is found after a failover."""
    with own_server("postgres") as one, own_server("postgres") as two:
        with Memory.open(two.address) as memory:
            memory.sessions()  # makes the tables, as a replica has them
        both = f"postgresql://postgres@127.0.0.1:{one.port},127.0.0.1:{two.port}/postgres"

        def fail_over() -> None:
            asked(one.address, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
            until(lambda: asked(one.address, "SHOW default_transaction_read_only")[0][0] == "on")

        found = asyncio.run(added(f"{both}?target_session_attrs=read-write", fail_over))

        assert found == ["after", "later"] * 6


@pytest.mark.wide
def test_a_server_that_takes_no_writes_is_reported() -> None:
    """If the only server takes no writes, the error says so and reading goes on."""
    with own_server("postgres") as one, Memory.open(one.address) as memory:
        memory.session("s").add_user_message("before")
        asked(one.address, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
        until(lambda: asked(one.address, "SHOW default_transaction_read_only")[0][0] == "on")

        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="address of the one that does") as caught:
                memory.session("s").add_user_message("after")
            assert caught.value.written is False
            assert len(memory.session("s").entries()) == 1
