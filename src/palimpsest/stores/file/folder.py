"""The folder of a file store: that it is ours, where in it each home's log is, and when something was written last."""

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
"""The last second of the year 9999, which no entry is later than."""


# --- where logs are, whatever characters names hold


def tenant_folder(root: str, tenant: str) -> str:
    """The folder of a tenant."""
    return f"{root}/{safe_name(tenant)}"


@lru_cache(4096)
def log_of(root: str, tenant: str, home: str) -> str:
    """The log of a home."""
    return f"{tenant_folder(root, tenant)}/{safe_name(home, within=tenant)}{LOG}"


def safe_name(text: str, within: str = "") -> str:
    """A name for files that no other text has: its readable beginning, and 160 bits of SHA-256 of all of it.

    Lower-case letters, digits and hyphens, whatever the text holds: it leaves no folder, and file systems that take
    upper and lower case, or two forms of one letter, for the same tell two texts apart.
    """
    beginning = re.sub("[^a-z0-9]+", "-", text[:256].lower())[:40].strip("-")
    owner, own = (part.encode("utf-8", "surrogatepass") for part in (within, text))
    digest = sha256(b"%d:%b%b" % (len(owner), owner, own)).hexdigest()[:40]
    return f"{beginning}-{digest}" if beginning else digest


# --- that it is ours


class Folder(Files):
    """The files of a store.

    The folder's mark holds an id that no other folder's has, so that another in its place is noticed.
    """

    def __init__(self, url: str, path: str, *, writable: bool, synced: bool, busy_seconds: float) -> None:
        """See that the folder is ours; make it so where it is empty or missing.

        Raises StoreCorrupt for a folder of anything else, or of an earlier version, StoreTooNew for a newer one: none
        is touched. StoreUnavailable where there is none and nothing may be made.
        """
        super().__init__(url, path, synced=synced, busy_seconds=busy_seconds)
        self._mark, self._id = f"{path}/{MARK}", ""
        self._id, self._seen = self._read_mark() or self._make_mark(writable)

    def check(self) -> None:
        """Raise StoreUnavailable where the folder has gone, or another has taken its place."""
        if not self._id:  # it is being marked
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
        """What tells the mark from another one that has its name later, as a rule."""
        status = os.stat(self._mark)
        return status.st_dev, status.st_ino, status.st_mtime_ns

    def _is_same(self) -> bool:
        """Whether a mark that was touched, or copied back, says what it said."""
        mark = self._read_mark()
        if mark is None or mark[0] != self._id:
            return False
        self._seen = mark[1]
        return True

    def _make_mark(self, writable: bool) -> tuple[str, tuple[int, int, int]]:
        if not writable:
            raise StoreUnavailable(self.url, f"there is no store in {self.path}, and none is made with readonly=True")

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
        """What the mark says, None where the folder may become ours."""
        if not self._is_marked():
            return None
        found: object = None
        seen = self._look()
        with contextlib.suppress(ValueError), open(self._mark, "rb") as file:
            found = json.loads(file.read(4096))
        if not isinstance(found, dict) or found.get("kind") != KIND or not isinstance(found.get("version"), int):
            raise StoreCorrupt(self.url, f"{self._mark} is not as a store of ours has it; nothing was changed")
        if found["version"] > VERSION:
            raise StoreTooNew(self.url, found["version"], VERSION)
        if found["version"] < VERSION:
            told = f"{self.path} has version {found['version']}, which this version does not read, and was not changed"
            raise StoreCorrupt(self.url, f"{told}. Export its sessions with the version that wrote it, and import them")
        return str(found.get("id")), seen

    def _is_marked(self) -> bool:
        try:
            there = set(names(self.path))
        except NotADirectoryError:
            raise StoreCorrupt(self.url, f"{self.path} is a file, not a folder of ours; nothing was changed") from None
        # Another process may have made the mark, and files after it, while the names were read.
        if MARK in there or os.path.exists(self._mark):
            return True
        if there - {MARK + NEW}:
            raise StoreCorrupt(
                self.url, f"{self.path} holds files of another program; nothing was changed. Give another folder"
            )
        return False


# --- when something was written last


class Marks:
    """The files `marks` of the tenants' folders, each of which holds the last mark. A mark is a second since 1970.

    Who has the lock of a home asks for the mark of what he writes; who lists goes by the last mark before he looks at
    the homes, each with its lock: nothing of that mark, or an earlier one, comes later to a home that he has seen.
    """

    def __init__(self, files: Folder) -> None:
        self._files, self._told = files, set[str]()

    def next(self, folder: str, at: int) -> int:
        """The mark of what is written at this time: none that anybody was told is greater."""
        mark, last = at // MARKED, self.last(folder)
        if mark <= last:
            return last
        path = f"{folder}/marks"

        def advance(fd: int, _: os.stat_result) -> None:
            if (_number(os.pread(fd, 20, 0)) or 0) < mark:
                with FileIO(path, "rb+") as file:  # in its place, which a file for appending does not let
                    os.pwrite(file.fileno(), b"%020d" % mark, 0)

        self._files.locked(path, "ab+", advance)
        return mark

    def last(self, folder: str) -> int:
        """The last mark; 0: it is not known. The file is opened each time: another may have been put in its place, such
        as a backup.

        One that is damaged counts as if it were not there: what is written next makes it anew.
        """
        try:
            with FileIO(f"{folder}/marks") as file:
                last = _number(file.read(20))
        except FileNotFoundError:
            return 0
        if last is None and folder not in self._told:
            self._told.add(folder)
            warn(
                "%s",
                f"{folder}/marks is damaged: it is taken for one that is not there, and the next write makes it anew",
            )
        return last or 0


def is_mark(number: int) -> bool:
    """Whether this can be a mark, and was not made of a damaged one."""
    return 0 <= number <= LAST_MARK


def _number(text: bytes) -> int | None:
    """The mark that a file holds, 0 where it holds none yet; None where that is none."""
    if not text:
        return 0
    number = int(text) if text.isdigit() else -1
    return number if is_mark(number) else None
