"""`sqlite:///file.db`: the default store, one file shared by threads and processes.

`palimpsest.stores.sqlite.layout` describes its tables. Each call of the engine is one transaction. The engine gathers
appends that arrive while others are being written, and writes them in one call.

The file is in write-ahead mode, with `synchronous=FULL` unless an option says otherwise.
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
    """Return the path and the checked options of an address. Raises ConfigError when either is not valid."""
    return path_of(url), disk_options(options)


def path_of(url: str) -> str:
    """Return the path in an address without options; `~` is the user's home folder. Raises ConfigError."""
    if not url.startswith("sqlite:///") or len(url) == len("sqlite:///"):
        shown = discreet_address(url)
        raise ConfigError("store", shown, "sqlite:///relative.db or sqlite:////absolute.db (three or four slashes)")
    if url == "sqlite:///:memory:":
        raise ConfigError("store", url, "memory:// for a store in this process's memory")
    return os.path.expanduser(url[len("sqlite:///") :])
