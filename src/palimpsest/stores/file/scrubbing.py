"""`Scrubbing`: rewrites logs without what was dropped or destroyed, and what killed writers have left behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

from palimpsest.errors import StoreCorrupt, StoreError
from palimpsest.stores.backend import Scrubbed
from palimpsest.stores.file.disk import NEW, folders, names, remove, unavailable
from palimpsest.stores.file.folder import LOG, Folder
from palimpsest.stores.file.home import DESTROYED, DROPPED, Home

PIECE = 1 << 20
"""Bytes of logs that one call goes through, so that writers get their turn."""


class Scrubbing:
    """Rewrites logs. `spoiled` are those known to hold something destroyed, or the torn end of a killed writer."""

    def __init__(self, files: Folder, home: Callable[[str], Home]) -> None:
        self.spoiled: set[str] = set()
        self._files, self._home = files, home
        self._remaining: list[tuple[str, int]] = []  # of a whole scrub: paths and sizes

    def scrub(self, whole: bool) -> Scrubbed:
        """Rewrite the spoiled logs; or with `whole`, the next piece of all logs, where something was dropped."""
        if whole and not self._remaining:
            self._remaining = [(path, _size(path)) for path in self._all_logs()]
        todo = self._remaining if whole else [(path, _size(path)) for path in sorted(self.spoiled)]
        remains, freed, scanned = [], 0, 0
        while scanned < PIECE or not whole:
            try:
                path, size = todo.pop()
            except IndexError:  # also if another thread has taken the last
                break
            try:
                self._scrub_log(path, whole)
            except (StoreCorrupt, OSError) as fault:
                why = fault if isinstance(fault, StoreError) else unavailable(self._files.url, fault)
                remains.append(f"{path} may still hold erased data: {why.reason}")
            freed, scanned = freed + max(size - _size(path), 0), scanned + size
        self._files.check()
        return Scrubbed(tuple(remains), sum(size + 1 for _, size in todo), freed)

    def _all_logs(self) -> list[str]:
        """Return the paths of all logs, also of one that has only an unfinished new file."""
        found = set[str]()
        for folder in folders(self._files.path):
            try:
                paths = [f"{folder}/{name}".removesuffix(NEW) for name in names(folder)]
            except PermissionError:
                found.add(folder)  # scrubbing it fails, and is reported
            else:
                found.update(path for path in paths if path.endswith(LOG))
        return sorted(found)

    def _scrub_log(self, path: str, whole: bool) -> None:
        def scrub(fd: int, status: os.stat_result) -> None:
            home = self._home(path)
            remove(path + NEW)  # a killed writer may have left it
            with home.lock:
                home.refresh(fd, status, sure=True)
            if not home.end:
                remove(path)
            elif home.torn or home.spoiled >= (DROPPED if whole else DESTROYED):
                self.rewrite(home, fd)

        with contextlib.suppress(FileNotFoundError):
            self._files.locked(path, "ab+" if os.path.exists(path + NEW) else "rb", scrub)
        self.spoiled.discard(path)

    def rewrite(self, home: Home, fd: int) -> None:
        """Put a new file with only the live content in the log's place; the caller has the log's lock.

        If a link leads to the log, its target is replaced.
        """
        path = os.path.realpath(home.path)
        with home.lock:
            if home.is_empty:
                remove(path + NEW)
                remove(path)
                remove(home.path)
                self._files.sync_folder(os.path.dirname(home.path))
            else:
                self._files.replace(path, lambda file: home.write_anew(fd, file))
            home.forget()
        self.spoiled.discard(home.path)


def _size(path: str) -> int:
    """Return the size of a file in bytes; 0 if there is none, or it cannot be accessed."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
