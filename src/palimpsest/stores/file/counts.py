"""Token counts of a session: a file a counter, eight bytes a place: the count plus one, written twice.

They are derived, so no write waits for the disk: a place whose halves differ, or which is missing or 0, has no count
and is counted again.
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from array import array
from collections.abc import Mapping

from palimpsest.runtime.private_files import private
from palimpsest.stores.file.disk import Disk, names, remove, write_at
from palimpsest.stores.file.folder import Place, safe_name

CELL = 8
STEP = 8192
"""Places read at once."""

_MOST = 2**32 - 2


class Counts:
    """The counts of one session by one counter, as they are read: a few thousand places at a time."""

    def __init__(self, place: Place, counter: str) -> None:
        self._path = f"{place.counts}/{safe_name(counter)}"
        self._first, self._cells = 0, array("I")

    def get(self, seq: int) -> int | None:
        """The count of the entry at this place, None where there is none."""
        if not self._first <= seq < self._first + STEP or not self._first:
            self._first = seq - (seq - 1) % STEP
            self._cells = _read(self._path, self._first, STEP)
        cells, i = self._cells, 2 * (seq - self._first)
        if i + 1 >= len(cells) or cells[i] != cells[i + 1] or not cells[i]:
            return None
        return cells[i] - 1

    def tally(self, low: int, high: int) -> tuple[int, int]:
        """How many places from `low` to before `high` have a count, and the sum of them."""
        number = total = 0
        while low < high:
            cells = _read(self._path, low, min(STEP, high - low))
            if not cells:
                break
            low += len(cells) // 2
            one, other = cells[::2], cells[1::2]
            if one != other:
                one = array("I", (a if a == b else 0 for a, b in zip(one, other, strict=True)))
            counted = len(one) - one.count(0)
            number, total = number + counted, total + sum(one) - counted
        return number, total


def put_counts(disk: Disk, place: Place, counter: str, counts: Mapping[int, int]) -> None:
    """Write counts by seq. The caller has the session's lock and knows that these entries are there."""
    disk.make_folder(place.counts)
    path = f"{place.counts}/{safe_name(counter)}"
    fd = private(path, os.O_WRONLY | os.O_CREAT)
    try:
        for seq, n in counts.items():
            if 0 <= n <= _MOST:
                write_at(fd, struct.pack("<II", n + 1, n + 1), (seq - 1) * CELL)
    finally:
        os.close(fd)


def drop_counts(place: Place, seqs: list[int]) -> None:
    """Take the counts of these entries out, by whatever counter."""
    for name in names(place.counts):
        fd = os.open(f"{place.counts}/{name}", os.O_RDWR | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            for seq in seqs:
                if seq * CELL <= size:
                    write_at(fd, bytes(CELL), (seq - 1) * CELL)
        finally:
            os.close(fd)


def cut_counts(place: Place, next_seq: int) -> None:
    """Take out counts of entries that are not there: a loss of power may take an entry and leave its count."""
    for name in names(place.counts):
        path = f"{place.counts}/{name}"
        if os.path.getsize(path) > (next_seq - 1) * CELL:
            os.truncate(path, (next_seq - 1) * CELL)


def copy_counts(disk: Disk, place: Place, into: Place, first: int, next_seq: int) -> None:
    """Give the session `into` the counts of the entries from `first` to before `next_seq`."""
    for name in names(place.counts):
        disk.make_folder(into.counts)
        target = f"{into.counts}/{name}"
        with open(f"{place.counts}/{name}", "rb") as source, open(target, "wb", opener=private) as copy:
            at, end = (first - 1) * CELL, (next_seq - 1) * CELL
            source.seek(at)
            copy.seek(at)
            while data := source.read(min(STEP * CELL, end - at)):
                copy.write(data)
                at += len(data)


def remove_counts(place: Place) -> None:
    """Remove all counts of the session."""
    for name in names(place.counts):
        remove(f"{place.counts}/{name}")
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(place.counts)


def _read(path: str, first: int, number: int) -> array[int]:
    """The halves of so many places from `first` on, as many as there are."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return array("I")
    try:
        data = os.pread(fd, number * CELL, (first - 1) * CELL)
    finally:
        os.close(fd)
    cells = array("I", data[: len(data) - len(data) % CELL])
    if sys.byteorder == "big":
        cells.byteswap()
    return cells
