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
from palimpsest.runtime.runner import Inline
from palimpsest.stores.engine.store import Engine
from palimpsest.testing import BackendConformance, RewritingConformance, StoreConformance, StoreFactory
from palimpsest.testing.backends import BackendFactory

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


class TestShownBackend(BackendConformance):
    """The backend on the page keeps the contract of backends."""

    lasts = True

    @pytest.fixture
    def backend(self, page: Any, tmp_path: Path) -> BackendFactory:
        return lambda: page(tmp_path / "a.store", Inline())  # type: ignore[no-any-return]


class TestShownStore(StoreConformance, RewritingConformance):
    """With the engine over it, it keeps the contract of stores."""

    @pytest.fixture
    def store(self, page: Any, tmp_path: Path) -> StoreFactory:
        return lambda clock: Engine(page(tmp_path / "a.store", Inline()), clock)


class TestLMDBBackend(BackendConformance):
    """LMDB, by what the page says, keeps the contract of backends."""

    lasts = True

    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendFactory:
        return lambda: LMDBBackend(str(tmp_path / "store"), Inline())


class TestLMDBStore(StoreConformance, RewritingConformance):
    """And so does the engine over it that of stores."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreFactory:
        return lambda clock: Engine(LMDBBackend(str(tmp_path / "store"), Inline()), clock)
