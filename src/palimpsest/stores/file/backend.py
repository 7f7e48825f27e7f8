"""The file backend: a folder a tenant, a log a home, a line a batch. `palimpsest.stores.file.lines` shows a log."""

from __future__ import annotations

import contextlib
import os
import sys
from _thread import allocate_lock
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from io import FileIO
from typing import TypeVar

from palimpsest.errors import PalimpsestError, StoreCorrupt, StoreUnavailable
from palimpsest.runtime.runner import Runner
from palimpsest.stores.backend import (
    Again,
    Ask,
    Batch,
    BlockingBackend,
    Due,
    Listed,
    Place,
    Refusal,
    Scrubbed,
    Seen,
    newest_of,
)
from palimpsest.stores.file.disk import NEW, remove, unavailable
from palimpsest.stores.file.folder import LAST_MARK, Folder, Marks, log_of, tenant_folder
from palimpsest.stores.file.home import DESTROYED, Home, Unsure, seen_in
from palimpsest.stores.file.lines import Change, TooLong
from palimpsest.stores.file.listing import Listing
from palimpsest.stores.file.scrubbing import Scrubbing
from palimpsest.stores.options import DiskOptions, on_disk
from palimpsest.stores.rules import READ_ONLY, by_mark, by_name, page_of, tried

T = TypeVar("T")
There = dict[str, tuple[Home, int]]
"""Homes by the paths of their logs, each with the open file."""

FLEETING = 0.05
"""Seconds that writing what may be lost waits for other processes, which hold up who reads."""

SLACK = 1 << 16
"""Bytes that a log may have beside three times those of what is there, before it is written anew."""

SPARED = ("session", "where", "log")
"""Spaces whose heads are looked at to find a session: in a log that is refused they keep nobody from it."""

KNOWN = 16_384
"""Homes of which is remembered what lies where."""


class FileBackend(BlockingBackend):
    """A folder of logs. Writers lock those of the homes that they write to, readers none."""

    gathers = False  # each home has a file of its own, and whoever keeps one locked holds up nobody else

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        super().__init__(runner)
        self.url, self.path, self.writable = url, os.path.abspath(path), not options.readonly
        self._homes: dict[str, Home] = {}
        self._guard, self.large_bytes = allocate_lock(), options.large_bytes
        self.companion = f"{os.path.realpath(self.path)}.recall"  # one, whatever links lead here
        synced, busy = options.synchronous == "FULL", options.busy_seconds
        try:
            self._files = Folder(url, self.path, writable=self.writable, synced=synced, busy_seconds=busy)
        except StoreUnavailable:
            raise  # which is an OSError, too
        except OSError as cause:
            raise unavailable(url, cause) from cause
        self._marks = Marks(self._files)
        self._listing = Listing(url, self.path, self._home, self._of)
        self._scrubbing = Scrubbing(self._files, self._home)

    # --- the verbs

    async def look(self, asks: Sequence[Ask]) -> list[Seen]:
        return self._do(self._look, asks)

    async def write(
        self, batches: Sequence[Batch], at: int, *, lasting: bool = True, again: Again | None = None
    ) -> list[Refusal | None]:
        done: list[Refusal | None] = [None] * len(batches)
        if lasting:
            self._do(self._write, batches, at, True, again, done)
        elif self.writable:
            with contextlib.suppress(StoreUnavailable):  # it is given up
                self._do(self._write, batches, at, False, again, done)
        return done

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        found = self._do(self._listing.listed, tenant, space, beneath)
        return by_name(found, after, limit)

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        # What is written meanwhile is for who asks next. Where no mark is known nobody was told a greater one.
        until = self._do(self._marks.last, tenant_folder(self.path, tenant)) or LAST_MARK
        found = self._do(self._listing.listed, tenant, space, False, True)
        return by_mark([one for one in found if one.mark <= until], since, after, limit)

    async def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        # A mark is in its log alone, so every log is looked at, but once: each page of `recent` looks at all again.
        return newest_of(await self.recent(tenant, space, limit=sys.maxsize), until, after, limit)

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        found, damaged = self._do(self._listing.due, tenant, now)
        page = page_of(found, after, limit)
        if damaged is not None and not page:
            raise damaged
        return page

    async def tenants(self, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return page_of(self._do(self._listing.tenants), after, limit)

    async def unread(self, tenant: str | None = None) -> Mapping[str, Collection[str]]:
        return self._do(self._listing.unread, tenant)

    async def scrub(self, *, whole: bool = True) -> Scrubbed:
        return self._do(self._scrubbing.scrub, whole) if self.writable else Scrubbed()

    async def durability(self) -> str:
        return on_disk(self._files.synced)

    def give_up(self) -> None:
        self._files.closed = True

    async def close(self) -> None:
        self._homes, self._files.closed = {}, True

    def _do(self, verb: Callable[..., T], *arguments: object) -> T:
        """What a verb returns, unless the folder is another; what the system objects to is an error of ours."""
        try:
            self._files.check()
            return verb(*arguments)
        except PalimpsestError:
            raise
        except OSError as cause:
            raise unavailable(self.url, cause) from cause

    # --- reading

    def _home(self, path: str) -> Home:
        """The home whose log has this path, as far as it was read."""
        home = self._homes.get(path)
        if home is None:
            with self._guard:
                if len(self._homes) >= KNOWN:
                    del self._homes[next(iter(self._homes))]
                home = self._homes.setdefault(path, Home(self.url, self.path, path))
        return home

    def _reading(self, paths: Sequence[str], read: Callable[[There], T], *, locked: bool = False) -> T:
        """What is made of these homes, as they all are at one moment; those that are not there are left out.

        No lock is taken; but where something seems damaged, a writer may just have been at it: then once more, with it.
        """
        try:
            return self._opened(paths, {}, read, locked)
        except Unsure as fault:
            if not locked:
                return self._reading(paths, read, locked=True)
            told = f"{', '.join(paths)} cannot be read: {fault}"
            raise StoreCorrupt(self.url, told) from fault

    def _opened(self, paths: Sequence[str], there: There, read: Callable[[There], T], locked: bool) -> T:
        if not paths:
            if len(there) > 1 and not locked and not all(home.is_still(fd) for home, fd in there.values()):
                raise Unsure("it was written to meanwhile")
            return read(there)
        path, opened = paths[0], False

        def go_on(fd: int, status: os.stat_result) -> T:
            nonlocal opened
            opened, home = True, self._home(path)
            with home.lock:
                home.refresh(fd, status, sure=locked)
                if home.spoiled == DESTROYED or home.torn:  # by a process that was killed, or has not come to it yet
                    self._scrubbing.spoiled.add(path)
                there[path] = home, fd
                return self._opened(paths[1:], there, read, locked)

        try:
            if locked:
                return self._files.locked(path, "rb", go_on, shared=True)
            with FileIO(path) as file:
                return go_on(file.fileno(), os.fstat(file.fileno()))
        except FileNotFoundError:
            if opened:
                raise
        return self._opened(paths[1:], there, read, locked)

    def _look(self, asks: Sequence[Ask]) -> list[Seen]:
        at = [log_of(self.path, ask.place.tenant, ask.place.home) for ask in asks]

        def read(there: There) -> list[Seen]:
            return [seen_in(there.get(path), ask) for path, ask in zip(at, asks, strict=True)]

        try:
            return self._reading(sorted(set(at)), read)
        except StoreCorrupt as fault:
            if any(ask.rows for ask in asks):
                raise
            return [self._head(path, ask, fault) for path, ask in zip(at, asks, strict=True)]

    def _head(self, path: str, ask: Ask, fault: StoreCorrupt) -> Seen:
        """A head where one of several logs is refused, whose sessions keep nobody from those of others."""
        refused = self._home(path).refused
        if refused is None:
            return self._reading([path], lambda there: seen_in(there.get(path), ask))
        lost = refused.places(ask.place.tenant)
        if not lost or ask.place.space not in SPARED:
            raise fault
        return Seen(refused.head(ask.place) if ask.place in lost else None, [])

    def _of(self, path: str, read: Callable[[Home], T], locked: bool = False) -> T | None:
        """What is made of one home; None where it is not there."""
        return self._reading(
            [path], lambda there: next((read(home) for home, _ in there.values()), None), locked=locked
        )

    # --- writing

    def _write(
        self, batches: Sequence[Batch], at: int, lasting: bool, again: Again | None, done: list[Refusal | None]
    ) -> None:
        """Do these batches, one home after the other; note what came of each."""
        if not self.writable:
            raise StoreUnavailable(self.url, READ_ONLY)
        by_home: dict[str, list[int]] = {}
        for i, batch in enumerate(batches):
            tenant, home, _, _ = batch[0].place
            by_home.setdefault(log_of(self.path, tenant, home), []).append(i)
        written, patience = False, None if lasting else FLEETING
        for path, which in by_home.items():
            try:
                write = partial(self._write_home, path, [(i, batches[i]) for i in which], at, lasting, again, done)
                written |= self._files.locked(path, "ab+", write, patience=patience)
            except (PalimpsestError, OSError) as fault:
                if not written:
                    raise
                told = f"some of it was written, and some was not: {fault}"
                raise StoreUnavailable(self.url, told, written=None) from fault

    def _write_home(
        self,
        path: str,
        batches: Sequence[tuple[int, Batch]],
        at: int,
        lasting: bool,
        again: Again | None,
        done: list[Refusal | None],
        fd: int,
        status: os.stat_result,
    ) -> bool:
        """Do batches in the home whose log is locked; return whether anything was written."""
        home = self._home(path)
        if not home.written:
            remove(path + NEW)  # of a writer that was killed
            home.written = True
        with home.lock:
            try:
                home.refresh(fd, status, sure=True)
                if home.refused is not None:  # a lease, which begins anew
                    home.forget()
            except StoreCorrupt:
                if home.refused is None or not home.refused.goes([batch for _, batch in batches]):
                    raise
                home.heads, home.tables = {}, {}
            if home.unended:  # or what comes behind its last line would be one with it
                self._files.end_line(path, home.end)
                home.unended = False
            end, change = home.end, Change(home.head, lasting)
            look = partial(_looked, home, fd)
            for i, batch in batches if home.refused is None else ():
                done[i] = tried(i, batch, change.take, again, look)
            if not change.batches and home.refused is None:
                if not end:
                    remove(path)  # nothing was ever written to it
                return False
        if home.refused is not None:
            self._scrubbing.anew(home, fd)  # it is empty, so that it goes
            return True
        self._append(home, fd, status.st_size, end, change, at)
        return True

    def _append(self, home: Home, fd: int, size: int, end: int, change: Change, at: int) -> None:
        """Write what was taken to the `end` of a log of this size, which is locked; anew where most of it is dead then.

        Who reads the home meanwhile may forget it: so where its log ends is what was seen when the change was taken.
        """
        path = home.path
        try:
            with home.lock:
                lines = change.lines(self._marks.next(home.folder, at), end)
        except TooLong as fault:
            if not end:
                remove(path)
            raise StoreUnavailable(self.url, f"{path}: {fault}; nothing was written") from None
        self._files.append(fd, path, b"".join(lines), size, end, lasting=change.lasts)
        with home.lock:
            home.wrote(lines, end)
            dead = home.file is not None and (home.is_empty or home.end > 3 * home.live + SLACK)
            if change.destroys:
                self._scrubbing.spoiled.add(path)
        if dead:
            with contextlib.suppress(StoreUnavailable, OSError):  # it can be done another time
                self._scrubbing.anew(home, fd)


def _looked(home: Home, fd: int, asks: Sequence[Ask]) -> list[Seen]:
    """What is asked for of a home that is locked."""
    return [seen_in((home, fd), ask) for ask in asks]
