"""The SQLite backend: each verb one transaction of a file, whose tables `palimpsest.stores.sqlite.layout` describes.

It keeps the contract of backends, and the engine over it that of stores.
"""

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
"""Seconds that writing what may be lost waits for other processes, which hold up who reads."""


class SQLiteBackend(BlockingBackend):
    """One file; every operation one transaction."""

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        super().__init__(runner)
        self.url, self.path, self.writable = url, path, not options.readonly
        self.large_bytes = options.large_bytes
        self._database, self._scrubbing = Database(url, path, options), Scrubbing(url)
        self.companion = f"{os.path.realpath(self._database.path)}.recall"  # one, whatever links lead here
        try:
            self._database.prepare(lambda connection: migrate(connection, url, self.writable))
            if self.writable:
                self._scrub()  # what a process that was killed has left
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
            with suppress(StoreUnavailable):  # it is given up: it neither waits for others, nor does a full disk matter
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

    # --- the end

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        if not self.writable:
            return Scrubbed()
        return (self._vacuumed() if whole else None) or Scrubbed(self._scrub())

    def _vacuumed(self) -> Scrubbed | None:
        """Take a step of writing the file anew; None where there is none to take."""

        def act(tables: Tables) -> Scrubbed | None:
            before, left = scrubbing.size_of(tables.connection), scrubbing.step(tables.connection)
            return None if left is None else Scrubbed((), left, before - scrubbing.size_of(tables.connection))

        done = self._database.hastily(act, self._database.busy_seconds)
        if done is not None:
            time.sleep(PAUSE * 3)  # or whoever waits would hardly find a moment between two steps
        return done

    def _scrub(self) -> tuple[str, ...]:
        return self._database.alone(
            lambda connection: self._scrubbing.scrub(connection, self._patience), self._patience
        )

    @property
    def _patience(self) -> float:
        """Seconds that scrubbing waits for others who use the file."""
        return min(self._database.busy_seconds, PATIENCE)

    async def durability(self) -> str:
        return on_disk(self._database.durable)

    def give_up(self) -> None:
        self._database.leaving = True

    async def close(self) -> None:
        def finish(connection: sqlite3.Connection) -> None:
            with suppress(sqlite3.Error):  # what others are in the way of; closing does not fail by it
                if self.writable:
                    self._scrubbing.scrub(connection, self._patience)

        self._database.close(finish, self._patience)


def _are_delayed(batches: Sequence[Batch]) -> bool:
    """Whether nothing that these do has to be on the disk before they are over."""
    for batch in batches:
        for step in batch:  # as a rule the first says no: quicker here than `all` of a generator
            if not (step.delayed or step.fleeting):
                return False
    return True
