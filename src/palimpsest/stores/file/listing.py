"""What there is in all logs of a tenant: places, what has expired, tenants.

A log is looked at by its name alone where it was read to its end before, and nobody can have written to it since.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from palimpsest.errors import StoreCorrupt
from palimpsest.stores.backend import Due, Listed
from palimpsest.stores.file.disk import folders, names
from palimpsest.stores.file.folder import LOG, tenant_folder
from palimpsest.stores.file.home import Home

T = TypeVar("T")

SETTLED = 1_000_000_000
"""Nanoseconds after which the time of a change tells it from the next: file systems keep times of some milliseconds, or
of a second."""


class Reads(Protocol):
    """Returns what is made of one home, None where it is not there; `locked`, after what is being written."""

    def __call__(self, path: str, read: Callable[[Home], T], locked: bool = False, /) -> T | None: ...


class Listing:
    """Looks at the logs of the store in `root`, of which it is given the homes, and what reads one."""

    def __init__(self, root: str, home: Callable[[str], Home], reads: Reads) -> None:
        self._root, self._home, self._reads = root, home, reads

    def listed(self, tenant: str, meant: Callable[[str], bool], locked: bool = False) -> list[Listed]:
        """The places of these spaces; `locked`, after what is being written when it is asked for."""
        found: list[Listed] = []
        for path in self._logs(tenant):
            try:
                found += self._of(path, lambda home: home.listed(meant), locked) or ()
            except StoreCorrupt:
                refused = self._home(path).refused
                if refused is None or (lost := refused.listed(tenant, meant)) is None:
                    raise
                found += lost
        return found

    def due(self, tenant: str, now: int) -> tuple[list[Due], StoreCorrupt | None]:
        """What has expired, and what was damaged first: it keeps nobody from the rest."""
        found, damaged = list[Due](), None
        for path in self._logs(tenant):
            try:
                found += self._of(path, lambda home: home.expired(now)) or ()
            except StoreCorrupt as fault:
                damaged = damaged or fault
        return found, damaged

    def tenants(self) -> set[str]:
        """The tenants that have something."""
        found: set[str] = set()
        for folder in folders(self._root):
            damaged = tenant = None
            for path in (f"{folder}/{name}" for name in names(folder) if name.endswith(LOG)):
                try:
                    tenant = tenant or self._of(path, lambda home: home.tenant if home.heads else None)
                except StoreCorrupt as fault:
                    damaged = fault
            if tenant is None and damaged is not None:
                raise damaged
            if tenant is not None:
                found.add(tenant)
        return found

    def _logs(self, tenant: str) -> list[str]:
        folder = tenant_folder(self._root, tenant)
        return [f"{folder}/{name}" for name in names(folder) if name.endswith(LOG)]

    def _of(self, path: str, read: Callable[[Home], T], locked: bool = False) -> T | None:
        """What is made of one home; None where it is not there."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        log = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        home = self._home(path)
        if not locked and home.settled == log:
            with home.lock:
                if home.settled == log:
                    return read(home)
        settled = time.time_ns() - status.st_ctime_ns > SETTLED
        return self._reads(path, lambda home: self._settling(home, log if settled else (), read), locked)

    def _settling(self, home: Home, log: tuple[int, ...], read: Callable[[Home], T]) -> T:
        home.settled = log if log[:3] == (*(home.file or ()), home.end) else ()
        return read(home)
