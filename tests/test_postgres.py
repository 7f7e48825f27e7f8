"""The store on PostgreSQL: the contract of backends, what it costs, what becomes of it in bad times."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from log_rules import LogConformance, StoreFactory
from palimpsest.runtime.runner import Inline, drive
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores.opening import open_store
from palimpsest.stores.postgres import open_postgres
from palimpsest.testing import BackendFactory, StoreConformance
from postgresstore import OnALoop, address_of

KEEPS = (
    "PostgreSQL keeps what was erased in the files of its tables until VACUUM FULL writes them anew, and in its "
    "write-ahead log, archives and backups until those are overwritten or removed; whoever runs it can see to that",
)


class TestPostgresBackend(OnALoop, StoreConformance):
    """Tables of a server keep the contract."""

    lasts = True
    keeps = KEEPS

    @pytest.fixture
    def backend(self) -> BackendFactory:
        address = address_of("contract")
        return lambda: open_postgres(address, Inline())


class TestPostgresStore(OnALoop, LogConformance):
    """The engine keeps its contract over it, on an event loop."""

    keeps = KEEPS

    @pytest.fixture
    def store(self) -> StoreFactory:
        address = address_of("log")
        return lambda clock: open_store(address, Threaded(), clock=clock)


@pytest.mark.wide
class TestBridgedPostgresStore(LogConformance):
    """And without one, as a synchronous memory uses it."""

    keeps = KEEPS

    @pytest.fixture
    def store(self) -> Iterator[StoreFactory]:
        runner, address = Inline(), address_of("bridged")
        yield lambda clock: open_store(address, runner, clock=clock)
        drive(runner.close())
