"""`Listing`: what all logs of a tenant hold. Places, what has expired, tenants.

A log that was read to its end before is not opened again if its file status shows that nobody can have written to it
since. A log that cannot be read does not stop the others: a warning names it, and so does `unread`.
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
"""Nanoseconds after which a change of a file is certain to give it another time: file systems keep times to some
milliseconds, or to a second."""

OF_ONE = (errno.EACCES, errno.EPERM, errno.EIO)
"""System errors that concern one file, and not every other as well."""


class Reads(Protocol):
    """Calls `read` with one home and returns its result, None if it has no log; `locked` waits for its writer first."""

    def __call__(self, path: str, read: Callable[[Home], T], locked: bool = False, /) -> T | None: ...


class Listing:
    """Lists what the logs of the store in `root` hold. `home` returns the home of a log, `reads` reads one."""

    def __init__(self, url: str, root: str, home: Callable[[str], Home], reads: Reads) -> None:
        self._url, self._root, self._home, self._reads = url, root, home, reads
        self._warned = set[str]()

    def listed(self, tenant: str, space: str, beneath: bool = False, locked: bool = False) -> list[Listed]:
        """Return the places of a space, or `beneath` of all that begin so. `locked` waits for writers at work first.

        Raises StoreCorrupt if the only home that can have such places is damaged, StoreUnavailable if no log can be
        read.
        """

        def meant(name: str) -> bool:
            return name.startswith(space) if beneath else name == space

        if not beneath and space.startswith(ITEMS):  # all items of a namespace are in the home of its name
            only = log_of(self._root, tenant, space.removeprefix(ITEMS))
            return self._of(only, lambda home: home.listed(meant), locked) or []
        found, any_read, out_of_reach = list[Listed](), False, None
        for path, listed, fault in self._each(self._logs(tenant), lambda home: home.listed(meant), locked):
            found += listed or ()
            if fault is None:
                any_read = True
                continue
            refused = self._refused(path, fault)
            named = None if refused is None else refused.listed(tenant, meant)
            if named is None:
                self._warn(path, fault)
            if isinstance(fault, StoreUnavailable):
                out_of_reach = out_of_reach or fault
            found += named or ()
        if out_of_reach is not None and not (any_read or found):
            raise out_of_reach
        return found

    def due(self, tenant: str, now: int) -> tuple[list[Due], StoreCorrupt | None]:
        """Return what has expired in logs that can be read, and the first fault of those that cannot."""
        found, damaged = list[Due](), None
        for _, due, fault in self._each(self._logs(tenant), lambda home: home.expired(now)):
            found += due or ()
            if fault is not None:
                damaged = damaged or StoreCorrupt(self._url, fault.reason)
        return found, damaged

    def tenants(self) -> set[str]:
        """Return the tenants that have a place with a head, as far as one of their logs tells their name."""
        found, out_of_reach = set[str](), None
        for folder in folders(self._root):
            paths, fault = self._within(folder)
            faults: list[tuple[str, StoreError]] = [(folder, fault)] if fault is not None else []
            for path, named, fault in self._each(paths, lambda home: home.tenant if home.heads else None):
                tenant = named
                if fault is not None:
                    faults.append((path, fault))
                    tenant = self._home(path).tenant if self._refused(path, fault) is not None else None
                if tenant is not None and tenant_folder(self._root, tenant) == folder:
                    found.add(tenant)
                    break
            else:
                for path, fault in faults:
                    self._warn(path, fault)
                    if isinstance(fault, StoreUnavailable):
                        out_of_reach = out_of_reach or fault
        if out_of_reach is not None and not found:
            raise out_of_reach
        return found

    def unread(self, tenant: str | None) -> dict[str, frozenset[str]]:
        """Return why logs that no listing has cannot be read, each with its sessions; of a tenant, or None of all."""
        found: dict[str, frozenset[str]] = {}
        tenants = folders(self._root) if tenant is None else [tenant_folder(self._root, tenant)]
        contents = [self._within(folder) for folder in tenants]
        found |= {fault.reason: frozenset() for _, fault in contents if fault is not None}
        for path, _, fault in self._each([path for paths, _ in contents for path in paths], lambda _: True):
            if fault is not None:
                refused = self._refused(path, fault)
                if refused is None or refused.listed(tenant or "", lambda _: True) is None:
                    found[fault.reason] = frozenset(refused.sessions if refused is not None else ())
        return found

    def _each(
        self, paths: list[str], read: Callable[[Home], T], locked: bool = False
    ) -> Iterator[tuple[str, T | None, StoreError | None]]:
        """Yield each path, with what `read` returns for its home, or why its log cannot be read."""
        for path in paths:
            result: T | None = None
            why: StoreError | None = None
            try:
                result = self._of(path, read, locked)
            except StoreCorrupt as fault:
                why = fault
            except StoreUnavailable:
                raise  # it is an OSError, too
            except OSError as fault:
                if fault.errno not in OF_ONE:
                    raise
                why = unavailable(self._url, fault)
            yield path, result, why

    def _refused(self, path: str, fault: StoreError) -> Refused | None:
        """Return what is known of a log that is refused; None for any other fault."""
        return self._home(path).refused if isinstance(fault, StoreCorrupt) else None

    def _warn(self, path: str, fault: StoreError) -> None:
        """Warn once that a log is in no listing."""
        if path not in self._warned:
            self._warned.add(path)
            warn("%s", f"{fault.reason}. Its content is not listed, searched, swept or forgotten")

    def _logs(self, tenant: str) -> list[str]:
        return self._in(tenant_folder(self._root, tenant))

    def _in(self, folder: str) -> list[str]:
        return [f"{folder}/{name}" for name in names(folder) if name.endswith(LOG)]

    def _within(self, folder: str) -> tuple[list[str], StoreError | None]:
        """Return the logs in a folder, or why it cannot be listed."""
        try:
            return self._in(folder), None
        except PermissionError as fault:
            return [], unavailable(self._url, fault)

    def _of(self, path: str, read: Callable[[Home], T], locked: bool = False) -> T | None:
        """Call `read` with one home and return its result; None if it has no log."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return None
        except OSError as fault:
            if fault.errno != errno.ELOOP:
                raise
            status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise StoreCorrupt(self._url, f"{path} is not a regular file: move it out of the folder")
        current = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        home = self._home(path)
        if not locked and home.settled == current:
            with home.lock:
                if home.settled == current:
                    return read(home)
        settled = current if time.time_ns() - status.st_ctime_ns > SETTLED else ()
        return self._reads(path, lambda home: self._settling(home, settled, read), locked)

    def _settling(self, home: Home, status: tuple[int, ...], read: Callable[[Home], T]) -> T:
        """Call `read`, and remember the status of the log if the home has read all of that."""
        home.settled = status if status[:3] == (*(home.file or ()), home.end) else ()
        return read(home)
