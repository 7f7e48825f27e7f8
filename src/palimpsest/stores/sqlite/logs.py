"""What the SQLite store's verbs do with logs, inside a transaction of one connection that somebody else has begun."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from palimpsest.errors import StoreCorrupt
from palimpsest.log.change import Change, Record, recounted, still_meant
from palimpsest.log.entry import Entry, placed_at
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.linking import link
from palimpsest.log.resuming import committed
from palimpsest.stores import Appended, Dump, SessionInfo
from palimpsest.stores.common import branching, expected, info, loading, of_branch, unknown_only
from palimpsest.stores.records import erasing
from palimpsest.stores.sqlite.branches import Branches, Shared, by_log
from palimpsest.stores.sqlite.heads import Heads, Known
from palimpsest.stores.sqlite.records import Records
from palimpsest.stores.sqlite.rows import LAST, Rows, place
from palimpsest.stores.sqlite.scrubbing import note
from palimpsest.stores.witness import Witness


class Logs:
    """Heads, entries, records and branches, through one connection. `known` are heads as they were last seen."""

    def __init__(
        self,
        url: str,
        connection: sqlite3.Connection,
        known: dict[SessionKey, Known],
        clock: Callable[[], int],
        large_bytes: int,
        witness: Callable[[], Witness],
    ) -> None:
        self.url, self._db, self._clock, self._witness = url, connection, clock, witness
        self.rows, self.branches = Rows(url, connection, large_bytes, witness), Branches(connection)
        self.recorded = Records(url, connection)
        self.heads = Heads(url, connection, self.branches, known, witness)

    # --- appending

    def append(self, key: SessionKey, entries: Sequence[Entry]) -> Appended:
        """Append entries whose ids are new."""
        heads = self.heads
        known = heads.remembered(key) or heads.find(key) or heads.create(key)
        while True:
            head, linked = link(known.head, entries, self._clock())
            if heads.save(key, known, head):
                break
            known = heads.find(key) or heads.create(key)  # another process has written since
        self.rows.insert(key.tenant, known.number, linked)
        return Appended(head, tuple(linked), len(linked))

    def append_checked(
        self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None
    ) -> Appended:
        """Append entries to the revision that is expected, those of them that are new."""
        found = self.heads.find(key)
        expected(key, found.head if found else Head(), expect)
        known: dict[str, Entry] = {}
        if check_ids and found is not None:
            known = {entry.id: entry for entry in self._by_ids(key, found, [entry.id for entry in entries])}
        fresh = unknown_only(entries, known) if check_ids else entries
        if not fresh:
            return Appended(found.head if found else Head(), tuple(known[entry.id] for entry in entries), 0)
        session = found or self.heads.create(key)
        head, linked = link(session.head, fresh, self._clock())
        self.heads.save(key, session, head)
        self.rows.insert(key.tenant, session.number, linked)
        new = {entry.id: entry for entry in linked}
        return Appended(head, tuple(new.get(entry.id) or known[entry.id] for entry in entries), len(linked))

    # --- reading

    def head(self, key: SessionKey) -> Head | None:
        found = self.heads.find(key)
        return found.head if found else None

    def read(
        self,
        key: SessionKey,
        after: int,
        before: int | None,
        limit: int | None,
        newest_first: bool,
        counter: str | None,
        uncounted: bool,
    ) -> list[Entry]:
        found = self.heads.find(key)
        if found is None:
            return []
        entries = self.rows.read(key.tenant, found.spans(after, before), counter, limit, newest_first, uncounted)
        if not uncounted and len(entries) < _expected(found.head, after, before, limit):  # a log has no gaps
            raise StoreCorrupt(self.url, f"entries of session {key.session!r} are missing: it is damaged")
        return entries

    def _by_ids(self, key: SessionKey, found: Known, ids: Sequence[str], counter: str | None = None) -> list[Entry]:
        everywhere, named = found.spans(), {id: placed_at(id) for id in ids}
        places = found.places(named.values())
        entries = []
        for id, seq in named.items():
            entries += self.rows.named(key.tenant, id, places.get(seq), everywhere, counter)
        return entries

    def fetch(self, key: SessionKey, seqs: Sequence[int], ids: Sequence[str], counter: str | None) -> list[Entry]:
        found = self.heads.find(key)
        if found is None:
            return []
        places = found.places(seqs).values()
        entries = [*self.rows.at(key.tenant, places, counter), *self._by_ids(key, found, ids, counter)]
        by_seq = {entry.seq: entry for entry in entries}
        return [by_seq[seq] for seq in sorted(by_seq)]

    def branches_of(self, key: SessionKey) -> list[str]:
        found = self.heads.find(key)
        if found is None:
            return []
        others, begin = set[str](), found.head.first_seq
        for last, log in (*found.shared, (found.head.next_seq - 1, found.number)):
            # Whoever reads the first entry that is shared reads all up to where the two parted.
            others |= {other.session for other, _, _ in self.readers(log, range(begin, last + 1), found.number)}
            begin = max(begin, last + 1)
        return sorted(others)

    def readers(
        self, log: int, seqs: Sequence[int], besides: int | None
    ) -> Iterator[tuple[SessionKey, Known, tuple[int, ...]]]:
        """Yield every session but one that reads some of these entries of a log, and which."""
        for number, read in list(self.branches.readers(log, seqs)):
            found = self._db.execute("SELECT tenant, id FROM session WHERE number = ?", (number,)).fetchone()
            if number == besides or found is None:  # a log may outlive its session
                continue
            known = self.heads.find(SessionKey(*found))
            assert known is not None, "a session with a number has a head"
            still = tuple(seq for seq in read if seq >= known.head.first_seq)
            if still:
                yield SessionKey(*found), known, still

    def records(self, key: SessionKey, after: int, before: int | None) -> list[Record]:
        found = self.heads.find(key)
        return self.recorded.read(found.number, key.session, after, before) if found else []

    def sessions(self, tenant: str, after: str, limit: int) -> list[SessionInfo]:
        sql = "SELECT head, sum, id FROM session WHERE tenant = ? AND id > ? ORDER BY id LIMIT ?"
        rows = self._db.execute(sql, (tenant, after, limit)).fetchall()
        return [info(row[2], self.heads.decode(*row)) for row in rows]

    def tenants(self) -> list[str]:
        sql = "SELECT tenant FROM session UNION SELECT tenant FROM item"
        return sorted(tenant for (tenant,) in self._db.execute(sql).fetchall())

    # --- changing

    def commit(self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None) -> Head:
        known = self.heads.find(key) or self.heads.create(key)
        expected(key, known.head, expect_revision, expect_epoch, change.created)
        if change.kind in ("erase", "clear"):
            note(self._db)
        if change.kind == "erase":
            homes = by_log(known.number, known.shared, change.seqs)
            living = [entry for log, seqs in homes.items() for entry in self.rows.living(log, seqs)]
            change = still_meant(known.head, change, {entry.seq: entry.id for entry in living})
            damaged = {entry.seq for entry in living if entry.damaged}.intersection(change.seqs)
            for log, seqs in by_log(known.number, known.shared, change.seqs).items():
                self.rows.bury(log, seqs)
                self._erase_elsewhere(log, seqs, of_branch(change, key, seqs), known.number, bool(damaged))
            return self._note(key, known, change, bool(damaged))
        return self._note(key, known, change)

    def _note(self, key: SessionKey, known: Known, change: Change, damaged: bool = False) -> Head:
        """Put a change into the session's head and records; `damaged` says that it has buried what was so."""
        there: list[Record] = []
        made: list[Record] = []
        if change.kind == "erase":
            there = self.recorded.compactions(known.number, key.session, change.silence)
            change, made = erasing(change, there, known.head)
        head, record, linked = committed(known.head, change, self._clock())
        if damaged:
            head = recounted(head, self.rows.graves(known.spans()))
        if record is not None:
            made.append(record)
        head, made = self._witness().changed(key, known.head, head, change, there, made)
        if change.kind == "clear":
            self.recorded.remove(known.number)
        self.recorded.put(known.number, made)
        self.heads.save(key, known, head, () if change.kind == "clear" else None)
        if linked:
            self.rows.insert(key.tenant, known.number, linked)
        if change.kind == "clear":
            self._trim(known.number, *self.branches.leave(known.number))
        return head

    def _erase_elsewhere(
        self, log: int, seqs: Sequence[int], change: Change, besides: int | None, damaged: bool = False
    ) -> None:
        """Note in every session that reads these entries of a log, but one, that they are erased."""
        for key, known, still in self.readers(log, seqs, besides):
            self._note(key, known, msgspec.structs.replace(change, seqs=still), damaged)

    def _trim(self, *logs: int) -> None:
        """Remove what no session reads any more: all that its own has cleared, or that outlived it."""
        for log in logs:
            row = self._db.execute("SELECT head, sum, id FROM session WHERE number = ?", (log,)).fetchone()
            end = LAST if row is None else self.heads.decode(*row).first_seq - 1
            self.rows.remove(place(log, self.branches.kept(log) + 1), place(log, end))

    def fork(self, key: SessionKey, into: str, head: Head, expect_epoch: int, created: int) -> None:
        found = self.heads.find(key)
        expected(key, found.head if found else Head(), None, expect_epoch, created)
        there = self.heads.find(SessionKey(key.tenant, into))
        branch = branching(key, into, there.head if there else None)
        known, shared = self.heads.create(branch), Shared()
        if found is not None:
            shared = self.branches.part(known.number, found.number, found.shared, head.next_seq - 1)
            self.recorded.copy(found.number, known.number, head.revision)
        self.heads.save(branch, known, head, shared)

    def load(self, key: SessionKey, dump: Dump, replace: bool) -> None:
        found = self.heads.find(key)
        head = loading(key, found.head if found else None, dump.head, replace)
        if found is not None:
            self._remove(key, found)
        known = self.heads.create(key)
        self.rows.insert(key.tenant, known.number, dump.entries)
        self.recorded.put(known.number, dump.records)
        self.heads.save(key, known, head)

    def delete(self, key: SessionKey, expect: int | None) -> bool:
        found = self.heads.find(key)
        expected(key, found.head if found else Head(), expect)
        if found is not None:
            self._remove(key, found)
        return found is not None

    def _remove(self, key: SessionKey, found: Known) -> None:
        """Remove the session and all that no branch reads."""
        note(self._db)
        self._db.execute("DELETE FROM session WHERE number = ?", (found.number,))
        self.recorded.remove(found.number)
        self.heads.forget(key)
        self._trim(found.number, *self.branches.leave(found.number))

    # --- counts

    def count(self, key: SessionKey, counter: str, counts: Mapping[int, int]) -> None:
        found = self.heads.find(key)
        if found is not None:
            self.rows.count(counter, [(pos, counts[seq]) for seq, pos in found.places(counts).items()])

    def tally(self, key: SessionKey, counter: str, after: int, before: int | None) -> tuple[int, int]:
        found = self.heads.find(key)
        return self.rows.tally(counter, found.spans(after, before)) if found else (0, 0)

    # --- expiry

    def _expired(self, now: int, tenant: str | None) -> dict[int, list[int]]:
        """The seqs of what has expired, by log: of this tenant's, or of all (None)."""
        due: dict[int, list[int]] = {}
        sql = "SELECT pos FROM entry WHERE expires <= ? ORDER BY pos"
        for (pos,) in self._db.execute(sql, (now,)).fetchall():
            due.setdefault(pos >> 32, []).append(pos & LAST)
        return due if tenant is None else {log: seqs for log, seqs in due.items() if self._is_of(log, tenant)}

    def _is_of(self, log: int, tenant: str) -> bool:
        """Whether a log is a tenant's; all who read it are. No head is looked at: it may be another's, and damaged."""
        sql = (
            "SELECT 1 FROM session WHERE tenant = ?2 "
            "AND number IN (SELECT ?1 UNION SELECT number FROM share WHERE log = ?1)"
        )
        return self._db.execute(sql, (log, tenant)).fetchone() is not None

    def due(self, now: int, tenant: str | None) -> list[tuple[SessionKey, tuple[int, ...]]]:
        due: dict[SessionKey, list[int]] = {}
        for log, seqs in self._expired(now, tenant).items():
            for key, _, read in self.readers(log, seqs, None):
                due.setdefault(key, []).extend(read)
        return [(key, tuple(sorted(seqs))) for key, seqs in due.items()]

    def sweep(self, now: int, tenant: str | None) -> int:
        """Make tombstones of the entries that have expired, and return how many."""
        swept = 0
        for log, seqs in self._expired(now, tenant).items():
            self.rows.bury(log, seqs)
            self._erase_elsewhere(log, seqs, Change(kind="erase", reason="expiry", seqs=tuple(seqs)), None)
            swept += len(seqs)
        if swept:
            note(self._db)
        return swept


def _expected(head: Head, after: int, before: int | None, limit: int | None) -> int:
    """How many entries there must be between the two, by what the head says."""
    first = max(after + 1, head.first_seq)
    end = head.next_seq if before is None else min(before, head.next_seq)
    return end - first if limit is None else min(end - first, limit)
