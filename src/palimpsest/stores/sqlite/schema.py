"""The SQLite store's tables: numbered migrations, each applied and recorded in one transaction.

`PRAGMA user_version` is the number of the last one applied, `PRAGMA application_id` says that the file is ours.
"""

from __future__ import annotations

import sqlite3

from palimpsest.errors import StoreCorrupt, StoreTooNew, StoreUnavailable

APPLICATION_ID = 0x50414C49  # "PALI"

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE session(number INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, id TEXT NOT NULL, "
        "head BLOB NOT NULL, UNIQUE(tenant, id))",
        "CREATE TABLE entry(pos INTEGER PRIMARY KEY, id NOT NULL, given INTEGER, expires INTEGER, body BLOB NOT NULL)",
        "CREATE INDEX entry_id ON entry(id) WHERE given IS NOT NULL",
        "CREATE INDEX entry_expires ON entry(expires) WHERE expires IS NOT NULL",
        "CREATE TABLE tokens(counter TEXT NOT NULL, pos INTEGER NOT NULL, n INTEGER NOT NULL, "
        "PRIMARY KEY(counter, pos)) WITHOUT ROWID",
        "CREATE TABLE record(number INTEGER NOT NULL, revision INTEGER NOT NULL, body BLOB NOT NULL, "
        "PRIMARY KEY(number, revision)) WITHOUT ROWID",
        "CREATE TABLE item(place INTEGER PRIMARY KEY AUTOINCREMENT, tenant TEXT NOT NULL, namespace TEXT NOT NULL, "
        "key TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL, expires INTEGER, "
        "UNIQUE(tenant, namespace, key))",
        "CREATE TABLE lease(tenant TEXT NOT NULL, name TEXT NOT NULL, holder TEXT NOT NULL, until INTEGER NOT NULL, "
        "fence INTEGER NOT NULL, PRIMARY KEY(tenant, name)) WITHOUT ROWID",
        "CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID",
        "INSERT INTO meta VALUES('fence', 0)",
    ),
    (
        "CREATE TABLE share(number INTEGER NOT NULL, last INTEGER NOT NULL, log INTEGER NOT NULL, "
        "PRIMARY KEY(number, last)) WITHOUT ROWID",
        "CREATE INDEX share_log ON share(log)",
        "CREATE TABLE large(digest BLOB NOT NULL UNIQUE, body BLOB NOT NULL)",
        "CREATE TABLE large_use(pos INTEGER NOT NULL, digest BLOB NOT NULL, PRIMARY KEY(pos, digest)) WITHOUT ROWID",
        "CREATE INDEX large_use_digest ON large_use(digest)",
        "ALTER TABLE entry ADD COLUMN sum INTEGER",
        "ALTER TABLE session ADD COLUMN sum INTEGER",
        "ALTER TABLE record ADD COLUMN sum INTEGER",
    ),
)
VERSION = len(MIGRATIONS)


def migrate(db: sqlite3.Connection, url: str, writable: bool) -> None:
    """Bring the database to the present version; a new file becomes ours. Does the rest when it is called again.

    Raises StoreTooNew for a newer version, StoreCorrupt for a database of somebody else: neither is touched.
    """
    version = _version(db, url)
    if version == VERSION:
        return
    if not writable:
        raise StoreUnavailable(url, f"schema version {version} needs migration to {VERSION}: open it writable once")
    db.execute("PRAGMA journal_mode=WAL").fetchone()
    while version < VERSION:
        with db:
            db.execute("BEGIN IMMEDIATE")
            version = _version(db, url)  # another process may have been first
            if version < VERSION:
                for statement in MIGRATIONS[version]:
                    db.execute(statement)
                version += 1
                db.execute(f"PRAGMA user_version={version}")
                db.execute(f"PRAGMA application_id={APPLICATION_ID}")


def _version(db: sqlite3.Connection, url: str) -> int:
    # One statement, hence one snapshot: another process may be creating the tables just now.
    version, owner, tables = db.execute(
        "SELECT (SELECT user_version FROM pragma_user_version), (SELECT application_id FROM pragma_application_id), "
        "(SELECT count(*) FROM sqlite_master)"
    ).fetchone()
    if owner == APPLICATION_ID:
        if version > VERSION:
            raise StoreTooNew(url, version, VERSION)
        return int(version)
    if owner or version or tables:
        raise StoreCorrupt(url, "is a database of another program; nothing was changed. Give another path")
    return 0
