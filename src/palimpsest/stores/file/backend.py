"""`FileBackend`: a folder for each tenant, a log for each home, and in it a line for each batch (`lines`)."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from io import FileIO
from typing import TypeVar

from palimpsest.errors import PalimpsestError, StoreCorrupt, StoreUnavailable
from palimpsest.runtime.once import new_lock
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
from palimpsest.stores.rules import READ_ONLY, by_mark, by_name, page_of, try_batch

T = TypeVar("T")
OpenHomes = dict[str, tuple[Home, int]]
"""Homes by the paths of their logs, each with the descriptor of the open log. A home without a log is left out."""

FLEETING = 0.05
"""Seconds that a write which may be lost waits for other processes: readers wait for it."""

SLACK = 1 << 16
"""Bytes: a log is rewritten when it is longer than three times its live content and this."""

SPARED = ("session", "where", "log")
"""Spaces whose heads are looked at to find a session: a damaged log does not stop looks at several of them."""

KNOWN = 16_384
"""Homes whose index is kept in memory at once."""


class FileBackend(BlockingBackend):
    """A folder of logs. Writers lock the logs of the homes that they write to; readers lock none."""

    gathers = False  # each home has its own file, whose lock holds up no other home

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        super().__init__(runner)
        self.url, self.path, self.writable = url, os.path.abspath(path), not options.readonly
        self._homes: dict[str, Home] = {}
        self._guard, self.large_bytes = new_lock(), options.large_bytes
        self.companion = f"{os.path.realpath(self.path)}.recall"  # the same for every link to the folder
        synced, busy = options.synchronous == "FULL", options.busy_seconds
        try:
            self._files = Folder(url, self.path, writable=self.writable, synced=synced, busy_seconds=busy)
        except StoreUnavailable:
            raise  # it is an OSError, too
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
        outcomes: list[Refusal | None] = [None] * len(batches)
        if lasting:
            self._do(self._write, batches, at, True, again, outcomes)
        elif self.writable:
            with contextlib.suppress(StoreUnavailable):  # then it is lost
                self._do(self._write, batches, at, False, again, outcomes)
        return outcomes

    async def places(
        self, tenant: str, space: str, *, beneath: bool = False, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        return by_name(self._do(self._listing.listed, tenant, space, beneath), after, limit)

    async def recent(
        self, tenant: str, space: str, *, since: int = 0, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        # Whatever is written from here on has at least this mark, so a caller that asks again from the last mark it was
        # given does not miss it. If no mark is known, no caller was given one.
        until = self._do(self._marks.last, tenant_folder(self.path, tenant)) or LAST_MARK
        listed = self._do(self._listing.listed, tenant, space, False, True)
        return by_mark([row for row in listed if row.mark <= until], since, after, limit)

    async def newest(
        self, tenant: str, space: str, *, until: int | None = None, after: Place | None = None, limit: int = 1000
    ) -> list[Listed]:
        # Marks are only in the logs, so all logs are looked at: once, though each page of `recent` does it again.
        return newest_of(await self.recent(tenant, space, limit=sys.maxsize), until, after, limit)

    async def expired(self, tenant: str, now: int, *, after: Due | None = None, limit: int = 1000) -> list[Due]:
        due, damaged = self._do(self._listing.due, tenant, now)
        page = page_of(due, after, limit)
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
        """Call a verb. Raises StoreUnavailable if the folder is not the one that was opened, or for an OSError."""
        try:
            self._files.check()
            return verb(*arguments)
        except PalimpsestError:
            raise
        except OSError as cause:
            raise unavailable(self.url, cause) from cause

    # --- reading

    def _home(self, path: str) -> Home:
        """Return the home whose log has this path, with its index as far as it was read."""
        home = self._homes.get(path)
        if home is None:
            with self._guard:
                if len(self._homes) >= KNOWN:
                    del self._homes[next(iter(self._homes))]
                home = self._homes.setdefault(path, Home(self.url, self.path, path))
        return home

    def _reading(self, paths: Sequence[str], read: Callable[[OpenHomes], T], *, locked: bool = False) -> T:
        """Call `read` with the homes at these paths, as they all are at one moment, and return its result.

        No lock is taken. If something seems damaged, a writer may have been at work: then all is read once more with
        the locks of the logs. Raises StoreCorrupt if it seems damaged even then.
        """
        try:
            return self._opened(paths, {}, read, locked)
        except Unsure as fault:
            if not locked:
                return self._reading(paths, read, locked=True)
            reason = f"{', '.join(paths)} cannot be read: {fault}"
            raise StoreCorrupt(self.url, reason) from fault

    def _opened(self, paths: Sequence[str], opened: OpenHomes, read: Callable[[OpenHomes], T], locked: bool) -> T:
        """Open the first of these logs, bring its index up to date, and go on with the rest; at last call `read`.

        Recursive, so that each file and lock is held by a `with` until `read` has returned.
        """
        if not paths:
            if len(opened) > 1 and not locked and not all(home.is_still(fd) for home, fd in opened.values()):
                raise Unsure("another process wrote to it meanwhile")
            return read(opened)
        path, is_open = paths[0], False

        def go_on(fd: int, status: os.stat_result) -> T:
            nonlocal is_open
            is_open, home = True, self._home(path)
            with home.lock:
                home.refresh(fd, status, sure=locked)
                if home.spoiled == DESTROYED or home.torn:  # its writer was killed, or has not scrubbed it yet
                    self._scrubbing.spoiled.add(path)
                opened[path] = home, fd
                return self._opened(paths[1:], opened, read, locked)

        try:
            if locked:
                return self._files.locked(path, "rb", go_on, shared=True)
            with FileIO(path) as file:
                return go_on(file.fileno(), os.fstat(file.fileno()))
        except FileNotFoundError:
            if is_open:
                raise
        return self._opened(paths[1:], opened, read, locked)

    def _look(self, asks: Sequence[Ask]) -> list[Seen]:
        paths = [log_of(self.path, ask.place.tenant, ask.place.home) for ask in asks]

        def read(opened: OpenHomes) -> list[Seen]:
            return [seen_in(opened.get(path), ask) for path, ask in zip(paths, asks, strict=True)]

        try:
            return self._reading(sorted(set(paths)), read)
        except StoreCorrupt as fault:
            if any(ask.rows for ask in asks):
                raise
            return [self._head(path, ask, fault) for path, ask in zip(paths, asks, strict=True)]

    def _head(self, path: str, ask: Ask, fault: StoreCorrupt) -> Seen:
        """Return a head in a look where one log is damaged: the sessions in that log do not stop the others.

        Raises `fault` if the head is in the damaged log, and it cannot be said which sessions are in that.
        """
        refused = self._home(path).refused
        if refused is None:
            return self._reading([path], lambda opened: seen_in(opened.get(path), ask))
        sessions = refused.places(ask.place.tenant)
        if not sessions or ask.place.space not in SPARED:
            raise fault
        return Seen(refused.head(ask.place) if ask.place in sessions else None, [])

    def _of(self, path: str, read: Callable[[Home], T], locked: bool = False) -> T | None:
        """Call `read` with one home and return its result; None if it has no log."""
        return self._reading(
            [path], lambda opened: next((read(home) for home, _ in opened.values()), None), locked=locked
        )

    # --- writing

    def _write(
        self, batches: Sequence[Batch], at: int, lasting: bool, again: Again | None, outcomes: list[Refusal | None]
    ) -> None:
        """Do these batches, one home after the other, and put each result into `outcomes`."""
        if not self.writable:
            raise StoreUnavailable(self.url, READ_ONLY)
        by_home: dict[str, list[int]] = {}
        for i, batch in enumerate(batches):
            tenant, home, _, _ = batch[0].place
            by_home.setdefault(log_of(self.path, tenant, home), []).append(i)
        written, patience = False, None if lasting else FLEETING
        for path, numbers in by_home.items():
            try:
                of_home = [(i, batches[i]) for i in numbers]
                write = partial(self._write_home, path, of_home, at, lasting, again, outcomes)
                written |= self._files.locked(path, "ab+", write, patience=patience)
            except (PalimpsestError, OSError) as fault:
                if not written:
                    raise
                reason = f"only a part of the write was stored: {fault}"
                raise StoreUnavailable(self.url, reason, written=None) from fault

    def _write_home(
        self,
        path: str,
        batches: Sequence[tuple[int, Batch]],
        at: int,
        lasting: bool,
        again: Again | None,
        outcomes: list[Refusal | None],
        fd: int,
        status: os.stat_result,
    ) -> bool:
        """Do batches in the home whose log is locked; return whether anything was written."""
        home = self._home(path)
        if not home.written:
            remove(path + NEW)  # a killed writer may have left it
            home.written = True
        with home.lock:
            try:
                home.refresh(fd, status, sure=True)
                if home.refused is not None:  # a damaged lease: it begins anew
                    home.forget()
            except StoreCorrupt:
                if home.refused is None or not home.refused.goes([batch for _, batch in batches]):
                    raise
                home.heads, home.tables = {}, {}  # the batches destroy all sessions of the damaged log
            if home.unended:  # else the next line would join the last one
                self._files.end_line(path, home.end)
                home.unended = False
            end, change = home.end, Change(home.head, lasting)
            look = partial(_looked, home, fd)
            for i, batch in batches if home.refused is None else ():
                outcomes[i] = try_batch(i, batch, change.take, again, look)
            if not change.batches and home.refused is None:
                if not end:
                    remove(path)  # nothing was ever written to it
                return False
        if home.refused is not None:
            self._scrubbing.rewrite(home, fd)  # it is empty now, so its log is removed
            return True
        self._append(home, fd, status.st_size, end, change, at)
        return True

    def _append(self, home: Home, fd: int, size: int, end: int, change: Change, at: int) -> None:
        """Write the taken batches at the `end` of a locked log of this size. Rewrite the log if most of it is dead.

        `end` is what was seen when they were taken: a reader may make the home forget its own in between.
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
            with contextlib.suppress(StoreUnavailable, OSError):  # a later write, or a scrub, does it
                self._scrubbing.rewrite(home, fd)


def _looked(home: Home, fd: int, asks: Sequence[Ask]) -> list[Seen]:
    """Look at a home whose log is locked."""
    return [seen_in((home, fd), ask) for ask in asks]
