"""The SQLite store's verbs, each one transaction. `palimpsest.stores.sqlite` says what the tables hold."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from palimpsest.entries import Entry, placed_at
from palimpsest.errors import Conflict, StoreCorrupt
from palimpsest.linking import link
from palimpsest.log import Change, Head, Record, SessionKey, apply
from palimpsest.runners import Runner
from palimpsest.stores import Appended, Dump, SessionInfo
from palimpsest.stores.common import DiskOptions, branching, expected, info, loading, of_branch, unknown_only
from palimpsest.stores.group_commit import Append, GroupCommit
from palimpsest.stores.records import erasing
from palimpsest.stores.sqlite.branches import Branches, Shared, by_log, home, spans
from palimpsest.stores.sqlite.db import Database, connect
from palimpsest.stores.sqlite.heads import Heads, Known
from palimpsest.stores.sqlite.records import Records
from palimpsest.stores.sqlite.rewriting import RewritingTables
from palimpsest.stores.sqlite.rows import LAST, Rows, place
from palimpsest.stores.sqlite.schema import migrate
from palimpsest.stores.sqlite.scrubbing import Scrubber


class SQLiteStore(RewritingTables):
    """One connection, one lock; every operation one transaction."""

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        super().__init__(runner, options.clock)
        self.url, self.path, self.writable = url, path, not options.readonly
        self._synchronous = options.synchronous
        self._db = connect(url, path, writable=self.writable, busy_seconds=options.busy_seconds)
        self._rows, self._branches = Rows(url, self._db, options.large_bytes), Branches(self._db)
        self._recorded = Records(url, self._db)
        self._heads = Heads(url, self._db, self._branches)
        self._database = Database(url, self._db, self.check_open, self._heads.clear)
        self._scrubber = Scrubber(url, self._database, options.busy_seconds)
        self._commits = GroupCommit(self._database.lock, self._write_all)
        try:
            with self._database.translated:
                migrate(self._db, url, self.writable, options.busy_seconds)
                self._db.execute(f"PRAGMA synchronous={self._synchronous}")
                self._db.execute("PRAGMA secure_delete=ON")  # what is erased is overwritten, however SQLite was built
                if self.writable:
                    self._scrubber.scrub(whole=False)  # what a process that was killed has left
        except BaseException:
            self._db.close()
            raise

    def check_open(self) -> None:
        """Raise Closed where another thread has closed the store while this one waited."""
        if self._closed:
            self.check()

    # --- appending

    def _head(self, key: SessionKey) -> Head | None:
        with self._database.reading:
            found = self._heads.find(key)
            return found.head if found else None

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
        known = self._heads.remembered(key) or self._heads.find(key) or self._heads.create(key)
        while True:
            head, linked = link(known.head, entries, self._clock())
            if self._heads.save(key, known, head):
                break
            known = self._heads.find(key) or self._heads.create(key)  # another process has written since
        self._rows.insert(key.tenant, known.number, linked)
        return Appended(head, tuple(linked), len(linked))

    def _write_checked(self, append: Append) -> Appended:
        key, entries = append.key, append.entries
        found = self._heads.find(key)
        expected(key, found.head if found else Head(), append.expect)
        known: dict[str, Entry] = {}
        if append.check_ids and found is not None:
            known = {entry.id: entry for entry in self._by_ids(key, found, [entry.id for entry in entries])}
        fresh = unknown_only(entries, known) if append.check_ids else entries
        if not fresh:
            return Appended(found.head if found else Head(), tuple(known[entry.id] for entry in entries), 0)
        session = found or self._heads.create(key)
        head, linked = link(session.head, fresh, self._clock())
        self._heads.save(key, session, head)
        self._rows.insert(key.tenant, session.number, linked)
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
        with self._database.reading:
            for _ in range(2):
                found = self._heads.find(key)
                if found is None:
                    return []
                where = spans(found.number, found.shared, after, before)
                entries = self._rows.read(key.tenant, where, counter, limit, newest_first, uncounted)
                if uncounted or len(entries) >= _expected(found.head, after, before, limit):
                    return entries
            # Not by another process' clear between two statements, then: a log has no gaps.
            raise StoreCorrupt(self.url, f"entries of session {key.session!r} are missing: it is damaged")

    def _by_ids(self, key: SessionKey, found: Known, ids: Sequence[str], counter: str | None = None) -> list[Entry]:
        number, shared = found.number, found.shared
        everywhere = spans(number, shared, 0, None)
        entries = []
        for id in ids:
            seq = placed_at(id)
            entries += self._rows.named(key.tenant, id, place(home(number, shared, seq), seq), everywhere, counter)
        return entries

    def _fetch(self, key: SessionKey, seqs: tuple[int, ...], ids: tuple[str, ...], counter: str | None) -> list[Entry]:
        with self._database.reading:
            found = self._heads.find(key)
            if found is None:
                return []
            number, shared = found.number, found.shared
            places = [place(home(number, shared, seq), seq) for seq in seqs if 0 < seq < 2**32]
            entries = [*self._rows.at(key.tenant, places, counter), *self._by_ids(key, found, ids, counter)]
            by_seq = {entry.seq: entry for entry in entries}
            return [by_seq[seq] for seq in sorted(by_seq)]

    def _branches_of(self, key: SessionKey) -> list[str]:
        with self._database.reading:
            found = self._heads.find(key)
            if found is None:
                return []
            others, begin = set[str](), found.head.first_seq
            for last, log in (*found.shared, (found.head.next_seq - 1, found.number)):
                # Whoever reads the first entry that is shared reads all up to where the two parted.
                others |= {other.session for other, _, _ in self._reading(log, range(begin, last + 1), found.number)}
                begin = max(begin, last + 1)
            return sorted(others)

    def _records(self, key: SessionKey, after: int, before: int | None) -> list[Record]:
        with self._database.reading:
            found = self._heads.find(key)
            return self._recorded.read(found.number, key.session, after, before) if found else []

    def _sessions(self, tenant: str, after: str, limit: int) -> list[SessionInfo]:
        with self._database.reading as db:
            sql = "SELECT head, sum, id FROM session WHERE tenant = ? AND id > ? ORDER BY id LIMIT ?"
            return [info(row[2], self._heads.decode(*row)) for row in db.execute(sql, (tenant, after, limit))]

    # --- changing

    def _compact(self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None) -> Head:
        with self._database.writing():
            known = self._heads.find(key) or self._heads.create(key)
            expected(key, known.head, expect_revision, expect_epoch)
            if change.kind in ("erase", "clear"):
                self._scrubber.note()
            return self._change(key, known, change)

    def _change(self, key: SessionKey, known: Known, change: Change) -> Head:
        """Apply a change to the session itself, and to the branches that it reaches."""
        if change.kind == "erase":
            for log, seqs in by_log(known.number, known.shared, change.seqs).items():
                self._rows.bury(log, seqs)
                self._erase_elsewhere(log, seqs, of_branch(change, key, seqs), known.number)
        return self._note(key, known, change)

    def _note(self, key: SessionKey, known: Known, change: Change) -> Head:
        """Put a change into the session's head and records."""
        if change.kind == "erase":
            made = self._recorded.compactions(known.number, key.session, change.silence)
            change, changed = erasing(change, made, known.head)
            self._recorded.put(known.number, changed)
        head, record = apply(known.head, change, self._clock())
        if change.kind == "clear":
            self._recorded.remove(known.number)
        if record is not None:
            self._recorded.put(known.number, [record])
        self._heads.save(key, known, head, () if change.kind == "clear" else None)
        if change.kind == "clear":
            self._trim(known.number, *self._branches.leave(known.number))
        return head

    def _erase_elsewhere(self, log: int, seqs: Sequence[int], change: Change, besides: int | None) -> None:
        """Note in every session that reads these entries of a log, but one, that they are erased."""
        for key, known, still in self._reading(log, seqs, besides):
            self._note(key, known, msgspec.structs.replace(change, seqs=still))

    def _trim(self, *logs: int) -> None:
        """Remove what no session reads any more: all that its own has cleared, or that outlived it."""
        for log in logs:
            row = self._db.execute("SELECT head, sum, id FROM session WHERE number = ?", (log,)).fetchone()
            end = LAST if row is None else self._heads.decode(*row).first_seq - 1
            self._rows.remove(place(log, self._branches.kept(log) + 1), place(log, end))

    def _fork(self, key: SessionKey, into: str, head: Head, expect_epoch: int) -> None:
        with self._database.writing():
            found = self._heads.find(key)
            expected(key, found.head if found else Head(), None, expect_epoch)
            there = self._heads.find(SessionKey(key.tenant, into))
            branch = branching(key, into, there.head if there else None)
            known, shared = self._heads.create(branch), Shared()
            if found is not None:
                shared = self._branches.part(known.number, found.number, found.shared, head.next_seq - 1)
                self._recorded.copy(found.number, known.number, head.revision)
            self._heads.save(branch, known, head, shared)

    def _load(self, key: SessionKey, dump: Dump, replace: bool) -> None:
        with self._database.writing():
            found = self._heads.find(key)
            head = loading(key, found.head if found else None, dump.head, replace)
            if found is not None:
                self._scrubber.note()
                self._remove(key, found)
            known = self._heads.create(key)
            self._rows.insert(key.tenant, known.number, dump.entries)
            self._recorded.put(known.number, dump.records)
            self._heads.save(key, known, head)

    def _delete(self, key: SessionKey, expect: int | None) -> bool:
        with self._database.writing():
            found = self._heads.find(key)
            expected(key, found.head if found else Head(), expect)
            if found is not None:
                self._scrubber.note()
                self._remove(key, found)
            return found is not None

    def _remove(self, key: SessionKey, found: Known) -> None:
        """Remove the session and all that no branch reads."""
        self._db.execute("DELETE FROM session WHERE number = ?", (found.number,))
        self._recorded.remove(found.number)
        self._heads.forget(key)
        self._trim(found.number, *self._branches.leave(found.number))

    # --- counts

    def _count(self, key: SessionKey, counter: str, counts: dict[int, int]) -> None:
        with self._database.reading:
            self.check_open()
            found = self._heads.find(key)
            if found is None or not self.writable:
                return
            number, shared = found.number, found.shared
            placed = [(place(home(number, shared, seq), seq), n) for seq, n in counts.items() if 0 < seq < 2**32]
            # A lost count is counted again, so it need not wait for the disk; the next append's commit takes it along.
            self._db.execute("PRAGMA synchronous=NORMAL")
            try:
                with self._database.transaction:
                    self._rows.count(counter, placed)
            finally:
                self._db.execute(f"PRAGMA synchronous={self._synchronous}")

    def _tally(self, key: SessionKey, counter: str, after: int, before: int | None) -> tuple[int, int]:
        with self._database.reading:
            found = self._heads.find(key)
            return self._rows.tally(counter, spans(found.number, found.shared, after, before)) if found else (0, 0)

    def _due(self, now: int) -> list[tuple[SessionKey, tuple[int, ...]]]:
        with self._database.reading as db:
            logs: dict[int, list[int]] = {}
            for (pos,) in db.execute("SELECT pos FROM entry WHERE expires <= ? ORDER BY pos", (now,)).fetchall():
                logs.setdefault(pos >> 32, []).append(pos & LAST)
            due: dict[SessionKey, list[int]] = {}
            for log, seqs in logs.items():
                for key, _, read in self._reading(log, seqs, None):
                    due.setdefault(key, []).extend(read)
            return [(key, tuple(sorted(seqs))) for key, seqs in due.items()]

    def _sweep(self, now: int) -> int:
        with self._database.writing() as db:
            swept = db.execute("DELETE FROM item WHERE expires <= ?", (now,)).rowcount
            db.execute("DELETE FROM lease WHERE until <= ?", (now,))
            due: dict[int, list[int]] = {}
            for (pos,) in db.execute("SELECT pos FROM entry WHERE expires <= ? ORDER BY pos", (now,)).fetchall():
                due.setdefault(pos >> 32, []).append(pos & 0xFFFFFFFF)
            for log, seqs in due.items():
                self._rows.bury(log, seqs)
                self._erase_elsewhere(log, seqs, Change(kind="erase", reason="expiry", seqs=tuple(seqs)), None)
                swept += len(seqs)
            if swept:
                self._scrubber.note()
            return swept

    def _close(self) -> None:
        self._database.close(self._scrubber.finish if self.writable else None)


def _expected(head: Head, after: int, before: int | None, limit: int | None) -> int:
    """How many entries there must be between the two, by what the head says."""
    first = max(after + 1, head.first_seq)
    end = head.next_seq if before is None else min(before, head.next_seq)
    return end - first if limit is None else min(end - first, limit)
