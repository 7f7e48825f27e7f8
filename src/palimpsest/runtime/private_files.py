"""How files are made accessible to their owner alone, from their first moment on, whatever the umask."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from functools import partial

FILE, FOLDER = 0o600, 0o700


private = partial(os.open, mode=FILE)
"""Opens a file; if that makes it, for its owner alone. An `opener` for `open`."""


def as_before(fd: int, path: str) -> None:
    """Give a new file the mode of the file at `path` that it will replace, and its owner, if that is permitted."""
    if sys.platform == "win32":
        return
    with suppress(FileNotFoundError):
        before, now = os.stat(path), os.fstat(fd)
        if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
            with suppress(PermissionError):  # only root may change an owner
                os.fchown(fd, before.st_uid, before.st_gid)
        if stat.S_IMODE(before.st_mode) != stat.S_IMODE(now.st_mode):
            os.fchmod(fd, stat.S_IMODE(before.st_mode))
