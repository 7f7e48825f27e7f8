"""One SQLite connection with its lock, its transactions, and its errors turned into ours. Knows no tables."""

from __future__ import annotations

import os
import sqlite3
from _thread import LockType, allocate_lock  # `threading` costs a cold start a millisecond
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from palimpsest.errors import PalimpsestError, StoreCorrupt, StoreUnavailable


def connect(url: str, path: str, *, writable: bool, busy_seconds: float) -> sqlite3.Connection:
    """Open the file. Missing folders are made where it may be written."""
    with Translated(url):
        if writable:
            if parent := os.path.dirname(path):
                os.makedirs(parent, exist_ok=True)
            return sqlite3.connect(path, timeout=busy_seconds, isolation_level=None, check_same_thread=False)
        from urllib.parse import quote

        uri = f"file:{quote(os.path.abspath(path))}?mode=ro" + ("&immutable=1" if _is_unchanging(path) else "")
        return sqlite3.connect(uri, timeout=busy_seconds, isolation_level=None, check_same_thread=False, uri=True)


def _is_unchanging(path: str) -> bool:
    """Whether nobody can be writing: the file and its folder are read-only, and there is no journal.

    SQLite reads a file in write-ahead mode only beside a journal, which it would have to make, unless it is told so.
    """
    writable = os.access(path, os.W_OK) or os.access(os.path.dirname(os.path.abspath(path)), os.W_OK)
    return not writable and os.path.exists(path) and not os.path.exists(f"{path}-wal")


class Database:
    """A connection that threads share one at a time.

    `reading` and `writing()` hold the lock; writing is one transaction. `check` is called with the lock held,
    `undone` whenever a transaction was taken back.
    """

    def __init__(
        self, url: str, connection: sqlite3.Connection, check: Callable[[], None], undone: Callable[[], None]
    ) -> None:
        self.connection = connection
        self.lock = allocate_lock()
        self.translated = Translated(url)
        self.reading = _Reading(url, connection, self.lock, check)
        self.transaction = _Transaction(connection, undone)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the lock for one transaction."""
        with self.reading as connection, self.transaction:
            yield connection

    def close(self, before: Callable[[], None] | None) -> None:
        """Close the connection when nobody uses it; `before` is called first."""
        with self.lock:
            try:
                if before is not None:
                    before()
            finally:
                self.connection.close()


# Three contexts that every operation enters: as classes, for a generator costs a microsecond each time.


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
        if isinstance(cause, OSError) and not isinstance(cause, PalimpsestError):
            raise StoreUnavailable(self._url, f"{cause.strerror or cause}: {cause.filename}") from cause


class _Reading(Translated):
    """Holds the lock and gives the connection, unless `check` objects."""

    def __init__(self, url: str, connection: sqlite3.Connection, lock: LockType, check: Callable[[], None]) -> None:
        super().__init__(url)
        self._connection, self._lock, self._check = connection, lock, check

    def __enter__(self) -> sqlite3.Connection:  # type: ignore[override]
        self._lock.acquire()
        try:
            self._check()
        except BaseException:
            self._lock.release()
            raise
        return self._connection

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        self._lock.release()
        if cause is not None:
            super().__exit__(kind, cause, trace)


class _Transaction:
    """Commits, or takes all of it back where something was raised, the commit's own failure included."""

    def __init__(self, connection: sqlite3.Connection, undone: Callable[[], None]) -> None:
        self._connection, self._undone = connection, undone

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, _: object, cause: BaseException | None, __: object) -> None:
        if cause is not None:
            self._undo()
            return
        try:
            self._connection.execute("COMMIT")
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        if self._connection.in_transaction:  # a full disk has rolled back already
            self._connection.execute("ROLLBACK")
        self._undone()


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
