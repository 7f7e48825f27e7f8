"""The store on Redis: the contract of backends, what it costs, what becomes of it in bad times."""

from __future__ import annotations

import pytest

pytest.importorskip("redis", reason="the extra `redis` is not installed")

from collections.abc import Iterator

from log_rules import LogConformance, StoreFactory
from palimpsest.runtime.runner import Inline, drive
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores.opening import open_store
from palimpsest.testing import BackendFactory, StoreConformance
from redisstore import OnALoop, address_of, opened


class TestRedisBackend(OnALoop, StoreConformance):
    """Hashes and sorted sets of a server keep the contract."""

    lasts = True

    @pytest.fixture
    def backend(self) -> BackendFactory:
        address = address_of()
        return lambda: opened(address)


class TestRedisStore(OnALoop, LogConformance):
    """The engine keeps its contract over it, on an event loop."""

    @pytest.fixture
    def store(self) -> StoreFactory:
        address = address_of()
        return lambda clock: open_store(address, Threaded(), clock=clock)


@pytest.mark.wide
class TestBridgedRedisStore(LogConformance):
    """And without one, as a synchronous memory uses it."""

    @pytest.fixture
    def store(self) -> Iterator[StoreFactory]:
        runner, address = Inline(), address_of()
        yield lambda clock: open_store(address, runner, clock=clock)
        drive(runner.close())
