"""The SQLite backend: each verb one transaction of a file, whose tables `palimpsest.stores.sqlite.layout` describes.

It keeps the contract of backends, and the engine over it that of stores.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress

from palimpsest.errors import StoreUnavailable
from palimpsest.runtime.runner import Runner
from palimpsest.stores.backend import (
    Again,
    Ask,
    Batch,
    BlockingBackend,
    Due,
    Listed,
    Place,
    Refusal,
    Seen,
    are_fleeting,
)
from palimpsest.stores.common import DiskOptions
from palimpsest.stores.sqlite.db import Database
from palimpsest.stores.sqlite.layout import migrate
from palimpsest.stores.sqlite.scrubbing import PATIENCE, scrub

FLEETING = 0.05
"""Seconds that writing what may be lost waits for other processes, which hold up who reads."""


class SQLiteBackend(BlockingBackend):
    """One file; every operation one transaction."""

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        super().__init__(runner)
        self.url, self.path, self.writable = url, path, not options.readonly
        self.large_bytes = options.large_bytes
        self._database = Database(url, path, options)
        try:
            self._database.prepare(lambda connection: migrate(connection, url, self.writable))
            if self.writable:
                self._scrub(whole=False)  # what a process that was killed has left
        except BaseException:
            self._database.close(lambda _: None, 0)
            raise

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        return self._database.read(lambda tables: tables.look(asks))

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        if lasting:
            return self._database.write(batches, at, again, are_fleeting(batches))
        if self.writable:
            with suppress(StoreUnavailable):  # it is given up: it neither waits for others, nor does a full disk matter
                return self._database.hastily(batches, at, FLEETING)
        return [None] * len(batches)

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        return self._database.read(lambda tables: tables.places(tenant, space, beneath, after, limit))

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        return self._database.read(lambda tables: tables.recent(tenant, space, since, after, limit))

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        return self._database.read(lambda tables: tables.expired(tenant, now, after, limit))

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return self._database.read(lambda tables: tables.tenants(after, limit))

    # --- the end

    async def scrub(self, *, whole: bool = True) -> tuple[str, ...]:
        return self._scrub(whole)

    def _scrub(self, whole: bool) -> tuple[str, ...]:
        if not self.writable:
            return ()
        return self._database.alone(lambda connection: scrub(self.url, connection, whole=whole), self._patience)

    @property
    def _patience(self) -> float:
        """Seconds that scrubbing waits for others who use the file."""
        return min(self._database.busy_seconds, PATIENCE)

    def give_up(self) -> None:
        self._database.leaving = True

    async def close(self) -> None:
        def finish(connection: sqlite3.Connection) -> None:
            with suppress(sqlite3.Error):  # what others are in the way of; closing does not fail by it
                if self.writable:
                    scrub(self.url, connection, whole=False)

        self._database.close(finish, self._patience)
