"""Reading SQLite files of other programs without losing this process's locks on them.

A process that closes any descriptor of a file gives up all its POSIX locks on that file, including those of a database
connection. SQLite keeps track of its own descriptors and delays closing them. So a file that may be a database is
opened by SQLite alone, even to find out whether it is one.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from palimpsest.errors import ImportFailed
from palimpsest.transfer.sources.limits import Limits

LEAST = 512
"""The bytes of the smallest database that is not empty."""

_VERSIONS = slice(18, 20)
"""The bytes of the header that say whether the database uses a write-ahead log (2), which a copied file lacks."""


def is_database(path: str) -> bool:
    """Return whether SQLite accepts this file, which has at least `LEAST` bytes, as a database.

    It is opened as immutable, so nothing is locked, waited for or written.
    """
    db = None
    try:
        db = sqlite3.connect(_address(path, "immutable=1"), uri=True)
        db.execute("PRAGMA schema_version")
    except sqlite3.Error as fault:
        return getattr(fault, "sqlite_errorcode", 0) not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CANTOPEN)
    finally:
        if db is not None:
            db.close()
    return True


def opened(path: str, name: str, limits: Limits) -> sqlite3.Connection:
    """Open the database at a path for reading only. Raises ImportFailed if that is not possible.

    If it uses a write-ahead log that no process has open, a normal connection would leave files beside it. So then it
    is opened as immutable.
    """
    is_idle = not os.path.exists(f"{path}-wal") and _has_log(path)
    try:
        db = sqlite3.connect(_address(path, "immutable=1" if is_idle else ""), uri=True, check_same_thread=False)
    except sqlite3.Error as fault:
        raise ImportFailed(name, f"cannot be opened: {fault}") from fault
    return _careful(db, limits)


def loaded(body: bytearray, name: str, limits: Limits) -> sqlite3.Connection:
    """Open a database from its bytes, in memory. Raises ImportFailed if that is not possible."""
    if not hasattr(sqlite3.Connection, "deserialize"):  # SQLite was built without it
        raise ImportFailed(
            name, "is an SQLite database in a stream, which this Python's SQLite cannot read; give the path of the file"
        )
    body[_VERSIONS] = b"\1\1"
    db = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        db.deserialize(body)
    except (sqlite3.Error, OverflowError) as fault:
        db.close()
        raise ImportFailed(name, f"cannot be opened: {fault}") from fault
    return _careful(db, limits)


def _careful(db: sqlite3.Connection, limits: Limits) -> sqlite3.Connection:
    """Set a connection up for an untrusted file, and return it.

    Texts are returned as bytes, so that a damaged one does not stop the rest. No text or row may be larger than the
    limit of a value. The schema of the file must not run functions.
    """
    db.text_factory = bytes
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(limits.value, 2**31 - 1))
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _has_log(path: str) -> bool:
    """Return whether the database uses a write-ahead log: without locks SQLite cannot open such a database."""
    db = sqlite3.connect(_address(path, "nolock=1"), uri=True)
    try:
        db.execute("PRAGMA schema_version")
    except sqlite3.Error as fault:
        return fault.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN
    finally:
        db.close()
    return False


def _address(path: str, option: str) -> str:
    return f"{Path(path).resolve().as_uri()}?mode=ro&{option}"
