"""Servers that hang: their connections stay open, and nothing is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from on_servers import own_server
from palimpsest import AsyncMemory, Memory, StoreUnavailable
from servers import Server, valkey_cluster, with_options

TIMEOUT, MANY = 2, 6
"""Seconds that a call may take, and how many appends wait for each other."""

EACH = [
    pytest.param("redis"),
    pytest.param("postgres", marks=pytest.mark.wide),
    pytest.param(
        "mongodb",
        marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")],
    ),
]


@pytest.fixture(params=EACH)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Yield a server of the test's own, of each kind."""
    with own_server(request.param) as one:
        yield one


def hasty(server: Server) -> str:
    """Return the server's address with a short timeout."""
    return with_options(server.address, timeout_seconds=TIMEOUT)


def check(failures: list[StoreUnavailable], texts: list[str]) -> None:
    """Check that all failed, and that those of which this was said have written nothing."""
    assert len(failures) == MANY
    assert all(fault.late for fault in failures)
    assert (texts[0], texts[-1]) == ("before", "after")
    assert len(texts) - 2 <= sum(fault.written is None for fault in failures) < MANY


def test_appends_that_wait_for_a_hanging_server_fail_together(server: Server) -> None:
    """If a server hangs, all appends that wait in a session's queue fail when the first does.

    Nobody waits as long again: a read that begins then ends after them.
    """

    async def work() -> None:
        async with AsyncMemory.open(hasty(server)) as memory:
            session = memory.session("s")
            await session.add_user_message("before")
            with server.hanging():
                adding = [asyncio.create_task(session.add_user_message(str(number))) for number in range(MANY)]
                await asyncio.wait(adding, return_when=asyncio.FIRST_EXCEPTION)
                with pytest.raises(StoreUnavailable):
                    await session.entries()
                assert all(task.done() for task in adding)

            failures = [fault for task in adding if isinstance(fault := task.exception(), StoreUnavailable)]
            await session.add_user_message("after")
            check(failures, [entry.text for entry in await session.entries()])

    asyncio.run(work())


@pytest.mark.wide
def test_threads_that_wait_for_a_hanging_server_fail_together(server: Server) -> None:
    """The same holds for the threads of a synchronous memory."""
    with Memory.open(hasty(server)) as memory, ThreadPoolExecutor(MANY) as pool:
        session = memory.session("s")
        session.add_user_message("before")
        with server.hanging():
            adding = [pool.submit(session.add_user_message, str(number)) for number in range(MANY)]
            wait(adding, return_when=FIRST_EXCEPTION)
            with pytest.raises(StoreUnavailable):
                session.entries()
            assert all(future.done() for future in adding)

        failures = [fault for future in adding if isinstance(fault := future.exception(), StoreUnavailable)]
        session.add_user_message("after")
        check(failures, [entry.text for entry in session.entries()])


@pytest.mark.parametrize(
    "more",
    [{"timeout_seconds": TIMEOUT}, pytest.param({"circuit_breaker": {"timeout": TIMEOUT}}, marks=pytest.mark.wide)],
)
@pytest.mark.parametrize("server", EACH[:2], indirect=True)  # MongoDB's driver does not tell what it has sent
def test_an_append_that_gets_no_connection_is_surely_unwritten(server: Server, more: Any) -> None:
    """If a server hangs, only what was sent may be stored: an append that had no connection certainly is not."""

    async def work() -> list[bool | None]:
        async with AsyncMemory.open(server.address, pool_size=1, **more) as memory:
            sessions = [memory.session(f"s{number}") for number in range(MANY)]
            for session in sessions:
                await session.add_user_message("before")
            with server.hanging():
                ends = await asyncio.gather(*(one.add_user_message("x") for one in sessions), return_exceptions=True)
            return [fault.written for fault in ends if isinstance(fault, StoreUnavailable)]

    written = asyncio.run(work())
    assert len(written) == MANY
    assert None in written
    assert False in written


@pytest.mark.wide
def test_a_hanging_node_of_a_cluster_delays_only_its_own_sessions(tmp_path: Path) -> None:
    """While one node of a cluster hangs, threads add to sessions of the others."""
    with valkey_cluster(tmp_path / "nodes") as nodes:
        address = with_options(nodes[0].address, cluster="true", timeout_seconds=TIMEOUT)
        with Memory.open(address) as memory, ThreadPoolExecutor(24) as pool:
            sessions = [memory.session(f"s{number}") for number in range(24)]
            for session in sessions:
                session.add_user_message("before")
            with nodes[2].hanging():
                adding = [pool.submit(session.add_user_message, "after") for session in sessions]
                wait(adding)

            failed = [future.exception() is not None for future in adding]
            assert 0 < sum(failed) < len(failed)
