"""An index in a file beside its store, or in this process's memory, in SQLite's FTS5.

The file is nobody's only copy of anything: one that is damaged, or of another format, is made anew. It is in a file of
its own so that who indexes, or writes the index anew after an erasure, keeps nobody from appending.
"""

from __future__ import annotations

import os
import sqlite3
from _thread import LockType, allocate_lock
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.recall.index import COMMON, Cursor, Document, Filter, Size, Update
from palimpsest.recall.ranking import Facts
from palimpsest.recall.tables import prepare
from palimpsest.recall.words import Words
from palimpsest.runtime.logs import warn
from palimpsest.runtime.runner import Runner
from palimpsest.stores import forking
from palimpsest.stores.sqlite.connections import Identity, Translated, connected, identity_of, journal_of

if TYPE_CHECKING:
    from palimpsest.recall.vectors import VectorRows

T = TypeVar("T")

SMALL = 8 * 1024 * 1024
"""Bytes up to which an index is written anew with each erasure."""

LARGE = (
    "unused parts of the search index {where} may still hold terms of it: at {size:,} bytes it is too large to be "
    "written anew with every erasure. `memory.vacuum` and `palimpsest vacuum` do that"
)
CACHE = 8192
"""Kibibytes of pages that are kept, at most: of 100,000 entries what a search reads of lengths and facts."""

PATIENCE = 1000
"""Milliseconds that writing an index anew waits, at most, for others who use it."""

MOST_STALE = 20_000
"""Parts of what is gone from which on an index is made anew by the next search, rather than looked through for them."""

CHECKPOINT = 1000
"""Pages of the write-ahead log from which on it is written back by whoever writes: SQLite's own default."""

HELD = "the write-ahead log of the search index {where} may still hold terms of it, until nobody else reads it"


def has_fts5() -> bool:
    """Whether this Python's SQLite was built with FTS5."""
    with closing(sqlite3.connect(":memory:")) as db:
        try:
            db.execute("CREATE VIRTUAL TABLE words USING fts5(terms)")
        except sqlite3.OperationalError:
            return False
    return True


class File:
    """One database with indexes of tenants: a file that processes share, or (path "") this process's memory."""

    def __init__(self, path: str = "", busy_seconds: float = 30.0, copied: str = "") -> None:
        self.path, self._busy, self.copied = path, busy_seconds, copied
        self.where = path or copied or "in memory"
        self._lock, self._words = allocate_lock(), dict[str, Words]()
        self._db: sqlite3.Connection | None = None
        self._files: tuple[Identity | None, ...] = ()
        forking.watch(self)

    def do(self, tenant: str, body: Callable[[Words], T], *, writes: bool = False) -> T:
        """Return what `body` returns, in one transaction. A file that is damaged is made anew first."""
        return self._mended(partial(self._done, tenant, body, writes))

    def _mended(self, step: Callable[[], T]) -> T:
        with self._lock, Translated(self.where):
            try:
                return step()
            except (sqlite3.DatabaseError, StoreCorrupt, msgspec.DecodeError, UnicodeDecodeError) as fault:
                if not _is_damaged(fault):
                    raise
            warn("the search index %s is damaged; it is made anew", self.where)
            self._remove()
            return step()

    def _done(self, tenant: str, body: Callable[[Words], T], writes: bool) -> T:
        db = self._opened()
        known = self._words.get(tenant)
        with db:
            db.execute("BEGIN IMMEDIATE" if writes or known is None else "BEGIN")
            words = known or Words(db, tenant, secure=bool(self.path))
            found = body(words)
        self._words[tenant] = words
        return found

    def _opened(self) -> sqlite3.Connection:
        """The database, while its files are those at its path: else others have another, and hear nothing from here."""
        if self._db is not None and self._files != self._there():
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
            db.execute("PRAGMA auto_vacuum=INCREMENTAL")  # of a file that is new
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            with db:
                db.execute("BEGIN IMMEDIATE")
                prepare(db)
        except BaseException:
            db.close()
            raise
        self._db, self._files = db, self._there()
        return db

    def _there(self) -> tuple[Identity | None, ...]:
        """The database's file and its journal."""
        return identity_of(self.path), *journal_of(self.path)

    def _remove(self) -> None:
        same = self._db is None or self._files == self._there()  # else somebody was first
        self._close()
        for end in ("", "-wal", "-shm") if self.path and same else ():
            with suppress(FileNotFoundError):
                os.unlink(f"{self.path}{end}")

    def open(self) -> None:
        """Open the database now, so that what keeps it from being opened is raised here."""
        self._mended(self._opened)

    def id(self) -> str:
        """What tells it from all other files."""
        db = self._mended(self._opened)
        with self._lock, Translated(self.where):
            (found,) = db.execute("SELECT value FROM meta WHERE name = 'id'").fetchone()
        return f"{found:x}"

    def scrub(self, tenant: str, whole: bool) -> tuple[str, ...]:
        """See that nothing is left of what was dropped, as `Index.scrub` says; `whole`, of no tenant's."""
        tenants = {tenant, *(self._mended(self._unscrubbed) if whole else ())}
        for one in tenants:
            stale = self.do(one, Words.size).stale
            if stale:
                self.do(one, Words.purge if stale < MOST_STALE else Words.empty, writes=True)
        noted = {one: self.do(one, Words.noted) for one in tenants}
        if not self.path or (noted[tenant].scrub is None and not whole):
            return ()
        size = self.do(tenant, Words.size)
        if not whole and size.bytes > SMALL:
            return (LARGE.format(where=self.where, size=size.bytes),)
        if not self._written_anew([one for one in tenants if whole or noted[one].segments is not None]):
            return (HELD.format(where=self.where),)
        for one in tenants:
            self.do(one, partial(Words.scrubbed, noted=noted[one]), writes=True)
        return ()

    def _unscrubbed(self) -> list[str]:
        """The tenants of whose words something may be left that was dropped."""
        notes = "meta.name IN ('scrub_' || number, 'drop_' || number, 'segments_' || number)"
        sql = f"SELECT name FROM tenant WHERE stale > 0 OR EXISTS (SELECT 1 FROM meta WHERE {notes})"  # noqa: S608
        return [name for (name,) in self._opened().execute(sql).fetchall()]

    def _written_anew(self, tenants: Sequence[str]) -> bool:
        """Write the file anew, and the segments of these tenants' words; return whether its log is cut off.

        It is written back once, at the end, and not after each step.
        """
        self._tell("wal_autocheckpoint", 0)
        try:
            for tenant in tenants:
                self.do(tenant, Words.merge, writes=True)
            self._tell("busy_timeout", PATIENCE)
            with self._lock, Translated(self.where):
                db = self._opened()
                with suppress(sqlite3.OperationalError):  # somebody reads: what is free was overwritten all the same
                    db.execute("VACUUM")
                (busy, *_) = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            self._tell("busy_timeout", int(self._busy * 1000))
            self._tell("wal_autocheckpoint", CHECKPOINT)
        return not busy

    def _tell(self, pragma: str, value: int) -> None:
        with self._lock, Translated(self.where):
            self._opened().execute(f"PRAGMA {pragma}={value}")

    def close(self) -> None:
        """Let go of the database."""
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
        """Whoever has it can be sure that nothing is under way."""
        return (self._lock,)

    def let_go(self) -> None:
        """Close the file, for somebody who has the lock; it is opened again when it is needed."""
        if self.path:
            self._close()

    def abandon(self) -> object:
        """Give a file that is still open away, without closing it, in a process that has inherited it."""
        given = self._db
        if self.path:
            self._db = None
            self._words = {}
        return given


def _copy(path: str, db: sqlite3.Connection) -> None:
    """Copy a file that is there, which nobody here may write to; nothing of one that is damaged."""
    with suppress(sqlite3.Error), closing(connected(path, path, writable=False)) as there:
        there.backup(db)


_LACKING = ("no such table", "no such fts5 table", "JSON cannot hold BLOB")
"""What SQLite says, as of a wrong statement, where a tenant that it knows lacks a table, or a number is bytes."""


def _is_damaged(fault: Exception) -> bool:
    name = getattr(fault, "sqlite_errorname", "")
    odd = isinstance(fault, (StoreCorrupt, msgspec.DecodeError, UnicodeDecodeError)) or any(
        text in str(fault) for text in _LACKING
    )
    return odd or name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB"))


class FtsIndex:
    """The index of one tenant in a `File`. Its verbs are those of `palimpsest.recall.index.Index`.

    They run beside the store's own work, which waits for none of them.
    """

    def __init__(self, file: File, tenant: str, runner: Runner, name: str) -> None:
        self._file, self._tenant, self._runner = file, tenant, runner
        self.name, self.where = name, file.where

    async def _read(self, body: Callable[[Words], T]) -> T:
        return await self._runner.read(self._file.do, self._tenant, body)

    async def _write(self, body: Callable[[Words], T]) -> T:
        return await self._runner.read(partial(self._file.do, self._tenant, body, writes=True))

    async def vectors(self) -> VectorRows:
        from palimpsest.recall.sqlite_vectors import FileVectors, SqliteVectors  # an extra

        async def do(body: Callable[[SqliteVectors], T], *, writes: bool) -> T:
            return await (self._write if writes else self._read)(lambda words: body(words.beside(SqliteVectors)))

        return FileVectors(do)

    async def parts(self, number: int) -> list[int]:
        return await self._read(lambda words: words.answers.parts(number))

    async def meet(self, word: str, more: Sequence[str], *, again: bool) -> None:
        """As `Words.meet` says."""
        await self._write(lambda words: words.meet(word, more, again))

    async def met(self, word: str) -> None:
        """As `Words.met` says."""
        await self._write(lambda words: words.met(word))

    async def cursors(self, sessions: Collection[str] | None) -> dict[str, Cursor]:
        return await self._read(lambda words: words.cursors(sessions))

    async def sessions(self, numbers: Collection[int]) -> dict[int, str]:
        return await self._read(lambda words: words.sessions(numbers))

    async def mark(self) -> int:
        return await self._read(lambda words: words.told("mark"))

    async def set_mark(self, mark: int, generation: int) -> None:
        await self._write(lambda words: words.set_mark(mark, generation))

    async def generation(self) -> int:
        return await self._read(lambda words: words.told("generation"))

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
        return await self._read(Words.size)

    async def empty(self) -> None:
        await self._write(Words.empty)

    async def scrub(self, *, whole: bool) -> tuple[str, ...]:
        return await self._runner.read(self._file.scrub, self._tenant, whole)
