"""`file:folder`: a store of plain text files that a person can read, one for each home.

    FOLDER/
      palimpsest.json                says that the folder is ours, and of which version
      <tenant>-<hash>/
        <home>-<hash>.jsonl          a log: one line is one batch, a JSON object with a checksum
        marks                        the mark of the tenant's last write

A home is a session with its branches, a namespace of items, or a lease. Only the holder of a log's lock (flock) appends
to it. When much of a log is dead, or something in it was destroyed, a new file takes its place. Readers take no lock.
Each process keeps an index in memory of the logs that it reads, and reads only what is new in them.
`palimpsest.stores.file.lines` explains the lines.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from palimpsest.errors import ConfigError
from palimpsest.runtime.runner import Runner
from palimpsest.stores.options import DiskOptions, discreet_address, disk_options

if TYPE_CHECKING:
    from palimpsest.stores.file.backend import FileBackend


def open_file(url: str, runner: Runner, **options: Any) -> FileBackend:
    """Open `file:relative/folder` or `file:///absolute/folder`.

    Options are those of `DiskOptions`; `busy_seconds` is how long to wait for another writer of the same home. Raises
    ConfigError where the system has no file locks (Windows).
    """
    path, checked = accepted(url, **options)
    try:
        from palimpsest.stores.file.backend import FileBackend  # only once the address is sound
    except ModuleNotFoundError as missing:
        if missing.name != "fcntl":
            raise
        raise ConfigError("store", url, "sqlite:///agent.db: this system has no file locks (fcntl)") from missing
    return FileBackend(url, path, runner, checked)


def accepted(url: str, **options: Any) -> tuple[str, DiskOptions]:
    """Return the path and the checked options of an address. Raises ConfigError when either is not valid."""
    return path_of(url), disk_options(options)


def path_of(url: str) -> str:
    """Return the path in an address without options; `~` is the user's home folder. Raises ConfigError."""
    path = url.removeprefix("file:")
    if path.startswith("//"):
        path = path[2:] if path.startswith("///") else ""
    if not path or "\0" in path:
        shown = discreet_address(url)
        raise ConfigError(
            "store", shown, "file:relative/folder or file:///absolute/folder (one colon, or three slashes)"
        )
    return os.path.expanduser(path)
