"""What the file store asks of the disk: locks, writes that happen whole, errors that name the file. Knows no logs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from _thread import LockType, allocate_lock
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO

from palimpsest.errors import PalimpsestError, StoreUnavailable
from palimpsest.runtime.private_files import FILE, FOLDER, as_before, private
from palimpsest.stores import forking
from palimpsest.stores.shielded import deserted

NEW = ".new"
"""Ends the name of a file that is still being written, and takes another's place when it is whole."""

FIRST = ".first"
"""Ends the name of a file whose lock says that somebody is to be the next who locks the file of that name."""

_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)  # macOS: its fsync leaves the data in the drive's cache


class Disk:
    """The files of the store at `path`. Errors name `url`; without `synced` appends do not wait for the disk."""

    def __init__(self, url: str, path: str, *, synced: bool, busy_seconds: float, check: Callable[[], None]) -> None:
        self.url, self.path, self.synced, self.busy_seconds = url, path, synced, busy_seconds
        self._check = check
        self._guard = allocate_lock()
        self._turns: dict[str, _Turn] = {}
        self._locked: set[int] = set()
        self._goes_first = 0
        forking.watch(self)

    # --- locks

    @contextlib.contextmanager
    def locked(
        self,
        path: str,
        flags: int = os.O_RDONLY,
        *,
        shared: bool = False,
        patience: float | None = None,
        passing: bool = True,
    ) -> Iterator[int]:
        """Hold the lock of a file or folder, open with `flags`: the one that has its name now.

        Threads of this store take turns, each path for itself; only one of them asks the system. Raises
        FileNotFoundError where there is none (and `flags` make none), StoreUnavailable where others keep it for longer
        than `patience`, or else `busy_seconds`. With `passing` whoever is first goes first.
        """
        deadline = time.monotonic() + (self.busy_seconds if patience is None else patience)
        if passing and not shared:
            self.let_pass([path])
        with self._turn(path, deadline):
            while True:
                with self._guard:
                    self._locked.add(fd := os.open(path, flags, FILE))
                try:
                    self._lock(fd, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, deadline)
                    if is_at(fd, path):  # else another file took its place while this one waited
                        yield fd
                        return
                finally:
                    self._unlock(fd)

    @contextlib.contextmanager
    def first(self, path: str) -> Iterator[None]:
        """Be the next who locks a file, as often as is needed: other processes that are to write to it wait meanwhile.

        It is made for who has to read the file, and write, and has others write in between each time. While anybody of
        this store is first somewhere its threads let nobody pass, so that two who are first never wait for each other.
        """
        with self.locked(path + FIRST, os.O_RDWR | os.O_CREAT):
            self._goes_first += 1
            try:
                yield
            finally:
                self._goes_first -= 1
                remove(path + FIRST)

    def let_pass(self, paths: Iterable[str]) -> None:
        """Wait for who is first at these files."""
        for path in paths if not self._goes_first else ():
            if not path.endswith(FIRST) and os.path.exists(path + FIRST):
                with contextlib.suppress(FileNotFoundError), self.locked(path + FIRST):
                    remove(path + FIRST)  # of one that was killed

    @contextlib.contextmanager
    def _turn(self, path: str, deadline: float) -> Iterator[None]:
        """Wait for the threads of this store that came before."""
        with self._guard:
            turn = self._turns.setdefault(path, _Turn())
            turn.users += 1
        try:
            while not turn.lock.acquire(timeout=min(max(deadline - time.monotonic(), 0), 0.05)):
                self._go_on_waiting(path, deadline)
            try:
                yield
            finally:
                turn.lock.release()
        finally:
            with self._guard:
                turn.users -= 1
                if not turn.users:
                    del self._turns[path]

    def _lock(self, fd: int, path: str, operation: int, deadline: float) -> None:
        pause = 0.0002
        while True:
            try:
                fcntl.flock(fd, operation | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                self._go_on_waiting(path, deadline, fd)
            except OSError as fault:
                raise named(fault, path) from None
            time.sleep(pause)
            pause = min(pause * 1.5, 0.01)

    def _go_on_waiting(self, path: str, deadline: float, fd: int | None = None) -> None:
        """Raise Closed where the store was closed meanwhile, StoreUnavailable where nobody waits for this any more, or
        has waited for long enough."""
        self._check()
        if deserted():
            raise StoreUnavailable(self.url, f"whoever asked for {path} was interrupted")
        if time.monotonic() >= deadline:
            holder = "another thread" if fd is None else _holder(fd)
            reason = f"{holder} has kept {path} locked for {self.busy_seconds:g} seconds; "
            raise StoreUnavailable(self.url, reason + "try again, or raise busy_seconds")

    def _unlock(self, fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough: a forked child may have the file open, too
        with self._guard:
            self._locked.discard(fd)
            os.close(fd)

    # --- forks

    @property
    def locks(self) -> tuple[LockType, ...]:
        """Who has this knows every file that is locked."""
        return (self._guard,)

    def let_go(self) -> None:
        """Nothing is to be done in the parent: its threads go on with what they have locked."""

    def abandon(self) -> None:
        """Close what was locked when the process was forked: else that stays so for as long as the child lives."""
        while self._locked:
            os.close(self._locked.pop())

    # --- writing

    @contextlib.contextmanager
    def appending(self, fd: int, path: str, end: int) -> Iterator[None]:
        """Let somebody write at `end`, which is the file's only end; where anything is raised, leave nothing of it."""
        try:
            if os.fstat(fd).st_size > end:
                os.ftruncate(fd, end)
            yield
        except BaseException as fault:
            with contextlib.suppress(OSError):  # what cannot be taken back has no whole line and is not read
                os.ftruncate(fd, end)
            if isinstance(fault, OSError) and not isinstance(fault, PalimpsestError):
                raise named(fault, path) from None
            raise

    @contextlib.contextmanager
    def replacing(self, path: str) -> Iterator[BinaryIO]:
        """Give a new file that has the name `path` once all is written, in one step; or leave nothing of it."""
        new = path + NEW
        remove(new)  # of a writer that was killed
        try:
            with open(new, "xb", buffering=1 << 18, opener=private) as file:
                as_before(file.fileno(), path)
                yield file
                file.flush()
                sync(file.fileno())
            os.replace(new, path)
        except BaseException as fault:
            remove(new)
            if isinstance(fault, OSError) and fault.filename is None and not isinstance(fault, PalimpsestError):
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

    # --- errors

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Turn the system's errors into ours: one place, the cause kept."""
        try:
            yield
        except PalimpsestError:
            raise
        except OSError as cause:
            raise StoreUnavailable(self.url, _advice(cause)) from cause


class _Turn:
    """Whose turn it is with a path, and how many threads have it or wait for it."""

    __slots__ = ("lock", "users")

    def __init__(self) -> None:
        self.lock: LockType = allocate_lock()
        self.users = 0


def is_at(fd: int, path: str) -> bool:
    """Whether an open file is the one that has the name `path` now."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def write_at(fd: int, data: bytes, at: int) -> None:
    """Write all of `data` at the place `at`."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, at)
        rest, at = rest[written:], at + written


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


def named(fault: OSError, path: str) -> OSError:
    """The error with the name of the file that it is about, which calls on an open file leave out."""
    if fault.filename is None:
        fault.filename = path
    return fault


def _advice(cause: OSError) -> str:
    """What happened and what to do about it, with the file's name."""
    what = f"{cause.strerror or cause}: {cause.filename}"
    if cause.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: nothing was written; make room and try again ({what})"
    if cause.errno == errno.EFBIG:
        return f"the system or the disk lets a file grow no further: nothing was written ({what})"
    if cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{what}: it cannot be written or read; look at the permissions, or open it with readonly=True"
    return f"{what}: look at the path and the disk"


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
