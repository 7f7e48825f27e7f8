"""`sqlite:///file.db`: the default store, one file shared by threads and processes.

    session  one row a session: its number, tenant, id and head (JSON)
    entry    one row an entry; `pos` is session number * 2^32 + seq, so that a session is one range of the
             table's own tree and needs no index of its own; `id` in 16 bytes where it is a UUID
    tokens   counts by counter and pos
    record   cuts, erasures and other changes, by session number and revision
    item, lease, meta

Write-ahead log; `synchronous=FULL` unless asked otherwise. Appends that arrive while another commits are
gathered and committed together: whoever has the lock commits for all that wait.
"""

from __future__ import annotations

import os
import sqlite3
from _thread import LockType, allocate_lock  # `threading` costs a cold start a millisecond
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from palimpsest.entries import Entry, pack, unpack
from palimpsest.errors import ConfigError, Conflict, PalimpsestError, StoreCorrupt, StoreUnavailable, nearest
from palimpsest.log import Change, Head, Record, SessionKey, apply, link, tombstone
from palimpsest.runners import Runner
from palimpsest.stores import Appended, BlockingStore, Dump, Item, SessionInfo, expected, info, unknown_only
from palimpsest.stores.sqlite_schema import migrate

Durability = ("FULL", "NORMAL")
OPTIONS = ("clock", "synchronous", "busy_seconds", "readonly")
GROUP = 128
"""Appends committed together at most, so that nobody waits long for others."""

_decode_head = msgspec.json.Decoder(Head).decode
_decode_record = msgspec.json.Decoder(Record).decode
_encode = msgspec.json.Encoder().encode

_SELECT = "SELECT e.pos, e.id, e.body, t.n FROM entry e LEFT JOIN tokens t ON t.counter = ? AND t.pos = e.pos "
_INSERT = "INSERT INTO entry(pos, id, expires, body) VALUES(?, ?, ?, ?)"


def open_sqlite(url: str, runner: Runner, **options: Any) -> SQLiteStore:
    """Open `sqlite:///relative.db` or `sqlite:////absolute.db`.

    Options: `synchronous` FULL (default: survives power loss) or NORMAL (survives the process, a power loss
    may take the last commits), `busy_seconds` to wait for other writers (default 30), `readonly`.
    """
    if not url.startswith("sqlite:///") or len(url) == len("sqlite:///"):
        raise ConfigError("store", url, "sqlite:///relative.db or sqlite:////absolute.db (three or four slashes)")
    for name in options:
        if name not in OPTIONS:
            raise ConfigError("option", name, ", ".join(OPTIONS), nearest=nearest(name, OPTIONS))
    return SQLiteStore(url, url[len("sqlite:///") :], runner, **options)


class _Append:
    """One append that waits to be committed, and what became of it."""

    __slots__ = ("check_ids", "claimed", "done", "entries", "error", "expect", "key", "result", "withdrawn")

    def __init__(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> None:
        self.key, self.entries, self.check_ids, self.expect = key, entries, check_ids, expect
        self.result: Appended | None = None
        self.error: BaseException | None = None
        self.done = self.claimed = self.withdrawn = False


# Three contexts that every operation enters: as classes, for a generator costs a microsecond each time.


class _Translated:
    """Turns the driver's errors into ours: one place, the cause kept."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, cause: BaseException | None, __: object) -> None:
        if isinstance(cause, sqlite3.Error):
            raise _ours(self._url, cause) from cause
        if isinstance(cause, UnicodeDecodeError):  # the driver cannot even read the text of SQLite's complaint
            raise StoreCorrupt(self._url, "its schema is not UTF-8: it is damaged. Nothing was changed") from cause
        if isinstance(cause, OSError) and not isinstance(cause, PalimpsestError):
            raise StoreUnavailable(self._url, f"{cause.strerror or cause}: {cause.filename}") from cause


class _Reading(_Translated):
    """Holds the store's lock and gives its connection. Raises Closed where it was closed meanwhile."""

    def __init__(self, store: SQLiteStore, db: sqlite3.Connection, lock: LockType) -> None:
        super().__init__(store.url)
        self._store, self._db, self._lock = store, db, lock

    def __enter__(self) -> sqlite3.Connection:  # type: ignore[override]
        self._lock.acquire()
        try:
            self._store.check_open()
        except BaseException:
            self._lock.release()
            raise
        return self._db

    def __exit__(self, kind: object, cause: BaseException | None, trace: object) -> None:
        self._lock.release()
        if cause is not None:
            super().__exit__(kind, cause, trace)


class _Transaction:
    """Commits, or takes all of it back where something was raised, the commit's own failure included."""

    def __init__(self, db: sqlite3.Connection, numbers: dict[SessionKey, int]) -> None:
        self._db, self._numbers = db, numbers

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, _: object, cause: BaseException | None, __: object) -> None:
        if cause is not None:
            self._undo()
            return
        try:
            self._db.execute("COMMIT")
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        if self._db.in_transaction:  # a full disk has rolled back already
            self._db.execute("ROLLBACK")
        self._numbers.clear()


class SQLiteStore(BlockingStore):
    """One connection, one lock; every operation one transaction."""

    def __init__(
        self,
        url: str,
        path: str,
        runner: Runner,
        *,
        synchronous: str = "FULL",
        busy_seconds: float = 30,
        readonly: bool = False,
        **options: Any,
    ) -> None:
        if not isinstance(synchronous, str) or synchronous.upper() not in Durability:
            raise ConfigError("synchronous", synchronous, " or ".join(Durability))
        if isinstance(busy_seconds, bool) or not isinstance(busy_seconds, int | float) or busy_seconds < 0:
            raise ConfigError("busy_seconds", busy_seconds, "a number of seconds, 0 or more")
        if not isinstance(readonly, bool):
            raise ConfigError("readonly", readonly, "True or False")
        super().__init__(runner, **options)
        self.url, self.path, self.writable = url, path, not readonly
        self._synchronous = synchronous.upper()
        self._lock = allocate_lock()
        self._claim = allocate_lock()
        self._waiting: deque[_Append] = deque()
        self._numbers: dict[SessionKey, int] = {}
        self._translated = _Translated(url)
        self._db = self._open(busy_seconds)
        self._reading = _Reading(self, self._db, self._lock)
        self._transaction = _Transaction(self._db, self._numbers)

    # --- opening, errors, transactions

    def _open(self, busy_seconds: float) -> sqlite3.Connection:
        with self._translated:
            if self.writable and (parent := os.path.dirname(self.path)):
                os.makedirs(parent, exist_ok=True)
            if self.writable:
                db = sqlite3.connect(self.path, busy_seconds, isolation_level=None, check_same_thread=False)
            else:
                from urllib.parse import quote

                uri = f"file:{quote(os.path.abspath(self.path))}?mode=ro"
                db = sqlite3.connect(uri, busy_seconds, isolation_level=None, check_same_thread=False, uri=True)
            try:
                migrate(db, self.url, self.writable, busy_seconds)
                db.execute(f"PRAGMA synchronous={self._synchronous}")
                db.execute("PRAGMA secure_delete=ON")  # what is erased is overwritten, however SQLite was built
            except BaseException:
                db.close()
                raise
            return db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._translated:
            self.check_open()
            with self._transaction:
                yield self._db

    def check_open(self) -> None:
        """Raise Closed where another thread has closed the store while this one waited."""
        if self._closed:
            self.check()

    # --- sessions

    def _find(self, key: SessionKey) -> tuple[int, Head] | None:
        number = self._numbers.get(key)
        if number is not None:
            row = self._db.execute("SELECT head FROM session WHERE number = ?", (number,)).fetchone()
            if row is not None:
                return number, self._head_in(row[0], key.session)
            del self._numbers[key]
        row = self._db.execute("SELECT number, head FROM session WHERE tenant = ? AND id = ?", key).fetchone()
        if row is None:
            return None
        self._numbers[key] = row[0]
        return row[0], self._head_in(row[1], key.session)

    def _head_in(self, body: bytes, session: str) -> Head:
        try:
            return _decode_head(body)
        except (ValueError, TypeError) as cause:
            raise StoreCorrupt(self.url, f"the head of session {session!r} cannot be read ({cause})") from cause

    def _create(self, key: SessionKey) -> tuple[int, Head]:
        head = Head()
        sql = "INSERT INTO session(tenant, id, head) VALUES(?, ?, ?)"
        number = self._db.execute(sql, (*key, _encode(head))).lastrowid
        assert number is not None, "an inserted row has a number"
        self._numbers[key] = number
        return number, head

    def _save(self, number: int, head: Head) -> None:
        self._db.execute("UPDATE session SET head = ? WHERE number = ?", (_encode(head), number))

    def _head(self, key: SessionKey) -> Head | None:
        with self._reading:
            found = self._find(key)
            return found[1] if found else None

    # --- appending

    async def _append(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> Appended:
        request = _Append(key, entries, check_ids, expect)
        self._waiting.append(request)
        try:
            return await self._runner.run(self._commit, request)
        except BaseException:
            if not self._withdraw(request):  # another's commit has it: when this returns, it is decided
                await self._runner.finish(self._settled)
            raise

    def _withdraw(self, request: _Append) -> bool:
        """Take back an append that nobody has begun to write; return whether there is nothing to wait for."""
        with self._claim:
            request.withdrawn = not request.claimed
            return request.withdrawn or request.done

    def _settled(self) -> None:
        """Return when the commit that is under way is over."""
        with self._lock:
            pass

    def _append_now(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> Appended:
        request = _Append(key, entries, check_ids, expect)
        self._waiting.append(request)
        return self._commit(request)

    def _commit(self, request: _Append) -> Appended:
        """Commit what waits, unless whoever had the lock before has done it."""
        with self._lock:
            while not request.done:
                self._commit_together()
        if request.error is not None:
            raise request.error
        assert request.result is not None, "a request that is done has a result or an error"
        return request.result

    def _commit_together(self) -> None:
        waiting = self._waiting
        with self._claim:
            batch = [waiting.popleft() for _ in range(min(len(waiting), GROUP))]
            batch = [request for request in batch if not request.withdrawn]
            for request in batch:
                request.claimed = True
        try:
            with self._translated:
                self.check_open()
                with self._transaction:
                    for request in batch:
                        try:
                            request.result = self._write(request)
                        except (Conflict, StoreCorrupt) as fault:  # found before any of this request was written
                            request.error = fault
        except BaseException as error:
            for request in batch:
                request.result, request.error = None, error
            if not isinstance(error, PalimpsestError):
                raise
        finally:
            for request in batch:
                request.done = True

    def _write(self, request: _Append) -> Appended:
        key, entries, db = request.key, request.entries, self._db
        found = self._find(key)
        known: dict[str, Entry] = {}
        fresh: Sequence[Entry] = entries
        if request.expect is not None:
            expected(key, found[1] if found else Head(), request.expect)
        if request.check_ids:
            if found is not None:
                known = {entry.id: entry for entry in self._by_ids(found[0], [entry.id for entry in entries])}
            fresh = unknown_only(entries, known)
        if not fresh:
            return Appended(found[1] if found else Head(), tuple(known[entry.id] for entry in entries), 0)
        number, head = found or self._create(key)
        head, linked = link(head, fresh, self._clock())
        base = number << 32
        db.executemany(
            _INSERT, [(base | e.seq, _key(e.id), _expiry(e) if e.expires_at else None, pack(e)) for e in linked]
        )
        self._save(number, head)
        if len(linked) == len(entries):
            return Appended(head, tuple(linked), len(linked))
        new = {entry.id: entry for entry in linked}
        return Appended(head, tuple(new.get(entry.id) or known[entry.id] for entry in entries), len(linked))

    # --- reading

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
        with self._reading as db:
            number = self._numbers.get(key)
            if number is None:
                found = self._find(key)
                if found is None:
                    return []
                number = found[0]
            where = "WHERE e.pos > ? AND e.pos < ? " + ("AND t.n IS NULL " if uncounted else "")
            order = "ORDER BY e.pos DESC LIMIT ?" if newest_first else "ORDER BY e.pos LIMIT ?"
            low, high = _place(number, after), _place(number, 0xFFFFFFFF if before is None else before)
            rows = db.execute(_SELECT + where + order, (counter, low, high, -1 if limit is None else limit)).fetchall()
            return self._entries(rows)

    def _entries(self, rows: Sequence[tuple[int, Any, bytes, int | None]]) -> list[Entry]:
        try:
            return [unpack(body, _text(id), pos & 0xFFFFFFFF, tokens) for pos, id, body, tokens in rows]
        except (ValueError, TypeError) as cause:
            raise StoreCorrupt(self.url, _damaged(rows)) from cause

    def _by_ids(self, number: int, ids: Sequence[str], counter: str | None = None) -> list[Entry]:
        base, rows = number << 32, []
        for id in ids:
            sql = _SELECT + "WHERE e.id = ? AND e.pos BETWEEN ? AND ?"
            rows += self._db.execute(sql, (counter, _key(id), base, base | 0xFFFFFFFF)).fetchall()
        return self._entries(rows)

    def _fetch(self, key: SessionKey, seqs: tuple[int, ...], ids: tuple[str, ...], counter: str | None) -> list[Entry]:
        with self._reading as db:
            found = self._find(key)
            if found is None:
                return []
            base = found[0] << 32
            rows = []
            for seq in seqs:
                if 0 < seq < 2**32:
                    rows += db.execute(_SELECT + "WHERE e.pos = ?", (counter, base | seq)).fetchall()
            entries = {entry.seq: entry for entry in [*self._entries(rows), *self._by_ids(found[0], ids, counter)]}
            return [entries[seq] for seq in sorted(entries)]

    def _records(self, key: SessionKey, after: int, before: int | None) -> list[Record]:
        with self._reading as db:
            found = self._find(key)
            if found is None:
                return []
            sql = "SELECT body FROM record WHERE number = ? AND revision > ? AND revision < ? ORDER BY revision"
            rows = db.execute(sql, (found[0], after, 2**62 if before is None else before))
            return [self._record_in(body, key.session) for (body,) in rows]

    def _record_in(self, body: bytes, session: str) -> Record:
        try:
            return _decode_record(body)
        except (ValueError, TypeError) as cause:
            raise StoreCorrupt(self.url, f"a record of session {session!r} cannot be read ({cause})") from cause

    def _sessions(self, tenant: str, after: str, limit: int) -> list[SessionInfo]:
        with self._reading as db:
            sql = "SELECT id, head FROM session WHERE tenant = ? AND id > ? ORDER BY id LIMIT ?"
            return [info(id, self._head_in(head, id)) for id, head in db.execute(sql, (tenant, after, limit))]

    # --- changing

    def _compact(self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None) -> Head:
        with self._writing() as db:
            number, head = self._find(key) or self._create(key)
            expected(key, head, expect_revision, expect_epoch)
            head, record = apply(head, change, self._clock())
            base = number << 32
            if change.kind == "clear":
                self._wipe(number)
            elif change.kind == "erase":
                self._bury(base, change.seqs)
            if record is not None:
                db.execute("INSERT INTO record VALUES(?, ?, ?)", (number, record.revision, _encode(record)))
            self._save(number, head)
        if change.kind in ("erase", "clear"):
            self._forget_journal()
        return head

    def _bury(self, base: int, seqs: Sequence[int]) -> None:
        db = self._db
        for seq in seqs:
            row = db.execute(_SELECT + "WHERE e.pos = ?", ("", base | seq)).fetchone()
            if row is not None:
                body = pack(tombstone(self._entries([row])[0]))
                db.execute("UPDATE entry SET body = ?, expires = NULL WHERE pos = ?", (body, base | seq))
                db.execute("DELETE FROM tokens WHERE pos = ?", (base | seq,))

    def _wipe(self, number: int) -> None:
        span = (number << 32, number << 32 | 0xFFFFFFFF)
        self._db.execute("DELETE FROM entry WHERE pos BETWEEN ? AND ?", span)
        self._db.execute("DELETE FROM tokens WHERE pos BETWEEN ? AND ?", span)
        self._db.execute("DELETE FROM record WHERE number = ?", (number,))

    def _forget_journal(self) -> None:
        """Move what was overwritten out of the write-ahead log; a reader may delay that, which is no error."""
        with self._reading as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _load(self, key: SessionKey, dump: Dump, replace: bool) -> None:
        with self._writing() as db:
            found = self._find(key)
            if found is not None:
                if not replace:
                    raise Conflict(
                        f"session {key.session!r}", "is there already; import with on_conflict='replace' or 'merge'"
                    )
                self._wipe(found[0])
            number, _ = found or self._create(key)
            base = number << 32
            db.executemany(_INSERT, [(base | e.seq, _key(e.id), _expiry(e), pack(e)) for e in dump.entries])
            db.executemany(
                "INSERT INTO record VALUES(?, ?, ?)", [(number, r.revision, _encode(r)) for r in dump.records]
            )
            self._save(number, dump.head)

    def _delete(self, key: SessionKey) -> bool:
        with self._writing() as db:
            found = self._find(key)
            if found is not None:
                self._wipe(found[0])
                db.execute("DELETE FROM session WHERE number = ?", (found[0],))
                self._numbers.pop(key, None)
        if found is not None:
            self._forget_journal()
        return found is not None

    # --- counts

    def _count(self, key: SessionKey, counter: str, counts: dict[int, int]) -> None:
        with self._lock, self._translated:
            self.check_open()
            found = self._find(key)
            if found is None or not self.writable:
                return
            base, erased = found[0] << 32, b'"erased":true'
            # A lost count is counted again, so it need not wait for the disk; the next append's commit takes it along.
            self._db.execute("PRAGMA synchronous=NORMAL")
            try:
                with self._transaction:
                    self._db.executemany(
                        "INSERT OR REPLACE INTO tokens "
                        "SELECT ?, pos, ? FROM entry WHERE pos = ? AND (instr(body, ?) = 0 "
                        "OR json_extract(CAST(body AS TEXT), '$.erased') IS NULL)",
                        [(counter, n, base | seq, erased) for seq, n in counts.items() if 0 < seq < 2**32],
                    )
            finally:
                self._db.execute(f"PRAGMA synchronous={self._synchronous}")

    def _tally(self, key: SessionKey, counter: str, after: int) -> tuple[int, int]:
        with self._reading as db:
            found = self._find(key)
            if found is None:
                return 0, 0
            span = (counter, _place(found[0], after), _place(found[0], 0xFFFFFFFF))
            sql = "SELECT count(*), coalesce(sum(n), 0) FROM tokens WHERE counter = ? AND pos > ? AND pos <= ?"
            number, total = db.execute(sql, span).fetchone()
            return number, total

    # --- items and leases

    def _get_item(self, tenant: str, namespace: str, key: str) -> Item | None:
        with self._reading as db:
            sql = "SELECT key, value, version, expires FROM item WHERE tenant = ? AND namespace = ? AND key = ?"
            row = db.execute(sql, (tenant, namespace, key)).fetchone()
            return _live(row, self._clock())

    def _put_item(
        self, tenant: str, namespace: str, key: str, value: bytes, expires: int | None, expect: int | None
    ) -> Item:
        with self._writing() as db:
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
        with self._writing() as db:
            sql = "DELETE FROM item WHERE tenant = ? AND namespace = ? AND key = ? AND (expires IS NULL OR expires > ?)"
            return db.execute(sql, (tenant, namespace, key, self._clock())).rowcount > 0

    def _list_items(self, tenant: str, namespace: str) -> list[Item]:
        with self._reading as db:
            sql = "SELECT key, value, version, expires FROM item WHERE tenant = ? AND namespace = ? ORDER BY place"
            now = self._clock()
            return [item for row in db.execute(sql, (tenant, namespace)) if (item := _live(row, now)) is not None]

    def _lease(self, tenant: str, name: str, holder: str, seconds: float, fence: int | None) -> int | None:
        with self._writing() as db:
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
            until = now + int(seconds * 1_000_000)
            db.execute("INSERT OR REPLACE INTO lease VALUES(?, ?, ?, ?, ?)", (tenant, name, holder, until, fence))
            return fence

    def _sweep(self, now: int) -> int:
        with self._writing() as db:
            swept = db.execute("DELETE FROM item WHERE expires <= ?", (now,)).rowcount
            due: dict[int, list[int]] = {}
            for (pos,) in db.execute("SELECT pos FROM entry WHERE expires <= ? ORDER BY pos", (now,)).fetchall():
                due.setdefault(pos >> 32, []).append(pos & 0xFFFFFFFF)
            for number, seqs in due.items():
                id, head_body = db.execute("SELECT id, head FROM session WHERE number = ?", (number,)).fetchone()
                change = Change(kind="erase", reason="expiry", seqs=tuple(seqs))
                head, record = apply(self._head_in(head_body, id), change, self._clock())
                self._bury(number << 32, seqs)
                assert record is not None, "an erasure leaves a record"
                db.execute("INSERT INTO record VALUES(?, ?, ?)", (number, record.revision, _encode(record)))
                self._save(number, head)
                swept += len(seqs)
        if due:
            self._forget_journal()
        return swept

    def _close(self) -> None:
        with self._lock:
            self._db.close()


def _place(number: int, seq: int) -> int:
    """The `pos` of a seq as a bound: whatever was asked for, it stays within the session's own range."""
    return number << 32 | min(max(seq, 0), 0xFFFFFFFF)


def _key(id: str) -> bytes | str:
    """The stored form of an id: 16 bytes where it is a UUID in its usual spelling, else the text itself."""
    if len(id) == 36 and id[8] == id[13] == id[18] == id[23] == "-" and id == id.lower():
        try:
            raw = bytes.fromhex(id.replace("-", ""))
        except ValueError:
            return id
        if len(raw) == 16:
            return raw
    return id


def _text(id: bytes | str) -> str:
    if isinstance(id, str):
        return id
    if not isinstance(id, bytes):
        raise TypeError(f"an id is stored as {type(id).__name__}")
    digits = id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _expiry(entry: Entry) -> int | None:
    if entry.expires_at is None or entry.erased:  # a tombstone has nothing left to sweep
        return None
    return int(entry.expires_at.timestamp() * 1_000_000)


def _live(row: tuple[str, bytes, int, int | None] | None, now: int) -> Item | None:
    if row is None or (row[3] is not None and row[3] <= now):
        return None
    return Item(key=row[0], value=row[1], version=row[2], expires=row[3])


def _damaged(rows: Sequence[tuple[int, Any, bytes, int | None]]) -> str:
    for pos, id, body, _ in rows:
        try:
            unpack(body, _text(id), 0, None)
        except (ValueError, TypeError) as fault:
            return f"entry {pos & 0xFFFFFFFF} of session number {pos >> 32} cannot be read ({fault})"
    return "an entry cannot be read"


def _ours(url: str, cause: sqlite3.Error) -> PalimpsestError:
    """The error of ours that says what the driver's error means."""
    name, text = getattr(cause, "sqlite_errorname", ""), str(cause)
    if text.startswith("Could not decode"):  # the driver's text would quote what is stored
        name, text = "SQLITE_CORRUPT", "a stored text is not UTF-8"
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return StoreCorrupt(url, f"{text}; it is no database of ours, or it is damaged. Nothing was changed")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreUnavailable(url, f"{text}: other writers kept it for too long; try again, or raise busy_seconds")
    if name.startswith("SQLITE_FULL"):
        return StoreUnavailable(url, f"{text}: nothing was written; make room and try again")
    if name.startswith("SQLITE_READONLY"):
        return StoreUnavailable(url, f"{text}: the file or its folder cannot be written")
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_PERM")):
        return StoreUnavailable(url, f"{text}: look at the file's path, its permissions and the disk")
    return StoreUnavailable(url, text)
