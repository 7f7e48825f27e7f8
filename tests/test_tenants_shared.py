"""Memories of many tenants over one opened store."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from palimpsest import AsyncMemory, Keys, Memory
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


def held() -> tuple[int, int]:
    """How many threads and descriptors this process has."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def test_each_tenant_sees_its_own(memory: Memory) -> None:
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


def test_closing_one_leaves_the_store_open(memory: Memory) -> None:
    """Who closes a tenant's memory is refused afterwards, and nobody else is, until the store closes."""
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


def test_who_is_told_of_a_tenant_is_told_by_all_of_its_memories(memory: Memory) -> None:
    """A handler that one memory of a tenant was given hears of what another one does, and not of other tenants."""
    heard: list[str] = []
    stop = memory.for_tenant("acme").on("entry:added", lambda session, _: heard.append(session))

    memory.for_tenant("acme").session("a").add_user_message("x")
    memory.for_tenant("other").session("b").add_user_message("x")
    stop()
    memory.for_tenant("acme").session("c").add_user_message("x")

    assert heard == ["a"]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts what /proc shows of this process")
@pytest.mark.parametrize("address", ["sqlite:///{}/log.db", "file://{}/logs"])
def test_many_tenants_cost_what_one_costs(address: str, tmp_path: Path, clock: FakeClock) -> None:
    """With 500 tenants in use there is no thread and no descriptor more than with one, in both classes."""
    with Memory.open(address.format(tmp_path), clock=clock, synchronous="NORMAL") as memory:
        memories = [memory.for_tenant(f"tenant {number}") for number in range(TENANTS)]
        memories[0].session("s").add_user_message("x")
        before = held()
        for one in memories[1:100]:
            one.session("s").add_user_message("x")
        for one in memories:
            one.sessions()
        assert held() == before

    async def main() -> None:
        async with AsyncMemory.open(address.format(tmp_path), clock=clock) as memory:
            memories = [memory.for_tenant(f"tenant {number}") for number in range(TENANTS)]
            for _ in range(8):  # threads that run several reads at once come as they are needed, up to their number
                await asyncio.gather(*(memories[0].session("s").entries() for _ in range(16)))
            before = held()
            for one in memories:
                await one.session("s").entries()
            assert held() == before

    asyncio.run(main())
