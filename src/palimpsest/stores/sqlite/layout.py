"""The tables of an SQLite backend: numbered migrations, each applied and recorded in one transaction.

`PRAGMA user_version` is the number of the last one applied, `PRAGMA application_id` says that the file is ours.

    place    one row a place: its number, its address and a checksum of that, the hot value of its head, when that
             expires, when it was written
    cold     the cold value of a head, by the number of its place
    part     4,294,967,296 keys of a table of a place, by their upper half: the number that they have in tables of rows,
             and a checksum of that address
    entry    rows of entries: `pos` is the number of the part * 2^32 + the lower half of the key, so that neighbours are
             one range of the table's own tree and need no index
    other    all other rows, in the same way: an empty table, with what finds rows by id and by expiry, is three pages
    meta     `generation` tells who remembers numbers that some are gone; `scrub` that the file is to be scrubbed,
             `vacuum` how far it was written anew, `clean` up to which `scrub` that was done

A place or part that is not found by its address is looked for by its checksum, too: an index that was damaged is not
taken for something that is not there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from palimpsest.errors import StoreCorrupt, StoreTooNew, StoreUnavailable

APPLICATION_ID = 0x50414C49  # "PALI"

TABLES = ("entry", "other")
"""Tables of rows."""


ROWS = (
    "CREATE TABLE ROWS(pos INTEGER PRIMARY KEY, value BLOB NOT NULL, id TEXT, expires INTEGER)",
    "CREATE INDEX ROWS_id ON ROWS(id) WHERE id IS NOT NULL",
    "CREATE INDEX ROWS_expires ON ROWS(expires) WHERE expires IS NOT NULL",
)
"""What makes one of these tables, by its name in the place of ROWS."""


Migration = tuple[str, ...]

FIRST = 4
"""The version of a new file. What earlier ones wrote is not read."""

MIGRATIONS: tuple[Migration, ...] = (
    (
        "CREATE TABLE place(number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, home TEXT NOT NULL, "
        "space TEXT NOT NULL, name TEXT NOT NULL, sum INTEGER NOT NULL, hot BLOB, expires INTEGER, "
        "mark INTEGER NOT NULL DEFAULT 0, UNIQUE(tenant, space, name, home))",
        "CREATE INDEX place_sum ON place(sum)",
        "CREATE INDEX place_expires ON place(expires) WHERE expires IS NOT NULL",
        "CREATE INDEX place_mark ON place(mark)",
        "CREATE TABLE cold(place INTEGER PRIMARY KEY, body BLOB NOT NULL)",
        "CREATE TABLE part(number INTEGER PRIMARY KEY AUTOINCREMENT, place INTEGER NOT NULL, name TEXT NOT NULL, "
        "high INTEGER NOT NULL, sum INTEGER NOT NULL, UNIQUE(place, name, high))",
        "CREATE INDEX part_sum ON part(sum)",
        *(statement.replace("ROWS", table) for table in TABLES for statement in ROWS),
        "CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID",
        "INSERT INTO meta VALUES('generation', 0)",
    ),
)
"""From version `FIRST` on: what makes each of them of the one before."""


def migrate(db: sqlite3.Connection, url: str, writable: bool, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the database to the present version; a new file becomes ours. Does the rest when it is called again.

    Raises StoreTooNew for a newer version, StoreCorrupt for a database of somebody else, or of a version that is not
    read any more: none of these is touched.
    """
    newest = FIRST - 1 + len(migrations)
    version = _version(db, url, newest)
    if version == newest:
        return
    if not writable:
        told = f"schema version {version} needs migration to {newest}" if version else "there is nothing in it yet"
        raise StoreUnavailable(url, f"{told}: open it writable once")
    db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # of a file that is new: its pages can be given back one by one
    db.execute("PRAGMA journal_mode=WAL").fetchone()
    while version < newest:
        with db:
            db.execute("BEGIN IMMEDIATE")
            version = _version(db, url, newest)  # another process may have been first
            if version < newest:
                for statement in migrations[version - FIRST + 1 if version else 0]:
                    db.execute(statement)
                version = version + 1 if version else FIRST
                db.execute(f"PRAGMA user_version={version}")
                db.execute(f"PRAGMA application_id={APPLICATION_ID}")


def _version(db: sqlite3.Connection, url: str, newest: int) -> int:
    # One statement, hence one snapshot: another process may be creating the tables just now.
    version, owner, tables = db.execute(
        "SELECT (SELECT user_version FROM pragma_user_version), (SELECT application_id FROM pragma_application_id), "
        "(SELECT count(*) FROM sqlite_master)"
    ).fetchone()
    if owner == APPLICATION_ID:
        if version > newest:
            raise StoreTooNew(url, version, newest)
        if version < FIRST:
            told = f"has schema version {version}, which this version does not read, and was not changed"
            raise StoreCorrupt(url, f"{told}. Export its sessions with the version that wrote it, and import them")
        return int(version)
    if owner or version or tables:
        raise StoreCorrupt(url, "is a database of another program; nothing was changed. Give another path")
    return 0
