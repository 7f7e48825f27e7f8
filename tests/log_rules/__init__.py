"""The contract of logs as tests, one rule each, to run over any store. All stores have the same engine under them.

class TestMyStore(LogConformance):
    @pytest.fixture
    def store(self, tmp_path):
        return lambda clock: open_store(tmp_path / "a.db", Inline(), clock)
"""

from log_rules.branches import BranchConformance
from log_rules.changes import ChangeConformance
from log_rules.compactions import CompactionConformance
from log_rules.contract import StoreFactory
from log_rules.erasures import ErasureConformance
from log_rules.logs import AppendConformance
from log_rules.replacements import ReplacementConformance
from log_rules.rewriting import RewritingConformance
from log_rules.side import SideConformance

__all__ = ["LogConformance", "StoreFactory"]


class LogConformance(
    AppendConformance,
    ChangeConformance,
    CompactionConformance,
    ReplacementConformance,
    BranchConformance,
    ErasureConformance,
    SideConformance,
    RewritingConformance,
):
    """All promises in the docstrings of `palimpsest.stores.Store`, one rule a test.

    A subclass has a fixture `store`: a function that takes a clock and opens an empty store that uses it. A store whose
    driver needs an event loop overrides `run`.
    """
