"""The file store's folder: its mark, and where each session's files are, whatever characters an id holds."""

from __future__ import annotations

import contextlib
import json
import os
import re
from functools import lru_cache
from hashlib import sha256
from typing import NamedTuple

from palimpsest.errors import StoreCorrupt, StoreTooNew, StoreUnavailable
from palimpsest.log import SessionKey
from palimpsest.stores.file.disk import NEW, Disk, names

MARK = "palimpsest.json"
KIND = "palimpsest/files"
VERSION = 1
LOG = ".jsonl"


class Place(NamedTuple):
    """Where a session lies: its tenant's folder, and the name that its files have there."""

    folder: str
    name: str

    @property
    def log(self) -> str:
        """The session's log."""
        return f"{self.folder}/{self.name}{LOG}"

    @property
    def counts(self) -> str:
        """The folder of its token counts."""
        return f"{self.folder}/counts/{self.name}"

    def family(self, family: str) -> str:
        """The folder that names the branches of a family."""
        return f"{self.folder}/families/{family}"


def tenant_folder(root: str, tenant: str) -> str:
    """The folder of a tenant."""
    return f"{root}/{safe_name(tenant)}"


def place(root: str, key: SessionKey) -> Place:
    """Where the session's files are."""
    return Place(tenant_folder(root, key.tenant), safe_name(key.session, within=key.tenant))


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


def prepare(disk: Disk, root: str, writable: bool) -> None:
    """See that the folder is ours; make it so where it is empty or missing.

    Raises StoreCorrupt for a folder of anything else, StoreTooNew for a newer version: neither is touched.
    StoreUnavailable where there is none and nothing may be made.
    """
    if _is_ours(disk, root):
        return
    if not writable:
        raise StoreUnavailable(disk.url, f"there is no store in {root}, and none is made with readonly=True")
    disk.make_folder(root)
    with disk.locked(root):
        if not _is_ours(disk, root):
            with disk.replacing(f"{root}/{MARK}") as file:
                file.write(json.dumps({"kind": KIND, "version": VERSION}).encode() + b"\n")


def _is_ours(disk: Disk, root: str) -> bool:
    try:
        there = set(names(root))
    except NotADirectoryError:
        raise StoreCorrupt(disk.url, f"{root} is a file, not a folder of ours; nothing was changed") from None
    if MARK not in there:
        # Another process may have made the mark, and files after it, while the names were read.
        if there - {MARK + NEW} and not os.path.exists(f"{root}/{MARK}"):
            raise StoreCorrupt(
                disk.url, f"{root} holds files of another program; nothing was changed. Give another folder"
            )
        if not os.path.exists(f"{root}/{MARK}"):
            return False
    found: object = None
    with contextlib.suppress(ValueError), open(f"{root}/{MARK}", "rb") as file:
        found = json.loads(file.read(4096))
    if not isinstance(found, dict) or found.get("kind") != KIND or not isinstance(found.get("version"), int):
        raise StoreCorrupt(disk.url, f"{root}/{MARK} is not as a store of ours has it; nothing was changed")
    if found["version"] > VERSION:
        raise StoreTooNew(disk.url, found["version"], VERSION)
    return True
