"""The file store's folder: its mark, and where each session's files are, whatever characters an id holds."""

from __future__ import annotations

import contextlib
import json
import os
import re
from functools import lru_cache
from hashlib import sha256

from palimpsest.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from palimpsest.stores.file.disk import NEW, Disk, names

MARK = "palimpsest.json"
KIND = "palimpsest/files"
VERSION = 2
LOG = ".jsonl"

Seen = tuple[int, int, int]


def tenant_folder(root: str, tenant: str) -> str:
    """The folder of a tenant."""
    return f"{root}/{safe_name(tenant)}"


def log_of(root: str, tenant: str, home: str) -> str:
    """The log of a home."""
    return f"{tenant_folder(root, tenant)}/{safe_name(home, within=tenant)}{LOG}"


@lru_cache(4096)
def safe_name(text: str, within: str = "") -> str:
    """A name for files that no other text has: its readable beginning, and 160 bits of SHA-256 of all of it.

    Lower-case letters, digits and hyphens, whatever the text holds: it leaves no folder, and file systems that take
    upper and lower case, or two forms of one letter, for the same tell two texts apart.
    """
    beginning = re.sub("[^a-z0-9]+", "-", text[:256].lower())[:40].strip("-")
    owner, own = (part.encode("utf-8", "surrogatepass") for part in (within, text))
    digest = sha256(b"%d:%b%b" % (len(owner), owner, own)).hexdigest()[:40]
    return f"{beginning}-{digest}" if beginning else digest


class StoreFolder:
    """The store's folder, as it was when it was opened: its mark holds an id that no other folder's has."""

    def __init__(self, disk: Disk, path: str, writable: bool) -> None:
        """See that the folder is ours; make it so where it is empty or missing.

        Raises StoreCorrupt for a folder of anything else, StoreTooNew for a newer version: neither is touched.
        StoreUnavailable where there is none and nothing may be made.
        """
        self._disk, self._path, self._mark = disk, path, f"{path}/{MARK}"
        mark = self._read()
        if mark is None:
            if not writable:
                raise StoreUnavailable(disk.url, f"there is no store in {path}, and none is made with readonly=True")
            mark = self._make()
        self._id, self._seen = mark

    def check(self) -> None:
        """Raise StoreUnavailable where the folder has gone, or another has taken its place."""
        try:
            same = _seen(self._mark) == self._seen or self._is_same()
        except (FileNotFoundError, NotADirectoryError, StoreCorrupt):
            same = False
        if not same:
            raise StoreUnavailable(
                self._disk.url,
                f"{self._path} is not the folder that was opened: it was removed, renamed or replaced meanwhile. "
                "Nothing is kept there now; put it back, or open the store anew",
            )

    def _is_same(self) -> bool:
        """Whether a mark that was touched, or copied back, says what it said."""
        mark = self._read()
        if mark is None or mark[0] != self._id:
            return False
        self._seen = mark[1]
        return True

    def _make(self) -> tuple[str, Seen]:
        self._disk.make_folder(self._path)
        with self._disk.locked(self._path):
            mark = self._read()
            if mark is None:
                with self._disk.replacing(self._mark) as file:
                    made = {"kind": KIND, "version": VERSION, "id": os.urandom(16).hex()}
                    file.write(json.dumps(made).encode() + b"\n")
                mark = self._read()
        assert mark is not None, "a folder that was marked has its mark"
        return mark

    def _read(self) -> tuple[str, Seen] | None:
        """What the mark says, None where the folder may become ours."""
        if not self._is_marked():
            return None
        found: object = None
        seen = _seen(self._mark)
        with contextlib.suppress(ValueError), open(self._mark, "rb") as file:
            found = json.loads(file.read(4096))
        if not isinstance(found, dict) or found.get("kind") != KIND or not isinstance(found.get("version"), int):
            raise StoreCorrupt(self._disk.url, f"{self._mark} is not as a store of ours has it; nothing was changed")
        if found["version"] > VERSION:
            raise StoreTooNew(self._disk.url, found["version"], VERSION)
        if found["version"] < VERSION:
            told = f"{self._path} has version {found['version']}, which this version does not read, and was not changed"
            raise StoreCorrupt(
                self._disk.url, f"{told}. Export its sessions with the version that wrote it, and import them"
            )
        return str(found.get("id")), seen

    def _is_marked(self) -> bool:
        try:
            there = set(names(self._path))
        except NotADirectoryError:
            raise StoreCorrupt(
                self._disk.url, f"{self._path} is a file, not a folder of ours; nothing was changed"
            ) from None
        # Another process may have made the mark, and files after it, while the names were read.
        if MARK in there or os.path.exists(self._mark):
            return True
        if there - {MARK + NEW}:
            raise StoreCorrupt(
                self._disk.url, f"{self._path} holds files of another program; nothing was changed. Give another folder"
            )
        return False


def _seen(path: str) -> Seen:
    """What tells a file from another one that has its name later, as a rule."""
    status = os.stat(path)
    return status.st_dev, status.st_ino, status.st_mtime_ns
