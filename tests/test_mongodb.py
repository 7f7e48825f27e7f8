"""A store on MongoDB. Tested against SecantusDB, which speaks MongoDB's protocol over MongoDB's own storage engine.

It is somebody else's, a beta, and not MongoDB. PALIMPSEST_TEST_MONGODB_URL names a real server for the same tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

import pytest

import mongostore
from palimpsest.stores.mongodb.backend import MongoBackend
from palimpsest.testing import BackendFactory, StoreConformance

T = TypeVar("T")


class TestMongoBackend(StoreConformance):
    """MongoDB's protocol, spoken by SecantusDB, keeps the contract."""

    lasts = True

    @pytest.fixture
    def backend(self) -> Iterator[BackendFactory]:
        self._runner = asyncio.Runner()
        with self._runner:
            yield lambda address=mongostore.empty(): mongostore.opened(address)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def beside(self, jobs: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        async def all_of_them() -> None:
            await asyncio.wait_for(asyncio.gather(*(job() for job in jobs)), 120)

        self.run(all_of_them())
