"""The store that the documentation shows, and one written by what it says, keep every contract."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lmdb_store import LMDBBackend
from log_rules import LogConformance, StoreFactory
from palimpsest.runtime.runner import Inline
from palimpsest.stores import Store
from palimpsest.testing import BackendFactory, StoreConformance

PAGE = Path(__file__).parents[1] / "docs" / "stores.md"


def shown() -> str:
    """The code of the store on the page."""
    (code,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
        if "class OneFile" in code
    )
    return code


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """What that code defines."""
    module = sys.modules["shown_store"] = ModuleType("shown_store")  # where msgspec looks types up
    exec(compile(shown(), str(PAGE), "exec"), vars(module))  # noqa: S102 (the project's own page)
    yield module.OneFile
    del sys.modules["shown_store"]


def test_a_store_of_ones_own_is_short() -> None:
    """The page shows a whole one in under 100 lines."""
    assert len([line for line in shown().splitlines() if line]) < 100


class TestShownBackend(StoreConformance):
    """The backend on the page keeps the contract of backends."""

    lasts = True

    @pytest.fixture
    def backend(self, page: Any, tmp_path: Path) -> BackendFactory:
        return lambda: page(tmp_path / "a.store", Inline())  # type: ignore[no-any-return]


class TestShownStore(LogConformance):
    """With the engine over it, it keeps the contract of stores."""

    @pytest.fixture
    def store(self, page: Any, tmp_path: Path) -> StoreFactory:
        return lambda clock: Store(page(tmp_path / "a.store", Inline()), clock)


class TestLMDBBackend(StoreConformance):
    """LMDB, by what the page says, keeps the contract of backends."""

    lasts = True

    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendFactory:
        return lambda: LMDBBackend(str(tmp_path / "store"), Inline())


class TestLMDBStore(LogConformance):
    """And so does the engine over it that of stores."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreFactory:
        return lambda clock: Store(LMDBBackend(str(tmp_path / "store"), Inline()), clock)
