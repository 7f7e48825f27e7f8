"""The folder of a file store: the mark that says it is ours, the paths of logs, and the marks of last writes."""

from __future__ import annotations

import contextlib
import json
import os
import re
from functools import lru_cache
from hashlib import sha256
from io import FileIO

from palimpsest.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from palimpsest.runtime.logs import warn
from palimpsest.stores.file.disk import NEW, Files, names, remove, sync, write

LOG = ".jsonl"

MARK, KIND, VERSION = "palimpsest.json", "palimpsest/files", 3

MARKED = 1_000_000
"""Microseconds that one mark lasts."""

LAST_MARK = 253_402_300_799
"""The last second of the year 9999: no entry is later."""


# --- paths, whatever characters names hold


def tenant_folder(root: str, tenant: str) -> str:
    """Return the folder of a tenant."""
    return f"{root}/{safe_name(tenant)}"


@lru_cache(4096)
def log_of(root: str, tenant: str, home: str) -> str:
    """Return the path of a home's log."""
    return f"{tenant_folder(root, tenant)}/{safe_name(home, within=tenant)}{LOG}"


def safe_name(text: str, within: str = "") -> str:
    """Return a file name that no other text has: a readable beginning, and 160 bits of the SHA-256 of all of it.

    It has only lower-case letters, digits and hyphens. So it cannot lead out of its folder, and is unique even on file
    systems that ignore case, or take two forms of one letter for the same.
    """
    beginning = re.sub("[^a-z0-9]+", "-", text[:256].lower())[:40].strip("-")
    owner, own = (part.encode("utf-8", "surrogatepass") for part in (within, text))
    digest = sha256(b"%d:%b%b" % (len(owner), owner, own)).hexdigest()[:40]
    return f"{beginning}-{digest}" if beginning else digest


# --- the folder's mark


class Folder(Files):
    """The files of a store.

    The folder's mark holds a random id, so that another folder in its place is noticed.
    """

    def __init__(self, url: str, path: str, *, writable: bool, synced: bool, busy_seconds: float) -> None:
        """Check that the folder is ours; mark it as ours if it is empty or missing.

        Raises StoreCorrupt for a folder of anything else or of an earlier version, StoreTooNew for a newer version:
        none of these is changed. Raises StoreUnavailable for a missing store that is not to be made (not `writable`).
        """
        super().__init__(url, path, synced=synced, busy_seconds=busy_seconds)
        self._mark, self._id = f"{path}/{MARK}", ""
        self._id, self._seen = self._read_mark() or self._make_mark(writable)

    def check(self) -> None:
        """Raise StoreUnavailable if the folder is gone, or another has taken its place."""
        if not self._id:  # it is just being marked
            return
        try:
            same = self._look() == self._seen or self._is_same()
        except (FileNotFoundError, NotADirectoryError, StoreCorrupt):
            same = False
        if not same:
            raise StoreUnavailable(
                self.url,
                f"{self.path} is not the folder that was opened: it was removed, renamed or replaced meanwhile. "
                "Nothing is kept there now; put it back, or open the store anew",
            )

    def _look(self) -> tuple[int, int, int]:
        """Return what usually tells the mark from a later file of its name, without reading it."""
        status = os.stat(self._mark)
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def _is_same(self) -> bool:
        """Return whether a mark that was touched, or copied back, still has our id."""
        mark = self._read_mark()
        if mark is None or mark[0] != self._id:
            return False
        self._seen = mark[1]
        return True

    def _make_mark(self, writable: bool) -> tuple[str, tuple[int, int, int]]:
        """Mark the folder as ours, unless another process is first, and return as `_read_mark`."""
        if not writable:
            raise StoreUnavailable(self.url, f"there is no store in {self.path}, and readonly=True creates none")

        def make(fd: int, _: os.stat_result) -> None:
            if os.path.exists(self._mark):  # another process was first
                remove(self._mark + NEW)
                return
            os.ftruncate(fd, 0)
            write(fd, json.dumps({"kind": KIND, "version": VERSION, "id": os.urandom(16).hex()}).encode() + b"\n")
            sync(fd)
            os.replace(self._mark + NEW, self._mark)

        self.locked(self._mark + NEW, "ab+", make)
        self.sync_folder(self.path)
        mark = self._read_mark()
        assert mark is not None, "a folder that was marked has its mark"
        return mark

    def _read_mark(self) -> tuple[str, tuple[int, int, int]] | None:
        """Return the mark's id and what `_look` has seen of it; None if the folder may become ours."""
        if not self._is_marked():
            return None
        mark: object = None
        seen = self._look()
        with contextlib.suppress(ValueError), open(self._mark, "rb") as file:
            mark = json.loads(file.read(4096))
        if not isinstance(mark, dict) or mark.get("kind") != KIND or not isinstance(mark.get("version"), int):
            raise StoreCorrupt(self.url, f"{self._mark} is not a file of a Palimpsest store; nothing was changed")
        if mark["version"] > VERSION:
            raise StoreTooNew(self.url, mark["version"], VERSION)
        if mark["version"] < VERSION:
            reason = f"{self.path} has version {mark['version']}, which this version does not read, and was not changed"
            raise StoreCorrupt(
                self.url, f"{reason}. Export its sessions with the version that wrote it, and import them"
            )
        return str(mark.get("id")), seen

    def _is_marked(self) -> bool:
        """Return whether the folder has a mark. Raises StoreCorrupt if it has none, and holds other files."""
        try:
            present = set(names(self.path))
        except NotADirectoryError:
            raise StoreCorrupt(self.url, f"{self.path} is a file, not a folder; nothing was changed") from None
        # Another process may have made the mark, and files after it, while the names were read.
        if MARK in present or os.path.exists(self._mark):
            return True
        if present - {MARK + NEW}:
            raise StoreCorrupt(
                self.url, f"{self.path} holds files of another program; nothing was changed. Give another folder"
            )
        return False


# --- the marks of last writes


class Marks:
    """The files `marks` in the tenants' folders, each with the last mark given out. A mark is in seconds since 1970.

    A writer asks for the mark of its write while it holds the lock of the home. A listing by marks reads the last mark
    first, then each home under its lock. So nothing of an earlier mark can come to a home after the listing has seen
    it.
    """

    def __init__(self, files: Folder) -> None:
        self._files, self._warned = files, set[str]()

    def next(self, folder: str, at: int) -> int:
        """Return the mark for a write at this time (microseconds). It is never lower than one given out before."""
        mark, last = at // MARKED, self.last(folder)
        if mark <= last:
            return last
        path = f"{folder}/marks"

        def advance(fd: int, _: os.stat_result) -> None:
            if (_number(os.pread(fd, 20, 0)) or 0) < mark:
                with FileIO(path, "rb+") as file:  # a file opened for appending cannot be overwritten
                    os.pwrite(file.fileno(), b"%020d" % mark, 0)

        self._files.locked(path, "ab+", advance)
        return mark

    def last(self, folder: str) -> int:
        """Return the last mark; 0 if it is not known, also because the file is damaged: the next write makes it anew.

        The file is opened each time, since another, such as a backup, may have been put in its place.
        """
        try:
            with FileIO(f"{folder}/marks") as file:
                last = _number(file.read(20))
        except FileNotFoundError:
            return 0
        if last is None and folder not in self._warned:
            self._warned.add(folder)
            warn(
                "%s",
                f"{folder}/marks is damaged: it is ignored, and the next write creates it anew",
            )
        return last or 0


def is_mark(number: int) -> bool:
    """Return whether a number can be a mark: one from a damaged file may not."""
    return 0 <= number <= LAST_MARK


def _number(text: bytes) -> int | None:
    """Return the mark in the text of a file, 0 if the file is still empty, None if it is damaged."""
    if not text:
        return 0
    number = int(text) if text.isdigit() else -1
    return number if is_mark(number) else None
