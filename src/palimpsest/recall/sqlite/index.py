"""A search index in SQLite's FTS5, in a file beside the store or in this process's memory.

The file can always be made again from the logs: one that is damaged, or has another format, is. It is apart from the
store's file so that indexing, and writing the index anew after an erasure, never blocks an append.
"""

from __future__ import annotations

import os
import sqlite3
from _thread import LockType
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.recall.index import COMMON, Cursor, Document, Filter, Size, Update
from palimpsest.recall.ranking import Facts
from palimpsest.recall.sqlite.layout import is_damaged, prepare
from palimpsest.recall.sqlite.writing import TenantIndex
from palimpsest.runtime.logs import warn
from palimpsest.runtime.once import new_lock
from palimpsest.runtime.runner import Runner
from palimpsest.stores import forking
from palimpsest.stores.sqlite.connections import Identity, Translated, connected, identity_of, journal_of

if TYPE_CHECKING:
    from palimpsest.recall.vectors import VectorRows

T = TypeVar("T")

SMALL = 8 * 1024 * 1024
"""Bytes up to which an index file is written anew after each erasure."""

LARGE = (
    "unused parts of the search index {where} may still hold terms of it: at {size:,} bytes it is too large to be "
    "rewritten with every erasure. `memory.vacuum` and `palimpsest vacuum` rewrite it"
)
CACHE = 8192
"""Kibibytes of pages that SQLite caches at most: enough for the lengths and facts that a search of 100,000 entries
reads."""

PATIENCE = 1000
"""Milliseconds that writing an index anew waits, at most, for other users of the file."""

MOST_STALE = 20_000
"""From this many stale parts on, an index is emptied and made anew by the next search, instead of purged part by
part."""

CHECKPOINT = 1000
"""Pages of the write-ahead log from which on a writer checkpoints it: SQLite's own default."""

CROWDED = (
    "unused parts of the search index {where} may still hold terms of it: it could not be rewritten ({why}). The next "
    "erasure or search tries again"
)
HELD = "the write-ahead log of the search index {where} may still hold terms of it, until no other process reads it"


def has_fts5() -> bool:
    """Return whether this Python's SQLite was built with FTS5."""
    with closing(sqlite3.connect(":memory:")) as db:
        try:
            db.execute("CREATE VIRTUAL TABLE words USING fts5(terms)")
        except sqlite3.OperationalError:
            return False
    return True


class File:
    """One SQLite database with the indexes of several tenants: a file that processes share, or (path "") one in memory.

    `copied` is the path of a file that a database in memory starts as a copy of.
    """

    def __init__(self, path: str = "", busy_seconds: float = 30.0, copied: str = "") -> None:
        self.path, self._busy, self.copied = path, busy_seconds, copied
        self.where = path or copied or "in memory"
        self._lock, self._words = new_lock(), dict[str, TenantIndex]()
        self._db: sqlite3.Connection | None = None
        self._files: tuple[Identity | None, ...] = ()
        forking.watch(self)

    def do(self, tenant: str, body: Callable[[TenantIndex], T], *, writes: bool = False) -> T:
        """Return what `body` returns, run in one transaction. A damaged file is removed and made anew first."""
        return self._repairing(partial(self._in_transaction, tenant, body, writes))

    def _repairing(self, step: Callable[[], T]) -> T:
        """Run a step under the lock. If the file turns out to be damaged, run the step again on a new one."""
        with self._lock, Translated(self.where):
            try:
                return step()
            except (sqlite3.DatabaseError, StoreCorrupt, msgspec.DecodeError, UnicodeDecodeError) as fault:
                if not is_damaged(fault):
                    raise
            warn("the search index %s is damaged, and is built anew", self.where)
            self._remove()
            return step()

    def _in_transaction(self, tenant: str, body: Callable[[TenantIndex], T], writes: bool) -> T:
        """Run `body` with the tenant's words in one transaction."""
        db = self._opened()
        existing = self._words.get(tenant)
        with db:
            db.execute("BEGIN IMMEDIATE" if writes or existing is None else "BEGIN")
            words = existing or TenantIndex(db, tenant, secure=bool(self.path))
            result = body(words)
        self._words[tenant] = words
        return result

    def _opened(self) -> sqlite3.Connection:
        """Return the database, opened again if the files at its path are no longer those that are open.

        Other processes then use the new files, and would never see what is written to the old ones.
        """
        if self._db is not None and self._files != self._files_at_path():
            self.let_go()
        return self._db or self._open()

    def _open(self) -> sqlite3.Connection:
        if not self.path:
            db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            if self.copied:
                _copy(self.copied, db)
        else:
            forking.refuse(self.path)
            db = connected(self.path, self.path, writable=True)
        try:
            db.execute(f"PRAGMA busy_timeout={int(self._busy * 1000)}")
            db.execute(f"PRAGMA cache_size=-{CACHE}")
            db.execute("PRAGMA secure_delete=ON")
            db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # takes effect in a new file only
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            with db:
                db.execute("BEGIN IMMEDIATE")
                prepare(db)
        except BaseException:
            db.close()
            raise
        self._db, self._files = db, self._files_at_path()
        return db

    def _files_at_path(self) -> tuple[Identity | None, ...]:
        """Return the identities of the database's file and of its journal."""
        return identity_of(self.path), *journal_of(self.path)

    def _remove(self) -> None:
        is_unchanged = self._db is None or self._files == self._files_at_path()  # else another process replaced them
        self._close()
        for suffix in ("", "-wal", "-shm") if self.path and is_unchanged else ():
            with suppress(FileNotFoundError):
                os.unlink(f"{self.path}{suffix}")

    def open(self) -> None:
        """Open the database now, so that whatever prevents that is raised here."""
        self._repairing(self._opened)

    def id(self) -> str:
        """Return the random id that tells this file from all others, in hexadecimal."""
        db = self._repairing(self._opened)
        with self._lock, Translated(self.where):
            (number,) = db.execute("SELECT value FROM meta WHERE name = 'id'").fetchone()
        return f"{number:x}"

    def scrub(self, tenant: str, whole: bool) -> tuple[str, ...]:
        """Erase the bytes of removed parts, as `Index.scrub` says: of this tenant, or with `whole` of all tenants."""
        tenants = {tenant, *(self._repairing(self._unscrubbed) if whole else ())}
        for name in tenants:
            stale = self.do(name, TenantIndex.size).stale
            if stale:
                self.do(name, TenantIndex.purge if stale < MOST_STALE else TenantIndex.empty, writes=True)
        noted = {name: self.do(name, TenantIndex.noted) for name in tenants}
        if not self.path or (noted[tenant].scrub is None and not whole):
            return ()
        size = self.do(tenant, TenantIndex.size)
        if not whole and size.bytes > SMALL:
            return (LARGE.format(where=self.where, size=size.bytes),)
        if remains := self._written_anew([name for name in tenants if whole or noted[name].segments is not None]):
            return (remains,)
        for name in tenants:
            self.do(name, partial(TenantIndex.scrubbed, noted=noted[name]), writes=True)
        return ()

    def _unscrubbed(self) -> list[str]:
        """Return the tenants whose removed words may still be somewhere in the file."""
        notes = "meta.name IN ('scrub_' || number, 'drop_' || number, 'segments_' || number)"
        sql = f"SELECT name FROM tenant WHERE stale > 0 OR EXISTS (SELECT 1 FROM meta WHERE {notes})"  # noqa: S608
        return [name for (name,) in self._opened().execute(sql).fetchall()]

    def _written_anew(self, tenants: Sequence[str]) -> str:
        """Write the file anew, and the segments of these tenants' words; return a sentence that says what remains ("":
        nothing).

        The log is checkpointed once at the end, not after each step.
        """
        remains = ""
        self._set_pragma("wal_autocheckpoint", 0)
        try:
            for tenant in tenants:
                self.do(tenant, TenantIndex.merge, writes=True)
            self._set_pragma("busy_timeout", PATIENCE)
            with self._lock, Translated(self.where):
                db = self._opened()
                try:
                    db.execute("VACUUM")
                except sqlite3.OperationalError as fault:  # busy, or no room for a second copy
                    remains = CROWDED.format(where=self.where, why=fault)
                (busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._set_pragma("busy_timeout", int(self._busy * 1000))
            self._set_pragma("wal_autocheckpoint", CHECKPOINT)
        return HELD.format(where=self.where) if busy else remains

    def _set_pragma(self, pragma: str, value: int) -> None:
        with self._lock, Translated(self.where):
            self._opened().execute(f"PRAGMA {pragma}={value}")

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        db, self._db = self._db, None
        self._words.clear()
        if db is not None:
            db.close()

    # --- when the process forks

    @property
    def locks(self) -> tuple[LockType, ...]:
        """The lock to take before a fork: whoever holds it knows that no transaction is under way."""
        return (self._lock,)

    def let_go(self) -> None:
        """Close the file; the caller holds the lock. It is opened again when it is next used."""
        if self.path:
            self._close()

    def abandon(self) -> object:
        """Return a connection inherited by a forked process, which must not close it, and forget it here."""
        inherited = self._db
        if self.path:
            self._db = None
            self._words = {}
        return inherited


def _copy(path: str, db: sqlite3.Connection) -> None:
    """Copy a file that may not be written here into `db`. If it is damaged, `db` stays empty."""
    with suppress(sqlite3.Error), closing(connected(path, path, writable=False)) as source:
        source.backup(db)


class FtsIndex:
    """The index of one tenant in a `File`. Its verbs are those of `palimpsest.recall.index.Index`.

    They run beside the store's own work: appends do not wait for them.
    """

    def __init__(self, file: File, tenant: str, runner: Runner, name: str) -> None:
        self._file, self._tenant, self._runner = file, tenant, runner
        self.name, self.where = name, file.where

    async def _read(self, body: Callable[[TenantIndex], T]) -> T:
        return await self._runner.read(self._file.do, self._tenant, body)

    async def _write(self, body: Callable[[TenantIndex], T]) -> T:
        return await self._runner.read(partial(self._file.do, self._tenant, body, writes=True))

    async def vectors(self) -> VectorRows:
        from palimpsest.recall.sqlite.vectors import FileVectors, SqliteVectors  # an extra

        async def do(body: Callable[[SqliteVectors], T], *, writes: bool) -> T:
            return await (self._write if writes else self._read)(lambda words: body(words.beside(SqliteVectors)))

        return FileVectors(do)

    async def parts(self, number: int) -> list[int]:
        return await self._read(lambda words: words.answers.parts(number))

    async def adopt(self, word: str, more: Sequence[str], *, again: bool) -> None:
        """See `TenantIndex.adopt`."""
        await self._write(lambda words: words.adopt(word, more, again))

    async def set_owner(self, word: str) -> None:
        """See `TenantIndex.set_owners`."""
        await self._write(lambda words: words.set_owners(word))

    async def cursors(self, sessions: Collection[str] | None) -> dict[str, Cursor]:
        return await self._read(lambda words: words.cursors(sessions))

    async def sessions(self, numbers: Collection[int]) -> dict[int, str]:
        return await self._read(lambda words: words.sessions(numbers))

    async def mark(self) -> int:
        return await self._read(lambda words: words.number_of("mark"))

    async def set_mark(self, mark: int, generation: int) -> None:
        await self._write(lambda words: words.set_mark(mark, generation))

    async def generation(self) -> int:
        return await self._read(lambda words: words.number_of("generation"))

    async def update(self, session: str, update: Update) -> bool:
        return await self._write(lambda words: words.update(session, update))

    async def block(self, session: str, drop: Sequence[Document], seqs: Collection[int], now: int) -> int:
        return await self._write(lambda words: words.block(session, drop, seqs, now))

    async def blocked(self, before: int) -> dict[str, list[int]]:
        return await self._read(lambda words: words.blocked(before))

    async def unblock(self, session: str, seqs: Collection[int], generation: int, add: Sequence[Document] = ()) -> bool:
        return await self._write(lambda words: words.unblock(session, seqs, generation, add))

    async def end(self, session: str) -> int:
        return await self._write(lambda words: words.end(session))

    async def matches(
        self, terms: Sequence[str], numbers: Collection[int] | None = None, most: int = COMMON
    ) -> list[Mapping[int, float]]:
        return await self._read(lambda words: words.answers.matches(terms, numbers, most))

    async def facts(self, places: Sequence[int]) -> dict[int, Facts]:
        return await self._read(lambda words: words.answers.facts(places))

    async def places(self, only: Filter, numbers: Collection[int] | None = None) -> list[int]:
        return await self._read(lambda words: words.answers.places(only, numbers))

    async def size(self) -> Size:
        return await self._read(TenantIndex.size)

    async def empty(self) -> None:
        await self._write(TenantIndex.empty)

    async def scrub(self, *, whole: bool) -> tuple[str, ...]:
        return await self._runner.read(self._file.scrub, self._tenant, whole)
