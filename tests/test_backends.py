"""The contract of backends, applied to those in the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from palimpsest.runtime.runner import Inline
from palimpsest.stores.common import DiskOptions
from palimpsest.stores.memory import MemoryBackend
from palimpsest.stores.sqlite.backend import SQLiteBackend
from palimpsest.testing import BackendConformance
from palimpsest.testing.backends import BackendFactory


class TestMemoryBackend(BackendConformance):
    """Dictionaries keep the contract."""

    @pytest.fixture
    def backend(self) -> BackendFactory:
        return lambda: MemoryBackend(Inline())


class TestSQLiteBackend(BackendConformance):
    """A file keeps the contract."""

    lasts = True

    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendFactory:
        path = str(tmp_path / "a.db")
        return lambda: SQLiteBackend(f"sqlite:///{path}", path, Inline(), DiskOptions(synchronous="NORMAL"))
