"""The homes of a store of files: which there are, and what is remembered of where their rows lie."""

from __future__ import annotations

import contextlib
import os
from _thread import allocate_lock
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.file.disk import NEW, Disk, is_at, names
from palimpsest.stores.file.folder import LOG, tenant_folder
from palimpsest.stores.file.home import Home, Unsure

T = TypeVar("T")

KNOWN = 16_384
"""Homes of which is remembered what lies where."""

There = dict[str, tuple[Home, int]]
"""Homes by the paths of their logs, each with the open file."""


class Homes:
    """The homes of the store whose files these are."""

    def __init__(self, disk: Disk) -> None:
        self._disk, self._url, self._path = disk, disk.url, disk.path
        self._guard = allocate_lock()
        self._known: OrderedDict[str, Home] = OrderedDict()

    def known(self, path: str) -> Home:
        """The home whose log has this path, as far as it was read."""
        with self._guard:
            home = self._known.pop(path, None) or Home(self._url, self._path, path)
            self._known[path] = home
            if len(self._known) > KNOWN:
                self._known.popitem(last=False)
        return home

    def forget(self, path: str) -> None:
        """Read the log anew when somebody asks again."""
        with self._guard:
            self._known.pop(path, None)

    def clear(self) -> None:
        """Remember nothing any more."""
        with self._guard:
            self._known.clear()

    # --- reading

    def reading(self, paths: Sequence[str], read: Callable[[There], T]) -> T:
        """What is made of these homes, as they all are at one moment; those that are not there are left out.

        No lock is taken; but where something seems damaged, a writer may just have been at it: then once more, with it.
        """
        locked = False
        while True:
            with contextlib.ExitStack() as stack:
                there: There = {}
                try:
                    for path in paths:
                        with contextlib.suppress(FileNotFoundError):
                            there[path] = stack.enter_context(self._open(path, locked=locked))
                    if locked or len(paths) < 2 or all(map(_is_still, there.values())):
                        return read(there)
                except Unsure as fault:
                    if locked:
                        told = f"{', '.join(paths)} cannot be read: rows in it are not as they were written"
                        raise StoreCorrupt(self._url, told) from fault
            locked = True

    @contextlib.contextmanager
    def _open(self, path: str, *, locked: bool) -> Iterator[tuple[Home, int]]:
        """The home whose log this is, as it is now, and its open file. Raises FileNotFoundError where there is none."""
        with contextlib.ExitStack() as stack:
            if locked:
                fd = stack.enter_context(self._disk.locked(path, shared=True))
            else:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                stack.callback(os.close, fd)
            home = self.known(path)
            stack.enter_context(home.lock)
            home.refresh(fd, sure=locked)
            yield home, fd

    # --- names

    def logs(self, tenant: str) -> list[str]:
        """The logs of a tenant."""
        folder = tenant_folder(self._path, tenant)
        return [f"{folder}/{name}" for name in names(folder) if name.endswith(LOG)]

    def all_logs(self) -> list[str]:
        """Every log, also one of which there is only a new one that was never finished."""
        folders = [f"{self._path}/{name}" for name in names(self._path)]
        there = [f"{folder}/{name}" for folder in folders if os.path.isdir(folder) for name in names(folder)]
        return sorted({path.removesuffix(NEW) for path in there if path.removesuffix(NEW).endswith(LOG)})


def _is_still(there: tuple[Home, int]) -> bool:
    """Whether nothing was written since a home was looked at."""
    home, fd = there
    return os.fstat(fd).st_size == home.end and is_at(fd, home.path)
