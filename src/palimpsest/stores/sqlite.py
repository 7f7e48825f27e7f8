"""`sqlite:///file.db`: the default store, one file shared by threads and processes.

    session  one row a session: its number, tenant, id and head (JSON)
    entry    one row an entry; `pos` is session number * 2^32 + seq, so that a session is one range of the
             table's own tree and needs no index of its own; `id` in 16 bytes where it is a UUID. Ids made
             here name their own seq; only others (`given`) are indexed
    tokens   counts by counter and pos
    record   cuts, erasures and other changes, by session number and revision
    item, lease, meta

Write-ahead log; `synchronous=FULL` unless asked otherwise. Appends that arrive while another commits are
gathered and committed together: whoever has the lock commits for all that wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from palimpsest.entries import Entry, pack, placed_at
from palimpsest.errors import ConfigError, Conflict, StoreCorrupt, nearest
from palimpsest.linking import link
from palimpsest.log import Change, Head, Record, SessionKey, apply, tombstone
from palimpsest.runners import Runner
from palimpsest.stores import Appended, Dump, SessionInfo, expected, info, replaced, unknown_only
from palimpsest.stores.group_commit import Append, GroupCommit
from palimpsest.stores.sqlite_db import Database, connect
from palimpsest.stores.sqlite_rows import INSERT, LAST, SELECT, entries, place, row, stored_id
from palimpsest.stores.sqlite_schema import migrate
from palimpsest.stores.sqlite_side import SideTables

Durability = ("FULL", "NORMAL")
OPTIONS = ("clock", "synchronous", "busy_seconds", "readonly")
KNOWN = 4096
"""Heads remembered at once, so that an append need not read what this process wrote last."""

_decode_head = msgspec.json.Decoder(Head).decode
_decode_record = msgspec.json.Decoder(Record).decode
_encode = msgspec.json.Encoder().encode


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


class _Known(msgspec.Struct, frozen=True):
    """A session's number and head, with the head's stored form, as they were last seen."""

    number: int
    head: Head
    body: bytes


class SQLiteStore(SideTables):
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
        self._heads: dict[SessionKey, _Known] = {}
        self._db = connect(url, path, writable=self.writable, busy_seconds=busy_seconds)
        self._database = Database(url, self._db, self.check_open, self._heads.clear)
        self._commits = GroupCommit(self._database.lock, self._write_all)
        try:
            with self._database.translated:
                migrate(self._db, url, self.writable, busy_seconds)
                self._db.execute(f"PRAGMA synchronous={self._synchronous}")
                self._db.execute("PRAGMA secure_delete=ON")  # what is erased is overwritten, however SQLite was built
        except BaseException:
            self._db.close()
            raise

    def check_open(self) -> None:
        """Raise Closed where another thread has closed the store while this one waited."""
        if self._closed:
            self.check()

    # --- sessions

    def _find(self, key: SessionKey) -> _Known | None:
        """The session's number and head as they are stored now, remembered for the next append."""
        known = self._heads.get(key)
        row = None
        if known is not None:
            row = self._db.execute("SELECT head FROM session WHERE number = ?", (known.number,)).fetchone()
            number = known.number
        if row is None:
            row = self._db.execute("SELECT head, number FROM session WHERE tenant = ? AND id = ?", key).fetchone()
            if row is None:
                self._heads.pop(key, None)
                return None
            number = row[1]
        return self._know(key, _Known(number, self._head_in(row[0], key.session), row[0]))

    def _know(self, key: SessionKey, known: _Known) -> _Known:
        if len(self._heads) >= KNOWN:
            self._heads.clear()
        self._heads[key] = known
        return known

    def _head_in(self, body: bytes, session: str) -> Head:
        try:
            return _decode_head(body)
        except (ValueError, TypeError) as cause:
            raise StoreCorrupt(self.url, f"the head of session {session!r} cannot be read ({cause})") from cause

    def _create(self, key: SessionKey) -> _Known:
        body = _encode(Head())
        sql = "INSERT INTO session(tenant, id, head) VALUES(?, ?, ?)"
        number = self._db.execute(sql, (*key, body)).lastrowid
        assert number is not None, "an inserted row has a number"
        return self._know(key, _Known(number, Head(), body))

    def _save(self, key: SessionKey, known: _Known, head: Head) -> bool:
        """Put `head` in the place of the one known; return whether that was still there."""
        body = _encode(head)
        sql = "UPDATE session SET head = ? WHERE number = ? AND head = ?"
        if self._db.execute(sql, (body, known.number, known.body)).rowcount == 0:
            return False
        self._heads[key] = _Known(known.number, head, body)
        return True

    def _head(self, key: SessionKey) -> Head | None:
        with self._database.reading:
            found = self._find(key)
            return found.head if found else None

    # --- appending

    async def _append(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> Appended:
        return await self._commits.run(Append(key, entries, check_ids, expect), self._runner)

    def _append_now(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> Appended:
        return self._commits.run_now(Append(key, entries, check_ids, expect))

    def _write_all(self, batch: Sequence[Append]) -> None:
        """Write these appends in one transaction; one that cannot be written fails alone."""
        with self._database.translated:
            self.check_open()
            with self._database.transaction:
                for append in batch:
                    try:
                        append.result = self._write(append)
                    except (Conflict, StoreCorrupt) as fault:  # found before any of this append was written
                        append.error = fault

    def _write(self, append: Append) -> Appended:
        key, entries = append.key, append.entries
        if append.check_ids or append.expect is not None:
            return self._write_checked(append)
        known = self._heads.get(key) or self._find(key) or self._create(key)
        while True:
            head, linked = link(known.head, entries, self._clock())
            if self._save(key, known, head):
                break
            known = self._find(key) or self._create(key)  # another process has written since
        self._insert(known.number, linked)
        return Appended(head, tuple(linked), len(linked))

    def _write_checked(self, append: Append) -> Appended:
        key, entries = append.key, append.entries
        found = self._find(key)
        expected(key, found.head if found else Head(), append.expect)
        known: dict[str, Entry] = {}
        if append.check_ids and found is not None:
            known = {entry.id: entry for entry in self._by_ids(found.number, [entry.id for entry in entries])}
        fresh = unknown_only(entries, known) if append.check_ids else entries
        if not fresh:
            return Appended(found.head if found else Head(), tuple(known[entry.id] for entry in entries), 0)
        session = found or self._create(key)
        head, linked = link(session.head, fresh, self._clock())
        self._save(key, session, head)
        self._insert(session.number, linked)
        new = {entry.id: entry for entry in linked}
        return Appended(head, tuple(new.get(entry.id) or known[entry.id] for entry in entries), len(linked))

    def _insert(self, number: int, new: Sequence[Entry]) -> None:
        self._db.executemany(INSERT, [row(number, entry) for entry in new])

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
        with self._database.reading as db:
            found = self._heads.get(key) or self._find(key)
            if found is None:
                return []
            number = found.number
            where = "WHERE e.pos > ? AND e.pos < ? " + ("AND t.n IS NULL " if uncounted else "")
            order = "ORDER BY e.pos DESC LIMIT ?" if newest_first else "ORDER BY e.pos LIMIT ?"
            low, high = place(number, after), place(number, 0xFFFFFFFF if before is None else before)
            rows = db.execute(SELECT + where + order, (counter, low, high, -1 if limit is None else limit)).fetchall()
            return entries(self.url, rows)

    def _by_ids(self, number: int, ids: Sequence[str], counter: str | None = None) -> list[Entry]:
        rows = []
        span = (place(number, 0), place(number, LAST))
        for id in ids:
            there = self._db.execute(
                SELECT + "WHERE e.pos = ? AND e.id = ?", (counter, place(number, placed_at(id)), stored_id(id))
            ).fetchall()
            rows += (
                there
                or self._db.execute(
                    SELECT + "WHERE e.id = ? AND e.given IS NOT NULL AND e.pos BETWEEN ? AND ?",
                    (counter, stored_id(id), *span),
                ).fetchall()
            )
        return entries(self.url, rows)

    def _fetch(self, key: SessionKey, seqs: tuple[int, ...], ids: tuple[str, ...], counter: str | None) -> list[Entry]:
        with self._database.reading as db:
            found = self._find(key)
            if found is None:
                return []
            base = found.number << 32
            rows = []
            for seq in seqs:
                if 0 < seq < 2**32:
                    rows += db.execute(SELECT + "WHERE e.pos = ?", (counter, base | seq)).fetchall()
            named = [*entries(self.url, rows), *self._by_ids(found.number, ids, counter)]
            by_seq = {entry.seq: entry for entry in named}
            return [by_seq[seq] for seq in sorted(by_seq)]

    def _records(self, key: SessionKey, after: int, before: int | None) -> list[Record]:
        with self._database.reading as db:
            found = self._find(key)
            if found is None:
                return []
            sql = "SELECT body FROM record WHERE number = ? AND revision > ? AND revision < ? ORDER BY revision"
            rows = db.execute(sql, (found.number, after, 2**62 if before is None else before))
            return [self._record_in(body, key.session) for (body,) in rows]

    def _record_in(self, body: bytes, session: str) -> Record:
        try:
            return _decode_record(body)
        except (ValueError, TypeError) as cause:
            raise StoreCorrupt(self.url, f"a record of session {session!r} cannot be read ({cause})") from cause

    def _sessions(self, tenant: str, after: str, limit: int) -> list[SessionInfo]:
        with self._database.reading as db:
            sql = "SELECT id, head FROM session WHERE tenant = ? AND id > ? ORDER BY id LIMIT ?"
            return [info(id, self._head_in(head, id)) for id, head in db.execute(sql, (tenant, after, limit))]

    # --- changing

    def _compact(self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None) -> Head:
        with self._database.writing():
            known = self._find(key) or self._create(key)
            expected(key, known.head, expect_revision, expect_epoch)
            head = self._change(key, known, change)
        if change.kind in ("erase", "clear"):
            self._forget_journal()
        return head

    def _change(self, key: SessionKey, known: _Known, change: Change) -> Head:
        head, record = apply(known.head, change, self._clock())
        if change.kind == "clear":
            self._wipe(known.number)
        elif change.kind == "erase":
            self._bury(known.number << 32, change.seqs)
        if record is not None:
            self._db.execute("INSERT INTO record VALUES(?, ?, ?)", (known.number, record.revision, _encode(record)))
        self._save(key, known, head)
        return head

    def _bury(self, base: int, seqs: Sequence[int]) -> None:
        db = self._db
        for seq in seqs:
            row = db.execute(SELECT + "WHERE e.pos = ?", ("", base | seq)).fetchone()
            if row is not None:
                body = pack(tombstone(entries(self.url, [row])[0]))
                db.execute("UPDATE entry SET body = ?, expires = NULL WHERE pos = ?", (body, base | seq))
                db.execute("DELETE FROM tokens WHERE pos = ?", (base | seq,))

    def _wipe(self, number: int) -> None:
        """Remove all that the session holds but its head."""
        span = (number << 32, number << 32 | LAST)
        self._db.execute("DELETE FROM entry WHERE pos BETWEEN ? AND ?", span)
        self._db.execute("DELETE FROM tokens WHERE pos BETWEEN ? AND ?", span)
        self._db.execute("DELETE FROM record WHERE number = ?", (number,))

    def _forget_journal(self) -> None:
        """Move what was overwritten out of the write-ahead log; a reader may delay that, which is no error."""
        with self._database.reading as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _load(self, key: SessionKey, dump: Dump, replace: bool) -> None:
        with self._database.writing() as db:
            found = self._find(key)
            if found is not None:
                if not replace:
                    raise Conflict(
                        f"session {key.session!r}", "is there already; import with on_conflict='replace' or 'merge'"
                    )
                self._wipe(found.number)
            known = found or self._create(key)
            self._insert(known.number, dump.entries)
            rows = [(known.number, record.revision, _encode(record)) for record in dump.records]
            db.executemany("INSERT INTO record VALUES(?, ?, ?)", rows)
            self._save(key, known, replaced(found.head, dump.head) if found else dump.head)

    def _delete(self, key: SessionKey) -> bool:
        with self._database.writing() as db:
            found = self._find(key)
            if found is not None:
                self._wipe(found.number)
                db.execute("DELETE FROM session WHERE number = ?", (found.number,))
                self._heads.pop(key, None)
        if found is not None:
            self._forget_journal()
        return found is not None

    # --- counts

    def _count(self, key: SessionKey, counter: str, counts: dict[int, int]) -> None:
        with self._database.reading:
            self.check_open()
            found = self._find(key)
            if found is None or not self.writable:
                return
            base, erased = found.number << 32, b'"erased":true'
            # A lost count is counted again, so it need not wait for the disk; the next append's commit takes it along.
            self._db.execute("PRAGMA synchronous=NORMAL")
            try:
                with self._database.transaction:
                    self._db.executemany(
                        "INSERT OR REPLACE INTO tokens "
                        "SELECT ?, pos, ? FROM entry WHERE pos = ? AND (instr(body, ?) = 0 "
                        "OR json_extract(CAST(body AS TEXT), '$.erased') IS NULL)",
                        [(counter, n, base | seq, erased) for seq, n in counts.items() if 0 < seq < 2**32],
                    )
            finally:
                self._db.execute(f"PRAGMA synchronous={self._synchronous}")

    def _tally(self, key: SessionKey, counter: str, after: int) -> tuple[int, int]:
        with self._database.reading as db:
            found = self._find(key)
            if found is None:
                return 0, 0
            span = (counter, place(found.number, after), place(found.number, 0xFFFFFFFF))
            sql = "SELECT count(*), coalesce(sum(n), 0) FROM tokens WHERE counter = ? AND pos > ? AND pos <= ?"
            number, total = db.execute(sql, span).fetchone()
            return number, total

    def _sweep(self, now: int) -> int:
        with self._database.writing() as db:
            swept = db.execute("DELETE FROM item WHERE expires <= ?", (now,)).rowcount
            due: dict[int, list[int]] = {}
            for (pos,) in db.execute("SELECT pos FROM entry WHERE expires <= ? ORDER BY pos", (now,)).fetchall():
                due.setdefault(pos >> 32, []).append(pos & 0xFFFFFFFF)
            for number, seqs in due.items():
                key = SessionKey(*db.execute("SELECT tenant, id FROM session WHERE number = ?", (number,)).fetchone())
                known = self._find(key)
                assert known is not None, "a session with entries has a head"
                self._change(key, known, Change(kind="erase", reason="expiry", seqs=tuple(seqs)))
                swept += len(seqs)
        if due:
            self._forget_journal()
        return swept

    def _close(self) -> None:
        self._database.close()
