"""Servers that accept fewer connections than a memory may have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from on_servers import own_server
from palimpsest import AsyncMemory
from postgresstore import asked
from servers import with_options


@pytest.fixture(params=["redis", pytest.param("postgres", marks=pytest.mark.wide)])
def narrow(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the address of a server that accepts three connections of a user."""
    if request.param == "redis":
        with own_server("redis", "--maxclients", "3") as server:
            yield server.address
        return
    with own_server("postgres") as server:
        asked(server.address, "CREATE ROLE few LOGIN CONNECTION LIMIT 3", "GRANT CREATE ON DATABASE postgres TO few")
        yield server.address.replace("postgres@", "few@")


def test_a_memory_makes_do_with_the_connections_that_a_server_accepts(narrow: str) -> None:
    """Calls for which the server accepts no further connection wait for one that the memory has."""

    async def work() -> None:
        async with AsyncMemory.open(with_options(narrow, pool_size=10)) as memory:
            await memory.session("s0").add_user_message("first")

            async def one(number: int) -> int:
                for text in "abcd":
                    await memory.session(f"s{number}").add_user_message(text)
                return len(await memory.session(f"s{number}").entries())

            assert await asyncio.gather(*(one(number) for number in range(1, 12))) == [4] * 11

    asyncio.run(work())
