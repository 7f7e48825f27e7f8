"""The SQLite store's side tables: items (values by namespace and key) and leases."""

from __future__ import annotations

from palimpsest.errors import Conflict
from palimpsest.stores import Item
from palimpsest.stores.blocking import BlockingStore
from palimpsest.stores.sqlite.db import Database
from palimpsest.stores.sqlite.scrubbing import Scrubber


class SideTables(BlockingStore):
    """The part of the SQLite store that has nothing to do with logs."""

    _database: Database
    _scrubber: Scrubber

    def _get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        with self._database.reading as db:
            sql = "SELECT key, value, version, expires FROM item WHERE tenant = ? AND namespace = ? AND key = ?"
            row = db.execute(sql, (tenant, namespace, key)).fetchone()
            return _live(row, self._clock())

    def _put_item(
        self, tenant: str, namespace: str, key: str, value: bytes, expires: int | None, expect: int | None
    ) -> Item:
        with self._database.writing() as db:
            sql = "SELECT key, value, version, expires FROM item WHERE tenant = ? AND namespace = ? AND key = ?"
            place = (tenant, namespace, key)
            row = db.execute(sql, place).fetchone()
            before = _live(row, self._clock())
            version = before.version if before else 0
            if expect is not None and expect != version:
                raise Conflict(f"item {namespace}/{key}", f"has version {version}, not {expect}: read it again")
            if row is not None and before is None:
                db.execute("DELETE FROM item WHERE tenant = ? AND namespace = ? AND key = ?", place)
            db.execute(
                "INSERT INTO item(tenant, namespace, key, value, version, expires) VALUES(?, ?, ?, ?, ?, ?) "
                "ON CONFLICT(tenant, namespace, key) DO UPDATE SET value = excluded.value, "
                "version = excluded.version, expires = excluded.expires",
                (*place, value, version + 1, expires),
            )
            return Item(key=key, value=value, version=version + 1, expires=expires)

    def _delete_item(self, tenant: str, namespace: str, key: str) -> bool:
        with self._database.writing() as db:
            sql = "DELETE FROM item WHERE tenant = ? AND namespace = ? AND key = ? AND (expires IS NULL OR expires > ?)"
            return db.execute(sql, (tenant, namespace, key, self._clock())).rowcount > 0

    def _list_items(self, tenant: str, namespace: str) -> list[Item]:
        with self._database.reading as db:
            sql = "SELECT key, value, version, expires FROM item WHERE tenant = ? AND namespace = ? ORDER BY place"
            now = self._clock()
            return [item for row in db.execute(sql, (tenant, namespace)) if (item := _live(row, now)) is not None]

    def _clear_items(self, tenant: str, dry_run: bool) -> dict[str, int]:
        sql = "SELECT namespace, count(*) FROM item WHERE tenant = ? GROUP BY namespace ORDER BY namespace"
        if dry_run:
            with self._database.reading as db:
                return dict(db.execute(sql, (tenant,)))
        with self._database.writing() as db:
            there = dict(db.execute(sql, (tenant,)).fetchall())
            db.execute("DELETE FROM item WHERE tenant = ?", (tenant,))
            db.execute("DELETE FROM lease WHERE tenant = ?", (tenant,))
            self._scrubber.note()
            return there

    def _scrub(self, whole: bool) -> tuple[str, ...]:
        with self._database.reading:
            return self._scrubber.scrub(whole=whole) if self.writable else ()

    def _lease(self, tenant: str, name: str, holder: str, seconds: float, fence: int | None) -> int | None:
        with self._database.writing() as db:
            now = self._clock()
            sql = "SELECT holder, until, fence FROM lease WHERE tenant = ? AND name = ?"
            row = db.execute(sql, (tenant, name)).fetchone()
            held = row is not None and row[1] > now
            if fence is not None:
                if not held or row[0] != holder or row[2] != fence:
                    return None
            elif held:
                return None
            else:
                fence = db.execute("UPDATE meta SET value = value + 1 WHERE name = 'fence' RETURNING value").fetchone()[
                    0
                ]
            if not seconds:
                db.execute("DELETE FROM lease WHERE tenant = ? AND name = ?", (tenant, name))
                return fence
            until = now + int(seconds * 1_000_000)
            db.execute("INSERT OR REPLACE INTO lease VALUES(?, ?, ?, ?, ?)", (tenant, name, holder, until, fence))
            return fence


def _live(row: tuple[str, bytes, int, int | None] | None, now: int) -> Item | None:
    if row is None or (row[3] is not None and row[3] <= now):
        return None
    return Item(key=row[0], value=row[1], version=row[2], expires=row[3])
