"""What the driver and the system raise, as errors of ours that say what it means."""

from __future__ import annotations

import sqlite3

from palimpsest.errors import PalimpsestError, StoreCorrupt, StoreUnavailable

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
