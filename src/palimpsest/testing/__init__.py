"""Public helpers for tests: `StoreConformance`, the contract of every store, and a clock that stands still.

A backend takes the contract over like this; nothing here needs pytest, but its `test_` methods are made for it:

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def store(self, tmp_path):
            return lambda clock: open_my_store(tmp_path, clock=clock)

A backend, over which the engine is the store (`palimpsest.stores.backend`), takes over `BackendConformance`.
One that rewrites what it holds (`palimpsest.stores.rewriting.Rewritable`) takes over `RewritingConformance`, too.
"""

from palimpsest.testing.backends import BackendConformance
from palimpsest.testing.branches import BranchConformance
from palimpsest.testing.changes import ChangeConformance
from palimpsest.testing.clock import FakeClock
from palimpsest.testing.compactions import CompactionConformance
from palimpsest.testing.contract import StoreFactory
from palimpsest.testing.erasures import ErasureConformance
from palimpsest.testing.logs import LogConformance
from palimpsest.testing.replacements import ReplacementConformance
from palimpsest.testing.rewriting import RewritingConformance
from palimpsest.testing.side import SideConformance

__all__ = ["BackendConformance", "FakeClock", "RewritingConformance", "StoreConformance", "StoreFactory"]


class StoreConformance(
    LogConformance,
    ChangeConformance,
    CompactionConformance,
    ReplacementConformance,
    BranchConformance,
    ErasureConformance,
    SideConformance,
):
    """Everything that the docstrings of `palimpsest.stores.Store` promise, one rule a test.

    A subclass has a fixture `store`: a function that takes a clock and opens an empty store that uses it. A
    store whose driver needs an event loop overrides `run`.
    """
