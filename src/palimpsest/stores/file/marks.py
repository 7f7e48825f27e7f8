"""When something was written last to a tenant's homes, so that marks rise whatever clocks do."""

from __future__ import annotations

import os
from io import FileIO
from weakref import finalize

from palimpsest.stores.file.disk import Disk

MARKED = 1_000_000
"""Microseconds that one mark lasts."""

OPEN = 64
"""Tenants whose file stays open."""


class Marks:
    """The files `marks` of the tenants' folders, each of which holds the last mark. A mark is a second since 1970.

    Who has the lock of a home asks for the mark of what he writes; who lists goes by the last mark before he looks at
    the homes, each with its lock: nothing of that mark, or an earlier one, comes later to a home that he has seen.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk, self._open = disk, dict[str, FileIO]()
        finalize(self, _close, self._open)

    def close(self) -> None:
        """Close the files."""
        _close(self._open)

    def next(self, folder: str, at: int) -> int:
        """The mark of what is written at this time: none that anybody was told is greater."""
        mark, last = at // MARKED, self.last(folder)
        if mark <= last:
            return last
        path = f"{folder}/marks"

        def advance(fd: int, _: os.stat_result) -> None:
            if _number(os.pread(fd, 20, 0)) < mark:
                with FileIO(path, "rb+") as file:  # in its place, which a file for appending does not let
                    os.pwrite(file.fileno(), b"%020d" % mark, 0)

        self._disk.locked(path, "ab+", advance)
        return mark

    def last(self, folder: str) -> int:
        """The last mark."""
        file = self._open.get(folder)
        if file is None:
            try:
                file = FileIO(f"{folder}/marks")
            except FileNotFoundError:
                return 0
            if len(self._open) >= OPEN:
                with file:
                    return _number(file.read(20))
            file = self._open.setdefault(folder, file)
        return _number(os.pread(file.fileno(), 20, 0))


def _close(files: dict[str, FileIO]) -> None:
    while files:
        files.popitem()[1].close()


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() else 0
