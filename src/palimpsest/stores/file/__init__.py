"""`file:folder`: a store of plain text files, one a home, that a person can read.

    FOLDER/
      palimpsest.json                says that the folder is ours, and of which version
      <tenant>-<hash>/
        <home>-<hash>.jsonl          a log: one line is one batch, a JSON object with a checksum
        marks                        when something of the tenant's was written last

A home is a session with its branches, a namespace of items, or a lease. A log is only ever appended to, by whoever has
its lock (flock); where much in it is not there any more, or something was destroyed, another file takes its place.
Readers take no lock. Each process has an index of the logs that it reads in memory, and reads only what is new in them.
`palimpsest.stores.file.lines` says how a line is written.
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

    Options are those of `DiskOptions`; `busy_seconds` is for another writer of the same session. Raises ConfigError
    where the system has no file locks (Windows).
    """
    path, checked = accepted(url, **options)
    try:
        from palimpsest.stores.file.backend import FileBackend  # only once the address is sound
    except ModuleNotFoundError as missing:
        if missing.name != "fcntl":
            raise
        raise ConfigError("store", url, "sqlite:///agent.db here: this system has no file locks (fcntl)") from missing
    return FileBackend(url, path, runner, checked)


def accepted(url: str, **options: Any) -> tuple[str, DiskOptions]:
    """The path and the options that are opened. Raises ConfigError for what is not accepted."""
    return path_of(url), disk_options(options)


def path_of(url: str) -> str:
    """The path of the folder that an address without options names; `~` is the user's folder. Raises ConfigError."""
    path = url.removeprefix("file:")
    if path.startswith("//"):
        path = path[2:] if path.startswith("///") else ""
    if not path or "\0" in path:
        shown = discreet_address(url)
        raise ConfigError(
            "store", shown, "file:relative/folder or file:///absolute/folder (one colon, or three slashes)"
        )
    return os.path.expanduser(path)
