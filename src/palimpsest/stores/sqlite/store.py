"""The SQLite store's verbs, each one transaction. `palimpsest.stores.sqlite` says what the tables hold."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from palimpsest.errors import Conflict, InvalidEntry, StoreCorrupt, StoreUnavailable
from palimpsest.log.change import Change, Record
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.runtime.runner import Inline, Runner
from palimpsest.stores import Appended, Dump, Item, SessionInfo
from palimpsest.stores.common import DiskOptions
from palimpsest.stores.group_commit import Append, AppendRefused, GroupCommit
from palimpsest.stores.rewriting import Rewrite, RewritingStore
from palimpsest.stores.sqlite.db import Database
from palimpsest.stores.sqlite.heads import Known
from palimpsest.stores.sqlite.logs import Logs
from palimpsest.stores.sqlite.rewriting import rewrite
from palimpsest.stores.sqlite.schema import migrate
from palimpsest.stores.sqlite.scrubbing import PATIENCE, scrub
from palimpsest.stores.sqlite.side import Side

UNFIT = (ValueError, TypeError, OverflowError, RecursionError, sqlite3.DataError, sqlite3.InterfaceError)
"""What is raised for a value that SQLite cannot take."""


COUNTING = 0.05
"""Seconds that storing token counts waits for other processes, which hold up who reads."""


class Tables:
    """One connection, and what verbs do with it."""

    __slots__ = ("connection", "logs", "side")

    def __init__(self, connection: sqlite3.Connection, logs: Logs, side: Side) -> None:
        self.connection, self.logs, self.side = connection, logs, side


class SQLiteStore(RewritingStore):
    """One file; every operation one transaction."""

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        super().__init__(runner, options.clock)
        self.url, self.path, self.writable = url, path, not options.readonly
        self._large_bytes, self._inline = options.large_bytes, isinstance(runner, Inline)
        self._known: dict[SessionKey, Known] = {}
        self._database = Database(
            url,
            path,
            writable=self.writable,
            busy_seconds=options.busy_seconds,
            durable=options.synchronous == "FULL",
            bind=self._bind,
            check=self.check_open,
            undone=self._known.clear,
        )
        self._commits = GroupCommit(self._database.turn, self._write_appends)
        try:
            self._database.prepare(lambda tables: migrate(tables.connection, url, self.writable))
            if self.writable:
                self._scrub(whole=False)  # what a process that was killed has left
        except BaseException:
            self._database.close(lambda _: None, 0)
            raise

    def _bind(self, connection: sqlite3.Connection) -> Tables:
        logs = Logs(self.url, connection, self._known, self._clock, self._large_bytes, lambda: self.witness)
        return Tables(connection, logs, Side(connection, self._clock))

    def check_open(self) -> None:
        """Raise Closed where another thread has closed the store while this one waited."""
        if self._closed:
            self.check()

    # --- appending

    async def append(
        self, key: SessionKey, entries: Sequence[Entry], *, check_ids: bool = False, expect: int | None = None
    ) -> Appended:
        self.check()
        if self._inline:  # where nothing suspends, it is three coroutines less
            return self._commits.run_now(Append(key, entries, check_ids, expect))
        return await self._commits.run(Append(key, entries, check_ids, expect), self._runner)

    def _append_now(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> Appended:
        return self._commits.run_now(Append(key, entries, check_ids, expect))

    def _write_appends(self, claim: Callable[[], Sequence[Append]], settle: Callable[[], object], since: float) -> None:
        def write(tables: Tables) -> None:
            for append in claim():
                try:
                    if append.check_ids or append.expect is not None:
                        key, entries, expect = append.key, append.entries, append.expect
                        append.result = tables.logs.append_checked(key, entries, append.check_ids, expect)
                    else:
                        append.result = tables.logs.append(append.key, append.entries)
                except (Conflict, StoreCorrupt) as fault:  # found before any of this append was written
                    append.error = fault
                except InvalidEntry as fault:
                    raise AppendRefused(append, fault) from None
                except UNFIT as fault:
                    why = f"SQLite cannot store a value of it ({type(fault).__name__})"
                    raise AppendRefused(append, InvalidEntry(f"session {append.key.session!r}", why)) from None

        self._database.transact(write, since + self._database.busy_seconds, settle)

    # --- reading

    def _head(self, key: SessionKey) -> Head | None:
        known = self._database.read(lambda tables: tables.logs.heads.unmoved(key), single=True)
        return known.head if known is not None else self._database.read(lambda tables: tables.logs.head(key))

    def _read(
        self,
        key: SessionKey,
        after: int,
        before: int | None,
        limit: int | None,
        newest_first: bool,
        counter: str | None,
        uncounted: bool,
    ) -> list[Entry]:
        return self._database.read(
            lambda tables: tables.logs.read(key, after, before, limit, newest_first, counter, uncounted)
        )

    def _fetch(self, key: SessionKey, seqs: tuple[int, ...], ids: tuple[str, ...], counter: str | None) -> list[Entry]:
        return self._database.read(lambda tables: tables.logs.fetch(key, seqs, ids, counter))

    def _branches_of(self, key: SessionKey) -> list[str]:
        return self._database.read(lambda tables: tables.logs.branches_of(key))

    def _records(self, key: SessionKey, after: int, before: int | None) -> list[Record]:
        return self._database.read(lambda tables: tables.logs.records(key, after, before))

    def _tally(self, key: SessionKey, counter: str, after: int, before: int | None) -> tuple[int, int]:
        return self._database.read(lambda tables: tables.logs.tally(key, counter, after, before))

    def _sessions(self, tenant: str, after: str, limit: int) -> list[SessionInfo]:
        return self._database.read(lambda tables: tables.logs.sessions(tenant, after, limit))

    def _tenants(self) -> list[str]:
        return self._database.read(lambda tables: tables.logs.tenants())

    def _due(self, now: int, tenant: str | None) -> list[tuple[SessionKey, tuple[int, ...]]]:
        return self._database.read(lambda tables: tables.logs.due(now, tenant))

    # --- changing

    def _commit(self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None) -> Head:
        return self._database.write(lambda tables: tables.logs.commit(key, change, expect_revision, expect_epoch))

    def _fork(self, key: SessionKey, into: str, head: Head, expect_epoch: int, created: int) -> None:
        self._database.write(lambda tables: tables.logs.fork(key, into, head, expect_epoch, created))

    def _load(self, key: SessionKey, dump: Dump, replace: bool) -> None:
        self._database.write(lambda tables: tables.logs.load(key, dump, replace))

    def _delete(self, key: SessionKey, expect: int | None) -> bool:
        return self._database.write(lambda tables: tables.logs.delete(key, expect))

    def _sweep(self, now: int, tenant: str | None) -> int:
        return self._database.write(lambda tables: tables.side.sweep(now, tenant) + tables.logs.sweep(now, tenant))

    def _rewrite(
        self, key: SessionKey, how: Rewrite, after: int, seqs: Collection[int] | None
    ) -> tuple[int, int | None]:
        return self._database.write(lambda tables: rewrite(tables.connection, tables.logs, key, how, after, seqs))

    def _count(self, key: SessionKey, counter: str, counts: dict[int, int]) -> None:
        # A lost count is counted again, so it waits neither for the disk (the next append's commit takes it along) nor
        # for other writers, and a full disk fails no context.
        if self.writable:
            with suppress(StoreUnavailable):
                self._database.relaxed(lambda tables: tables.logs.count(key, counter, counts), COUNTING)

    # --- items and leases

    def _get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        return self._database.read(lambda tables: tables.side.get_item(tenant, namespace, key))

    def _put_item(
        self, tenant: str, namespace: str, key: str, value: bytes, expires: int | None, expect: int | None
    ) -> Item:
        return self._database.write(lambda tables: tables.side.put_item(tenant, namespace, key, value, expires, expect))

    def _delete_item(self, tenant: str, namespace: str, key: str) -> bool:
        return self._database.write(lambda tables: tables.side.delete_item(tenant, namespace, key))

    def _list_items(self, tenant: str, namespace: str) -> list[Item]:
        return self._database.read(lambda tables: tables.side.list_items(tenant, namespace))

    def _clear_items(self, tenant: str, dry_run: bool) -> dict[str, int]:
        if dry_run:
            return self._database.read(lambda tables: tables.side.items_by_namespace(tenant))
        return self._database.write(lambda tables: tables.side.clear_items(tenant))

    def _rewrite_items(self, tenant: str, how: Callable[[str, Item], Item]) -> int:
        return self._database.write(lambda tables: tables.side.rewrite_items(tenant, how))

    def _lease(self, tenant: str, name: str, holder: str, seconds: float, fence: int | None) -> int | None:
        return self._database.write(lambda tables: tables.side.lease(tenant, name, holder, seconds, fence))

    # --- the end

    def _scrub(self, whole: bool) -> tuple[str, ...]:
        if not self.writable:
            return ()
        return self._database.alone(lambda tables: scrub(self.url, tables.connection, whole=whole), self._patience)

    @property
    def _patience(self) -> float:
        """Seconds that scrubbing waits for others who use the file."""
        return min(self._database.busy_seconds, PATIENCE)

    def _close(self) -> None:
        def finish(tables: Tables) -> None:
            with suppress(sqlite3.Error):  # what others are in the way of; closing does not fail by it
                if self.writable:
                    scrub(self.url, tables.connection, whole=False)

        self._database.close(finish, self._patience)
