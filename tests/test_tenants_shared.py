"""Memories of many tenants over one opened store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from palimpsest import Keys, Memory
from palimpsest.errors import Closed, ConfigError
from palimpsest.testing import FakeClock

KEYS = Keys({"one": bytes(range(32))}, current="one")
TENANTS = 500


@pytest.fixture(params=["sqlite", "file", "sqlite sealed", "memory"])
def memory(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Memory]:
    """A store that one memory has opened."""
    kind, _, sealed = request.param.partition(" ")
    where = {"sqlite": f"sqlite:///{tmp_path}/log.db", "file": f"file://{tmp_path}/logs", "memory": "memory://"}[kind]
    with Memory.open(where, clock=clock, encryption=KEYS if sealed else None) as memory:
        yield memory


def test_each_tenant_sees_only_its_own_sessions(memory: Memory) -> None:
    """Sessions, items and erasures of one tenant are none of another's; the same tenant twice is one."""
    acme, other = memory.for_tenant("acme"), memory.for_tenant("other")
    acme.session("s").add_user_message("of acme")
    other.session("s").add_user_message("of the other")

    assert memory.sessions() == []
    assert [one.text for one in memory.for_tenant("acme").session("s").entries()] == ["of acme"]
    assert acme.tenant == "acme"
    other.forget(tenant="other")
    assert other.sessions() == []
    assert len(acme.sessions()) == 1
    with pytest.raises(ConfigError, match="tenant"):
        memory.for_tenant("")


def test_closing_one_tenants_memory_leaves_the_store_open(memory: Memory) -> None:
    """Closing a tenant's memory closes it alone, until the store is closed."""
    with memory.for_tenant("acme") as acme:
        acme.session("s").add_user_message("hello")
    acme.close()

    with pytest.raises(Closed):
        acme.sessions()
    again = memory.for_tenant("acme")
    assert len(again.sessions()) == 1
    memory.close()
    with pytest.raises(Closed):
        again.sessions()


def test_a_handler_hears_of_all_memories_of_its_tenant(memory: Memory) -> None:
    """A handler that one memory of a tenant was given hears of what another one does, and not of other tenants."""
    heard: list[str] = []
    stop = memory.for_tenant("acme").on("entry:added", lambda session, _: heard.append(session))

    memory.for_tenant("acme").session("a").add_user_message("x")
    memory.for_tenant("other").session("b").add_user_message("x")
    stop()
    memory.for_tenant("acme").session("c").add_user_message("x")

    assert heard == ["a"]


COUNTING = """
import asyncio, os, sys
from palimpsest import AsyncMemory, Memory

def held():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

def inline(address, tenants):
    with Memory.open(address, synchronous="NORMAL") as memory:
        memories = [memory.for_tenant(f"tenant {number}") for number in range(tenants)]
        memories[0].session("s").add_user_message("x")
        before = held()
        for one in memories[1:100]:
            one.session("s").add_user_message("x")
        for one in memories:
            one.sessions()
        return before, held()

async def awaited(address, tenants):
    async with AsyncMemory.open(address) as memory:
        memories = [memory.for_tenant(f"tenant {number}") for number in range(tenants)]
        for _ in range(8):  # threads that run several reads at once come as they are needed, up to their number
            await asyncio.gather(*(memories[0].session("s").entries() for _ in range(16)))
        before = held()
        for one in memories:
            await one.session("s").entries()
        return before, held()

address, tenants = sys.argv[1], int(sys.argv[2])
print(*inline(address, tenants), *asyncio.run(awaited(address, tenants)), sep="\\n")
"""


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what /proc shows of a process")
@pytest.mark.parametrize("address", ["sqlite:///{}/log.db", "file://{}/logs"])
def test_many_tenants_take_no_more_threads_than_one(address: str, tmp_path: Path) -> None:
    """500 tenants in use take no more threads and descriptors than one, in both classes.

    Another process counts, since threads of other tests may end in this one at any time.
    """
    command = [sys.executable, "-c", COUNTING, address.format(tmp_path), str(TENANTS)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    inline_before, inline_after, awaited_before, awaited_after = told.splitlines()
    assert inline_after == inline_before
    assert awaited_after == awaited_before
