"""A circuit breaker in front of a store: after failures the store is left alone, and asked again later."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from failing_backends import Flaky, flaky, hanging
from palimpsest import AsyncMemory, Keys, Memory
from palimpsest.errors import ConfigError, Conflict, StoreUnavailable
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores.circuit_breaker import BreakingBackend, CircuitBreaker
from palimpsest.stores.memory import MemoryBackend
from palimpsest.testing import BackendFactory, FakeClock, StoreConformance


class TestBreakingBackend(StoreConformance):
    """A backend behind a breaker fulfils the contract of backends."""

    @pytest.fixture
    def backend(self, clock: FakeClock) -> BackendFactory:
        return lambda: BreakingBackend(MemoryBackend(Inline()), CircuitBreaker(), clock)


@pytest.mark.parametrize("given", [True, {"max_failures": 5}, CircuitBreaker(reset_timeout="30s")])
def test_five_failures_open_the_breaker_and_a_probe_decides_later(given: Any, clock: FakeClock) -> None:
    """After five failures calls fail at once without reaching the store; 30 seconds later one probe decides."""
    backend = flaky("flaky")
    with Memory.open("flaky://", clock=clock, circuit_breaker=given) as memory:
        session = memory.session("s")
        session.add_user_message("hello")
        backend.away, backend.asked = True, 0
        for _ in range(5):
            with pytest.raises(StoreUnavailable, match="it is away"):
                memory.session("other").entries()
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match=r"5 calls in a row, .* 30 seconds") as caught:
                memory.session("other").entries()
            assert caught.value.written is False
        assert backend.asked == 5

        clock.advance(30)
        with pytest.raises(StoreUnavailable, match="it is away"):  # the probe
            memory.session("other").entries()
        with pytest.raises(StoreUnavailable, match="calls in a row"):
            memory.session("other").entries()
        assert backend.asked == 6
        clock.advance(30)
        backend.away = False
        assert [entry.text for entry in memory.session("s").entries()] == ["hello"]
        assert memory.session("other").entries() == []


def test_a_success_resets_the_count_of_failures(clock: FakeClock) -> None:
    """A success between failures resets their count, and an error that the store answers with is a success."""
    backend = flaky("flaky-2")
    with Memory.open("flaky-2://", clock=clock, circuit_breaker={"max_failures": 2}) as memory:
        memory.session("s").add_user_message("hello")
        for _ in range(4):
            backend.away = True
            with pytest.raises(StoreUnavailable, match="it is away"):
                memory.session("other").entries()
            backend.away = False
            with pytest.raises(Conflict):
                memory.import_session(memory.session("s").export())
            assert memory.session("other").entries() == []


def test_a_call_that_takes_too_long_counts_as_a_failure(clock: FakeClock) -> None:
    """A call that exceeds the breaker's timeout is ended, counts as a failure, and may have been written."""
    hanging("hanging")

    async def main() -> None:
        given = {"timeout": "20ms", "max_failures": 1}
        async with AsyncMemory.open("hanging://", clock=clock, circuit_breaker=given) as memory:
            with pytest.raises(StoreUnavailable, match=r"within 0.02 seconds"):
                await memory.session("s").add_user_message("hello")
            with pytest.raises(StoreUnavailable, match="1 calls in a row"):
                await memory.session("t").add_user_message("hello")

    asyncio.run(main())


def test_a_cancelled_probe_decides_nothing() -> None:
    """A cancelled probe leaves the decision to the next call."""
    backend = BreakingBackend(Flaky(), CircuitBreaker(max_failures=1, reset_timeout=1), clock := FakeClock())
    below: Any = backend.below
    below.away = True
    with pytest.raises(StoreUnavailable):
        drive(backend.look([]))
    clock.advance(1)

    class Gone(BaseException):
        pass

    async def interrupted(asks: Any) -> Any:
        raise Gone

    below.look = interrupted
    with pytest.raises(Gone):
        drive(backend.look([]))
    del below.look
    below.away = False
    assert drive(backend.look([])) == []


def test_a_locked_file_opens_the_breaker(tmp_path: Path, clock: FakeClock) -> None:
    """A SQLite file that another program keeps locked opens the breaker, also under encryption."""
    options: Any = {"clock": clock, "encryption": Keys({"a": bytes(32)}), "circuit_breaker": {"max_failures": 2}}
    with Memory.open(tmp_path / "a.db", busy_seconds=0, **options) as memory:
        memory.session("s").add_user_message("hello")
        holder = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        for told in ("locked", "locked", "2 calls in a row"):
            with pytest.raises(StoreUnavailable, match=told):
                memory.session("s").add_user_message("more")
        holder.execute("ROLLBACK")
        holder.close()
        clock.advance(30)
        memory.session("s").add_user_message("again")
        assert [entry.text for entry in memory.session("s").entries()] == ["hello", "again"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"timeout": "soon"}, r"circuit_breaker\.timeout"),
        ({"reset_timeout": 0}, r"circuit_breaker\.reset_timeout"),
        ({"max_failures": 0}, r"circuit_breaker\.max_failures"),
        ({"max_failure": 3}, "max_failures"),
        ("on", "circuit_breaker"),
        (5, "circuit_breaker"),
    ],
)
def test_an_invalid_breaker_is_refused_by_name(given: Any, told: str) -> None:
    """An invalid option of the breaker raises ConfigError that names it, before anything is opened."""
    with pytest.raises(ConfigError, match=told):
        Memory.open("memory://", circuit_breaker=given)
