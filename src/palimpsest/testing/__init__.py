"""Public helpers for tests: `StoreConformance`, the contract of every backend, and a clock that stands still.

A backend takes the contract over like this; nothing here needs pytest, but its `test_` methods are made for it:

    class TestMyStore(StoreConformance):
        lasts = True  # what was written is there when it is opened again

        @pytest.fixture
        def backend(self, tmp_path):
            return lambda: MyBackend(tmp_path / "store", Inline())
"""

from palimpsest.testing.backend_contract import BackendFactory
from palimpsest.testing.backends import StoreConformance
from palimpsest.testing.clock import FakeClock

__all__ = ["BackendFactory", "FakeClock", "StoreConformance"]
