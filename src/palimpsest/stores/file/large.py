"""Large contents of a tenant: each once, in a file that is named by its SHA-256, in a folder with its users.

    large/<ab>/<sha256>/content    the bytes
    large/<ab>/<sha256>/<session>  empty: the session of this name has entries with this content

A content and its user's name are on the disk before the line that refers to it. So one may be left over when a writer
is killed, until the next sweep, and none is ever missing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256

from palimpsest.errors import StoreCorrupt
from palimpsest.runtime.private_files import private
from palimpsest.stores.file.disk import NEW, Disk, names, remove

CONTENT = "content"

_OURS = {CONTENT, CONTENT + NEW}  # every other name in its folder is a session's


class Contents:
    """The large contents of one tenant. Writers of a session have its lock; the lock of the folder is the inner one."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk, self._folder = disk, f"{folder}/large"

    @property
    def exist(self) -> bool:
        """Whether the tenant has ever had any."""
        return os.path.isdir(self._folder)

    def load(self, digest: str, user: str) -> bytes:
        """The content. Raises StoreCorrupt, naming file and user, where it is missing or not as it was."""
        path = f"{self._at(digest)}/{CONTENT}"
        try:
            with open(path, "rb") as file:
                content = file.read()
        except FileNotFoundError:
            content = None
        if content is None or sha256(content).hexdigest() != digest:
            what = "is missing" if content is None else "is not as it was written"
            raise StoreCorrupt(self._disk.url, f"{path}, a large content of {user}, {what}")
        return content

    def put(self, name: str, contents: Mapping[str, bytes]) -> set[str]:
        """Keep contents for the session of this name; return those that it did not use before."""
        new: set[str] = set()
        if not contents:
            return new
        self._disk.make_folder(self._folder)
        with self._disk.locked(self._folder):
            try:
                for digest, content in contents.items():
                    if self._use(name, digest):
                        new.add(digest)
                    self._keep(digest, content)
            except BaseException:
                self._drop(name, new)
                raise
        return new

    def share(self, name: str, digests: Iterable[str]) -> None:
        """Say that the session of this name uses contents that another has."""
        if digests := set(digests):
            with self._disk.locked(self._folder):
                for digest in digests:
                    self._use(name, digest)
                    self._disk.sync_folder(self._at(digest))

    def drop(self, name: str, digests: Iterable[str]) -> None:
        """Say that the session of this name uses these no longer; what nobody uses goes."""
        if digests := set(digests):
            with self._disk.locked(self._folder):
                self._drop(name, digests)

    def users(self) -> dict[str, set[str]]:
        """The contents that each session uses, by its name."""
        users: dict[str, set[str]] = {}
        for digest in self._all():
            for name in names(self._at(digest)):
                if name not in _OURS:
                    users.setdefault(name, set()).add(digest)
        return users

    def sweep(self) -> None:
        """Remove what nobody uses."""
        if self.exist:
            with self._disk.locked(self._folder):
                for digest in list(self._all()):
                    self._drop("", [digest])

    def _all(self) -> Iterator[str]:
        for beginning in names(self._folder):
            yield from names(f"{self._folder}/{beginning}")

    def _at(self, digest: str) -> str:
        return f"{self._folder}/{digest[:2]}/{digest}"

    def _use(self, name: str, digest: str) -> bool:
        self._disk.make_folder(self._at(digest))
        try:
            os.close(private(f"{self._at(digest)}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _keep(self, digest: str, content: bytes) -> None:
        path = f"{self._at(digest)}/{CONTENT}"
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            if file.read() == content:  # else it is damaged, and made whole
                self._disk.sync_folder(self._at(digest))
                return
        with self._disk.replacing(path) as file:
            file.write(content)

    def _drop(self, name: str, digests: Iterable[str]) -> None:
        for digest in digests:
            at = self._at(digest)
            if name:
                remove(f"{at}/{name}")
            if os.path.isdir(at) and set(names(at)) <= _OURS:
                for rest in _OURS:
                    remove(f"{at}/{rest}")
                os.rmdir(at)
                self._disk.sync_folder(os.path.dirname(at))
