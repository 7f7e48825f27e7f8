"""Helpers for tests of programs: `StoreConformance`, the contract of every backend, and `FakeClock`.

A backend is tested against the contract like this. Nothing here needs pytest, but the `test_` methods are made for it:

    class TestMyStore(StoreConformance):
        lasts = True  # what was written is still there when the store is opened again

        @pytest.fixture
        def backend(self, tmp_path):
            return lambda: MyBackend(tmp_path / "store", Inline())
"""

from palimpsest.testing.backend_contract import BackendFactory
from palimpsest.testing.backends import StoreConformance
from palimpsest.testing.clock import FakeClock

__all__ = ["BackendFactory", "FakeClock", "StoreConformance"]
