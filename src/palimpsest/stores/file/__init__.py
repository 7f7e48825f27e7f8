"""`file:folder`: a store of plain text files, one a session, that a person can read.

    FOLDER/
      palimpsest.json                says that the folder is ours, and of which version
      leases.json
      <tenant>-<hash>/
        <session>-<hash>.jsonl       a log: one line is one commit, a JSON object with a checksum
        counts/<session>-<hash>/     token counts, eight bytes an entry, a file a counter
        items/<namespace>-<hash>.json
        large/<ab>/<sha256>/         a large content, beside it an empty file for each session that uses it
        families/<family>/           an empty file for each session that is a branch of the others

A log is only ever appended to, by whoever has its lock (flock); a clear or an erasure puts another file in its place.
Readers take no lock. Every line carries the head after it, and the first place that it may hold, so that the end of
a file tells all about its session and any entry is found by binary search: there is no index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from palimpsest.errors import ConfigError
from palimpsest.runtime.runner import Runner
from palimpsest.stores.common import discreet_address, disk_options

if TYPE_CHECKING:
    from palimpsest.stores.file.store import FileStore


def open_file(url: str, runner: Runner, **options: Any) -> FileStore:
    """Open `file:relative/folder` or `file:///absolute/folder`.

    Options are those of `DiskOptions`; `busy_seconds` is for another writer of the same session. Raises ConfigError
    where the system has no file locks (Windows).
    """
    path, checked = path_of(url), disk_options(options)
    try:
        from palimpsest.stores.file.store import FileStore  # only once the address is sound
    except ModuleNotFoundError as missing:
        if missing.name != "fcntl":
            raise
        raise ConfigError("store", url, "sqlite:///agent.db here: this system has no file locks (fcntl)") from missing
    return FileStore(url, path, runner, checked)


def path_of(url: str) -> str:
    """The path of the folder that an address without options names. Raises ConfigError."""
    path = url.removeprefix("file:")
    if path.startswith("//"):
        path = path[2:] if path.startswith("///") else ""
    if not path or "\0" in path:
        shown = discreet_address(url)
        raise ConfigError(
            "store", shown, "file:relative/folder or file:///absolute/folder (one colon, or three slashes)"
        )
    return path
