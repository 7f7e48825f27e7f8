"""The SQLite store's side tables: items (values by namespace and key) and leases, in a transaction of somebody else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from palimpsest.errors import Conflict
from palimpsest.stores import Item
from palimpsest.stores.sqlite.scrubbing import note

SELECT = "SELECT key, value, version, expires FROM item WHERE tenant = ? AND namespace = ? "


class Side:
    """What has nothing to do with logs, through one connection."""

    def __init__(self, connection: sqlite3.Connection, clock: Callable[[], int]) -> None:
        self._db, self._clock = connection, clock

    def get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        row = self._db.execute(SELECT + "AND key = ?", (tenant, namespace, key)).fetchone()
        return _live(row, self._clock())

    def put_item(
        self, tenant: str, namespace: str, key: str, value: bytes, expires: int | None, expect: int | None
    ) -> Item:
        place = (tenant, namespace, key)
        row = self._db.execute(SELECT + "AND key = ?", place).fetchone()
        before = _live(row, self._clock())
        version = before.version if before else 0
        if expect is not None and expect != version:
            raise Conflict(f"item {namespace}/{key}", f"has version {version}, not {expect}: read it again")
        if row is not None and before is None:
            self._db.execute("DELETE FROM item WHERE tenant = ? AND namespace = ? AND key = ?", place)
        self._db.execute(
            "INSERT INTO item(tenant, namespace, key, value, version, expires) VALUES(?, ?, ?, ?, ?, ?) "
            "ON CONFLICT(tenant, namespace, key) DO UPDATE SET value = excluded.value, "
            "version = excluded.version, expires = excluded.expires",
            (*place, value, version + 1, expires),
        )
        return Item(key=key, value=value, version=version + 1, expires=expires)

    def delete_item(self, tenant: str, namespace: str, key: str) -> bool:
        sql = "DELETE FROM item WHERE tenant = ? AND namespace = ? AND key = ? AND (expires IS NULL OR expires > ?)"
        return self._db.execute(sql, (tenant, namespace, key, self._clock())).rowcount > 0

    def list_items(self, tenant: str, namespace: str) -> list[Item]:
        rows = self._db.execute(SELECT + "ORDER BY place", (tenant, namespace)).fetchall()
        now = self._clock() if rows else 0
        return [item for row in rows if (item := _live(row, now)) is not None]

    def items_by_namespace(self, tenant: str) -> dict[str, int]:
        """How many items a tenant has, by namespace, those that have expired, too."""
        sql = "SELECT namespace, count(*) FROM item WHERE tenant = ? GROUP BY namespace ORDER BY namespace"
        return dict(self._db.execute(sql, (tenant,)).fetchall())

    def clear_items(self, tenant: str) -> dict[str, int]:
        there = self.items_by_namespace(tenant)
        self._db.execute("DELETE FROM item WHERE tenant = ?", (tenant,))
        self._db.execute("DELETE FROM lease WHERE tenant = ?", (tenant,))
        note(self._db)
        return there

    def rewrite_items(self, tenant: str, how: Callable[[str, Item], Item]) -> int:
        """Put other values in the place of those of a tenant's items, as `how` says; return of how many."""
        changed = 0
        sql = "SELECT place, namespace, key, value, version, expires FROM item WHERE tenant = ?"
        for at, namespace, key, value, version, expires in self._db.execute(sql, (tenant,)).fetchall():
            item = Item(key=key, value=value, version=version, expires=expires)
            new = how(namespace, item)
            if new is not item:
                self._db.execute("UPDATE item SET value = ? WHERE place = ?", (new.value, at))
                changed += 1
        if changed:
            note(self._db)
        return changed

    def lease(self, tenant: str, name: str, holder: str, seconds: float, fence: int | None) -> int | None:
        now = self._clock()
        sql = "SELECT holder, until, fence FROM lease WHERE tenant = ? AND name = ?"
        row = self._db.execute(sql, (tenant, name)).fetchone()
        held = row is not None and row[1] > now
        if fence is not None:
            if not held or row[0] != holder or row[2] != fence:
                return None
        elif held:
            if row[0] != holder:
                return None
            fence = row[2]
        else:
            sql = "UPDATE meta SET value = value + 1 WHERE name = 'fence' RETURNING value"
            fence = self._db.execute(sql).fetchone()[0]
        if not seconds:
            self._db.execute("DELETE FROM lease WHERE tenant = ? AND name = ?", (tenant, name))
            return fence
        until = now + int(seconds * 1_000_000)
        self._db.execute("INSERT OR REPLACE INTO lease VALUES(?, ?, ?, ?, ?)", (tenant, name, holder, until, fence))
        return fence

    def sweep(self, now: int, tenant: str | None) -> int:
        """Remove the items and leases, of this tenant or of all (None), that have expired; return how many items."""
        self._db.execute("DELETE FROM lease WHERE until <= ?1 AND tenant = coalesce(?2, tenant)", (now, tenant))
        sql = "DELETE FROM item WHERE expires <= ?1 AND tenant = coalesce(?2, tenant)"
        return self._db.execute(sql, (now, tenant)).rowcount


def _live(row: tuple[str, bytes, int, int | None] | None, now: int) -> Item | None:
    if row is None or (row[3] is not None and row[3] <= now):
        return None
    return Item(key=row[0], value=row[1], version=row[2], expires=row[3])
