"""A memory with `sweep_every` sweeps by itself while it is open."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import suspending  # noqa: F401
from palimpsest import AsyncMemory, ConfigError, Memory
from palimpsest.errors import StoreUnavailable
from palimpsest.stores import Store
from palimpsest.testing import FakeClock

PATIENCE = 60


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """A semaphore that each finished sweep of any store releases."""
    done, sweep = threading.Semaphore(0), Store.sweep

    async def told(self: Store, *given: Any) -> int:
        try:
            return await sweep(self, *given)
        finally:
            done.release()

    monkeypatch.setattr(Store, "sweep", told)
    return done


def wait_for_a_sweep(swept: threading.Semaphore) -> None:
    """Wait until a sweep has ended that began after this call.

    Sweeps that ended earlier are not counted. The next one to end may have begun before the call, so two are awaited.
    """
    while swept.acquire(blocking=False):
        pass
    for _ in range(2):
        assert swept.acquire(timeout=PATIENCE)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "driver"])
def test_a_memory_sweeps_its_own_tenant_until_it_is_closed(
    kind: str, tmp_path: Path, clock: FakeClock, swept: threading.Semaphore
) -> None:
    """A memory with `sweep_every` sweeps its own tenant again and again until it is closed."""
    where = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/a.db", "driver": "suspending://"}[kind]
    with Memory.open(where, clock=clock, sweep_every="5ms") as memory:
        memory.session("s", lifetime="1m").add_user_message("hello")
        memory.for_tenant("other").session("s", lifetime="1m").add_user_message("hello")
        assert swept.acquire(timeout=PATIENCE)
        assert memory.info("s").entries == 1
        clock.advance(60)
        wait_for_a_sweep(swept)
        assert memory.sweep() == 0
        assert memory.for_tenant("other").sweep() == 1
        sweeper = memory._core._sweeper
    assert sweeper is not None
    assert sweeper._end.is_set()


def test_an_asynchronous_memory_sweeps_in_a_task(clock: FakeClock, tmp_path: Path, swept: threading.Semaphore) -> None:
    """An asynchronous memory sweeps in a task of the loop that opened it."""

    async def main() -> None:
        where = f"sqlite:///{tmp_path}/a.db"
        async with AsyncMemory.open(where, clock=clock, sweep_every=0.005) as memory:
            await memory.session("s", lifetime="1m").add_user_message("hello")
            clock.advance(60)
            await asyncio.to_thread(wait_for_a_sweep, swept)
            assert await memory.sweep() == 0

    asyncio.run(main())


def test_a_failed_sweep_is_logged_and_the_next_one_comes(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A sweep that fails is only logged, and the next one comes."""
    tried = threading.Semaphore(0)

    async def away(self: Store, *given: Any) -> int:
        tried.release()
        raise StoreUnavailable(self.url, "it is away")

    monkeypatch.setattr(Store, "sweep", away)
    with Memory.open("memory://", clock=clock, sweep_every="5ms") as memory:
        for _ in range(3):
            assert tried.acquire(timeout=PATIENCE)
        assert memory.sessions() == []
    assert "it is away" in caplog.text


def test_sweep_every_is_checked() -> None:
    """An invalid `sweep_every` is refused by name before anything is opened."""
    for bad in ("soon", 0, -1):
        with pytest.raises(ConfigError, match="sweep_every"):
            Memory.open("memory://", sweep_every=bad)  # type: ignore[arg-type]
