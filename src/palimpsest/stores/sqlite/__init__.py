"""`sqlite:///file.db`: the default store, one file shared by threads and processes.

    session  one row a session: its number, tenant, id and head (JSON)
    entry    one row an entry; `pos` is session number * 2^32 + seq, so that a session is one range of the
             table's own tree and needs no index of its own; `id` in 16 bytes where it is a UUID. Ids made
             here name their own seq; only others (`given`) are indexed
    share    which entries of other sessions' logs a branch reads
    large    content of more than `large_bytes`, once, and in `large_use` which entries refer to it
    tokens   counts by counter and pos
    record   cuts, erasures and other changes, by session number and revision
    item, lease, meta

Entries, heads and records carry a checksum (`sum`), so that what was not written so is never read.

Write-ahead log; `synchronous=FULL` unless asked otherwise. Appends that arrive while another commits are
gathered and committed together: whoever has the lock commits for all that wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from palimpsest.errors import ConfigError
from palimpsest.runtime.runner import Runner
from palimpsest.stores.common import discreet_address, disk_options

if TYPE_CHECKING:
    from palimpsest.stores.sqlite.store import SQLiteStore


def open_sqlite(url: str, runner: Runner, **options: Any) -> SQLiteStore:
    """Open `sqlite:///relative.db` or `sqlite:////absolute.db`. Options are those of `DiskOptions`."""
    path, checked = path_of(url), disk_options(options)
    from palimpsest.stores.sqlite.store import SQLiteStore  # only once the address is sound

    return SQLiteStore(url, path, runner, checked)


def path_of(url: str) -> str:
    """The path of the file that an address without options names. Raises ConfigError."""
    if not url.startswith("sqlite:///") or len(url) == len("sqlite:///"):
        shown = discreet_address(url)
        raise ConfigError("store", shown, "sqlite:///relative.db or sqlite:////absolute.db (three or four slashes)")
    if url == "sqlite:///:memory:":
        raise ConfigError("store", url, "memory:// for a store in this process's memory")
    return url[len("sqlite:///") :]
