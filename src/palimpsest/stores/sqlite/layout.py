"""The tables of an SQLite backend, as numbered migrations, each applied and recorded in one transaction.

`PRAGMA user_version` is the number of the last migration applied, `PRAGMA application_id` marks the file as ours.

    place    one row for each place: its number, its address and a checksum of that, its head's hot value, when the head
             expires, and its mark (when it was last written)
    cold     the cold value of a head, by the number of its place
    part     one row for each 4,294,967,296 keys (those of one upper half) of a place's table: the number that stands
             for them in tables of rows, and a checksum of that address
    entry    rows of entries: `pos` is the part's number * 2^32 + the lower half of the key, so that neighbouring rows
             are one range of the table's own tree and need no index
    other    all other rows, in the same way. One table, because an empty one with its indexes by id and by expiry takes
             three pages
    meta     `generation`: moves whenever a number goes, for connections that remember numbers. `scrub`: the file is to
             be scrubbed. `vacuum`: how far it has been rewritten. `clean`: up to which `scrub` that has been done

A place or part that its address does not lead to is looked up by its checksum as well. So a damaged index raises an
error, instead of hiding what is stored.
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
"""Statements that make such a table, whose name goes in the place of ROWS."""


Migration = tuple[str, ...]

FIRST = 4
"""The oldest version that is read. A new file begins with it."""

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
"""The statements that make version `FIRST` from an empty file, then each later version from the one before."""


def migrate(db: sqlite3.Connection, url: str, writable: bool, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Bring the database to the newest version; an empty file becomes ours. If interrupted, call it again.

    Raises StoreTooNew for a newer version, StoreCorrupt for another program's database or a version that is not read
    any more; neither is changed. Raises StoreUnavailable if a migration is needed and the file is not `writable`.
    """
    newest = FIRST - 1 + len(migrations)
    version = _version(db, url, newest)
    if version == newest:
        return
    if not writable:
        reason = f"schema version {version} needs migration to {newest}" if version else "it holds no store yet"
        raise StoreUnavailable(url, f"{reason}: open it once without readonly=True")
    db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # takes effect in a new file: free pages can be given back singly
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
    """Return the schema version of a database; 0 if it is empty. Raises like `migrate`."""
    # One statement, hence one snapshot: another process may be creating the tables just now.
    version, owner, tables = db.execute(
        "SELECT (SELECT user_version FROM pragma_user_version), (SELECT application_id FROM pragma_application_id), "
        "(SELECT count(*) FROM sqlite_master)"
    ).fetchone()
    if owner == APPLICATION_ID:
        if version > newest:
            raise StoreTooNew(url, version, newest)
        if version < FIRST:
            reason = f"has schema version {version}, which this version does not read, and was not changed"
            raise StoreCorrupt(url, f"{reason}. Export its sessions with the version that wrote it, and import them")
        return int(version)
    if owner or version or tables:
        raise StoreCorrupt(url, "it is a database of another program; nothing was changed. Give another path")
    return 0
