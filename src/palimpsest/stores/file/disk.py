"""What is asked of the disk: locks, names, files that are written whole, errors that name the file.

A signal's handler may raise between any two steps of ours in the main thread. So whatever is opened or locked is held
by a `with` of an object of C from its first moment on, and no generator stands around it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable
from functools import partial
from io import FileIO
from typing import BinaryIO, TypeVar

from palimpsest.errors import Closed, PalimpsestError, StoreUnavailable
from palimpsest.runtime.private_files import FILE, FOLDER, as_before, private
from palimpsest.stores import forking

T = TypeVar("T")

NEW = ".new"
"""Ends the name of a file that is still being written, and takes another's place when it is whole."""

_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: its fsync leaves the data in the drive's cache
_private = partial(os.open, mode=FILE)


class Files:
    """Files of the folder `path`, locked and written. Without `synced` writes do not wait for the disk."""

    def __init__(self, url: str, path: str, *, synced: bool, busy_seconds: float) -> None:
        self.url, self.path, self.synced, self.busy_seconds, self.closed = url, path, synced, busy_seconds, False
        self._locked = set[FileIO]()
        forking.watch(self)

    def check(self) -> None:
        """Raise StoreUnavailable where the folder is not the one that it was, as far as that is known."""

    # --- locks

    def locked(
        self,
        path: str,
        mode: str,
        do: Callable[[int, os.stat_result], T],
        *,
        shared: bool = False,
        patience: float | None = None,
    ) -> T:
        """Return what `do` returns with the lock of a file, open in this mode: the one that has its name now.

        It is given the open file and what that is like. Raises FileNotFoundError where there is none, and the mode
        makes none, StoreUnavailable where others keep it for longer than `patience`, or else `busy_seconds`, Closed
        where the store is closed meanwhile.
        """
        operation, deadline, made = fcntl.LOCK_SH if shared else fcntl.LOCK_EX, 0.0, False
        while True:
            try:
                with FileIO(path, mode, opener=_private) as file:
                    made = True
                    fd = file.fileno()
                    try:
                        self._locked.add(file)  # before it is: a child may be made at any moment
                        deadline = self._lock(fd, path, operation, deadline, patience)
                        if deadline:
                            self.check()
                        status = is_at(fd, path)
                        if status is not None:  # else another file took its place while this one waited
                            return do(fd, status)
                    finally:
                        self._locked.discard(file)
                        fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may have the file open, too
            except FileNotFoundError:
                if made or mode[0] != "a":
                    raise
                self.make_folder(os.path.dirname(path))

    def _lock(self, fd: int, path: str, operation: int, deadline: float, patience: float | None) -> float:
        pause = 0.0002
        while True:
            try:
                fcntl.flock(fd, operation | fcntl.LOCK_NB)
                return deadline
            except BlockingIOError:
                now = time.monotonic()
                deadline = deadline or now + (self.busy_seconds if patience is None else patience)
                if self.closed:
                    raise Closed(self.url) from None
                if now >= deadline:
                    told = f"{_holder(fd)} has kept {path} locked for {self.busy_seconds:g} seconds; "
                    raise StoreUnavailable(self.url, told + "try again, or raise busy_seconds") from None
            except OSError as fault:
                raise named(fault, path) from None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)

    # --- forks: a child closes what was locked when it was made, or that would stay so for as long as it lives

    locks = ()

    def let_go(self) -> None:
        """Nothing is to be done in the parent: its threads go on with what they have locked."""

    def abandon(self) -> None:
        """Close what another thread of the parent had locked."""
        while self._locked:
            self._locked.pop().close()

    # --- writing

    def append(self, fd: int, path: str, data: bytes, size: int, end: int, *, lasting: bool = True) -> None:
        """Write to a file of this size at its `end`, and wait for the disk; where that fails, leave nothing of it."""
        try:
            if size > end:
                os.ftruncate(fd, end)
            write(fd, data)
            if self.synced and lasting:
                sync(fd)
            if not end:
                self.sync_folder(os.path.dirname(path))
        except OSError as fault:
            with contextlib.suppress(OSError):  # what cannot be taken back has no whole line and is not read
                os.ftruncate(fd, end)
                if not end:
                    remove(path)
            raise named(fault, path) from None

    def end_line(self, path: str, end: int) -> None:
        """Give the last line of a file of this size, which is locked, the break that it has lost, in its place."""
        try:
            with FileIO(path, "rb+") as file:
                os.pwrite(file.fileno(), b"\n", end - 1)
                if self.synced:
                    sync(file.fileno())
        except OSError as fault:
            raise named(fault, path) from None

    def replace(self, path: str, fill: Callable[[BinaryIO], None]) -> None:
        """Give a new file that has the name `path` once all is written, in one step; or leave nothing of it."""
        new = path + NEW
        remove(new)  # of a writer that was killed
        try:
            with open(new, "xb", buffering=1 << 18, opener=private) as file:
                as_before(file.fileno(), path)
                fill(file)
                file.flush()
                sync(file.fileno())
            os.replace(new, path)
        except BaseException as fault:
            remove(new)
            if isinstance(fault, OSError) and not isinstance(fault, PalimpsestError):
                raise named(fault, new) from None
            raise
        self.sync_folder(os.path.dirname(path))

    def make_folder(self, path: str) -> None:
        """Make the folder and those above it, where they are missing, so that they last."""
        if os.path.isdir(path):
            return
        above = os.path.dirname(path)
        self.make_folder(above)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, FOLDER)
        self.sync_folder(above)

    def sync_folder(self, path: str) -> None:
        """Wait until the names in a folder are on the disk."""
        if self.synced:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)


def unavailable(url: str, cause: OSError) -> StoreUnavailable:
    """What the system objects to, as an error of ours: what happened and what to do about it, with the file."""
    what = f"{cause.strerror or cause}: {cause.filename}"
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        told = f"the disk is full: nothing was written; make room and try again ({what})"
    elif cause.errno == errno.EFBIG:
        told = f"the system or the disk lets a file grow no further: nothing was written ({what})"
    elif cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        told = f"{what}: it cannot be written or read; look at the permissions, or open it with readonly=True"
    else:
        told = f"{what}: look at the path and the disk"
    return StoreUnavailable(url, told)


def is_at(fd: int, path: str) -> os.stat_result | None:
    """What an open file is like, if it is the one that has the name `path` now."""
    try:
        there, status = os.stat(path), os.fstat(fd)
    except FileNotFoundError:
        return None
    return status if (there.st_ino, there.st_dev) == (status.st_ino, status.st_dev) else None


def write(fd: int, data: bytes) -> None:
    """Write all of `data` to a file that is open for appending."""
    written = os.write(fd, data)
    while written < len(data):
        written += os.write(fd, memoryview(data)[written:])


def sync(fd: int) -> None:
    """Wait until what was written to a file is on the disk."""
    if _FULL_SYNC is not None:
        fcntl.fcntl(fd, _FULL_SYNC)
    else:
        os.fdatasync(fd)


def remove(path: str) -> bool:
    """Remove a file, if it is there; return whether it was."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def names(folder: str) -> list[str]:
    """The names in a folder, in order; none where there is no folder."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def folders(folder: str) -> list[str]:
    """The paths of the folders in a folder."""
    return [path for name in names(folder) if os.path.isdir(path := f"{folder}/{name}")]


def named(fault: OSError, path: str) -> OSError:
    """The error with the name of the file that it is about, which calls on an open file leave out."""
    if fault.filename is None:
        fault.filename = path
    return fault


def _holder(fd: int) -> str:
    """Who has the lock of an open file, as far as the system tells."""
    status = os.fstat(fd)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            facts = line.split()
            if "FLOCK" in facts and "->" not in facts and place in facts:
                return f"process {facts[facts.index(place) - 1]}"
    return "another writer"
