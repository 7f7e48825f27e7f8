"""The store on PostgreSQL: the contract of backends, what it costs, what becomes of it in bad times."""

from __future__ import annotations

import pytest

from palimpsest.runtime.runner import Inline
from palimpsest.stores.postgres import open_postgres
from palimpsest.testing import BackendFactory, StoreConformance
from postgresstore import OnALoop, address_of

KEEPS = (
    "PostgreSQL keeps what was erased in the files of its tables until VACUUM FULL writes them anew, and in its "
    "write-ahead log, archives and backups until those are overwritten or removed: whoever runs the server can see to it",
)


class TestPostgresBackend(OnALoop, StoreConformance):
    """Tables of a server keep the contract."""

    lasts = True
    keeps = KEEPS

    @pytest.fixture
    def backend(self) -> BackendFactory:
        address = address_of("contract")
        return lambda: open_postgres(address, Inline())
