"""Connections to an SQLite file: how it is opened, whether its path still names it, and what its errors mean.

Whoever uses a connection holds the lock of its `Link`, and opens it again if a fork has closed it.
"""

from __future__ import annotations

import os
import sqlite3
from _thread import LockType  # `threading` costs a cold start a millisecond
from collections.abc import Callable
from typing import Generic, TypeVar

from palimpsest.errors import PalimpsestError, StoreCorrupt, StoreUnavailable
from palimpsest.runtime.once import ProcessLock, new_lock

C = TypeVar("C")

Identity = tuple[int, int]
"""Device and inode of a file."""

Journal = tuple[Identity | None, Identity | None]
"""The write-ahead log of a database, and the index of that (`-wal` and `-shm`)."""

NO_JOURNAL = (None, None)
"""The journal of a file that somebody has taken out of write-ahead mode."""

PAUSE = 0.0005
"""Seconds between two tries to begin while another process writes. Constant, because a waiter whose pauses grow can be
overtaken for ever; short, because a process that only writes leaves no more than a moment between two transactions."""

_creating = ProcessLock()


class Link(Generic[C]):
    """A connection, or what was made from one, opened when it is first needed, and the lock that its users hold.

    `journal` is the one that the connection writes to, once that was looked up. `relaxed` says that it does not wait
    for the disk at present.
    """

    __slots__ = ("_closing", "_opened", "bound", "journal", "lock", "relaxed")

    def __init__(self, opened: Callable[[], C], closing: Callable[[C], object]) -> None:
        self.lock = new_lock()
        self.bound: C | None = None
        self.journal: Journal | None = None
        self.relaxed = False
        self._opened, self._closing = opened, closing

    def use(self) -> C:
        """Return the connection, and open it if need be. The caller holds the lock."""
        if self.bound is None:
            self.bound = self._opened()
        return self.bound

    def close(self) -> None:
        """Close the connection. `use` opens it again."""
        bound, self.bound, self.journal, self.relaxed = self.bound, None, None, False
        if bound is not None:
            self._closing(bound)


class Links(Generic[C]):
    """The three links to the file at a path.

    All writing goes through the `writer`, and so does reading while nobody writes. The `reader` is for reads during a
    write, the `glancer` for looks at a head that may not wait for anybody. For `palimpsest.stores.forking` they are a
    holder.
    """

    def __init__(self, path: str, opened: Callable[[], C], closing: Callable[[C], object]) -> None:
        self.path, self._all = path, [Link(opened, closing) for _ in range(3)]
        self.writer, self.reader, self.glancer = self._all

    def to_read(self) -> Link[C]:
        """Return the link to read with: the writer's, unless somebody uses that just now."""
        return self.reader if self.writer.lock.locked() else self.writer

    @property
    def locks(self) -> tuple[LockType, ...]:
        """The locks of all links: while a thread holds them, nobody uses a connection."""
        return tuple(link.lock for link in self._all)

    def let_go(self) -> None:
        """Close all connections. The caller holds the `locks`; each is opened again when it is next used."""
        for link in reversed(self._all):
            link.close()

    def abandon(self) -> object:
        """Forget the connections without closing them, and return them: a fork has copied them into this process."""
        inherited = [link.bound for link in self._all]
        for link in self._all:
            link.bound = link.journal = None
        return inherited


class SameFile:
    """Checks that a path still names the file that was opened, and that its journal is the one that is written to.

    What is written to a file or journal without a name is lost. `seen` is the file, None before the first check.
    """

    def __init__(self, url: str, path: str) -> None:
        self._url, self._path, self._own = url, path, os.path.realpath(path)  # its journal is beside that
        self.seen: Identity | None = None

    def check(self, link: Link[C] | None = None) -> None:
        """Raise StoreUnavailable if the file is gone or another one, or if a writing link's journal is another one.

        After a journal was removed, the next process to open the file makes a new one, and does not see what is in the
        old one.
        """
        current = identity_of(self._path)
        if current is None or self.seen not in (None, current):
            raise self._moved("file", current)
        self.seen = current
        if link is not None:
            journal = journal_of(self._own)
            if link.journal not in (None, NO_JOURNAL, journal):
                raise self._moved("file's journal (-wal, -shm)", *journal)
            link.journal = journal

    def _moved(self, what: str, *current: Identity | None) -> StoreUnavailable:
        change = "no longer exists" if None in current else "was replaced by another"
        advice = (
            "It was moved or removed while it was open, and nothing was written. Close the memory and open it again"
        )
        return StoreUnavailable(self._url, f"the {what} {change}. {advice}")


def journal_of(path: str) -> Journal:
    """Return the journal of the database at a path."""
    return identity_of(f"{path}-wal"), identity_of(f"{path}-shm")


def identity_of(path: str) -> Identity | None:
    """Return the identity of the file at a path; None if there is none, or it cannot be accessed."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def connected(url: str, path: str, *, writable: bool) -> sqlite3.Connection:
    """Open the file. If `writable`, missing folders and a missing file are made, accessible to their owner alone."""
    with Translated(url):
        if writable:
            _create(path)
            return sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        uri = read_only(path, unchanging=_is_unchanging(os.path.realpath(path)))
        return sqlite3.connect(uri, timeout=0, isolation_level=None, check_same_thread=False, uri=True)


def read_only(path: str, *, unchanging: bool) -> str:
    """Return the URI by which SQLite opens a file read-only. If it is `unchanging`, SQLite takes no locks, either."""
    name = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")  # as SQLite's page on URIs asks for
    return f"file:{name}?mode=ro" + ("&immutable=1" if unchanging else "")


def _create(path: str) -> None:
    """Make the file, accessible to its owner alone; SQLite gives its journal the same mode.

    Closing a file drops the locks that this process has on it (POSIX). So nobody may open it as a database before this
    has closed it.
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
    """Make a folder and its missing parents, accessible to their owner alone."""
    if path and not os.path.isdir(path):
        _make_folders(os.path.dirname(path))
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise


def _is_unchanging(path: str) -> bool:
    """Return whether nobody can write: the file and its own folder are read-only, and there is no journal.

    SQLite reads a file in write-ahead mode only beside a journal, which it would have to make, unless it is told that
    the file does not change.
    """
    writable = os.access(path, os.W_OK) or os.access(os.path.dirname(path), os.W_OK)
    return not writable and os.path.exists(path) and not os.path.exists(f"{path}-wal")


FAULTS = (sqlite3.Error, OSError, UnicodeDecodeError)
"""What the driver and the operating system raise."""


class Damaged(sqlite3.DatabaseError):
    """Something is missing, or wrong, in the file that an undamaged one has."""

    sqlite_errorname = "SQLITE_CORRUPT"


class Translated:
    """A context that translates the driver's errors into public ones, with the cause kept."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, cause: BaseException | None, __: object) -> None:
        if isinstance(cause, sqlite3.Error):
            raise _ours(self._url, cause) from cause
        if isinstance(cause, UnicodeDecodeError):  # even SQLite's own error text cannot be decoded
            raise StoreCorrupt(self._url, "its schema is not UTF-8: it is damaged. Nothing was changed") from cause
        if isinstance(cause, OSError) and cause.errno is not None and not isinstance(cause, PalimpsestError):
            raise StoreUnavailable(self._url, f"{cause.strerror or cause}: {cause.filename}") from cause


def is_busy(fault: Exception) -> bool:
    """Return whether the fault is that another connection holds a lock, so that waiting helps."""
    return getattr(fault, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


_UNAVAILABLE = (
    (("SQLITE_BUSY", "SQLITE_LOCKED"), "other writers held it for too long; try again, or raise busy_seconds"),
    (("SQLITE_FULL",), "nothing was written; make room and try again"),
    (("SQLITE_READONLY",), "look at the permissions of the file and its folder, or open it with readonly=True"),
    (("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM"), "look at the file's path, its permissions and the disk"),
)


def _ours(url: str, cause: sqlite3.Error) -> PalimpsestError:
    """Return the public error that says what the driver's error means."""
    name, text = getattr(cause, "sqlite_errorname", ""), str(cause)
    if text.startswith("Could not decode"):  # the driver's own text would quote stored content
        name, text = "SQLITE_CORRUPT", "a stored text is not UTF-8"
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return StoreCorrupt(url, f"{text}; it is not a Palimpsest store, or it is damaged. Nothing was changed")
    for names, advice in _UNAVAILABLE:
        if name.startswith(names):
            return StoreUnavailable(url, f"{text}: {advice}", busy=is_busy(cause))
    return StoreUnavailable(url, text)
