"""The contract of stores, applied to each store of the package; its helpers work without pytest."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import suspending  # noqa: F401 (it registers the store of a driver that suspends)
from log_rules import LogConformance, StoreFactory
from palimpsest.runtime.runner import Inline, drive
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores import Store
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.opening import open_store

T = TypeVar("T")


class TestMemoryStore(LogConformance):
    """`memory://` keeps the contract."""

    @pytest.fixture
    def store(self) -> StoreFactory:
        return lambda clock: open_store("memory://", Inline(), clock=clock)


class TestFileStore(LogConformance):
    """`file:` keeps the contract."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreFactory:
        return lambda clock: open_store(f"file://{tmp_path / 'logs'}", Inline(), clock=clock)


class TestSQLiteStore(LogConformance):
    """`sqlite:///` keeps the contract."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreFactory:
        return lambda clock: open_store(tmp_path / "a.db", Inline(), clock=clock)


class TestEngineWithLargeContent(LogConformance):
    """The engine over dictionaries keeps the contract when long content is stored beside its entry."""

    @pytest.fixture
    def store(self) -> StoreFactory:
        def opened(clock: Callable[[], int]) -> Store:
            backend = MemoryBackend(Inline())
            backend.large_bytes = 64
            return Store(backend, clock)

        return opened


class TestSuspendingStore(LogConformance):
    """A store with a suspending driver keeps the contract on an event loop."""

    @pytest.fixture
    def store(self) -> StoreFactory:
        return lambda clock: open_store("suspending://", Threaded(), clock=clock)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(coroutine)


class TestBridgedStore(LogConformance):
    """The same driver keeps the contract without an event loop, as a synchronous memory uses it."""

    @pytest.fixture
    def store(self) -> Iterator[StoreFactory]:
        runner = Inline()
        yield lambda clock: open_store("suspending://", runner, clock=clock)
        drive(runner.close())


def test_the_contract_is_imported_without_pytest() -> None:
    """A program without pytest can import `palimpsest.testing`."""
    code = "import sys; sys.modules['pytest'] = None; from palimpsest.testing import FakeClock, StoreConformance"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_broken_store_fails_the_contract(tmp_path: Path) -> None:
    """The contract detects a fault: a store that forgets its items does not pass."""
    clockwork = TestSQLiteStore()

    with pytest.raises(AssertionError):
        clockwork.test_items_are_of_one_tenant_and_namespace(
            lambda clock: forgetful(open_store(tmp_path / "b.db", Inline(), clock=clock))
        )


def forgetful(store):
    """Make the store find none of its items."""

    async def nothing(*_):
        return []

    store.list_items = nothing
    return store
