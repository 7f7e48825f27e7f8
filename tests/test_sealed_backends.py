"""Encryption as a wrapper of a backend: the contract of backends holds, and nothing but addresses is in clear."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from palimpsest.log.entry import now_us
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Store
from palimpsest.stores.backend import Backend
from palimpsest.stores.common import DiskOptions
from palimpsest.stores.encrypted.engine import sealed_engine
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.sqlite.backend import SQLiteBackend
from palimpsest.testing import BackendConformance, RewritingConformance, StoreConformance, StoreFactory
from palimpsest.testing.backends import BackendFactory
from sealed import BOTH


def sealed(below: Backend) -> Backend:
    """The backend that seals what this one keeps."""
    return drive(sealed_engine(below, None, BOTH, now_us)).sealed


class TestSealedMemoryBackend(BackendConformance):
    """Sealed dictionaries keep the contract."""

    @pytest.fixture
    def backend(self) -> BackendFactory:
        return lambda: sealed(MemoryBackend(Inline()))


class TestSealedSQLiteBackend(BackendConformance):
    """A sealed file keeps the contract."""

    lasts = True

    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendFactory:
        path = str(tmp_path / "a.db")
        options = DiskOptions(synchronous="NORMAL")
        return lambda: sealed(SQLiteBackend(f"sqlite:///{path}", path, Inline(), options))


class TestEngineOverSealedMemory(StoreConformance, RewritingConformance):
    """The log's contract holds over sealed dictionaries."""

    @pytest.fixture
    def store(self) -> StoreFactory:
        return lambda clock: drive(sealed_engine(MemoryBackend(Inline()), None, BOTH, clock))


class TestEngineOverSealedSQLite(StoreConformance, RewritingConformance):
    """The log's contract holds over a sealed file."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreFactory:
        path = str(tmp_path / "a.db")
        options = DiskOptions(synchronous="NORMAL")

        def opened(clock: Callable[[], int]) -> Store:
            return drive(sealed_engine(SQLiteBackend(f"sqlite:///{path}", path, Inline(), options), None, BOTH, clock))

        return opened
