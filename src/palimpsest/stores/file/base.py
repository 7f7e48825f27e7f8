"""What the file store's verbs begin with: its folder, still there, and a session's log, open to read or to write."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from msgspec.structs import replace

from palimpsest.errors import StoreCorrupt, StoreUnavailable
from palimpsest.log.entry import Entry
from palimpsest.log.head import SessionKey
from palimpsest.log.withdrawal import tombstone
from palimpsest.runtime.logs import warn
from palimpsest.runtime.runner import Runner, drive
from palimpsest.stores.blocking import BlockingStore
from palimpsest.stores.common import DiskOptions
from palimpsest.stores.file.disk import NEW, Disk, is_at, remove
from palimpsest.stores.file.folder import Place, StoreFolder, place
from palimpsest.stores.file.large import Contents
from palimpsest.stores.file.lines import read_entry
from palimpsest.stores.file.log import Found, Log
from palimpsest.stores.shielded import shielded

T = TypeVar("T")
U = TypeVar("U")


class FileBase(BlockingStore):
    """The folder, and how logs are opened. Every function runs where no signal handler does."""

    def __init__(self, url: str, path: str, runner: Runner, options: DiskOptions) -> None:
        super().__init__(runner, options.clock)
        self.url, self.path, self.writable = url, os.path.abspath(path), not options.readonly
        self._large_bytes, self._told = options.large_bytes, set[tuple[str, int]]()
        self._disk = Disk(
            url,
            self.path,
            synced=options.synchronous == "FULL",
            busy_seconds=options.busy_seconds,
            check=self.check,
        )
        self._root = shielded(self._rooted)

    def _rooted(self) -> StoreFolder:
        with self._disk.translated():
            return StoreFolder(self._disk, self.path, self.writable)

    async def _run(self, function: Callable[..., T], *arguments: Any) -> T:
        return await super()._run(shielded, function, *arguments)

    async def _look(self, function: Callable[..., T], *arguments: Any) -> T:
        return await super()._look(shielded, function, *arguments)

    @contextlib.contextmanager
    def _holding(self, *, write: bool = False) -> Iterator[None]:
        """Hold on to the store's folder; whatever the system objects to is an error of ours.

        Nothing that is written is acknowledged unless the folder is there before and afterwards.
        """
        with self._disk.translated():
            self.check()
            if write and not self.writable:
                raise StoreUnavailable(self.url, "it was opened with readonly=True and cannot be written")
            self._root.check()
            yield
            if write:
                self._root.check()

    async def undisturbed(self, key: SessionKey, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._run(self._undisturbed, key, start)

    def _undisturbed(self, key: SessionKey, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        at = self._place(key)
        with self._holding(write=True):
            self._disk.make_folder(at.folder)
            with self._disk.first(at.log):
                return drive(start())

    # --- logs

    def _place(self, key: SessionKey) -> Place:
        return place(self.path, key)

    def _contents(self, at: Place) -> Contents:
        return Contents(self._disk, at.folder)

    def _open(self, at: Place, fd: int) -> Log:
        """The log at its place. Raises StoreCorrupt where it is another session's, under a name that is not its own."""
        log = Log(self.url, at.log, fd)
        log.told = self._told
        if log.header is not None and place(self.path, log.header.key) != at:
            raise StoreCorrupt(
                self.url,
                f"{at.log} is the log of session {log.header.session!r} of tenant {log.header.tenant!r}, "
                "copied or renamed: give it its own name again",
            )
        return log

    def _reading(self, at: Place, read: Callable[[Log], T], none: U) -> T | U:
        """What `read` makes of the log, `none` where there is no session.

        No lock is taken. Where something seems damaged, a writer may just have replaced it: then once more, with it.
        """
        try:
            fd = os.open(at.log, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return none
        try:
            log = self._open(at, fd)
            return read(log) if log.exists else none
        except StoreCorrupt:
            pass
        finally:
            os.close(fd)
        try:
            with self._disk.locked(at.log, shared=True) as fd:
                log = self._open(at, fd)
                log.lenient = True
                return read(log) if log.exists else none
        except FileNotFoundError:
            return none

    @contextlib.contextmanager
    def _writing(self, at: Place, *, create: bool = False) -> Iterator[Log]:
        """Hold the session's lock and give its log; a log that stays empty is removed.

        Raises FileNotFoundError where there is none, unless it is to be made.
        """
        if create:
            self._disk.make_folder(at.folder)
        with self._disk.locked(at.log, os.O_RDWR | (os.O_CREAT if create else 0)) as fd:
            remove(at.log + NEW)  # of a writer that was killed
            log = self._open(at, fd)
            log.lenient = True
            try:
                with log.held:
                    yield log
            finally:
                if os.fstat(fd).st_size == 0 and is_at(fd, at.log):
                    remove(at.log)

    def _entry(self, at: Place, log: Log, found: Found, tokens: int | None = None) -> Entry:
        """The entry that was found in the log."""
        spot, raw = found

        def load(digest: str) -> bytes:
            name = log.header.session if log.header is not None else at.name
            return self._contents(at).load(digest, f"entry {spot.seq} of session {name!r}")

        try:
            return read_entry(raw, spot, tokens, load)
        except StoreCorrupt as fault:  # of what is kept apart
            if not log.lenient:
                raise
            if (at.log, spot.seq) not in self._told:
                self._told.add((at.log, spot.seq))
                warn("%s", f"{fault}. The entry is set aside, and `repair` takes it out")
            return replace(tombstone(read_entry(raw, spot, None, lambda _: b"")), damaged=True)
        except (ValueError, TypeError) as cause:
            raise StoreCorrupt(self.url, f"{at.log}: entry {spot.seq} cannot be read ({cause})") from cause
