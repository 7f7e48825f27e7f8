"""Connections to an SQLite file: how it is opened, that it is still the same one, and what its faults mean.

Whoever uses a connection holds the lock of its link, and opens it again where a fork has closed it.
"""

from __future__ import annotations

import os
import sqlite3
from _thread import LockType, allocate_lock  # `threading` costs a cold start a millisecond
from collections.abc import Callable
from typing import Generic, TypeVar

from palimpsest.errors import PalimpsestError, StoreCorrupt, StoreUnavailable
from palimpsest.runtime.once import ProcessLock

C = TypeVar("C")

Identity = tuple[int, int]
"""The device and the inode of a file."""

Journal = tuple[Identity | None, Identity | None]
"""A write-ahead log, and its index."""

NO_JOURNAL = (None, None)
"""That of a file which somebody has taken out of write-ahead mode."""

PAUSE = 0.0005
"""Seconds between two tries to begin while another process writes. Always the same: who waits longer and longer is
overtaken for ever. And short, for between two writes of one that does nothing else there is but a moment."""

_creating = ProcessLock()


class Link(Generic[C]):
    """A connection, or what was made of one, opened when it is first needed; and the lock of whoever uses it.

    `journal` is the one that it writes to, where that was looked at.
    """

    __slots__ = ("_closing", "_opened", "bound", "journal", "lock", "relaxed")

    def __init__(self, opened: Callable[[], C], closing: Callable[[C], object]) -> None:
        self.lock = allocate_lock()
        self.bound: C | None = None
        self.journal: Journal | None = None
        self.relaxed = False
        self._opened, self._closing = opened, closing

    def use(self) -> C:
        """What there is; it is opened where it is not."""
        if self.bound is None:
            self.bound = self._opened()
        return self.bound

    def close(self) -> None:
        """Close it; it is opened again when it is needed."""
        bound, self.bound, self.journal, self.relaxed = self.bound, None, None, False
        if bound is not None:
            self._closing(bound)


class Links(Generic[C]):
    """Links to the file at a path: all who write have the `writer`, who reads meanwhile has the `reader`, and who looks
    at a head, and may wait for nobody, the `glancer`. For `palimpsest.stores.forking` they are a holder.
    """

    def __init__(self, path: str, opened: Callable[[], C], closing: Callable[[C], object]) -> None:
        self.path, self._all = path, [Link(opened, closing) for _ in range(3)]
        self.writer, self.reader, self.glancer = self._all

    def to_read(self) -> Link[C]:
        """The link for who reads."""
        return self.reader if self.writer.lock.locked() else self.writer

    @property
    def locks(self) -> tuple[LockType, ...]:
        """Who has these uses no connection."""
        return tuple(link.lock for link in self._all)

    def let_go(self) -> None:
        """Close them, for somebody who has the `locks`; they are opened again when they are needed."""
        for link in reversed(self._all):
            link.close()

    def abandon(self) -> object:
        """Give them away without closing them, in a process that has inherited them."""
        given = [link.bound for link in self._all]
        for link in self._all:
            link.bound = link.journal = None
        return given


class SameFile:
    """Whether a path names the file still that was opened, and its journal the one that is written to.

    What is written to one that nobody finds any more is lost. `seen` is the file, None before it was looked at.
    """

    def __init__(self, url: str, path: str) -> None:
        self._url, self._path, self._own = url, path, os.path.realpath(path)  # beside which its journal is
        self.seen: Identity | None = None

    def check(self, link: Link[C] | None = None) -> None:
        """Raise StoreUnavailable for another file, or none; and for another journal than that of a link that writes.

        Whoever comes after a journal was removed makes one of his own, and what is in the other is not seen by him.
        """
        now = identity_of(self._path)
        if now is None or self.seen not in (None, now):
            raise self._moved("file", now)
        self.seen = now
        if link is not None:
            journal = journal_of(self._own)
            if link.journal not in (None, NO_JOURNAL, journal):
                raise self._moved("file's journal (-wal, -shm)", *journal)
            link.journal = journal

    def _moved(self, what: str, *now: Identity | None) -> StoreUnavailable:
        there = "is not there any more" if None in now else "is another one now"
        told = "It was moved or removed while it was open, and nothing was written. Close the memory and open it again"
        return StoreUnavailable(self._url, f"the {what} {there}. {told}")


def journal_of(path: str) -> Journal:
    """The files of the journal of the database at a path."""
    return identity_of(f"{path}-wal"), identity_of(f"{path}-shm")


def identity_of(path: str) -> Identity | None:
    """The device and the inode of the file at a path; None where there is none, or it may not be looked at."""
    try:
        there = os.stat(path)
    except OSError:
        return None
    return there.st_dev, there.st_ino


def connected(url: str, path: str, *, writable: bool) -> sqlite3.Connection:
    """Open the file. Where it may be written, missing folders and a missing file are made, for their owner alone."""
    with Translated(url):
        if writable:
            _create(path)
            return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        uri = read_only(path, unchanging=_is_unchanging(os.path.realpath(path)))
        return sqlite3.connect(uri, timeout=0, isolation_level=None, check_same_thread=False, uri=True)


def read_only(path: str, *, unchanging: bool) -> str:
    """The address by which SQLite reads a file, and nothing else; of one that is `unchanging` without any lock."""
    name = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")  # as SQLite's page on them has it
    return f"file:{name}?mode=ro" + ("&immutable=1" if unchanging else "")


def _create(path: str) -> None:
    """Make the file, readable by its owner alone; SQLite gives its journal the same mode.

    To close a file takes the locks away that this process has on it. So nobody may open it before that is done.
    """
    with _creating.own():
        if os.path.lexists(path):
            return
        _make_folders(os.path.dirname(path))
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:  # another process was first
            return


def _make_folders(path: str) -> None:
    """Make a folder, and those above it that are missing, for their owner alone."""
    if path and not os.path.isdir(path):
        _make_folders(os.path.dirname(path))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise


def _is_unchanging(path: str) -> bool:
    """Whether nobody can be writing: the file and its own folder are read-only, and there is no journal.

    SQLite reads a file in write-ahead mode only beside a journal, which it would have to make, unless it is told so.
    """
    writable = os.access(path, os.W_OK) or os.access(os.path.dirname(path), os.W_OK)
    return not writable and os.path.exists(path) and not os.path.exists(f"{path}-wal")


FAULTS = (sqlite3.Error, OSError, UnicodeDecodeError)
"""What the driver and the system raise."""


class Damaged(sqlite3.DatabaseError):
    """Something is not there that always is."""

    sqlite_errorname = "SQLITE_CORRUPT"


class Translated:
    """Turns the driver's errors into ours: one place, the cause kept."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, cause: BaseException | None, __: object) -> None:
        if isinstance(cause, sqlite3.Error):
            raise _ours(self._url, cause) from cause
        if isinstance(cause, UnicodeDecodeError):  # the driver cannot even read the text of SQLite's complaint
            raise StoreCorrupt(self._url, "its schema is not UTF-8: it is damaged. Nothing was changed") from cause
        if isinstance(cause, OSError) and cause.errno is not None and not isinstance(cause, PalimpsestError):
            raise StoreUnavailable(self._url, f"{cause.strerror or cause}: {cause.filename}") from cause


def is_busy(fault: Exception) -> bool:
    """Whether others are in the way, so that to wait helps."""
    return getattr(fault, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


_UNAVAILABLE = (
    (("SQLITE_BUSY", "SQLITE_LOCKED"), "other writers kept it for too long; try again, or raise busy_seconds"),
    (("SQLITE_FULL",), "nothing was written; make room and try again"),
    (("SQLITE_READONLY",), "the file or its folder cannot be written"),
    (("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM"), "look at the file's path, its permissions and the disk"),
)


def _ours(url: str, cause: sqlite3.Error) -> PalimpsestError:
    """The error of ours that says what the driver's error means."""
    name, text = getattr(cause, "sqlite_errorname", ""), str(cause)
    if text.startswith("Could not decode"):  # the driver's text would quote what is stored
        name, text = "SQLITE_CORRUPT", "a stored text is not UTF-8"
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return StoreCorrupt(url, f"{text}; it is no database of ours, or it is damaged. Nothing was changed")
    for names, advice in _UNAVAILABLE:
        if name.startswith(names):
            return StoreUnavailable(url, f"{text}: {advice}")
    return StoreUnavailable(url, text)
