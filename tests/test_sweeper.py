"""A memory that sweeps by itself while it is open."""

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
    """Is released by each sweep of any store."""
    done, sweep = threading.Semaphore(0), Store.sweep

    async def told(self: Store, *given: Any) -> int:
        try:
            return await sweep(self, *given)
        finally:
            done.release()

    monkeypatch.setattr(Store, "sweep", told)
    return done


def wait_for_a_sweep(swept: threading.Semaphore) -> None:
    """Wait until a sweep has ended that began after this was called: of the next two to end, the first may have begun
    before, and any number may have ended already."""
    while swept.acquire(blocking=False):
        pass
    for _ in range(2):
        assert swept.acquire(timeout=PATIENCE)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "driver"])
def test_what_has_expired_goes_by_itself(
    kind: str, tmp_path: Path, clock: FakeClock, swept: threading.Semaphore
) -> None:
    """Of the memory's own tenant, again and again, until it is closed."""
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


def test_under_an_event_loop_too(clock: FakeClock, tmp_path: Path, swept: threading.Semaphore) -> None:
    """It is a task of the loop that opened the memory."""

    async def main() -> None:
        where = f"sqlite:///{tmp_path}/a.db"
        async with AsyncMemory.open(where, clock=clock, sweep_every=0.005) as memory:
            await memory.session("s", lifetime="1m").add_user_message("hello")
            clock.advance(60)
            await asyncio.to_thread(wait_for_a_sweep, swept)
            assert await memory.sweep() == 0

    asyncio.run(main())


def test_what_goes_wrong_is_logged_and_the_next_sweep_comes(
    clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else hears of it."""
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


def test_what_is_no_length_of_time_is_refused() -> None:
    """By name, before anything is opened."""
    for bad in ("soon", 0, -1):
        with pytest.raises(ConfigError, match="sweep_every"):
            Memory.open("memory://", sweep_every=bad)  # type: ignore[arg-type]
