"""What there is in all logs of a tenant: places, what has expired, tenants.

A log is looked at by its name alone where it was read to its end before, and nobody can have written to it since. One
that cannot be read keeps nobody from the others: a warning names it, and `unread` does.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from palimpsest.errors import StoreCorrupt, StoreError, StoreUnavailable
from palimpsest.runtime.logs import warn
from palimpsest.stores.backend import Due, Listed
from palimpsest.stores.engine.items import ITEMS
from palimpsest.stores.file.disk import folders, names, unavailable
from palimpsest.stores.file.folder import LOG, log_of, tenant_folder
from palimpsest.stores.file.home import Home
from palimpsest.stores.file.refused import Refused

T = TypeVar("T")

SETTLED = 1_000_000_000
"""Nanoseconds after which the time of a change tells it from the next: file systems keep times of some milliseconds, or
of a second."""

OF_ONE = (errno.EACCES, errno.EPERM, errno.EIO)
"""What the system objects to about one file, and not about whatever else it is asked for."""


class Reads(Protocol):
    """Returns what is made of one home, None where it is not there; `locked`, after what is being written."""

    def __call__(self, path: str, read: Callable[[Home], T], locked: bool = False, /) -> T | None: ...


class Listing:
    """Looks at the logs of the store in `root`, of which it is given the homes, and what reads one."""

    def __init__(self, url: str, root: str, home: Callable[[str], Home], reads: Reads) -> None:
        self._url, self._root, self._home, self._reads = url, root, home, reads
        self._told = set[str]()

    def listed(self, tenant: str, space: str, beneath: bool = False, locked: bool = False) -> list[Listed]:
        """The places of a space, or of those beneath it; `locked`, after what is being written when it is asked for.

        Where only one home can have some, it is an error that this cannot be read; and so it is where none can.
        """

        def meant(one: str) -> bool:
            return one.startswith(space) if beneath else one == space

        if not beneath and space.startswith(ITEMS):  # all items of a namespace are in the home of its name
            only = log_of(self._root, tenant, space.removeprefix(ITEMS))
            return self._of(only, lambda home: home.listed(meant), locked) or []
        found, any_read, out_of_reach = list[Listed](), False, None
        for path, some, fault in self._each(self._logs(tenant), lambda home: home.listed(meant), locked):
            found += some or ()
            if fault is None:
                any_read = True
                continue
            refused = self._refused(path, fault)
            lost = None if refused is None else refused.listed(tenant, meant)
            if lost is None:
                self._tell(path, fault)
            if isinstance(fault, StoreUnavailable):
                out_of_reach = out_of_reach or fault
            found += lost or ()
        if out_of_reach is not None and not (any_read or found):
            raise out_of_reach
        return found

    def due(self, tenant: str, now: int) -> tuple[list[Due], StoreCorrupt | None]:
        """What has expired, and what was damaged first: it keeps nobody from the rest."""
        found, damaged = list[Due](), None
        for _, some, fault in self._each(self._logs(tenant), lambda home: home.expired(now)):
            found += some or ()
            if fault is not None:
                damaged = damaged or StoreCorrupt(self._url, fault.reason)
        return found, damaged

    def tenants(self) -> set[str]:
        """The tenants that have something, and can be told by one of their logs."""
        found, out_of_reach = set[str](), None
        for folder in folders(self._root):
            paths, fault = self._within(folder)
            faults: list[tuple[str, StoreError]] = [(folder, fault)] if fault is not None else []
            for path, known, fault in self._each(paths, lambda home: home.tenant if home.heads else None):
                tenant = known
                if fault is not None:
                    faults.append((path, fault))
                    tenant = self._home(path).tenant if self._refused(path, fault) is not None else None
                if tenant is not None and tenant_folder(self._root, tenant) == folder:
                    found.add(tenant)
                    break
            else:
                for path, fault in faults:
                    self._tell(path, fault)
                    if isinstance(fault, StoreUnavailable):
                        out_of_reach = out_of_reach or fault
        if out_of_reach is not None and not found:
            raise out_of_reach
        return found

    def unread(self, tenant: str | None) -> dict[str, frozenset[str]]:
        """Why logs of a tenant, or of all, cannot be read whose places no listing has, and which sessions they name."""
        found: dict[str, frozenset[str]] = {}
        several = folders(self._root) if tenant is None else [tenant_folder(self._root, tenant)]
        there = [self._within(folder) for folder in several]
        found |= {fault.reason: frozenset() for _, fault in there if fault is not None}
        for path, _, fault in self._each([path for paths, _ in there for path in paths], lambda _: True):
            if fault is not None:
                refused = self._refused(path, fault)
                if refused is None or refused.listed(tenant or "", lambda _: True) is None:
                    found[fault.reason] = frozenset(refused.sessions if refused is not None else ())
        return found

    def _each(
        self, paths: list[str], read: Callable[[Home], T], locked: bool = False
    ) -> Iterator[tuple[str, T | None, StoreError | None]]:
        """Yield what is made of each log that is there, or why it cannot be read."""
        for path in paths:
            some: T | None = None
            why: StoreError | None = None
            try:
                some = self._of(path, read, locked)
            except StoreCorrupt as fault:
                why = fault
            except StoreUnavailable:
                raise  # which is an OSError, too
            except OSError as fault:
                if fault.errno not in OF_ONE:
                    raise
                why = unavailable(self._url, fault)
            yield path, some, why

    def _refused(self, path: str, fault: StoreError) -> Refused | None:
        """What can be said of a log that is damaged."""
        return self._home(path).refused if isinstance(fault, StoreCorrupt) else None

    def _tell(self, path: str, fault: StoreError) -> None:
        """Say once that a log is in no listing."""
        if path not in self._told:
            self._told.add(path)
            warn("%s", f"{fault.reason}. What is in it is in no list, and is not searched, swept or forgotten")

    def _logs(self, tenant: str) -> list[str]:
        return self._in(tenant_folder(self._root, tenant))

    def _in(self, folder: str) -> list[str]:
        return [f"{folder}/{name}" for name in names(folder) if name.endswith(LOG)]

    def _within(self, folder: str) -> tuple[list[str], StoreError | None]:
        """The logs in a folder, or why it does not tell of any."""
        try:
            return self._in(folder), None
        except PermissionError as fault:
            return [], unavailable(self._url, fault)

    def _of(self, path: str, read: Callable[[Home], T], locked: bool = False) -> T | None:
        """What is made of one home; None where it is not there."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        except OSError as fault:
            if fault.errno != errno.ELOOP:
                raise
            status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise StoreCorrupt(self._url, f"{path} is no file, and is not ours: take it away")
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
