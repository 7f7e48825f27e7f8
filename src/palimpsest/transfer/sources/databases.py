"""SQLite files of others, read so that nobody in this process loses a lock.

A process that closes any descriptor of a file gives up all its POSIX locks on it, those of a database that it has open
itself, too. SQLite knows its own descriptors and waits with closing them. So what may be a database is opened by SQLite
alone, also to find out what it is.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from palimpsest.errors import ImportFailed
from palimpsest.transfer.sources.limits import Limits

LEAST = 512
"""Bytes of the smallest database that is not empty."""

_VERSIONS = slice(18, 20)
"""Where the header says whether writes go to a log of their own first (2), which is not there in a copy."""


def is_database(path: str) -> bool:
    """Whether SQLite takes this file, which has `LEAST` bytes or more, for a database of its own.

    It is opened as one that nobody changes: so nothing is locked, waited for or written.
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
    """Open the database at a path for reading only. Raises ImportFailed where that cannot be.

    Reading a database whose last writer has left would leave files beside it, so that one is opened as it is.
    """
    rests = not os.path.exists(f"{path}-wal") and _has_log(path)
    try:
        db = sqlite3.connect(_address(path, "immutable=1" if rests else ""), uri=True, check_same_thread=False)
    except sqlite3.Error as fault:
        raise ImportFailed(name, f"cannot be opened: {fault}") from fault
    return _careful(db, limits)


def loaded(body: bytearray, name: str, limits: Limits) -> sqlite3.Connection:
    """Open the database that these bytes are, in memory. Raises ImportFailed where that cannot be."""
    if not hasattr(sqlite3.Connection, "deserialize"):  # SQLite was built without it
        raise ImportFailed(name, "is an SQLite database, which this Python reads from a path alone")
    body[_VERSIONS] = b"\1\1"
    db = sqlite3.connect(":memory:", check_same_thread=False)
    try:
        db.deserialize(body)
    except (sqlite3.Error, OverflowError) as fault:
        db.close()
        raise ImportFailed(name, f"cannot be opened: {fault}") from fault
    return _careful(db, limits)


def _careful(db: sqlite3.Connection, limits: Limits) -> sqlite3.Connection:
    """The connection, for a file of which nothing is known.

    Texts come as bytes: what is damaged must not stop the rest. No text or row may be larger than a value, and what
    the file says of itself runs nothing.
    """
    db.text_factory = bytes
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(limits.value, 2**31 - 1))
    db.execute("PRAGMA trusted_schema = OFF")
    return db


def _has_log(path: str) -> bool:
    """Whether the database says that its writes go to a log: that takes locks, without which SQLite cannot open it."""
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
