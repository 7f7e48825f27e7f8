"""The file store's ability to rewrite what it holds: a session is one new file, put in the old one's place."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence

from palimpsest.log.change import Record
from palimpsest.log.codec import decoded
from palimpsest.log.entry import Entry
from palimpsest.log.head import Head, SessionKey
from palimpsest.stores import Item
from palimpsest.stores.file.changes import Changes
from palimpsest.stores.file.counts import drop_counts
from palimpsest.stores.file.disk import NEW, names
from palimpsest.stores.file.folder import LOG, Place
from palimpsest.stores.file.lines import new_header, write_line
from palimpsest.stores.file.log import Found, Log
from palimpsest.stores.file.rewrite import write_rewritten
from palimpsest.stores.rewriting import Rest, Rewrite, RewritingStore, Shared


class Rewriting(Changes, RewritingStore):
    """The part of the file store that rewrites."""

    def _tenants(self) -> list[str]:
        with self._holding():
            folders = (f"{self.path}/{name}" for name in names(self.path))
            found = (next(self._owners(folder), None) for folder in folders if os.path.isdir(folder))
            return sorted(tenant for tenant in found if tenant is not None)

    def _owners(self, folder: str) -> Iterator[str]:
        """Whose folder it is, as often as something in it says so."""
        for name in names(folder):
            if name.endswith(LOG):
                key = self._reading(Place(folder, name.removesuffix(LOG)), lambda log: log.key, None)
                if key is not None:
                    yield key.tenant
        for _, tenant, _ in self._namespaces(folder):
            yield tenant

    def _rewrite(self, key: SessionKey, how: Rewrite, after: int, _: Collection[int] | None) -> tuple[int, int | None]:
        at = self._place(key)
        with self._holding(write=True):
            if not os.path.exists(at.log):
                return 0, None
            try:
                with self._with_branches(at, locked=not how.keeps_texts) as (log, others):
                    before = log.head
                    if before is None:
                        return 0, None
                    return self._rewritten(at, key, log, Rest(how, after) if after else how, before, others), None
            except FileNotFoundError:  # another process has deleted it
                return 0, None

    def _rewritten(
        self, at: Place, key: SessionKey, log: Log, how: Rewrite, before: Head, others: Sequence[Place] = ()
    ) -> int:
        head = self.witness.head(key, before, how.head(before))
        records, seqs = self._to_rewrite(at, log, how)
        ids = self._identities(log, tuple(seqs)) if others else {}
        for other in others if seqs else ():
            self._rewrite_shared(other, log.family, ids, how)
        if not (records or seqs) and (head is before or how.keeps_texts):
            if head is not before:
                line = write_line("rewrite", head.revision, head.next_seq, head.updated, head=head)
                self._write_lines(at, log, key, line)
            return 0
        if not how.keeps_texts:
            drop_counts(at, seqs)

        def read(found: Found) -> Entry:
            return self._entry(at, log, found)

        header = new_header(key, log.family)
        with self._storing_anew(at, log) as (store, kept), self._rewriting(at, log, header) as file:
            kept.update(write_rewritten(log, file, how, head, read, store))
        return records + len(seqs)

    def _rewrite_shared(self, at: Place, family: str, ids: dict[int, str], how: Rewrite) -> None:
        """Rewrite the entries of these ids in a branch that has them: a step of its own.

        They are the same, so that is done no more when the session comes to it again after a kill.
        """

        def rewrite(log: Log, key: SessionKey, seqs: tuple[int, ...]) -> None:
            if log.head is not None:
                self._rewritten(at, key, log, Shared(how, seqs, how.branch(key, log.head, seqs)), log.head)

        self._in_branch(at, family, ids, rewrite)

    def _to_rewrite(self, at: Place, log: Log, how: Rewrite) -> tuple[int, list[int]]:
        """How many records are to be rewritten, and which entries."""
        records, seqs = 0, []
        for line in log.sound_lines():
            found, record, _ = log.parts(line)
            if record is not None:
                told = decoded(bytes(record), Record)
                records += how.record(told) is not told
            for one in found:
                entry = self._entry(at, log, one)
                if how.entry(entry) is not entry:
                    seqs.append(entry.seq)
        return records, seqs

    def _rewrite_items(self, tenant: str, how: Callable[[str, Item], Item]) -> int:
        folder, changed = self._items_folder(tenant), 0
        with self._holding(write=True):
            if names(folder):
                with self._disk.locked(folder):
                    for namespace, _, items in list(self._namespaces(os.path.dirname(folder))):
                        new = [how(namespace, item) for item in items]
                        number = sum(one is not item for one, item in zip(new, items, strict=True))
                        if number:
                            self._save_items(tenant, namespace, new)
                        changed += number
        return changed

    def _namespaces(self, folder: str) -> Iterator[tuple[str, str, list[Item]]]:
        """The namespaces of a tenant's folder: name, tenant, items."""
        for name in names(f"{folder}/items"):
            if not name.endswith(NEW) and (stored := self._stored_items(f"{folder}/items/{name}")) is not None:
                yield stored
