"""`SQLiteBackend`: each verb is one transaction on a file, whose tables `palimpsest.stores.sqlite.layout` describes."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import Any

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
    PlaceHead,
    Refusal,
    Scrubbed,
    Seen,
)
from palimpsest.stores.options import DiskOptions, on_disk
from palimpsest.stores.sqlite import scrubbing
from palimpsest.stores.sqlite.connections import PAUSE
from palimpsest.stores.sqlite.db import Database
from palimpsest.stores.sqlite.layout import migrate
from palimpsest.stores.sqlite.scrubbing import PATIENCE, Scrubbing
from palimpsest.stores.sqlite.tables import Tables

FLEETING = 0.05
"""Seconds that a write which may be lost waits for other processes: readers wait for it."""


class SQLiteBackend(BlockingBackend):
    """One SQLite file. Every operation is one transaction."""

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        super().__init__(runner)
        self.url, self.path, self.writable = url, path, not options.readonly
        self.large_bytes = options.large_bytes
        self._database, self._scrubbing = Database(url, path, options), Scrubbing(url)
        self.companion = f"{os.path.realpath(self._database.path)}.recall"  # the same for every link to the file
        try:
            self._database.prepare(lambda connection: migrate(connection, url, self.writable))
            if self.writable:
                self._scrub()  # a process that was killed may have left it to do
        except BaseException:
            self._database.close(lambda _: None, 0)
            raise

    def glance(self, place: Place) -> PlaceHead | None:
        return None if self.inline else self._database.glance(place)

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        return self._database.read(lambda tables: tables.look(asks))

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        act: Callable[[Tables], list[Refusal | None]] = methodcaller("write", batches, at, again)
        if lasting:
            return self._database.write(act, _are_delayed(batches))
        if self.writable:
            with suppress(StoreUnavailable):  # then it is lost: others are writing, or the disk is full
                return self._database.hastily(act, FLEETING)
        return [None] * len(batches)

    async def places(self, *which: Any, **page: Any) -> list[Listed]:
        return self._database.read(lambda tables: tables.places(*which, **page))

    async def recent(self, *which: Any, **page: Any) -> list[Listed]:
        return self._database.read(lambda tables: tables.recent(*which, **page))

    async def newest(self, *which: Any, **page: Any) -> list[Listed]:
        return self._database.read(lambda tables: tables.newest(*which, **page))

    async def expired(self, *which: Any, **page: Any) -> list[Due]:
        return self._database.read(lambda tables: tables.expired(*which, **page))

    async def tenants(self, **page: Any) -> list[str]:
        return self._database.read(lambda tables: tables.tenants(**page))

    # --- scrubbing and closing

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        if not self.writable:
            return Scrubbed()
        return (self._vacuumed() if whole else None) or Scrubbed(self._scrub())

    def _vacuumed(self) -> Scrubbed | None:
        """Take one step of rewriting the file; None if there is no step left to take."""

        def act(tables: Tables) -> Scrubbed | None:
            size, remaining = scrubbing.size_of(tables.connection), scrubbing.step(tables.connection)
            if remaining is None:
                return None
            return Scrubbed((), remaining, size - scrubbing.size_of(tables.connection))

        scrubbed = self._database.hastily(act, self._database.busy_seconds)
        if scrubbed is not None:
            time.sleep(PAUSE * 3)  # between two steps, so that waiting writers get their turn
        return scrubbed

    def _scrub(self) -> tuple[str, ...]:
        return self._database.outside_transaction(
            lambda connection: self._scrubbing.scrub(connection, self._patience), self._patience
        )

    @property
    def _patience(self) -> float:
        """Seconds that scrubbing waits for other users of the file."""
        return min(self._database.busy_seconds, PATIENCE)

    async def durability(self) -> str:
        return on_disk(self._database.durable)

    def give_up(self) -> None:
        self._database.leaving = True

    async def close(self) -> None:
        def finish(connection: sqlite3.Connection) -> None:
            with suppress(sqlite3.Error):  # others may be in the way, which does not fail a close
                if self.writable:
                    self._scrubbing.scrub(connection, self._patience)

        self._database.close(finish, self._patience)


def _are_delayed(batches: Sequence[Batch]) -> bool:
    """Return whether the call may return before any of these batches is on the disk."""
    for batch in batches:
        for step in batch:  # usually the first step decides: faster than `all` of a generator
            if not (step.delayed or step.fleeting):
                return False
    return True
