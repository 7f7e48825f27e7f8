"""The stores that the documentation shows, and one written by that page, fulfil the contracts of a store."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lmdb_store
from lmdb_store import LMDBBackend
from log_rules import LogConformance, StoreFactory
from palimpsest.errors import StoreCorrupt
from palimpsest.runtime.runner import Inline, drive
from palimpsest.stores import Store
from palimpsest.stores.backend import Ask, Place, Range, Row, Step
from palimpsest.testing import BackendFactory, StoreConformance

PAGE = Path(__file__).parents[1] / "docs" / "stores.md"


def shown(name: str) -> str:
    """Return the code of a store class on the page."""
    (code,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
        if f"class {name}(" in code
    )
    return code


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """Yield a module that holds the classes shown on the page."""
    module = sys.modules["shown_store"] = ModuleType("shown_store")  # where msgspec looks types up
    for name in ("OneFile", "TwoColumns"):
        exec(compile(shown(name), str(PAGE), "exec"), vars(module))  # noqa: S102 (the project's own page)
    yield module
    del sys.modules["shown_store"]


@pytest.mark.parametrize(("name", "most"), [("OneFile", 100), ("TwoColumns", 50)])
def test_a_documented_store_is_short(name: str, most: int) -> None:
    """The page shows a whole store in under 100 lines, and one over an engine of ordered keys in under 50."""
    assert len([line for line in shown(name).splitlines() if line]) < most


def test_the_store_over_lmdb_is_short() -> None:
    """The store over LMDB, written from the page alone, has under 100 lines."""
    assert len(Path(lmdb_store.__file__).read_text("utf-8").splitlines()) < 100


class TestShownBackend(StoreConformance):
    """The backend on the page fulfils the contract of backends."""

    lasts = True

    @pytest.fixture
    def backend(self, page: Any, tmp_path: Path) -> BackendFactory:
        return lambda: page.OneFile(tmp_path / "a.store", Inline())  # type: ignore[no-any-return]


class TestShownStore(LogConformance):
    """The engine over the backend on the page fulfils the contract of stores."""

    @pytest.fixture
    def store(self, page: Any, tmp_path: Path) -> StoreFactory:
        return lambda clock: Store(page.OneFile(tmp_path / "a.store", Inline()), clock)


class TestShownBackendOfPairs(StoreConformance):
    """The page's backend over an engine of ordered keys fulfils the contract of backends."""

    lasts = True

    @pytest.fixture
    def backend(self, page: Any, tmp_path: Path) -> BackendFactory:
        return lambda: page.TwoColumns(tmp_path / "a.store", Inline())  # type: ignore[no-any-return]


class TestShownStoreOfPairs(LogConformance):
    """The engine over that backend fulfils the contract of stores."""

    @pytest.fixture
    def store(self, page: Any, tmp_path: Path) -> StoreFactory:
        return lambda clock: Store(page.TwoColumns(tmp_path / "a.store", Inline()), clock)


class TestLMDBBackend(StoreConformance):
    """The LMDB backend, written from the page, fulfils the contract of backends."""

    lasts = True

    @pytest.fixture
    def backend(self, tmp_path: Path) -> BackendFactory:
        return lambda: LMDBBackend(str(tmp_path / "store"), Inline())


class TestLMDBStore(LogConformance):
    """The engine over the LMDB backend fulfils the contract of stores."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> StoreFactory:
        return lambda clock: Store(LMDBBackend(str(tmp_path / "store"), Inline()), clock)


@pytest.mark.parametrize("kind", [b"h", b"r"])
def test_a_changed_pair_raises_store_corrupt(kind: bytes, tmp_path: Path) -> None:
    """A pair that the engine of keys gives back changed raises StoreCorrupt."""
    place = Place("tenant", "home", "space", "name")
    backend = LMDBBackend(str(tmp_path / "store"), Inline())
    drive(backend.write([[Step(place, None, b"hot", put=[("t", [Row(1, b"row")])])]], 1))
    with backend.begun(write=True) as pairs:
        key, value = next(iter(pairs.between(kind, kind + b"\xff" * 80)))
        pairs.put(key, value[:-1])

    with pytest.raises(StoreCorrupt, match="cannot be read"):
        drive(backend.look([Ask(place, [Range("t", [(0, 9)])])]))
