"""`sqlite:///file.db`: the default store, one file shared by threads and processes.

It is the engine over tables of rows, which `palimpsest.stores.sqlite.layout` describes. Each call of the engine is one
transaction. Appends that arrive while others are written are gathered by the engine, and written in one.

Write-ahead log; `synchronous=FULL` unless asked otherwise.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from palimpsest.errors import ConfigError
from palimpsest.runtime.runner import Runner
from palimpsest.stores.options import DiskOptions, discreet_address, disk_options

if TYPE_CHECKING:
    from palimpsest.stores.sqlite.backend import SQLiteBackend


def open_sqlite(url: str, runner: Runner, **options: Any) -> SQLiteBackend:
    """Open `sqlite:///relative.db` or `sqlite:////absolute.db`. Options are those of `DiskOptions`."""
    path, checked = accepted(url, **options)
    from palimpsest.stores.sqlite.backend import SQLiteBackend  # only once the address is sound

    return SQLiteBackend(url, path, runner, checked)


def accepted(url: str, **options: Any) -> tuple[str, DiskOptions]:
    """The path and the options that are opened. Raises ConfigError for what is not accepted."""
    return path_of(url), disk_options(options)


def path_of(url: str) -> str:
    """The path of the file that an address without options names; `~` is the user's folder. Raises ConfigError."""
    if not url.startswith("sqlite:///") or len(url) == len("sqlite:///"):
        shown = discreet_address(url)
        raise ConfigError("store", shown, "sqlite:///relative.db or sqlite:////absolute.db (three or four slashes)")
    if url == "sqlite:///:memory:":
        raise ConfigError("store", url, "memory:// for a store in this process's memory")
    return os.path.expanduser(url[len("sqlite:///") :])
