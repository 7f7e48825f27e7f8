"""Logs that hold what is not there any more, or never was, and how they are written anew without it."""

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
"""Bytes of logs that are gone through in one call, so that others have their turn."""


class Scrubbing:
    """Writes logs anew. `spoiled` are those of which this process knows that they hold what was destroyed, or what a
    writer who was killed has left behind their end."""

    def __init__(self, files: Folder, home: Callable[[str], Home]) -> None:
        self.spoiled: set[str] = set()
        self._files, self._home = files, home
        self._left: list[tuple[str, int]] = []

    def scrub(self, whole: bool) -> Scrubbed:
        """Write anew what is spoiled; or with `whole` the next of all logs that hold what was dropped."""
        if whole and not self._left:
            self._left = [(path, _size(path)) for path in self._all_logs()]
        todo = self._left if whole else [(path, _size(path)) for path in sorted(self.spoiled)]
        remains, freed, seen = [], 0, 0
        while seen < PIECE or not whole:
            try:
                path, size = todo.pop()
            except IndexError:  # perhaps another thread has taken the last
                break
            try:
                self._scrub_log(path, whole)
            except (StoreCorrupt, OSError) as fault:
                why = fault if isinstance(fault, StoreError) else unavailable(self._files.url, fault)
                remains.append(f"what was dropped from {path} may still be there: {why.reason}")
            freed, seen = freed + max(size - _size(path), 0), seen + size
        self._files.check()
        return Scrubbed(tuple(remains), sum(size + 1 for _, size in todo), freed)

    def _all_logs(self) -> list[str]:
        """Every log, also one of which there is only a new one that was never finished."""
        found = set[str]()
        for folder in folders(self._files.path):
            try:
                there = [f"{folder}/{name}".removesuffix(NEW) for name in names(folder)]
            except PermissionError:
                found.add(folder)  # so that it is told
            else:
                found.update(path for path in there if path.endswith(LOG))
        return sorted(found)

    def _scrub_log(self, path: str, whole: bool) -> None:
        def scrub(fd: int, status: os.stat_result) -> None:
            home = self._home(path)
            remove(path + NEW)  # of a writer that was killed
            with home.lock:
                home.refresh(fd, status, sure=True)
            if not home.end:
                remove(path)
            elif home.torn or home.spoiled >= (DROPPED if whole else DESTROYED):
                self.anew(home, fd)

        with contextlib.suppress(FileNotFoundError):
            self._files.locked(path, "ab+" if os.path.exists(path + NEW) else "rb", scrub)
        self.spoiled.discard(path)

    def anew(self, home: Home, fd: int) -> None:
        """Put another file in the log's place, for who has its lock: with what is there, and nothing of what was. Where
        a link leads to the log, that is its place."""
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
    """Bytes of a file; 0 where there is none, or none that can be looked at."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
