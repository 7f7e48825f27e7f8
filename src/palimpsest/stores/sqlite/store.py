"""The engine over an SQLite file."""

from __future__ import annotations

from palimpsest.runtime.runner import Runner
from palimpsest.stores.common import DiskOptions
from palimpsest.stores.engine.store import Engine
from palimpsest.stores.sqlite.backend import SQLiteBackend


class SQLiteStore(Engine):
    """The engine over tables of rows."""

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        super().__init__(SQLiteBackend(url, path, runner, options), options.clock, options.large_bytes)
