"""The file store's verbs for one session, its listing and the sweep. `palimpsest.stores.file` says what lies where."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice

from palimpsest.errors import StoreCorrupt
from palimpsest.log.change import Record
from palimpsest.log.entry import Entry, is_past
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.linking import link
from palimpsest.runtime.runner import Runner
from palimpsest.stores import Appended, SessionInfo
from palimpsest.stores.common import DiskOptions, expected, info, unknown_only
from palimpsest.stores.file.counts import Counts, put_counts
from palimpsest.stores.file.disk import NEW, names, remove, remove_if_empty
from palimpsest.stores.file.folder import LOG, Place, tenant_folder
from palimpsest.stores.file.ids import Ids
from palimpsest.stores.file.large import Contents
from palimpsest.stores.file.log import ENDLESS, Log
from palimpsest.stores.file.rewrite import contents_of
from palimpsest.stores.file.rewriting import Rewriting


class FileStore(Rewriting):
    """A folder of logs. Writers lock a session's file, readers nothing; sessions never wait for each other."""

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        super().__init__(url, path, runner, options)
        self._ids = Ids()

    def _head(self, key: SessionKey) -> Head | None:
        with self._holding():
            return self._reading(self._place(key), lambda log: log.head, None)

    # --- appending

    def _append_now(self, key: SessionKey, entries: Sequence[Entry], check_ids: bool, expect: int | None) -> Appended:
        at = self._place(key)
        with self._holding(write=True), self._writing(at, create=True) as log:
            before = log.head or Head()
            expected(key, before, expect)
            known: dict[str, Entry] = {}
            fresh = list(entries)
            if check_ids:
                found = self._ids.find(log, [entry.id for entry in entries])
                known = {id: self._entry(at, log, one) for id, one in found.items()}
                fresh = unknown_only(entries, known)
            if not fresh:
                return Appended(before, tuple(known[entry.id] for entry in entries), 0)
            head, linked = link(before, fresh, self._clock())
            head = self.witness.head(key, before, head)
            self._write_entries(at, log, key, head, linked)
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
        at = self._place(key)
        low, high = max(after, 0) + 1, ENDLESS if before is None else before
        if low >= high or limit == 0:
            with self._holding():
                return []

        def read(log: Log) -> list[Entry]:
            counts = Counts(at, counter or "")
            found = log.entries_back(low, high) if newest_first else log.entries(low, high)
            wanted = ((one, counts.get(one[0].seq) if counter else None) for one in found)
            if uncounted:
                wanted = ((one, tokens) for one, tokens in wanted if counts.get(one[0].seq) is None)
            return [self._entry(at, log, one, tokens) for one, tokens in islice(wanted, limit)]

        with self._holding():
            return self._reading(at, read, [])

    def _fetch(self, key: SessionKey, seqs: tuple[int, ...], ids: tuple[str, ...], counter: str | None) -> list[Entry]:
        at = self._place(key)

        def read(log: Log) -> list[Entry]:
            counts = Counts(at, counter or "")
            found = {one[0].seq: one for one in self._ids.find(log, ids).values()}
            for low, high in _runs(seqs):
                found.update((one[0].seq, one) for one in log.entries(low, high))
            return [self._entry(at, log, found[seq], counts.get(seq) if counter else None) for seq in sorted(found)]

        with self._holding():
            return self._reading(at, read, [])

    def _records(self, key: SessionKey, after: int, before: int | None) -> list[Record]:
        high = ENDLESS if before is None else before
        with self._holding():
            return self._reading(self._place(key), lambda log: list(log.records(max(after, 0), high)), [])

    # --- counts

    def _count(self, key: SessionKey, counter: str, counts: dict[int, int]) -> None:
        at = self._place(key)
        with self._holding():
            if not self.writable or not os.path.exists(at.log):
                return
            try:
                with self._writing(at) as log:
                    there = [
                        one.seq for low, high in _runs(counts) for one, _ in log.entries(low, high) if not one.erased
                    ]
                    if there:
                        put_counts(self._disk, at, counter, {seq: counts[seq] for seq in there})
            except FileNotFoundError:  # another process has deleted it
                return

    def _tally(self, key: SessionKey, counter: str, after: int, before: int | None) -> tuple[int, int]:
        at = self._place(key)

        def read(log: Log) -> tuple[int, int]:
            head = log.head or Head()
            low, high = max(after + 1, head.first_seq), head.next_seq if before is None else min(before, head.next_seq)
            return Counts(at, counter).tally(low, high)

        with self._holding():
            return self._reading(at, read, (0, 0))

    # --- all sessions

    def _sessions(self, tenant: str, after: str, limit: int) -> list[SessionInfo]:
        with self._holding():
            places = _places(tenant_folder(self.path, tenant))
            keys = ((self._reading(at, lambda log: log.key, None), at) for at in places)
            found: list[SessionInfo] = []
            for session, at in sorted((key.session, at) for key, at in keys if key is not None and key.session > after):
                if len(found) < limit:
                    head = self._reading(at, lambda log: log.head, None)
                    if head is not None:
                        found.append(info(session, head))
            return found

    def _branches_of(self, key: SessionKey) -> list[str]:
        at = self._place(key)
        with self._holding():
            found = self._reading(at, lambda log: (log.family, log.head or Head()), None)
            if found is None:
                return []
            family, head = found
            others = []
            for other in (Place(at.folder, name) for name in names(at.family(family)) if name != at.name):
                told = self._reading(other, lambda log: (log.family, log.key, log.head or Head()), None)
                if told is None or told[0] != family or told[1] is None:
                    continue
                first = max(head.first_seq, told[2].first_seq)  # they share all before the point where they parted
                find = partial(_id_at, seq=first)
                if (id := self._reading(at, find, "")) and id == self._reading(other, find, ""):
                    others.append(told[1].session)
            return sorted(others)

    def _folders(self, tenant: str | None) -> list[str]:
        """The folders of this tenant, or of all (None)."""
        if tenant is not None:
            return [tenant_folder(self.path, tenant)]
        return [f"{self.path}/{name}" for name in names(self.path)]

    def _due(self, now: int, tenant: str | None) -> list[tuple[SessionKey, tuple[int, ...]]]:
        with self._holding():
            found = []
            for folder in self._folders(tenant):
                for at in _places(folder) if os.path.isdir(folder) else ():
                    key, due = self._reading(at, lambda log: (log.key, _due(log, now)), (None, ()))
                    if key is not None and due:
                        found.append((key, due))
            return found

    def _sweep(self, now: int, tenant: str | None) -> int:
        """As the seam says; what is damaged is left, the rest is swept, and then the first damage is raised."""
        swept, damaged = 0, list[StoreCorrupt]()
        with self._holding(write=True):
            for folder in self._folders(tenant):
                if not os.path.isdir(folder):
                    continue
                with _kept(damaged):
                    swept += self._sweep_items(folder, now)
                for at in _places(folder):
                    with _kept(damaged):
                        swept += self._erase_due(at, lambda log: _due(log, now))
                with _kept(damaged):
                    self._sweep_rest(folder)
        if damaged:
            raise damaged[0]
        return swept

    def _sweep_rest(self, folder: str) -> None:
        """Remove what killed writers have left in a tenant's folder: half-written logs, contents that nobody uses."""
        for name in names(folder):
            if name.endswith(LOG + NEW):
                with self._writing(Place(folder, name.removesuffix(LOG + NEW)), create=True):
                    pass
        contents = Contents(self._disk, folder)
        for name, digests in contents.users().items():
            at = Place(folder, name)
            with self._writing(at, create=True) as log:
                contents.drop(name, digests - contents_of(log))
        contents.sweep()
        for family in names(f"{folder}/families"):
            branches = f"{folder}/families/{family}"
            with contextlib.ExitStack() as locks:
                for name in names(branches) if self._lock_family(locks, branches) else ():
                    if self._reading(Place(folder, name), lambda log: log.family, "") != family:
                        remove(f"{branches}/{name}")
                remove_if_empty(branches)

    def _scrub(self, whole: bool) -> tuple[str, ...]:
        """What is destroyed is not in the files any more: only a writer that was killed may have left something."""
        damaged: list[StoreCorrupt] = []
        if whole and self.writable:
            with self._holding(write=True):
                for folder in (f"{self.path}/{name}" for name in names(self.path)):
                    if os.path.isdir(folder):
                        with _kept(damaged):
                            self._sweep_rest(folder)
        return tuple(f"what a killed writer may have left is still there: {fault.reason}" for fault in damaged)

    def _close(self) -> None:
        self._ids.forget()
        self._written.clear()


def _places(folder: str) -> list[Place]:
    """The sessions of a tenant's folder, by the names of their files."""
    return [Place(folder, name.removesuffix(LOG)) for name in names(folder) if name.endswith(LOG)]


@contextlib.contextmanager
def _kept(damaged: list[StoreCorrupt]) -> Iterator[None]:
    """Keep what is raised about damage for later, so that the rest goes on."""
    try:
        yield
    except StoreCorrupt as fault:
        damaged.append(fault)


def _id_at(log: Log, seq: int) -> str:
    """The id of the entry at this place; empty where there is none."""
    return next((at.id for at, _ in log.entries(seq, seq + 1)), "")


def _due(log: Log, now: int) -> tuple[int, ...]:
    """The places of the entries that have expired at `now`."""
    found = (at for line in log.lines() if b'"expires_at":' in line.raw and line.sound for at, _ in log.found_in(line))
    return tuple(at.seq for at in found if not at.erased and is_past(at.expires_at, now))


def _runs(seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    """The neighbours among places, each run as its first place and the one after its last."""
    first = last = 0
    for seq in sorted({seq for seq in seqs if 0 < seq < ENDLESS}):
        if seq != last + 1 or not first:
            if first:
                yield first, last + 1
            first = seq
        last = seq
    if first:
        yield first, last + 1
