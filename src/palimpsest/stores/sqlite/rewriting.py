"""The SQLite store's ability to rewrite what it holds: a few hundred rows a transaction, so that writers go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from palimpsest.entries import Entry
from palimpsest.log import SessionKey
from palimpsest.stores import Item
from palimpsest.stores.rewriting import Rewrite, RewritingStore
from palimpsest.stores.sqlite.branches import Branches, by_log, home, spans
from palimpsest.stores.sqlite.heads import Heads, Known
from palimpsest.stores.sqlite.records import Records
from palimpsest.stores.sqlite.rows import Rows, place
from palimpsest.stores.sqlite.side import SideTables

STRETCH = 256
"""Entries rewritten in one transaction."""


class RewritingTables(SideTables, RewritingStore):
    """The part of the SQLite store that rewrites."""

    _rows: Rows
    _heads: Heads
    _branches: Branches
    _recorded: Records

    def _tenants(self) -> list[str]:
        with self._database.reading as db:
            found = {tenant for (tenant,) in db.execute("SELECT tenant FROM session UNION SELECT tenant FROM item")}
            return sorted(found)

    def _rewrite(
        self, key: SessionKey, how: Rewrite, after: int, seqs: Collection[int] | None
    ) -> tuple[int, int | None]:
        with self._database.writing():
            known = self._heads.find(key)
            if known is None:
                return 0, None
            changed = self._rewrite_records(key, known, how) if after == 0 else 0
            if seqs is None:
                where = spans(known.number, known.shared, after, None)
                entries = self._rows.read(key.tenant, where, None, STRETCH, newest=False, uncounted=False)
            else:
                places = (place(home(known.number, known.shared, seq), seq) for seq in sorted(seqs) if seq > after)
                entries = self._rows.at(key.tenant, places, None)
            changed += self._rewrite_entries(key, known, how, entries)
            if changed or not how.keeps_texts:  # a head has texts, too
                self._scrubber.note()
        if seqs is None and len(entries) == STRETCH:
            return changed, entries[-1].seq
        return changed, None

    def _rewrite_records(self, key: SessionKey, known: Known, how: Rewrite) -> int:
        """Rewrite the head and the records of a session."""
        records = self._recorded.read(known.number, key.session, 0, None)
        changed = [new for old in records if (new := how.record(old)) is not old]
        self._recorded.put(known.number, changed)
        head = how.head(known.head)
        if head is not known.head:
            self._heads.save(key, known, head)
        return len(changed)

    def _rewrite_entries(self, key: SessionKey, known: Known, how: Rewrite, entries: list[Entry]) -> int:
        changed = [new for old in entries if (new := how.entry(old)) is not old]
        for entry in changed:
            log = home(known.number, known.shared, entry.seq)
            self._rows.replace(key.tenant, place(log, entry.seq), entry, keep_counts=how.keeps_texts)
        if not how.keeps_texts:
            for log, seqs in by_log(known.number, known.shared, [entry.seq for entry in changed]).items():
                for other, branch, read in self._reading(log, seqs, known.number):
                    self._heads.save(other, branch, how.branch(other, branch.head, read))
        return len(changed)

    def _reading(
        self, log: int, seqs: Sequence[int], besides: int | None
    ) -> Iterator[tuple[SessionKey, Known, tuple[int, ...]]]:
        """Yield every session but one that reads some of these entries of a log, and which."""
        for number, read in list(self._branches.readers(log, seqs)):
            row = self._database.connection.execute("SELECT tenant, id FROM session WHERE number = ?", (number,))
            found = row.fetchone()
            if number == besides or found is None:  # a log may outlive its session
                continue
            known = self._heads.find(SessionKey(*found))
            assert known is not None, "a session with a number has a head"
            still = tuple(seq for seq in read if seq >= known.head.first_seq)
            if still:
                yield SessionKey(*found), known, still

    def _rewrite_items(self, tenant: str, how: Callable[[str, Item], Item]) -> int:
        changed = 0
        with self._database.writing() as db:
            sql = "SELECT place, namespace, key, value, version, expires FROM item WHERE tenant = ?"
            for at, namespace, key, value, version, expires in db.execute(sql, (tenant,)).fetchall():
                item = Item(key=key, value=value, version=version, expires=expires)
                new = how(namespace, item)
                if new is not item:
                    db.execute("UPDATE item SET value = ? WHERE place = ?", (new.value, at))
                    changed += 1
            if changed:
                self._scrubber.note()
        return changed
