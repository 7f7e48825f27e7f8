"""The file store's changes of whole logs: cuts and other records, erasures, clears, branches, imports, deletion.

Locks are taken in one order: a family's, a session's, the large contents'. So whoever changes several branches of a
family has its lock first, and nobody waits in a circle.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import BinaryIO

from palimpsest.errors import Conflict
from palimpsest.log.change import Change, Record, recounted, still_meant
from palimpsest.log.entry import Entry, pack
from palimpsest.log.head import Head, SessionKey
from palimpsest.log.resuming import committed
from palimpsest.runtime.private_files import private
from palimpsest.runtime.runner import Runner
from palimpsest.stores import Dump, large
from palimpsest.stores.common import DiskOptions, branching, expected, loading, of_branch
from palimpsest.stores.file.counts import copy_counts, cut_counts, drop_counts, remove_counts
from palimpsest.stores.file.disk import names, remove, remove_if_empty
from palimpsest.stores.file.folder import Place
from palimpsest.stores.file.lines import Header, new_header, with_place, write_line
from palimpsest.stores.file.log import ENDLESS, Log
from palimpsest.stores.file.rewrite import contents_of, write_branch, write_dump, write_erased
from palimpsest.stores.file.side import SideFiles
from palimpsest.stores.records import erasing

KNOWN = 4096
"""Sessions that this store remembers to have written to."""


class Changes(SideFiles):
    """The part of the file store that writes lines, and anything but appends."""

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        super().__init__(url, path, runner, options)
        self._written: set[Place] = set()

    # --- lines and files

    def _write_lines(self, at: Place, log: Log, key: SessionKey, lines: bytes) -> None:
        """Append lines to the log, in one step; a new log begins with its header."""
        new = log.header is None
        first = new_header(key).line() if new else b""
        if new:
            remove_counts(at)  # of a branch that was never made
        self._disk.write(log.fd, log.path, first + lines, log.end)
        if new:
            self._disk.sync_folder(at.folder)

    def _write_entries(
        self, at: Place, log: Log, key: SessionKey, head: Head, linked: Sequence[Entry], record: Record | None = None
    ) -> None:
        """Append a line with these entries, and with the record of the change that adds them, if it is one."""
        if at not in self._written:
            cut_counts(at, linked[0].seq)
            if len(self._written) >= KNOWN:
                self._written.clear()
            self._written.add(at)
        bodies, contents = [], {}
        for entry in linked:
            body, apart = large.take_out(pack(entry), self._large_bytes)
            bodies.append(with_place(entry.id, entry.seq, body))
            contents.update(apart)
        kept = self._contents(at).put(at.name, contents)
        kind = record.kind if record is not None else "append"
        line = write_line(kind, head.revision, linked[0].seq, head.updated, entries=bodies, record=record, head=head)
        try:
            self._write_lines(at, log, key, line)
        except BaseException:
            self._contents(at).drop(at.name, kept)
            raise

    @contextlib.contextmanager
    def _rewriting(self, at: Place, log: Log, header: Header) -> Iterator[BinaryIO]:
        """Give a new file for the session, with its first line; it takes the log's place when all is written.

        The session's lock is then that of the new file, until the log that it replaces is let go of.
        """
        with self._disk.replacing(at.log, log.held) as file:
            file.write(header.line())
            yield file

    # --- changes

    def _commit(self, key: SessionKey, change: Change, expect_revision: int | None, expect_epoch: int | None) -> Head:
        at = self._place(key)
        locked = change.kind == "erase"
        with self._holding(write=True), self._with_branches(at, create=True, locked=locked) as (log, others):
            expected(key, log.head or Head(), expect_revision, expect_epoch, change.created)
            if change.kind == "erase":
                change = still_meant(log.head or Head(), change, self._identities(log, change.seqs))
            self._erase_elsewhere(key, log, change, others)
            return self._change(at, key, log, change)

    def _erase_due(self, at: Place, due: Callable[[Log], tuple[int, ...]]) -> int:
        """Erase what is `due` in the session, as an expiry, and return how much that is."""
        if not self._reading(at, due, ()):
            return 0
        try:
            with self._with_branches(at) as (log, others):
                seqs = due(log)
                if seqs and log.key is not None:
                    change = Change(kind="erase", reason="expiry", seqs=seqs)
                    self._erase_elsewhere(log.key, log, change, others)
                    self._change(at, log.key, log, change)
                return len(seqs)
        except FileNotFoundError:  # another process has deleted it meanwhile
            return 0

    def _change(self, at: Place, key: SessionKey, log: Log, change: Change) -> Head:
        before = log.head or Head()
        first = min([*change.seqs, *(low for low, _ in change.also)], default=before.next_seq)
        if change.silence:
            first = before.first_seq  # conditions, which stand in heads, and details may be in any line
        if change.kind == "erase" and (change.silence or first < before.next_seq):
            return self._erase(at, key, log, change, before, first)
        head, made, linked = self._applied(key, before, change, (), ())
        if linked:
            self._write_entries(at, log, key, head, linked, made[-1])
        elif change.kind == "clear" and log.header is not None:
            self._clear(at, key, log, head, made[-1])
        else:
            self._write_lines(at, log, key, _line(change, head, made))
        return head

    def _applied(
        self,
        key: SessionKey,
        before: Head,
        change: Change,
        there: Sequence[Record],
        changed: Sequence[Record],
        graves: Collection[int] | None = None,
    ) -> tuple[Head, list[Record], list[Entry]]:
        """The head after a change, and the records to be stored: those that are changed, and its own, if it has one.

        And the entries that it adds. `graves` are the places of all tombstones then, where they are to be counted anew.
        """
        head, record, linked = committed(before, change, self._clock())
        if graves is not None:
            head = recounted(head, graves)
        own = [record] if record is not None else []
        head, made = self.witness.changed(key, before, head, change, there, [*changed, *own])
        return self.witness.head(key, before, head), made, linked

    def _clear(self, at: Place, key: SessionKey, log: Log, head: Head, record: Record) -> None:
        gone = contents_of(log) if self._contents(at).exist else set()
        remove_counts(at)
        with self._rewriting(at, log, new_header(key, log.family)) as file:
            file.write(write_line("clear", head.revision, head.next_seq, head.updated, record=record, head=head))
        self._contents(at).drop(at.name, gone)

    def _erase(self, at: Place, key: SessionKey, log: Log, change: Change, before: Head, first: int) -> Head:
        begin = log.start if change.silence else log.find(first)[0]  # what was made from an entry stands behind it
        told = list(log.records(0, ENDLESS) if change.silence else log.compactions(begin))
        change, changed = erasing(change, told, before)
        head, made, _ = self._applied(key, before, change, told, changed, _graves(log, change.seqs))
        drop_counts(at, list(change.seqs))
        with self._rewriting(at, log, new_header(key, log.family)) as file:
            now = {one.revision: one for one in made[: len(changed)]}
            gone = write_erased(log, file, begin, set(change.seqs), now, self.witness.grave)
            file.write(_line(change, head, made[len(changed) :]))
        if gone:
            self._contents(at).drop(at.name, gone - self._reading(at, contents_of, set()))
        return head

    # --- branches

    @contextlib.contextmanager
    def _with_branches(
        self, at: Place, *, create: bool = False, locked: bool = True
    ) -> Iterator[tuple[Log, list[Place]]]:
        """Hold the session's lock and give its log; where `locked`, with the other branches and their family's lock."""
        if not locked:
            with self._writing(at, create=create) as log:
                yield log, []
            return
        while True:
            with contextlib.ExitStack() as locks:
                family = self._reading(at, _family, "")
                has_branches = bool(family) and self._lock_family(locks, at.family(family))
                log = locks.enter_context(self._writing(at, create=create))
                known = has_branches and log.family == family
                if log.family and not known and os.path.isdir(at.family(log.family)):
                    continue  # meanwhile another process has made its first branch, or put another log in its place
                others = names(at.family(family)) if known else []
                yield log, [Place(at.folder, name) for name in others if name != at.name]
                return

    def _lock_family(self, locks: contextlib.ExitStack, folder: str) -> bool:
        try:
            locks.enter_context(self._disk.locked(folder))
        except FileNotFoundError:
            return False
        return True

    def _erase_elsewhere(self, key: SessionKey, log: Log, change: Change, others: list[Place]) -> None:
        """Erase the entries in the other branches that have them.

        Each branch is a step of its own. A kill in between leaves the session itself unchanged, so that the same call
        again does the rest.
        """
        gone = self._identities(log, change.seqs) if others else {}
        for other in others:

            def erase(branch: Log, owner: SessionKey, shared: tuple[int, ...], at: Place = other) -> None:
                self._change(at, owner, branch, of_branch(change, key, shared))

            self._in_branch(other, log.family, gone, erase)

    def _in_branch(
        self,
        at: Place,
        family: str,
        ids: Mapping[int, str],
        do: Callable[[Log, SessionKey, tuple[int, ...]], object],
    ) -> None:
        """Hold a branch's lock and give its log, and where it has which of these entries; nothing where it has none.

        Nor where it was deleted, or another log took its place.
        """
        if self._reading(at, _family, "") != family:
            return
        with self._writing(at) as log:
            there = self._identities(log, tuple(ids)) if log.family == family else {}
            shared = tuple(seq for seq, id in there.items() if ids[seq] == id)
            if shared and log.key is not None:
                do(log, log.key, shared)

    def _identities(self, log: Log, seqs: tuple[int, ...]) -> dict[int, str]:
        """The ids of the entries at these places that are not tombstones."""
        found = (at for seq in sorted(seqs) for at, _ in log.entries(seq, seq + 1))
        return {
            at.seq: at.id for at in found if at.damaged or not at.erased or not self.witness.is_grave(at.id, at.seq)
        }

    def _fork(self, key: SessionKey, into: str, head: Head, expect_epoch: int, created: int) -> None:
        at = self._place(key)
        target = self._place(SessionKey(key.tenant, into))
        with self._holding(write=True), contextlib.ExitStack() as locks:
            found = self._reading(at, lambda log: (log.head, log.family), None)
            expected(key, (found and found[0]) or Head(), None, expect_epoch, created)
            branch = branching(key, into, self._reading(target, lambda log: log.head or Head(), None))
            if found is None:
                self._found(target, branch, head)
                return
            folder = at.family(found[1])
            self._disk.make_folder(folder)
            while not self._lock_family(locks, folder):  # another process has found it empty and removed it
                self._disk.make_folder(folder)
            locks.callback(remove_if_empty, folder)
            log = locks.enter_context(self._writing(at, create=True))
            expected(key, log.head or Head(), None, expect_epoch, created)
            if log.family != found[1]:
                raise Conflict(f"session {key.session!r}", "was replaced by another writer: read it again")
            there = locks.enter_context(self._writing(target, create=True))
            branching(key, into, there.head)
            for name in (at.name, target.name):
                os.close(private(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT))
            self._disk.sync_folder(folder)
            self._branch_off(at, log, target, there, branch, head)

    def _branch_off(self, at: Place, log: Log, target: Place, there: Log, branch: SessionKey, head: Head) -> None:
        if self._contents(at).exist:
            self._contents(at).share(target.name, contents_of(log, head.next_seq))
        remove_counts(target)
        copy_counts(self._disk, at, target, head.first_seq, head.next_seq)
        head = self.witness.head(branch, None, head)
        with self._rewriting(target, there, new_header(branch, log.family)) as file:
            write_branch(log, file, head)

    # --- whole sessions

    def _load(self, key: SessionKey, dump: Dump, replace: bool) -> None:
        at = self._place(key)
        with self._holding(write=True), self._writing(at, create=True) as log:
            head = self.witness.head(key, None, loading(key, log.head, dump.head, replace))
            with self._storing_anew(at, log) as (store, _):
                remove_counts(at)
                with self._rewriting(at, log, new_header(key)) as file:
                    write_dump(dump, head, file, store)

    @contextlib.contextmanager
    def _storing_anew(self, at: Place, log: Log) -> Iterator[tuple[Callable[[bytes], bytes], set[str]]]:
        """Give what takes large contents out of an entry, for a log that is written anew, and which are kept.

        Those that the log had and that are not among these go in the end.
        """
        contents = self._contents(at)
        gone = contents_of(log) if contents.exist else set()
        kept: set[str] = set()

        def store(body: bytes) -> bytes:
            body, apart = large.take_out(body, self._large_bytes)
            contents.put(at.name, apart)
            kept.update(apart)
            return body

        yield store, kept
        contents.drop(at.name, gone - kept)

    def _found(self, at: Place, key: SessionKey, head: Head) -> None:
        """Make a session that holds nothing but its head."""
        with self._writing(at, create=True) as log:
            branching(key, key.session, log.head)
            head = self.witness.head(key, None, head)
            line = write_line("fork", head.revision, head.next_seq, head.updated, head=head)
            self._write_lines(at, log, key, line)

    def _delete(self, key: SessionKey, expect: int | None) -> bool:
        at = self._place(key)
        with self._holding(write=True):
            if not os.path.exists(at.log):
                expected(key, Head(), expect)
                return False
            try:
                with self._with_branches(at) as (log, _):
                    expected(key, log.head or Head(), expect)
                    there = log.exists
                    contents = self._contents(at)
                    gone = contents_of(log) if contents.exist else set()
                    remove_counts(at)
                    self._disk.empty(log.fd, at.log)  # it is removed when nothing else of the session is left
                    contents.drop(at.name, gone)
                    if log.family and remove(f"{at.family(log.family)}/{at.name}"):
                        remove_if_empty(at.family(log.family))
                    return there
            except FileNotFoundError:  # another process was first
                return False


def _graves(log: Log, seqs: Sequence[int]) -> set[int] | None:
    """The places of all tombstones when these entries are some, too; None where none of these is damaged."""
    if not any(at.damaged for at, _ in (log.entries(min(seqs), max(seqs) + 1) if seqs else ())):
        return None
    return {at.seq for at, _ in log.entries(1, ENDLESS) if at.erased and not at.damaged}.union(seqs)


def _family(log: Log) -> str:
    return log.family


def _line(change: Change, head: Head, own: Sequence[Record]) -> bytes:
    record = own[-1] if own else None
    return write_line(change.kind, head.revision, head.next_seq, head.updated, record=record, head=head)
