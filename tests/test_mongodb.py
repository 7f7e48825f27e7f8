"""A store on MongoDB. Tested against SecantusDB, which speaks MongoDB's protocol over MongoDB's own storage engine.

It is somebody else's, a beta, and not MongoDB. PALIMPSEST_TEST_MONGODB_URL names a real server for the same tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import mongostore
from log_rules import LogConformance, StoreFactory
from mongostore import OnALoop
from palimpsest.runtime.runner import Inline, drive
from palimpsest.runtime.threaded import Threaded
from palimpsest.stores.mongodb import open_mongodb
from palimpsest.stores.mongodb.backend import REMAINS
from palimpsest.stores.opening import open_store
from palimpsest.testing import BackendFactory, StoreConformance

KEEPS = (REMAINS,)


class TestSecantusBackend(OnALoop, StoreConformance):
    """MongoDB's protocol, as SecantusDB speaks it, keeps the contract of backends."""

    lasts = True
    keeps = KEEPS

    @pytest.fixture
    def backend(self) -> BackendFactory:
        address = mongostore.address_of()
        return lambda: open_mongodb(address, Inline())


class TestSecantusStore(OnALoop, LogConformance):
    """The engine keeps its contract over it, on an event loop."""

    keeps = KEEPS

    @pytest.fixture
    def store(self) -> StoreFactory:
        address = mongostore.address_of()
        return lambda clock: open_store(address, Threaded(), clock=clock)


@pytest.mark.wide
class TestBridgedSecantusStore(LogConformance):
    """And without one, as a synchronous memory uses it."""

    keeps = KEEPS

    @pytest.fixture
    def store(self) -> Iterator[StoreFactory]:
        runner, address = Inline(), mongostore.address_of()
        yield lambda clock: open_store(address, runner, clock=clock)
        drive(runner.close())
