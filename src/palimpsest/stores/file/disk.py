"""Calls to the operating system: locks, names, files that are replaced whole, and errors that name the file.

A signal's handler may raise between any two bytecodes of the main thread. So whatever is opened or locked is held by a
`with` on a C object from its first moment, never through a generator.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable
from io import FileIO
from typing import BinaryIO, TypeVar

from palimpsest.errors import Closed, PalimpsestError, StoreUnavailable
from palimpsest.runtime.private_files import FOLDER, as_before, private
from palimpsest.stores import forking

T = TypeVar("T")

NEW = ".new"
"""Suffix of a file that is still being written, and takes the place of another when it is complete."""

_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: its fsync leaves the data in the drive's cache


class Files:
    """The files of the folder `path`: locks and writes. Without `synced`, writes do not wait for the disk."""

    def __init__(self, url: str, path: str, *, synced: bool, busy_seconds: float) -> None:
        self.url, self.path, self.synced, self.busy_seconds, self.closed = url, path, synced, busy_seconds, False
        self._locked = set[FileIO]()
        forking.watch(self)

    def check(self) -> None:
        """Raise StoreUnavailable if the folder is not the one that was opened. A plain folder is not checked."""

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
        """Open a file in this mode, lock it, and return what `do` returns for its descriptor and status.

        The file is the one that has the name `path` once the lock is held. Mode "a" makes a missing file and its
        folder. Raises FileNotFoundError for a missing file in another mode, StoreUnavailable when others keep it locked
        for longer than `patience` seconds (None: `busy_seconds`), Closed when the store is closed meanwhile.
        """
        operation, deadline, opened = fcntl.LOCK_SH if shared else fcntl.LOCK_EX, 0.0, False
        while True:
            try:
                with FileIO(path, mode, opener=private) as file:
                    opened = True
                    fd = file.fileno()
                    try:
                        self._locked.add(file)  # before the lock is taken: a fork may come at any moment
                        deadline = self._lock(fd, path, operation, deadline, patience)
                        if deadline:
                            self.check()
                        status = is_at(fd, path)
                        if status is not None:  # else another file took its place during the wait
                            return do(fd, status)
                    finally:
                        self._locked.discard(file)
                        fcntl.flock(fd, fcntl.LOCK_UN)  # a forked child may have the file open, too
            except FileNotFoundError:
                if opened or mode[0] != "a":
                    raise
                self.make_folder(os.path.dirname(path))

    def _lock(self, fd: int, path: str, operation: int, deadline: float, patience: float | None) -> float:
        """Lock an open file. Return when waiting for it ends (0: there was no need to wait yet)."""
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
                    message = f"{_holder(fd)} has kept {path} locked for {self.busy_seconds:g} seconds; "
                    raise StoreUnavailable(self.url, message + "try again, or raise busy_seconds", busy=True) from None
            except OSError as fault:
                raise named(fault, path) from None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)

    # --- forks: a child closes inherited files that are locked, or they would stay locked for as long as it lives

    locks = ()

    def let_go(self) -> None:
        """Do nothing: the threads of the parent go on with what they have locked."""

    def abandon(self) -> None:
        """Close, in a forked child, the files that threads of the parent had locked."""
        while self._locked:
            self._locked.pop().close()

    # --- writing

    def append(self, fd: int, path: str, data: bytes, size: int, end: int, *, lasting: bool = True) -> None:
        """Write at the `end` of a file of this size, over whatever is behind it, and wait for the disk.

        If that fails, the file is cut back to `end`; a new one is removed.
        """
        try:
            if size > end:
                os.ftruncate(fd, end)
            write(fd, data)
            if self.synced and lasting:
                sync(fd)
            if not end:
                self.sync_folder(os.path.dirname(path))
        except OSError as fault:
            with contextlib.suppress(OSError):  # what stays is no complete line, and is not read
                os.ftruncate(fd, end)
                if not end:
                    remove(path)
            raise named(fault, path) from None

    def end_line(self, path: str, end: int) -> None:
        """Put the last line break of a locked file of this size back: a damaged byte is in its place."""
        try:
            with FileIO(path, "rb+") as file:
                os.pwrite(file.fileno(), b"\n", end - 1)
                if self.synced:
                    sync(file.fileno())
        except OSError as fault:
            raise named(fault, path) from None

    def replace(self, path: str, fill: Callable[[BinaryIO], None]) -> None:
        """Have `fill` write a new file, then give it the name `path` in one step. A failure leaves nothing of it."""
        new = path + NEW
        remove(new)  # a killed writer may have left it
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
        """Make the folder and its parents where they are missing, and wait until they are on the disk."""
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
    """Return the public error for a system's error: what happened to which file, and what to do about it."""
    what = f"{cause.strerror or cause}: {cause.filename}"
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        message = f"the disk is full: nothing was written; make room and try again ({what})"
    elif cause.errno == errno.EFBIG:
        message = f"the file has reached the limit of the system or the disk: nothing was written ({what})"
    elif cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        message = f"{what}: it cannot be written or read; look at the permissions, or open it with readonly=True"
    else:
        message = f"{what}: look at the path and the disk"
    return StoreUnavailable(url, message)


def is_at(fd: int, path: str) -> os.stat_result | None:
    """Return the status of an open file if it is the one that has the name `path` now, else None."""
    try:
        current, status = os.stat(path), os.fstat(fd)
    except FileNotFoundError:
        return None
    return status if (current.st_ino, current.st_dev) == (status.st_ino, status.st_dev) else None


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
    """Remove a file if it exists; return whether it did."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def names(folder: str) -> list[str]:
    """Return the names in a folder, sorted; none if there is no folder."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def folders(folder: str) -> list[str]:
    """Return the paths of the folders in a folder."""
    return [path for name in names(folder) if os.path.isdir(path := f"{folder}/{name}")]


def named(fault: OSError, path: str) -> OSError:
    """Return the error with the name of its file, which calls on a descriptor leave out."""
    if fault.filename is None:
        fault.filename = path
    return fault


def _holder(fd: int) -> str:
    """Name the process that has the lock of an open file, as far as the system tells."""
    status = os.fstat(fd)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            fields = line.split()
            if "FLOCK" in fields and "->" not in fields and file in fields:
                return f"process {fields[fields.index(file) - 1]}"
    return "another writer"
